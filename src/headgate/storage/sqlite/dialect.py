"""SQLite's spelling of statements, and how rows are passed in and out: as one JSON text each.

A statement is then one step of SQLite, which releases the interpreter lock once, however many rows it touches. With
one step for each row, a busy event loop made the writer thread wait for the lock at each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from headgate.storage.statements import ParameterColumn, Statements, Table, Template, as_json, numbers_in
from headgate.storage.stored_rows import UNREADABLE_BUCKETS, Field, RowDecoder

BLOCKS = (128, 64, 32, 16, 8, 4, 2, 1)
"""How many rows one statement inserts. Reading them from JSON took longer than storing them: 9.1 µs a job, not 4.1."""

_VALUES = "(VALUES)"

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
        "no join": "",
        "then by id": "",  # it would read all equals, and there is one writer
    }

    def rows(self, parameter: str, columns: Sequence[ParameterColumn]) -> str:
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

    def values(self, parameter: str) -> str:
        return f"{_VALUES} AS {parameter}"

    def any(self, parameter: str, type: str) -> str:
        return f"IN (SELECT value FROM json_each(:{parameter}))"

    def field(self, column: str, field: str) -> str:
        # One damaged value would fail the whole statement.
        return f"json_extract(iif(json_valid({column}), {column}, 'null'), '$.{field}')"

    def array(self, values: str) -> str:
        return f"json_array({values})"

    def buckets(self, column: str) -> str:
        # JSON of another shape would fail the whole statement too: a text in it need not be JSON.
        ref = "iif(json_valid(value), value, 'null')"
        return (
            f"(SELECT json_extract({ref}, '$[0]') AS limit_name, json_extract({ref}, '$[1]') AS key, key AS place "
            f"FROM json_each(iif(json_valid({column}), {column}, '{as_json(UNREADABLE_BUCKETS)}'))) AS ref"
        )

    def finish(self, sql: str) -> str:
        return _CAST.sub("", sql).replace("headgate.", "")


class Statement(NamedTuple):
    """A statement, and the conversion of its parameters: lists and rows become JSON text."""

    sql: str
    tables: Mapping[str, Table]
    returns: bool
    inserted: str | None = None
    """The parameter whose rows it inserts, if they are bound value by value."""
    for_one: str = ""
    """The statement for one such row."""
    ids: frozenset[str] = frozenset()
    """The parameters that are ids, or lists of ids."""

    def bind(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters as the connection takes them."""
        if self.ids:
            parameters = {**parameters, **numbers_in(parameters, self.ids)}
        return {
            name: as_json(self.tables[name].read(list(value)) if name in self.tables else list(value))
            if isinstance(value, (list, tuple, set, frozenset))
            else value
            for name, value in parameters.items()
        }

    def insertions(self, rows: Sequence[Any]) -> Iterable[tuple[str, Sequence[Any]]]:
        """Return the statement for each block of the rows, and its values in order."""
        assert self.inserted is not None
        table = self.tables[self.inserted]
        return [(self.for_one, table.read_one(rows[0]))] if len(rows) == 1 else self._in_blocks(table, rows)

    def _in_blocks(self, table: Table, rows: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
        columns = table.read_columns(rows)
        spelled = tuple(
            None if len(values) == len(rows) else "NULL" if values[0] is None else "?" for values in columns
        )
        shared = [values[0] for values, word in zip(columns, spelled, strict=True) if word == "?"]
        own = [values for values, word in zip(columns, spelled, strict=True) if word is None]
        each = list(zip(*own, strict=True))
        start = 0
        for size in BLOCKS:
            sql = _with_values(self.sql, table.columns, spelled, size) if len(rows) - start >= size else ""
            while len(rows) - start >= size:
                yield sql, [*shared, *chain.from_iterable(each[start : start + size])]
                start += size


@lru_cache(1000)
def _with_values(sql: str, columns: Sequence[str], spelled: Sequence[str | None], size: int) -> str:
    """Return the statement for `size` rows; a column whose word is None has its own value in each of them."""
    read: list[str] = []
    own = 0
    for column, word in zip(columns, spelled, strict=True):
        own += word is None
        read.append(f"{word or f'column{own}'} AS {column}")
    row = f"({', '.join('?' * own)})"
    rows = f" FROM (VALUES {', '.join([row] * size)})" if own else ""
    return sql.replace(_VALUES, f"(SELECT {', '.join(read)}{rows})")


def _statement(template: Template) -> Statement:
    sql, tables, ids = template
    returns = re.search(r"\bRETURNING\b", sql) is not None
    for name, table in tables.items():
        if table.is_inserted:
            for_one = _with_values(sql, table.columns, ("?",) * len(table.columns), 1)
            return Statement(sql, tables, returns, name, for_one, ids)
    return Statement(sql, tables, returns, ids=ids)


STATEMENTS = Statements(SqliteDialect(), _statement)


@lru_cache(None)
def as_one_value(statement: str, decoder: RowDecoder[Any]) -> str:
    """Return the statement with its rows as one JSON array, each an array of the fields of `decoder`."""
    columns = ", ".join(_as_json_value(field) for field in decoder.fields)
    return f"SELECT json_group_array(json_array({columns})) FROM ({STATEMENTS[statement].sql})"


def _as_json_value(field: Field) -> str:
    column = f'"{field.name}"'
    match field.kind:
        case "json":
            # Text that is not JSON is returned as text, which the row's decoder refuses.
            return (
                f"CASE WHEN {column} IS NOT NULL THEN iif(typeof({column}) = 'text' AND json_valid({column}), "
                f"json({column}), CAST({column} AS text)) END"
            )
        case "plain" | "boolean":
            # The decoder takes 0 and 1 for booleans: converting them to JSON's took a third of the time of a read.
            return column
