"""The statements of this store, one .sql file each, and how they are run.

Rows go in and come out as one JSON value. A statement is then one step of SQLite, which lets go of the interpreter lock
once, however many rows it touches: with a row at a time, a busy event loop made the writer thread wait for the lock at
each of them (650 rows/s against 3,200, measured with a loop that never rests).
"""

from __future__ import annotations

import re
import sqlite3
from importlib import resources
from typing import Any

from headgate.storage.json_text import as_json as as_json
from headgate.storage.stored_rows import UNREADABLE_DRAWS


def _load() -> dict[str, str]:
    folder = resources.files(__package__) / "queries"
    statements = {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
    # `@name` stands for a condition that several statements share.
    return {
        name: _guarded(re.sub(r"@(\w+)", lambda shared: statements[shared[1]].rstrip(), statement))
        for name, statement in statements.items()
    }


def _guarded(statement: str) -> str:
    """The same, with columns whose text may be no JSON: one damaged row would be an error of the whole statement.

    Where such a column is part of what comes out, its text comes out instead, which the decoder of the row refuses;
    where the statement looks into it, there is nothing in it. Draws are never nothing: a job without any runs freely.
    """
    # What `json_each` takes out of a parameter is JSON; what it takes out of the draws of a row need not be.
    column = r"(draw\.value|(?:[a-z_]+\.)?(?!value\b)[a-z_]+)"
    statement = re.sub(
        rf"\bjson\({column}\)",
        # Most of these columns are empty in most rows, so that is asked first.
        r"CASE WHEN \1 IS NOT NULL THEN iif(typeof(\1) = 'text' AND json_valid(\1), json(\1), CAST(\1 AS TEXT)) END",
        statement,
    )
    draws = as_json(UNREADABLE_DRAWS)
    statement = re.sub(
        r"\bjson_each\(((?:[a-z_]+\.)?draws)\)", rf"json_each(iif(json_valid(\1), \1, '{draws}'))", statement
    )
    statement = re.sub(rf"\bjson_each\({column}\)", r"json_each(iif(json_valid(\1), \1, '[]'))", statement)
    return re.sub(rf"\bjson_extract\({column},", r"json_extract(iif(json_valid(\1), \1, 'null'),", statement)


STATEMENTS = _load()


def execute(connection: sqlite3.Connection, statement: str, **values: Any) -> int:
    """Run a statement that changes rows; how many it changed."""
    return connection.execute(STATEMENTS[statement], values).rowcount


def fetch(connection: sqlite3.Connection, statement: str, **values: Any) -> Any:
    """Run a statement that yields one value, and return it."""
    # fetchall, not fetchone: it runs the statement to its end, so that it holds no read transaction open.
    return connection.execute(STATEMENTS[statement], values).fetchall()[0][0]
