"""SQLite's spelling of statements, and how rows go in and come out: as one JSON text each.

A statement is then one step of SQLite, which releases the interpreter lock once, however many rows it touches: with a
row at a time, a busy event loop made the writer thread wait for the lock at each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from headgate.storage.json_text import as_json
from headgate.storage.statements import Column, Template, compile_statements
from headgate.storage.stored_rows import Field, RowDecoder

_CAST = re.compile(r"::[a-z]+(?:\[\])?")


class SqliteDialect:
    """As `Dialect`. Tables are parameters of JSON text."""

    name = "sqlite"
    words: Mapping[str, str] = {
        "for update": "",
        "for update skip locked": "",
        "for update of schedule skip locked": "",
        "greatest": "max",
        "least": "min",
        "position": "instr",
        "no index": "+",
    }

    def rows(self, parameter: str, columns: Sequence[Column]) -> str:
        named = [column for column in columns if column.type is not None]
        place = {id(column): place for place, column in enumerate(named)}
        read = [
            f"key AS {column.name}"
            if column.type is None
            else f"value AS {column.name}"
            if len(named) == 1
            else f"json_extract(value, '$[{place[id(column)]}]') AS {column.name}"
            for column in columns
        ]
        return f"(SELECT {', '.join(read)} FROM json_each(:{parameter})) AS {parameter}"

    def any(self, parameter: str, type: str) -> str:
        return f"IN (SELECT value FROM json_each(:{parameter}))"

    def field(self, column: str, field: str) -> str:
        # One damaged value would be an error of the whole statement.
        return f"json_extract(iif(json_valid({column}), {column}, 'null'), '$.{field}')"

    def finish(self, sql: str) -> str:
        return _CAST.sub("", sql).replace("headgate.", "")


class Statement(NamedTuple):
    """A statement, and what makes its parameters from what is passed: JSON text of lists and of rows."""

    sql: str
    rows: Mapping[str, attrgetter[Any]]
    returns: bool

    def bind(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters as the connection takes them."""
        return {
            name: as_json([self.rows[name](row) for row in value] if name in self.rows else list(value))
            if isinstance(value, (list, tuple, set, frozenset))
            else value
            for name, value in parameters.items()
        }


def _statement(template: Template) -> Statement:
    rows = {
        parameter: attrgetter(*(column.name for column in columns if column.type is not None))
        for parameter, columns in template.rows.items()
    }
    return Statement(template.sql, rows, re.search(r"\bRETURNING\b", template.sql) is not None)


STATEMENTS = {name: _statement(template) for name, template in compile_statements(SqliteDialect()).items()}


@lru_cache(None)
def as_one_value(statement: str, decoder: RowDecoder[Any]) -> str:
    """The statement with its rows as one JSON array, each an array of the fields of `decoder`."""
    columns = ", ".join(_as_json_value(field) for field in decoder.fields)
    return f"SELECT json_group_array(json_array({columns})) FROM ({STATEMENTS[statement].sql})"


def _as_json_value(field: Field) -> str:
    column = f'"{field.name}"'
    match field.kind:
        case "json":
            # Text that is no JSON comes out as text, which the decoder of the row refuses.
            return (
                f"CASE WHEN {column} IS NOT NULL THEN iif(typeof({column}) = 'text' AND json_valid({column}), "
                f"json({column}), CAST({column} AS text)) END"
            )
        case "plain" | "boolean":
            # The decoder takes 0 and 1 for truth values: to make them JSON's took a third of the time of a read.
            return column
