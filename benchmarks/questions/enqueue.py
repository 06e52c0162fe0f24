"""How many jobs a second can be stored durably."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import new_file
from headgate import Headgate


def headgate(folder: Path, *, jobs: int, producers: int = 1, bulk: int = 1, memory: bool = False) -> dict[str, float]:
    """Only enqueues: the app is open, no worker runs."""
    url = "memory://" if memory else f"sqlite:///{new_file(folder)}"
    return asyncio.run(_headgate(url, jobs, producers, bulk))


async def _headgate(url: str, jobs: int, producers: int, bulk: int) -> dict[str, float]:
    app = Headgate(url, migrate=True)

    @app.task
    async def noop(number: int) -> None:
        raise AssertionError("never run")

    async def produce() -> None:
        for number in range(jobs // producers):
            await noop.enqueue(number)

    async def produce_bulks() -> None:
        for first in range(0, jobs, bulk):
            await noop.enqueue_many([(number,) for number in range(first, first + bulk)])

    async with app.open():
        began = time.perf_counter()
        await asyncio.gather(*(produce_bulks() if bulk > 1 else produce() for _ in range(producers)))
        seconds = time.perf_counter() - began
    return {"rate": jobs / seconds}


def headgate_sync(folder: Path, *, jobs: int, threads: int) -> dict[str, float]:
    """Only enqueues, from threads without an event loop."""
    app = Headgate(f"sqlite:///{new_file(folder)}", migrate=True)

    @app.task
    async def noop(number: int) -> None:
        raise AssertionError("never run")

    def produce(count: int) -> None:
        for number in range(count):
            noop.sync.enqueue(number)

    with app.open(), ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(produce, [jobs // threads] * threads))
        seconds = time.perf_counter() - began
    return {"rate": jobs / seconds}


_HEADGATE = "benchmarks.questions.enqueue:headgate"
_HUEY = "benchmarks.peers.huey_sqlite:enqueue"
_RAW = "benchmarks.peers.raw_sqlite:enqueue"

QUESTION = Question(
    name="enqueue",
    asks="How many jobs a second can be stored, each awaited until it is durable?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"),),
    scenarios=(
        Scenario(
            name="Headgate, 64 producers",
            run=_HEADGATE,
            conditions="SQLite, synchronous=FULL; 64 asyncio tasks, each awaits one enqueue after another; one integer",
            params={"jobs": 19_200, "producers": 64},
            quick={"jobs": 12_800},
            against={"huey": "huey, 64 producers", "raw": "raw, one row a commit"},
        ),
        Scenario(
            name="huey, 64 producers",
            run=_HUEY,
            conditions="SqliteHuey(fsync=True); 64 threads",
            params={"jobs": 6_400, "producers": 64},
            quick={"jobs": 3_200},
        ),
        Scenario(
            name="Headgate, 1 producer",
            run=_HEADGATE,
            conditions="the same, one enqueue after the other",
            params={"jobs": 4_000},
            quick={"jobs": 2_000},
            against={"huey": "huey, 1 producer", "raw": "raw, one row a commit"},
        ),
        *(
            Scenario(
                name=f"Headgate, .sync, {threads} thread{'s' if threads > 1 else ''}",
                run="benchmarks.questions.enqueue:headgate_sync",
                conditions=f"`task.sync.enqueue` in {'64 threads' if threads > 1 else 'one thread'}; synchronous=FULL",
                params={"jobs": jobs, "threads": threads},
                quick={"jobs": jobs // 2},
                against={"huey": peer, "raw": "raw, one row a commit"},
            )
            for threads, jobs, peer in ((1, 4_000, "huey, 1 producer"), (64, 6_400, "huey, 64 producers"))
        ),
        Scenario(
            name="huey, 1 producer",
            run=_HUEY,
            conditions="SqliteHuey(fsync=True), one thread",
            params={"jobs": 4_000, "producers": 1},
            quick={"jobs": 2_000},
        ),
        Scenario(
            name="raw, one row a commit",
            run=_RAW,
            conditions="sqlite3, WAL, synchronous=FULL, one thread",
            params={"jobs": 8_000, "bulk": 1},
            quick={"jobs": 4_000},
        ),
        Scenario(
            name="Headgate, bulks of 500",
            run=_HEADGATE,
            conditions="enqueue_many of 500, one after the other; SQLite, synchronous=FULL",
            params={"jobs": 60_000, "bulk": 500},
            quick={"jobs": 20_000},
            against={"huey": "huey, 1 producer", "raw": "raw, bulks of 500"},
        ),
        Scenario(
            name="raw, bulks of 500",
            run=_RAW,
            conditions="sqlite3, WAL, synchronous=FULL, 500 rows a commit",
            params={"jobs": 200_000, "bulk": 500},
            quick={"jobs": 50_000},
        ),
        Scenario(
            name="Headgate in memory, 64 producers",
            run=_HEADGATE,
            conditions="memory://, nothing durable",
            params={"jobs": 64_000, "producers": 64, "memory": True},
            quick={"jobs": 32_000},
            against={"huey": "huey, 64 producers", "raw": "raw, one row a commit"},
        ),
    ),
    goals=(
        Goal(
            scenario="Headgate, 64 producers",
            metric="rate",
            text="at least 8,000 enqueues/s of 64 producers on SQLite",
            at_least=8_000,
        ),
    ),
)
