"""A reader: one read-only connection in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headgate.storage.sqlite.connection import connect

R = TypeVar("R")


class Reader:
    """Runs queries one after another, beside the writer and beside other readers."""

    def __init__(self, path: Path, name: str) -> None:
        # It waits for nobody but a file that is just being opened or recovered.
        self._connection = connect(path, synchronous="OFF", timeout=10)
        self._connection.execute("PRAGMA query_only = ON")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"headgate-sqlite-{name}")

    async def run(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """What `query` returns, called with the connection in the reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, query, self._connection)

    def discard(self) -> None:
        """Close one that has run nothing yet, from any thread."""
        self._connection.close()

    async def close(self) -> None:
        await self.run(sqlite3.Connection.close)
        self._thread.shutdown(wait=False)
