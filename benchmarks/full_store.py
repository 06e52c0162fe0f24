"""A store whose keys have all used their budget, with jobs that wait: created once, copied for each measurement."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from benchmarks.postgres_server import postgres_on
from benchmarks.seeds import add_seeds, use_up
from benchmarks.stores import new_store, storage_at
from benchmarks.support import new_file
from benchmarks.worker_app import LIMIT, Probed
from headgate.clock import SystemClock
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE

FILE = "full.db"
SERVER = "full"


def prepare(folder: Path, *, store: str, jobs: int, keys: int) -> dict[str, float]:
    """`jobs` wait on `keys` exhausted budgets, evenly spread."""
    if store == "postgres":
        # Whether it is durable while it is made is of no interest; it is when the server has stopped.
        with postgres_on(folder / SERVER, "-c", "fsync=off", "-c", "max_wal_size=8GB") as url:
            asyncio.run(_fill(storage_at(url), jobs, keys))
            asyncio.run(_settle(url))
    else:
        asyncio.run(_fill(SqliteStorage(folder / FILE, SystemClock(), synchronous="OFF"), jobs, keys))
    return {}


async def _fill(storage: Store, jobs: int, keys: int) -> None:
    await storage.open()
    probed = Probed()
    registry, task = probed.app._registry, probed.gated.name
    # One more for each key: the one that uses up its budget.
    await add_seeds(storage, jobs + keys, keys, task=task, limit=LIMIT, gate=registry.gate_name(task, DEFAULT_QUEUE))
    rules = {bound.name: bound.limit.rule for bound in probed.gated.gate.limits}
    await use_up(storage, rules[LIMIT], task=task, limit=LIMIT, gates=registry.gates())
    # The measured nodes are not the first of their release.
    await storage.note_gates(registry.gates().subjects)
    await storage.gates_done(registry.gates().subjects)
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
