"""Statements: named blocks of the .sql files in `storage/sql`, written once and compiled for each database.

A file has the statements of one subject. A block begins with `-- name: cancel_waiting`. Where a statement is better
written twice, the block for one database begins with `-- name: add_arrivals [sqlite]`. `@locked_job` includes the block
that begins with `-- part: locked_job`. A part may have arguments: in `-- part: ends_as(state)`, `$state` stands for
what `@ends_as(ended.state)` passes. Where statements differ in a word, or in the parts that they include,
`-- name: logs(order: newest oldest)` begins two of them: `logs_newest`, in which `$order` stands for `newest`, and
`logs_oldest`. Statements name their tables as `headgate.job` and their parameters as `:name`.
`::type` applies to PostgreSQL; SQLite ignores it. Where the two differ, a macro is used:

- `{rows:late(id text, error json, place)}` is a table of the rows in parameter `late`: tuples, or objects with an
  attribute for each column. A column of type json takes any value that msgspec encodes; `place` numbers the rows.
- `{columns:late}` is the list of the names of the columns of that table.
- `{values:new(id text, payload text; task text, error json)}` is such a table in a statement that inserts its rows. A
  column that is the same in all rows is sent once. A semicolon precedes columns that differ less often between rows;
  PostgreSQL has a statement for each number of such groups that differ. On SQLite it is the only parameter of its
  statement.
- `job.id {any:ids text}` tests whether a value is in the list in parameter `ids`.
- The type `job_id` is that of ids of jobs and batches, which are numbers here and text above: `:id::job_id`,
  `{any:ids job_id}`, `{rows:ended(id job_id, …)}`. A parameter without it is passed as it is.
- `{for update}`, `{for update skip locked}` lock rows where there is more than one writer.
- `{greatest}(a, b)`, `{least}(a, b)` take values that are not NULL; `{position}(text, part)` is 0 if nothing is found.
- `{field:error.type}` is a text field of a column with a JSON object; NULL if the object does not have it.
- `{array:limit_name, key}` is a JSON array of values, as text.
- `{buckets:job.buckets}` is a table `ref (limit_name, key, place)` of the buckets in a column, `place` from 0 on. If
  the column is not JSON, the table has one bucket, on a limit that no app can declare.
- `{record:batch}` are the columns of a table that are fields of its record; `{record:job but state}` are all but one.
- `{no index}state` keeps SQLite from choosing an index by this condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from headgate.jobs.alert import AlertRecord
from headgate.jobs.audit import AuditEntry
from headgate.jobs.batch import BatchRecord
from headgate.jobs.identity import job_number
from headgate.jobs.job import AttemptRecord, JobRecord
from headgate.jobs.report import LogLine

S = TypeVar("S")

_HEADER = re.compile(
    r"^-- (?P<kind>name|part): (?P<name>\w+)(?:\((?P<arguments>[\w,: ]+)\))?(?: \[(?P<database>\w+)\])?$"
)
_INCLUDE = re.compile(r"@(?P<part>\w+)(?:\((?P<arguments>(?:[^()]|\([^()]*\))*)\))?")
_MACRO = re.compile(
    r"\{(?P<kind>rows|values|any|field|array|buckets|record):(?P<body>[^}]*)\}|\{(?P<word>[a-z ]+)\}", re.DOTALL
)
_ROWS = re.compile(r"(?P<parameter>\w+)\((?P<columns>[^)]*)\)")
_ID_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)::job_id\b")

_encode = msgspec.json.Encoder().encode

SQL = Path(__file__).with_name("sql")

RECORDS: Mapping[str, type[msgspec.Struct]] = {
    "job": JobRecord,
    "batch": BatchRecord,
    "attempt": AttemptRecord,
    "log_line": LogLine,
    "audit_entry": AuditEntry,
    "alert": AlertRecord,
}
"""The tables of which whole records are read: their columns are the fields of the record."""


class ParameterColumn(NamedTuple):
    """A column of a table that is passed as a parameter. A column without a type numbers the rows.

    It `is_id` if its values are the texts of ids, which are passed as numbers.
    """

    name: str
    type: str | None
    group: int = 0
    is_id: bool = False


class Dialect(Protocol):
    """How one database spells the macros of statements."""

    name: str
    words: Mapping[str, str]

    def rows(self, parameter: str, columns: Sequence[ParameterColumn]) -> str:
        """Return a table expression over the rows of a parameter, with the parameter's name as its alias."""
        ...

    def values(self, parameter: str) -> str:
        """Return what stands for such a table in an insertion, until the columns that differ between rows are known."""
        ...

    def any(self, parameter: str, type: str) -> str:
        """Return the rest of a condition that a value is in the list of a parameter."""
        ...

    def field(self, column: str, field: str) -> str:
        """Return an expression for a text field of a JSON object in a column."""
        ...

    def array(self, values: str) -> str:
        """Return an expression for a JSON array of these values, as text."""
        ...

    def buckets(self, column: str) -> str:
        """Return a table expression over the buckets in a column, with the alias `ref`."""
        ...

    def finish(self, sql: str) -> str:
        """Return the statement as the database takes it, except that its parameters are still `:name`."""
        ...


class Table:
    """A parameter that is a table: the columns that are read from its rows, and which of them are JSON."""

    def __init__(self, columns: Sequence[ParameterColumn], *, is_inserted: bool = False) -> None:
        named = [column for column in columns if column.type is not None]
        self.named = named
        self.columns = tuple(column.name for column in named)
        self.groups = [column.group for column in named]
        self._json_places = [place for place, column in enumerate(named) if column.type == "json"]
        self._id_places = [place for place, column in enumerate(named) if column.is_id]
        self.is_inserted = is_inserted
        self._get = attrgetter(*self.columns)

    def read(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the values of each row in the order of the columns; for a single column, the values themselves."""
        read = self._values(rows)
        if not self._id_places:
            return read
        if len(self.columns) == 1:
            return [number_of(id) for id in read]
        if self._id_places == [0]:
            return [(number_of(row[0]), *row[1:]) for row in read]
        return [self._with_numbers(row) for row in read]

    def _values(self, rows: Sequence[Any]) -> Sequence[Any]:
        # Tuples of the columns are sent as they are.
        are_read = rows and (type(rows[0]) is tuple or getattr(rows[0], "_fields", None) == self.columns)
        return rows if are_read and len(self.columns) > 1 else [self._get(row) for row in rows]

    def _with_numbers(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place in self._id_places:
            values[place] = number_of(values[place])
        return values

    def read_columns(self, rows: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the values of each column; of inserted rows only the first value, if it is the same in all rows."""
        read = self._values(rows)
        if len(self.columns) == 1:
            columns: list[Sequence[Any]] = [read]
        else:
            columns = list(zip(*read, strict=True)) or [()] * len(self.columns)
        if self.is_inserted and len(rows) > 1:
            columns = [values[:1] if values.count(values[0]) == len(values) else values for values in columns]
        for place in self._json_places:
            columns[place] = [optional_json(value) for value in columns[place]]
        for place in self._id_places:
            columns[place] = [number_of(id) for id in columns[place]]
        return columns

    def read_one(self, row: Any) -> list[Any]:
        """Return the values of one row of several columns."""
        (read,) = self.read([row])
        values = list(read)
        for place in self._json_places:
            values[place] = optional_json(values[place])
        return values


def number_of(id: str | None) -> int | None:
    """Return the number of an id, as it is passed to a statement; None stays None."""
    return None if id is None else job_number(id)


def numbers_in(parameters: Mapping[str, Any], ids: frozenset[str]) -> Mapping[str, Any]:
    """Return those of the parameters that are ids, or lists of ids, as numbers."""
    return {
        name: number_of(value) if value is None or isinstance(value, str) else [number_of(id) for id in value]
        for name, value in parameters.items()
        if name in ids
    }


class Template(NamedTuple):
    """A statement for one database with unbound parameters; the parameters that are tables, and those that are ids."""

    sql: str
    tables: Mapping[str, Table]
    ids: frozenset[str] = frozenset()


class Statements(Mapping[str, S]):
    """All statements for one database, by name. Each is compiled when it is first used: a process uses a third of them.

    `prepare` returns a statement as the driver runs it.
    """

    def __init__(self, dialect: Dialect, prepare: Callable[[Template], S]) -> None:
        blocks = [block for block in _load() if block.database in (None, dialect.name)]
        self._dialect = dialect
        self._prepare = prepare
        self._parts = {block.name: block for block in blocks if block.is_part}
        statements = (statement for block in blocks if not block.is_part for statement in _each(block))
        self._blocks = {statement.name: statement for statement in statements}
        self._compiled: dict[str, S] = {}

    def __getitem__(self, name: str) -> S:
        # Several threads may compile a statement at the same time, to the same text.
        found = self._compiled.get(name)
        if found is None:
            template = _compile(self._blocks[name].text, self._parts, self._dialect)
            found = self._compiled[name] = self._prepare(template)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


def columns_of(part: str) -> tuple[str, ...]:
    """Return the column names of the table of rows in a part, in order."""
    (text,) = [block.text for block in _load() if block.is_part and block.name == part]
    found = _ROWS.search(text)
    assert found is not None
    return Table(_columns(found["columns"])).columns


class _Block(NamedTuple):
    name: str
    database: str | None
    is_part: bool
    arguments: Sequence[str]
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()


@lru_cache(1)
def _load() -> list[_Block]:
    blocks: dict[tuple[str, str | None], _Block] = {}
    for file in sorted(SQL.glob("*.sql")):
        lines: list[str] | None = None
        for line in file.read_text(encoding="utf-8").splitlines():
            header = _HEADER.match(line)
            if header is not None:
                key = header["name"], header["database"]
                if key in blocks:
                    raise ValueError(f"{file.name} defines statement {header['name']} a second time")
                arguments = _listed(header["arguments"])
                blocks[key] = _Block(*key, header["kind"] == "part", arguments, lines := [])
            elif lines is not None and not line.lstrip().startswith("--"):
                lines.append(line)
    return list(blocks.values())


def _listed(text: str | None) -> list[str]:
    return re.split(r",\s*", text) if text else []


def _include(include: re.Match[str], parts: Mapping[str, _Block]) -> str:
    part = parts[include["part"]]
    text = part.text
    if not part.arguments:
        # What is in brackets belongs to the statement.
        return text + include[0][len(part.name) + 1 :]
    return _filled(text, part.arguments, _listed(include["arguments"]))


def _filled(text: str, arguments: Sequence[str], values: Sequence[str]) -> str:
    for name, value in zip(arguments, values, strict=True):
        text = text.replace(f"${name}", value)
    return text


def _each(block: _Block) -> Iterator[_Block]:
    """Return the statements that a block begins: one for each choice of words for its arguments."""
    declared = [argument.split(": ") for argument in block.arguments]
    names = [name for name, _ in declared]
    for words in product(*(words.split() for _, words in declared)):
        lines = [_filled(line, names, words) for line in block.lines]
        yield block._replace(name="_".join([block.name, *words]), lines=lines)


def _compile(text: str, parts: Mapping[str, _Block], dialect: Dialect) -> Template:
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda include: _include(include, parts), text)
    tables: dict[str, Table] = {}
    ids: set[str] = set()

    def expand(macro: re.Match[str]) -> str:
        match macro["kind"]:
            case "rows" | "values" as kind:
                found = _ROWS.fullmatch(macro["body"])
                if found is None:
                    raise ValueError(f"{macro[0]} is not {{{kind}:name(column type, …)}}")
                columns, parameter = _columns(found["columns"]), found["parameter"]
                tables[parameter] = Table(columns, is_inserted=kind == "values")
                return dialect.rows(parameter, columns) if kind == "rows" else dialect.values(parameter)
            case "any":
                parameter, type = macro["body"].split()
                if type == "job_id":
                    ids.add(parameter)
                    type = "bigint"
                return dialect.any(parameter, type)
            case "field":
                column, _, field = macro["body"].rpartition(".")
                return dialect.field(column, field)
            case "array":
                return dialect.array(macro["body"])
            case "buckets":
                return dialect.buckets(macro["body"])
            case "record":
                table, _, exceptions = macro["body"].partition(" but ")
                left_out = {"unreadable", *_listed(exceptions)}
                names = (name for name in RECORDS[table].__struct_fields__ if name not in left_out)
                return ", ".join(f"{table}.{name}" for name in names)
        return dialect.words[macro["word"]]

    sql = _MACRO.sub(expand, text)
    ids.update(_ID_PARAMETER.findall(sql))
    sql = sql.replace("::job_id", "::bigint")
    for parameter, table in tables.items():
        sql = sql.replace(f"{{columns:{parameter}}}", ", ".join(table.columns))
    return Template(dialect.finish(sql), tables, frozenset(ids))


def _columns(text: str) -> list[ParameterColumn]:
    return [_column(column, group) for group, part in enumerate(text.split(";")) for column in part.split(",")]


def _column(text: str, group: int) -> ParameterColumn:
    name, _, type = text.strip().partition(" ")
    return ParameterColumn(name, "bigint" if type == "job_id" else type or None, group, is_id=type == "job_id")


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def optional_json(value: Any) -> str | None:
    """Return a value as JSON text; None stays None."""
    return None if value is None else _encode(value).decode()


def limit_needle(limit: str) -> str:
    """Return text that the stored buckets of a limit contain, and no others: quotes inside names are escaped."""
    return f"[{as_json(limit)},"


def tag_needle(tag: str) -> str:
    """Return text that is in stored options with this tag, once their brackets are commas, and in no others."""
    return f"{as_json(tag)},"


def member_needle(name: str, value: str | float | bool) -> str:
    """Return text that is in a stored JSON object with this member, once its first brace is a comma, and in no others.

    Inside of texts, a quote never follows a comma: it is escaped. After a number, something has to end it.
    """
    return f",{as_json(name)}:{as_json(value)}"
