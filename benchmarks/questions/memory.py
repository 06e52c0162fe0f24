"""How much memory and disk a job takes, and what its payload costs."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

import asyncpg

from benchmarks.postgres_server import postgres_server
from benchmarks.question import Metric, Question, Scenario
from benchmarks.support import OwnProcess, bulks, new_file, until_finished
from headgate import Headgate
from headgate.cli.worker_process import tune_process

_STORED = (
    "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'headgate'::regnamespace"
)


def waiting(folder: Path, *, jobs: int, size: int, store: str) -> dict[str, float]:
    """Enqueue jobs that no worker runs."""
    if store == "postgres":
        with postgres_server(folder) as url:
            return asyncio.run(_on_postgres(url, jobs, size))
    file = new_file(folder)
    measured = asyncio.run(_waiting("memory://" if store == "memory" else f"sqlite:///{file}", jobs, size))
    return measured if store == "memory" else {**measured, "stored": file.stat().st_size / jobs}


async def _waiting(url: str, jobs: int, size: int) -> dict[str, float]:
    app = Headgate(url, migrate=True)

    @app.task
    async def take(text: str) -> None: ...

    async with app.open():
        # The first jobs load what every job uses.
        await take.enqueue_many([("a" * size,)] * 500)
        before = _memory()
        for numbers in bulks(jobs):
            await take.enqueue_many([("a" * size,) for _ in numbers])
        return {"memory": (_memory() - before) / jobs}


async def _on_postgres(url: str, jobs: int, size: int) -> dict[str, float]:
    empty, measured = 0, {}
    for portion in (500, jobs):
        measured = await _waiting(url, portion, size)
        connection = await asyncpg.connect(url)
        stored = await connection.fetchval(_STORED)
        await connection.close()
        measured["stored"], empty = float(stored - empty) / (portion + 500), stored
    return measured


def running(folder: Path, *, jobs: int, size: int) -> dict[str, float]:
    """All jobs run at once, and wait for one event."""
    return asyncio.run(_running(f"sqlite:///{new_file(folder)}", jobs, size))


async def _running(url: str, jobs: int, size: int) -> dict[str, float]:
    app = Headgate(url, concurrency=jobs)
    may_end, all_run = asyncio.Event(), asyncio.Event()
    began = 0

    @app.task
    async def take(text: str) -> None:
        nonlocal began
        began += 1
        if began == jobs:
            all_run.set()
        await may_end.wait()

    async with app.open():
        for numbers in bulks(jobs):
            await take.enqueue_many([("a" * size,) for _ in numbers])
        before = _memory()
        async with app:
            await all_run.wait()
            used = (_memory() - before) / jobs
            may_end.set()
            await until_finished(app, jobs)
    return {"memory": used}


def payload(folder: Path, *, jobs: int, size: int) -> dict[str, float]:
    """One process enqueues jobs and runs them."""
    tune_process()
    file = new_file(folder)
    cpu = asyncio.run(_payload(f"sqlite:///{file}", jobs, size))
    return {"cpu": cpu / jobs * 1e6, "stored": file.stat().st_size / jobs}


async def _payload(url: str, jobs: int, size: int) -> float:
    app = Headgate(url)

    @app.task
    async def take(text: str) -> None: ...

    async with app:
        began = time.process_time()
        for numbers in bulks(jobs, max(1, min(500, 5_000_000 // size))):
            await take.enqueue_many([("a" * size,) for _ in numbers])
        await until_finished(app, jobs)
        return time.process_time() - began


def _memory() -> float:
    """Resident memory in bytes, without what is only garbage."""
    gc.collect()
    return OwnProcess(os.getpid()).memory() * 1_000_000


def _waiting_jobs(store: str, name: str, conditions: str, jobs: int, size: int) -> Scenario:
    return Scenario(
        name=name,
        run="benchmarks.questions.memory:waiting",
        conditions=conditions,
        params={"jobs": jobs, "size": size, "store": store},
        quick={"jobs": jobs // 10},
    )


def _payloads(name: str, conditions: str, jobs: int, size: int) -> Scenario:
    return Scenario(
        name=name,
        run="benchmarks.questions.memory:payload",
        conditions=conditions,
        params={"jobs": jobs, "size": size},
        quick={"jobs": jobs // 10},
    )


QUESTION = Question(
    name="memory",
    heading="Memory and payloads",
    asks="How much memory and disk does a job take, and what does its payload cost?",
    lead="memory",
    rounds=1,
    metrics=(
        Metric("memory", "memory, bytes/job"),
        Metric("stored", "stored, bytes/job"),
        Metric("cpu", "CPU µs/job"),
    ),
    scenarios=(
        _waiting_jobs("memory", "waiting in memory", "memory://, a payload of 10 bytes, no worker", 20_000, 10),
        _waiting_jobs("memory", "waiting in memory, 1 KB", "the same with 1,000 bytes", 20_000, 1_000),
        _waiting_jobs("sqlite", "waiting on SQLite", "10 bytes; stored: the file", 20_000, 10),
        _waiting_jobs("sqlite", "waiting on SQLite, 1 KB", "1,000 bytes", 20_000, 1_000),
        _waiting_jobs("postgres", "waiting on PostgreSQL", "10 bytes; stored: tables with indexes", 20_000, 10),
        _waiting_jobs("postgres", "waiting on PostgreSQL, 1 KB", "1,000 bytes", 20_000, 1_000),
        Scenario(
            name="running",
            run="benchmarks.questions.memory:running",
            conditions="`async def` jobs that all run at once and wait, on SQLite, a payload of 10 bytes",
            params={"jobs": 5_000, "size": 10},
            quick={"jobs": 1_000},
        ),
        Scenario(
            name="running, 1 KB",
            run="benchmarks.questions.memory:running",
            conditions="the same with 1,000 bytes",
            params={"jobs": 5_000, "size": 1_000},
            quick={"jobs": 1_000},
        ),
        _payloads("payload of 10 bytes", "enqueued in bulks, run by the same process, on SQLite", 5_000, 10),
        _payloads("payload of 1 KB", "1,000 bytes", 5_000, 1_000),
        _payloads("payload of 10 KB", "10,000 bytes", 5_000, 10_000),
        _payloads("payload of 100 KB", "100,000 bytes", 1_000, 100_000),
    ),
    notes=(
        "Memory is resident memory of the process that enqueues or runs the jobs, less what it had before. Jobs in "
        "`memory://` are part of it. On PostgreSQL waiting jobs take none of it, and on SQLite only pages of the file "
        "in a cache of up to 16 MB for each connection: a worker holds the jobs that it runs, and no others.",
        "A job that runs in a thread takes its stack as well, and a process task a process (30 MB).",
        "CPU is that of the process, its threads included: enqueue, claim, run and finish.",
        "At most 256 KB are accepted (`max_payload`). Above some 10 KB, pass a reference, or use "
        "[a folder for large payloads](large-payloads.md).",
    ),
)
