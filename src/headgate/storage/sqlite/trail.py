"""What people did: kept in the commit that does it."""

from __future__ import annotations

import sqlite3

from msgspec.structs import asdict

from headgate.jobs.audit import Deed
from headgate.storage.sqlite.statements import execute


def keep_deed(connection: sqlite3.Connection, deed: Deed | None, now: int) -> None:
    """Keep what somebody did; nothing of what nobody is told to have done."""
    if deed is not None:
        execute(connection, "keep_deed", now=now, **asdict(deed.cut()))
