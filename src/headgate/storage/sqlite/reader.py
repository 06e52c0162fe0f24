"""A reader: one read-only connection in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headgate.storage.sqlite.call_thread import CallThread
from headgate.storage.sqlite.connection import connect

R = TypeVar("R")

PROGRESS = 100_000
"""SQLite instructions between two checks whether a query has to end: some milliseconds."""


class Reader:
    """Runs queries one after another, beside the writer and beside other readers."""

    def __init__(self, path: Path, name: str) -> None:
        # It only waits for a file that is being opened or recovered.
        self._connection = connect(path, synchronous="OFF", timeout=10)
        self._connection.execute("PRAGMA query_only = ON")
        self._thread = CallThread(f"headgate-sqlite-{name}")

    async def run(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Return the result of `query`, called with the connection in the reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, query, self._connection)

    async def run_until(self, query: Callable[[sqlite3.Connection], R], is_over: Callable[[], bool]) -> R:
        """As `run`, but once it `is_over` or cancelled, SQLite interrupts the query with an OperationalError."""
        cancelled = threading.Event()

        def bounded(connection: sqlite3.Connection) -> R:
            connection.set_progress_handler(lambda: cancelled.is_set() or is_over(), PROGRESS)
            try:
                return query(connection)
            finally:
                connection.set_progress_handler(None, 0)

        try:
            return await self.run(bounded)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(self) -> None:
        """End the running query, if any, with an OperationalError; from any thread."""
        self._connection.interrupt()

    def discard(self) -> None:
        """Close a reader that has run no query, from any thread."""
        self._connection.close()

    async def close(self) -> None:
        await self.run(sqlite3.Connection.close)
        self._thread.shutdown()
