"""What a SQLite file counts for charts itself, and which writes to them were made."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.jobs.history import KEPT_FOR, Flush
from headgate.storage.sqlite.statements import as_json, execute

Note = tuple[str, str, int, int, int]
"""A queue, a task, and how many of its jobs were enqueued, failed and were cancelled."""

_LENGTHS = as_json(list(KEPT_FOR))


def note(connection: sqlite3.Connection, notes: Sequence[Note], now: int) -> None:
    """Count what nobody else counts. One commit at a time writes to a file, so it is added at once."""
    if notes:
        execute(connection, "note_history", notes=as_json(notes), now=now, lengths=_LENGTHS)


def note_flush(connection: sqlite3.Connection, flush: Flush, portion: int, now: int) -> bool:
    """Whether this write was not made before; then it is now."""
    noted = {"writer": flush.writer, "number": flush.number, "portion": portion, "now": now}
    return execute(connection, "note_flush", **noted) == 1
