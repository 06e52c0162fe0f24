"""Statements: named blocks of the .sql files in `storage/sql`, written once and compiled for each database.

A file holds the statements of one subject. A block begins with `-- name: cancel_waiting`; `-- name: arrive [sqlite]` is
the block of one database, where a statement is better written twice. `@found_job` includes the block that begins with
`-- part: found_job`. Statements name their tables as `headgate.job` and their parameters as `:name`; `::type` is
PostgreSQL's, and SQLite ignores it. What the two spell differently is a macro:

- `{rows:late(id text, error json, place)}` is a table of the rows in parameter `late`: objects with an attribute for
  each column. A column of type json takes any value that msgspec encodes; `place` numbers the rows.
- `job.id {any:ids text}` tests whether a value is in the list in parameter `ids`.
- `{for update}`, `{for update skip locked}` lock rows where there is more than one writer.
- `{greatest}(a, b)`, `{least}(a, b)` of values that are not NULL; `{position}(text, part)`, 0 if it is not in it.
- `{field:error.type}` is a text field of a column that holds a JSON object; NULL where it has none.
- `{no index}state` keeps SQLite from choosing an index by this condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple, Protocol

_HEADER = re.compile(r"^-- (?P<kind>name|part): (?P<name>\w+)(?: \[(?P<database>\w+)\])?$")
_INCLUDE = re.compile(r"@(\w+)")
_MACRO = re.compile(r"\{(?P<kind>rows|any|field):(?P<body>[^}]*)\}|\{(?P<word>[a-z ]+)\}", re.DOTALL)
_ROWS = re.compile(r"(?P<parameter>\w+)\((?P<columns>[^)]*)\)")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Column(NamedTuple):
    """A column of a table that is passed as a parameter. One without a type numbers the rows."""

    name: str
    type: str | None


class Dialect(Protocol):
    """How one database spells what statements leave open."""

    name: str
    words: Mapping[str, str]

    def rows(self, parameter: str, columns: Sequence[Column]) -> str:
        """A table expression over the rows of a parameter, with the parameter's name as its alias."""
        ...

    def any(self, parameter: str, type: str) -> str:
        """The rest of a condition that a value is in the list of a parameter."""
        ...

    def field(self, column: str, field: str) -> str:
        """A text field of a JSON object in a column."""
        ...

    def finish(self, sql: str) -> str:
        """The statement as the database takes it, but for its parameters, which are `:name` still."""
        ...


class Template(NamedTuple):
    """A statement for one database, before its parameters are bound; the columns of those that are tables."""

    sql: str
    rows: Mapping[str, Sequence[Column]]

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters, in the order in which they are first used."""
        return list(dict.fromkeys(_PARAMETER.findall(self.sql)))


def compile_statements(dialect: Dialect) -> dict[str, Template]:
    """All statements, by name, for one database."""
    blocks = [block for block in _load() if block.database in (None, dialect.name)]
    parts = {block.name: block.text for block in blocks if block.is_part}
    return {block.name: _compile(block.text, parts, dialect) for block in blocks if not block.is_part}


class _Block(NamedTuple):
    name: str
    database: str | None
    is_part: bool
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()


def _load() -> list[_Block]:
    blocks: dict[tuple[str, str | None], _Block] = {}
    for file in sorted((resources.files("headgate.storage") / "sql").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        lines: list[str] | None = None
        for line in file.read_text(encoding="utf-8").splitlines():
            header = _HEADER.match(line)
            if header is not None:
                key = header["name"], header["database"]
                if key in blocks:
                    raise ValueError(f"{file.name} names statement {header['name']} a second time")
                blocks[key] = _Block(*key, is_part=header["kind"] == "part", lines=(lines := []))
            elif lines is not None and not line.lstrip().startswith("--"):
                lines.append(line)
    return list(blocks.values())


def _compile(text: str, parts: Mapping[str, str], dialect: Dialect) -> Template:
    while _INCLUDE.search(text):
        text = _INCLUDE.sub(lambda include: parts[include[1]], text)
    rows: dict[str, Sequence[Column]] = {}

    def expand(macro: re.Match[str]) -> str:
        match macro["kind"]:
            case "rows":
                found = _ROWS.fullmatch(macro["body"])
                if found is None:
                    raise ValueError(f"{macro[0]} is not {{rows:name(column type, …)}}")
                columns = [_column(column) for column in found["columns"].split(",")]
                rows[found["parameter"]] = columns
                return dialect.rows(found["parameter"], columns)
            case "any":
                parameter, type = macro["body"].split()
                return dialect.any(parameter, type)
            case "field":
                column, _, field = macro["body"].rpartition(".")
                return dialect.field(column, field)
        return dialect.words[macro["word"]]

    return Template(dialect.finish(_MACRO.sub(expand, text)), rows)


def _column(text: str) -> Column:
    name, _, type = text.strip().partition(" ")
    return Column(name, type or None)
