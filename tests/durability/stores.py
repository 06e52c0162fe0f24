"""Jobs, claims and open stores for tests that use SqliteStorage directly."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from headgate.clock import Clock, SystemClock
from headgate.jobs.identity import job_text
from headgate.jobs.job import BucketRef, NewJob
from headgate.limits.limit import AnyRule
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.sqlite.connection import Checkpointer
from headgate.storage.sqlite.storage import SqliteStorage
from tests.internals import writer_of

NODE = "node-a"

_numbers = itertools.count(1)


def new_job(
    *buckets: tuple[str, str], now: int, task: str = "work", queue: str = "default", payload: str = "{}", **values: Any
) -> NewJob:
    """A job that is ready at once; buckets are pairs of limit and key."""
    return NewJob(
        **{
            "id": job_text(next(_numbers)),
            "task": task,
            "queue": queue,
            "payload": payload,
            "priority": 0,
            "delayed": False,
            "run_at": now,
            "enqueued_at": now,
            "buckets": tuple(BucketRef(limit, key) for limit, key in buckets),
            **values,
        }
    )


def claim_for(
    rules: dict[str, AnyRule] | None = None,
    *,
    slots: int = 10,
    queues: Iterable[str] = ("default",),
    tasks: Iterable[str] = ("work",),
    node: str = NODE,
) -> Claim:
    return Claim(node, {queue: FreeSlots(slots) for queue in queues}, rules or {}, frozenset(tasks))


@contextlib.asynccontextmanager
async def open_store(
    path: Path,
    clock: Clock | None = None,
    *,
    synchronous: str = "FULL",
    patience: float = 30.0,
    joined: bool = True,
) -> AsyncIterator[SqliteStorage]:
    """An open store; a node has joined it by default."""
    storage = SqliteStorage(path, clock or SystemClock(), synchronous=synchronous, patience=patience)
    await storage.open()
    try:
        if joined:
            await storage.leave(NODE)
            await storage.join(NODE, "a")
        yield storage
    finally:
        await storage.close()


async def on_writer(storage: SqliteStorage, statement: str) -> list[Any]:
    """Run a statement on the connection that the store writes with, in its own thread."""

    def run() -> list[Any]:
        return writer_of(storage).execute(statement).fetchall()

    assert storage._write_thread is not None
    return await asyncio.get_running_loop().run_in_executor(storage._write_thread, run)


def checkpointer_of(storage: SqliteStorage) -> Checkpointer:
    found = storage._checkpointer
    assert found is not None, "the store is not open"
    return found


async def look_at_the_log(storage: SqliteStorage) -> None:
    """What the store does every quarter of a second in which the log was written to."""
    await storage._read_data_version()


async def allow_no_more_pages(storage: SqliteStorage) -> None:
    """Make SQLite report a full disk from now on."""
    ((pages,),) = await on_writer(storage, "PRAGMA page_count")
    await on_writer(storage, f"PRAGMA max_page_count = {pages}")


async def allow_all_pages(storage: SqliteStorage) -> None:
    await on_writer(storage, "PRAGMA max_page_count = 1073741823")
