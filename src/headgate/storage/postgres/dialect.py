"""PostgreSQL's spelling of statements: tables are typed arrays, parameters are numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headgate.errors import DeclarationError
from headgate.storage.statements import ParameterColumn, Statements, Table, Template, as_json, numbers_in
from headgate.storage.stored_rows import UNREADABLE_BUCKETS

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,30}")

_LITERAL = re.compile(r"""--[^\n]*|"[^"]*"|\b[Ee]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'""")
"""A comment, a quoted name, a literal with its own escapes, or a plain literal."""

_INDENTATION = re.compile(r"\n +")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+(?:\.[a-z_]+)?)")

_TEXT = r'"([^"\\\u0001-\u001f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_REF = rf"\[{_TEXT}(,{_TEXT})?\]"
_REFS = rf"^\[({_REF}(,{_REF})*)?\]$"
"""The shape of buckets, or of buckets without their keys."""

_REFS_OF_JOB = rf"^\[(\[{_TEXT},{_TEXT}\](,\[{_TEXT},{_TEXT}\])*)?\]$"
_COUNTS = r"^\[([0-9]{1,9}(, ?[0-9]{1,9})*)?\]$"
_REFS_CAST = re.compile(r"\b((?:[a-z]+\.)?buckets)::json\b")
_COUNTS_CAST = re.compile(r"((?:\b[a-z]+\.(?:waits|runs))|coalesce\(start\.settled, start\.costs\))::json\b")


class PostgresDialect:
    """As `Dialect`, for tables in one schema."""

    name = "postgres"
    words: Mapping[str, str] = {
        "for update": "FOR UPDATE",
        "for update skip locked": "FOR UPDATE SKIP LOCKED",
        "for update of schedule skip locked": "FOR UPDATE OF schedule SKIP LOCKED",
        "greatest": "greatest",
        "least": "least",
        "position": "strpos",
        "no index": "",
        "no join": "OFFSET 0",
        "then by id": ", id",
    }

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def rows(self, parameter: str, columns: Sequence[ParameterColumn]) -> str:
        arrays = ", ".join(_array(parameter, column) for column in columns if column.type is not None)
        numbered = any(column.type is None for column in columns)
        names = [column.name for column in sorted(columns, key=lambda column: column.type is None)]
        return f"unnest({arrays}){' WITH ORDINALITY' if numbered else ''} AS {parameter} ({', '.join(names)})"

    def values(self, parameter: str) -> str:
        return f"{{{parameter}}} AS {parameter}"

    def any(self, parameter: str, type: str) -> str:
        return f"= ANY(:{parameter}::{type}[])"

    def field(self, column: str, field: str) -> str:
        # It is written without spaces, before all objects in it, and a quote inside a value has a backslash before it.
        # Damaged JSON would fail the whole statement; a pattern does not.
        return f"""substring({column} FROM '^\\{{[^{{}}]*"{field}":"([^"\\\\]*)"')"""

    def array(self, values: str) -> str:
        return f"json_build_array({values})::text"

    def buckets(self, column: str) -> str:
        # A cast of text that is not JSON would fail the whole statement. `IS JSON` needs PostgreSQL 16.
        read = f"(CASE WHEN {column} ~ '{_REFS}' THEN {column} ELSE '{as_json(UNREADABLE_BUCKETS)}' END)::json"
        return (
            "(SELECT value ->> 0 AS limit_name, value ->> 1 AS key, place - 1 AS place "
            f"FROM json_array_elements({read}) WITH ORDINALITY AS each (value, place)) AS ref"
        )

    def finish(self, sql: str) -> str:
        # Without its indentation: the pool that an app lends plans statements of more than 15 KiB anew each time.
        return in_schema(_guarded(_INDENTATION.sub("\n", sql)), self._schema)


def checked_schema(schema: str) -> str:
    """Return the name of a schema. Raises DeclarationError for a name that would need quoting."""
    if SCHEMA_NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise DeclarationError(
            f"schema={schema!r} must be 1 to 31 lower-case letters, digits and underscores, not begin with a digit, "
            "and not begin with pg_, which PostgreSQL reserves"
        )
    return schema


def in_schema(script: str, schema: str) -> str:
    """Return a script with its tables in that schema.

    Its literals mean the same with any `standard_conforming_strings`, a setting that roles and lent connections bring:
    those with a backslash are written with an E and two.
    """
    return _LITERAL.sub(_written_out, re.sub(r"\bheadgate\.", f'"{schema}".', script))


def _written_out(found: re.Match[str]) -> str:
    text = found[0]
    return "E" + text.replace("\\", "\\\\") if text.startswith("'") and "\\" in text else text


def _guarded(statement: str) -> str:
    """Return the statement with a guard around columns that may not be JSON: a damaged row would fail the statement.

    A column is cast only if it has the shape that is written there. `IS JSON` needs PostgreSQL 16.
    """

    def guard(shape: str, otherwise: str) -> Callable[[re.Match[str]], str]:
        return lambda cast: f"(CASE WHEN {cast[1]} ~ '{shape}' THEN {cast[1]} ELSE '{otherwise}' END)::json"

    statement = _REFS_CAST.sub(guard(_REFS_OF_JOB, as_json(UNREADABLE_BUCKETS)), statement)
    return _COUNTS_CAST.sub(guard(_COUNTS, "[]"), statement)


def _array(parameter: str, column: ParameterColumn) -> str:
    return f"{_value(parameter, column)}[]"


def _value(parameter: str, column: ParameterColumn) -> str:
    return f":{parameter}.{column.name}::{'text' if column.type == 'json' else column.type}"


class CompiledStatement(NamedTuple):
    """A statement as the server takes it, the names of its parameters in order, and the parameters that are tables."""

    sql: str
    names: tuple[str, ...]
    tables: Mapping[str, Table]
    ids: frozenset[str] = frozenset()

    def fit(self, parameters: Mapping[str, Any]) -> tuple[CompiledStatement, list[Any]]:
        """Return this statement, and the parameters in order."""
        if self.ids:
            parameters = {**parameters, **numbers_in(parameters, self.ids)}
        if self.tables:
            given = dict(parameters)
            for name, table in self.tables.items():
                for column, values in zip(table.columns, table.read_columns(parameters[name]), strict=True):
                    given[f"{name}.{column}"] = list(values)
            parameters = given
        return self, [parameters[name] for name in self.names]


class Insertion:
    """A statement that inserts rows. For columns that are equal in all rows one value is sent, for others an array.

    An array costs client and server 0.2 µs a row, and 1 µs and more even for one row.
    """

    def __init__(self, template: Template) -> None:
        self.tables = template.tables
        self._sql = template.sql
        self._ids = template.ids
        self._inserted = {name: table for name, table in self.tables.items() if table.is_inserted}
        self._read_tables = {name: table for name, table in self.tables.items() if not table.is_inserted}
        self._compiled: dict[tuple[int, ...], CompiledStatement] = {}

    def fit(self, parameters: Mapping[str, Any]) -> tuple[CompiledStatement, list[Any]]:
        """Return the statement for these rows, and its parameters in order."""
        given = dict(parameters)
        differ: list[int] = []
        for name, table in self._inserted.items():
            rows = given.pop(name)
            columns = table.read_columns(rows)
            groups = 0
            if len(rows) > 1:
                are_own = zip(table.groups, columns, strict=True)
                # Rows that are all equal count as one.
                groups = max((group + 1 for group, values in are_own if len(values) == len(rows)), default=0)
            for column, group, values in zip(table.columns, table.groups, columns, strict=True):
                if group >= groups:
                    given[f"{name}.{column}"] = values[0]
                else:
                    given[f"{name}.{column}"] = values if len(values) == len(rows) else list(values) * len(rows)
            differ.append(groups)
        shape = tuple(differ)
        known = self._compiled.get(shape)
        if known is None:
            known = self._compiled[shape] = self._compile(shape)
        return known.fit(given)

    def _compile(self, shape: Sequence[int]) -> CompiledStatement:
        sql = self._sql
        for groups, (name, table) in zip(shape, self._inserted.items(), strict=True):
            sql = sql.replace(f"{{{name}}}", _rows(name, table.named, groups))
        return _compiled(Template(sql, self._read_tables, self._ids))


def _rows(parameter: str, columns: Sequence[ParameterColumn], groups: int) -> str:
    own = [column for column in columns if column.group < groups]
    read = ", ".join(
        column.name if column.group < groups else f"{_value(parameter, column)} AS {column.name}" for column in columns
    )
    if not own:
        return f"(SELECT {read})"
    arrays, names = ", ".join(_array(parameter, column) for column in own), ", ".join(column.name for column in own)
    return f"(SELECT {read} FROM unnest({arrays}) AS sent ({names}))"


AnyStatement = CompiledStatement | Insertion


@lru_cache(8)
def statements_of(schema: str) -> Mapping[str, AnyStatement]:
    """Return all statements, with their tables in that schema."""
    return Statements(PostgresDialect(schema), _prepared)


def _prepared(template: Template) -> AnyStatement:
    inserts = any(table.is_inserted for table in template.tables.values())
    return Insertion(template) if inserts else _compiled(template)


def _compiled(template: Template) -> CompiledStatement:
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    sql = _PARAMETER.sub(number, template.sql)
    return CompiledStatement(sql, tuple(names), template.tables, template.ids)
