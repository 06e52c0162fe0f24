"""The statements of this store, one .sql file each.

They name their tables as `headgate.job` and their values as `:name`, so that they can be read, and run by hand. Here
the schema becomes the one that was chosen, and the names become the numbers that the driver wants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from headgate.errors import DeclarationError
from headgate.storage.json_text import as_json
from headgate.storage.stored_rows import UNREADABLE_DRAWS

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,30}")

_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")
_SHARED = re.compile(r"@(\w+)")

_TEXT = r'"([^"\\\u0001-\u001f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_DRAWS = rf"^\[(\[{_TEXT},{_TEXT}\](,\[{_TEXT},{_TEXT}\])*)?\]$"
_COUNTS = r"^\[([0-9]{1,9}(, ?[0-9]{1,9})*)?\]$"
_DRAWS_CAST = re.compile(r"\b((?:[a-z]+\.)?draws)::json\b")
_COUNTS_CAST = re.compile(r"((?:\b[a-z]+\.(?:waits|runs))|coalesce\(start\.settled, start\.costs\))::json\b")


class Statement(NamedTuple):
    """A statement as the driver wants it, and the names of its values in their order."""

    sql: str
    names: tuple[str, ...]

    def bind(self, values: Mapping[str, Any]) -> list[Any]:
        """The values in their order."""
        return [values[each] for each in self.names]


def checked_schema(schema: str) -> str:
    """The name of a schema. Raises DeclarationError for one that would need care everywhere it is written."""
    if SCHEMA_NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise DeclarationError(
            f"schema={schema!r} must be 1 to 31 lower-case letters, digits and underscores, not begin with a digit, "
            "and not begin with pg_, which PostgreSQL keeps for itself"
        )
    return schema


def load_statements(schema: str) -> dict[str, Statement]:
    """All statements, by the names of their files. `@name` stands for a part that several of them share."""
    texts = {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in (resources.files(__package__) / "queries").iterdir()
        if entry.name.endswith(".sql")
    }
    return {name: _compile(text, texts, schema) for name, text in texts.items()}


def in_schema(script: str, schema: str) -> str:
    """A script with its tables in that schema."""
    return re.sub(r"\bheadgate\.", f'"{schema}".', script)


def _compile(text: str, texts: dict[str, str], schema: str) -> Statement:
    lines = _without_comments(text)
    while _SHARED.search(lines):
        lines = _SHARED.sub(lambda shared: _without_comments(texts[shared[1]]), lines)
    lines = guarded(lines)
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return Statement(in_schema(_NAME.sub(number, lines), schema), tuple(names))


def guarded(statement: str) -> str:
    """The same, with columns whose text may be no JSON: one damaged row would be an error of the whole statement.

    A column is only taken for JSON where it has the shape that is written there. `IS JSON` is of PostgreSQL 16.
    """

    def guard(shape: str, otherwise: str) -> Callable[[re.Match[str]], str]:
        return lambda cast: f"(CASE WHEN {cast[1]} ~ '{shape}' THEN {cast[1]} ELSE '{otherwise}' END)::json"

    statement = _DRAWS_CAST.sub(guard(_DRAWS, as_json(UNREADABLE_DRAWS)), statement)
    return _COUNTS_CAST.sub(guard(_COUNTS, "[]"), statement)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
