"""The stores that Headgate keeps jobs in, by name: `memory`, `sqlite` and `postgres`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.postgres_server import postgres_server
from benchmarks.support import new_file
from headgate.clock import SystemClock
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store


@contextlib.contextmanager
def new_store(folder: Path, store: str) -> Iterator[str]:
    """The URL of an empty one, which is there until the block ends."""
    if store == "postgres":
        with postgres_server(folder) as url:
            yield url
    elif store == "sqlite":
        yield f"sqlite:///{new_file(folder)}"
    else:
        yield "memory://"


def storage_at(url: str) -> Store:
    """The storage itself, without an app around it."""
    if url.startswith("postgresql:"):
        from headgate.storage.postgres.storage import PostgresStorage

        return PostgresStorage(url, SystemClock())
    if url.startswith("sqlite:"):
        return SqliteStorage(url.removeprefix("sqlite:///"), SystemClock())
    return MemoryStorage(SystemClock())
