"""Adding jobs inside a transaction that the caller has open on the file of the jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from headgate.errors import UnfitConnection
from headgate.storage.enlisting import Enlisted

T = TypeVar("T")


async def run_in(caller: Enlisted, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` in the caller's transaction, in the thread of its connection."""
    match caller.driver:
        case "sqlite3":
            return _run(caller.connection, path, work)
        case "aiosqlite":
            # aiosqlite has no public way to run another function in the connection's thread.
            connection = caller.connection
            result: T = await connection._execute(_run, connection._conn, path, work)
            return result
        case _:
            raise UnfitConnection(
                f"this is a connection of {caller.driver}, but the jobs of this app are in {path}; nothing was stored"
            )


def _run(connection: sqlite3.Connection, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    _require_same_file(connection, path)
    _require_transaction(connection)
    plain = _PlainConnection(connection)
    # From its next commit on, this connection does not checkpoint by itself; see `Checkpointer`.
    plain.execute("PRAGMA wal_autocheckpoint = 0")
    return work(cast(sqlite3.Connection, plain))


class _PlainConnection:
    """The connection with rows as tuples, whatever the caller's row factory is."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor.execute(sql, values)


def _require_same_file(connection: sqlite3.Connection, path: Path) -> None:
    files = {name: file for _, name, file in _PlainConnection(connection).execute("PRAGMA database_list").fetchall()}
    main = files["main"]
    if not main or not Path(main).exists() or not Path(main).samefile(path):
        raise UnfitConnection(
            f"this connection is open on {main or 'a database in memory'}, and the jobs of this app are in {path}; "
            "nothing was stored: one transaction covers one file, so keep your tables in the file of the jobs"
        )


def _require_transaction(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        return
    legacy = getattr(connection, "autocommit", -1) == -1
    if not legacy or connection.isolation_level is None:
        raise UnfitConnection(
            'this connection has no open transaction; nothing was stored: begin one first, as by execute("BEGIN")'
        )
    # sqlite3 would itself begin a transaction before the first change, which commit() or rollback() ends.
    connection.execute(f"BEGIN {connection.isolation_level}")
