"""Stores that are full, of jobs that wait or of jobs that have ended: created once, copied for each measurement."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.grown_store import DAY, Seeds, finish_all
from benchmarks.postgres_server import postgres_on
from benchmarks.seeds import BATCH, add_seeds, note_release, use_up
from benchmarks.stores import new_store, storage_at
from benchmarks.support import new_file
from benchmarks.worker_app import LIMIT, Probed
from headgate.clock import SystemClock
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobOptions, NewJob, Origin
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE

FILE = "full.db"
SERVER = "full"


def prepare(folder: Path, *, store: str, jobs: int, keys: int) -> dict[str, float]:
    """`jobs` wait on `keys` exhausted budgets, evenly spread."""
    _make(folder, store, lambda storage: _fill(storage, jobs, keys))
    return {}


def prepare_ended(folder: Path, *, stores: Sequence[str], jobs: int) -> dict[str, float]:
    """So many jobs have ended in each of the stores, and are kept; nothing waits."""
    for store in stores:
        _make(folder, store, lambda storage: _fill_ended(storage, jobs))
    return {}


def _make(folder: Path, store: str, fill: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    if store == "postgres":
        # Whether it is durable while it is made is of no interest; it is when the server has stopped.
        with postgres_on(folder / SERVER, "-c", "fsync=off", "-c", "max_wal_size=8GB") as url:
            asyncio.run(fill(storage_at(url)))
            asyncio.run(_settle(url))
    else:
        asyncio.run(fill(SqliteStorage(folder / FILE, SystemClock(), synchronous="OFF")))


async def _fill_ended(storage: Store, jobs: int) -> None:
    """Of a hundred jobs, ten failed, ten are in batches, and five each had a tag, a unique key or a deadline."""
    await storage.open()
    seeds = Seeds()
    for first in range(0, jobs, BATCH):
        portion = min(BATCH, jobs - first)
        batch = NewBatch(seeds.ids.next(seeds.now()), portion // 10, seeds.now())
        new = [_feature(seeds, number, batch.id) for number in islice(count(first), portion)]
        await storage.add([job for job in new if job.unique_key is None], [batch])
        await storage.add([job for job in new if job.unique_key is not None])
        await finish_all(storage, seeds)
    await storage.close()


def _feature(seeds: Seeds, number: int, batch: str) -> NewJob:
    match number % 100:
        case place if place % 10 == 3:
            return seeds.ungated(origin=Origin(batch=batch))
        case 5 | 15 | 25 | 35 | 45:
            return seeds.ungated(options=JobOptions(tags=(f"tag-{number % 1_000}",)))
        case 6 | 16 | 26 | 36 | 46:
            return seeds.ungated(unique_key=f"key-{number}")
        case 7 | 17 | 27 | 37 | 47:
            return seeds.ungated(expires_at=seeds.now() + DAY)
        case _:
            return seeds.ungated()


async def _fill(storage: Store, jobs: int, keys: int) -> None:
    await storage.open()
    probed = Probed()
    registry, task = probed.app._registry, probed.gated.name
    await note_release(storage, registry)
    # One more for each key: the one that uses up its budget.
    await add_seeds(
        storage, jobs + keys, keys, task=task, limit=LIMIT, limit_set=registry.limit_set_name(task, DEFAULT_QUEUE)
    )
    rules = {bound.name: bound.limit.rule for bound in probed.gated.limit_set.limits}
    await use_up(storage, rules[LIMIT], task=task, limit=LIMIT, limit_sets=registry.limit_sets())
    await storage.close()


async def _settle(url: str) -> None:
    """What autovacuum would do within minutes."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM (ANALYZE, FREEZE)")
    await connection.close()


@contextlib.contextmanager
def store_for(folder: Path, store: str, *, full: bool) -> Iterator[str]:
    """The URL of a copy of the prepared store, or of an empty one."""
    if not full:
        with new_store(folder, store) as url:
            yield url
    elif store == "postgres":
        with postgres_on(folder / SERVER) as url:
            server = url.rpartition("/")[0]
            asyncio.run(_execute(f"{server}/template1", "CREATE DATABASE look TEMPLATE postgres"))
            try:
                yield f"{server}/look"
            finally:
                asyncio.run(_execute(url, "DROP DATABASE look WITH (FORCE)"))
    else:
        file = new_file(folder)
        shutil.copyfile(folder / FILE, file)
        yield f"sqlite:///{file}"
        shutil.rmtree(file.parent)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()
