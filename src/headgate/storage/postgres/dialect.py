"""PostgreSQL's spelling of statements: tables are typed arrays, parameters are numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from headgate.storage.json_text import optional_json
from headgate.storage.postgres.statements import Statement, in_schema, load_statements
from headgate.storage.statements import Column, Template, compile_statements

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+(?:\.[a-z_]+)?)")


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
    }

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def rows(self, parameter: str, columns: Sequence[Column]) -> str:
        arrays = ", ".join(
            f":{parameter}.{column.name}::{'text' if column.type == 'json' else column.type}[]"
            for column in columns
            if column.type is not None
        )
        numbered = any(column.type is None for column in columns)
        names = [column.name for column in sorted(columns, key=lambda column: column.type is None)]
        return f"unnest({arrays}){' WITH ORDINALITY' if numbered else ''} AS {parameter} ({', '.join(names)})"

    def any(self, parameter: str, type: str) -> str:
        return f"= ANY(:{parameter}::{type}[])"

    def field(self, column: str, field: str) -> str:
        # It is written without spaces, and a quote inside of a value has a backslash before it. JSON that is damaged
        # would be an error of the whole statement, a pattern is none.
        return f"""substring({column} FROM '"{field}":"([^"\\\\]*)"')"""

    def finish(self, sql: str) -> str:
        return in_schema(sql, self._schema)


class Table(NamedTuple):
    """A parameter that is a table: its columns' names as parameters, how they are read from a row, which are JSON."""

    columns: Sequence[str]
    get: Callable[[Any], Any]
    are_json: Sequence[bool]

    def arrays(self, rows: Sequence[Any]) -> Mapping[str, list[Any]]:
        """An array for each column."""
        read = [self.get(row) for row in rows]
        if len(self.columns) == 1:
            columns: Sequence[Sequence[Any]] = [read]
        else:
            columns = list(zip(*read, strict=True)) or [()] * len(self.columns)
        return {
            name: [optional_json(value) for value in values] if is_json else list(values)
            for name, is_json, values in zip(self.columns, self.are_json, columns, strict=True)
        }


class CompiledStatement(NamedTuple):
    """A statement as the server takes it, the names of its parameters in their order, and those that are tables."""

    sql: str
    names: tuple[str, ...]
    tables: Mapping[str, Table]

    def bind(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The parameters in their order."""
        if self.tables:
            given = dict(parameters)
            for name, table in self.tables.items():
                given |= table.arrays(parameters[name])
            parameters = given
        return [parameters[name] for name in self.names]


AnyStatement = Statement | CompiledStatement


def statements_of(schema: str) -> Mapping[str, AnyStatement]:
    """All statements, with their tables in that schema."""
    shared = {name: _compiled(template) for name, template in compile_statements(PostgresDialect(schema)).items()}
    return {**load_statements(schema), **shared}


def _compiled(template: Template) -> CompiledStatement:
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    sql = _PARAMETER.sub(number, template.sql)
    tables = {
        parameter: Table(
            [f"{parameter}.{column.name}" for column in columns if column.type is not None],
            attrgetter(*(column.name for column in columns if column.type is not None)),
            [column.type == "json" for column in columns if column.type is not None],
        )
        for parameter, columns in template.rows.items()
    }
    return CompiledStatement(sql, tuple(names), tables)
