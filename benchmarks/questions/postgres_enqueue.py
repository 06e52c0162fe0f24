"""How many jobs a second can be stored in PostgreSQL, next to other engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contender import Load, contender
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import bulks

PEERS = ("pgqueuer", "procrastinate", "DBOS")


def enqueue(folder: Path, *, name: str, jobs: int, producers: int = 1, bulk: int = 1) -> dict[str, float]:
    """One process only enqueues; no worker runs."""
    with postgres_server(folder) as url:
        return asyncio.run(_enqueue(name, url, jobs, producers, bulk))


async def _enqueue(name: str, url: str, jobs: int, producers: int, bulk: int) -> dict[str, float]:
    producer = contender(name, url, Load())
    await producer.install()

    async def produce(first: int) -> None:
        for number in range(first, jobs, producers):
            await producer.enqueue(number)

    async with producer.open():
        # Its connections are made first.
        await asyncio.gather(*(producer.enqueue(number) for number in range(producers)))
        began = time.perf_counter()
        if bulk > 1:
            for numbers in bulks(jobs, bulk):
                await producer.enqueue_many(numbers)
        else:
            await asyncio.gather(*(produce(first) for first in range(producers)))
        seconds = time.perf_counter() - began
    return {"rate": jobs / seconds}


_HOW = {
    "Headgate": ("headgate", "`task.enqueue`", "`task.enqueue_many`"),
    "pgqueuer": ("pgqueuer", "`Queries.enqueue` on an asyncpg pool of 4 to 20", "the same with lists"),
    "procrastinate": ("procrastinate", "`defer_async`, a psycopg pool of 4 to 20", "`batch_defer_async`"),
    "DBOS": ("dbos", "`DBOSClient.enqueue_async`, a pool of 20", "`enqueue_in_transaction`, 500 a transaction"),
}
_LOADS = (("1 producer", 1, 1), ("64 producers", 64, 1), ("bulks of 500", 1, 500))
_JOBS = {
    "Headgate": (2_000, 20_000, 40_000),
    "pgqueuer": (2_000, 6_400, 40_000),
    "procrastinate": (1_500, 3_200, 15_000),
    "DBOS": (1_000, 3_200, 3_000),
}


def _scenarios() -> Iterator[Scenario]:
    for number, (load, producers, bulk) in enumerate(_LOADS):
        for title, (name, one, many) in _HOW.items():
            jobs = _JOBS[title][number]
            yield Scenario(
                name=f"{title}, {load}",
                run="benchmarks.questions.postgres_enqueue:enqueue",
                conditions=many if bulk > 1 else one if producers == 1 else "64 asyncio tasks, each one after another",
                params={"name": name, "jobs": jobs, "producers": producers, "bulk": bulk},
                quick={"jobs": jobs // 4},
                against={peer: f"{peer}, {load}" for peer in PEERS} if name == "headgate" else {},
            )


QUESTION = Question(
    name="postgres-enqueue",
    heading="Enqueue, PostgreSQL",
    asks="How many jobs a second can be stored in PostgreSQL, each awaited until it is durable?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"),),
    scenarios=tuple(_scenarios()),
    goals=tuple(
        Goal(
            scenario="Headgate, 64 producers",
            over=f"{peer}, 64 producers",
            metric="rate",
            text=f"at least 4 × the jobs/s of {peer}, 64 producers",
            at_least=4.0,
        )
        for peer in PEERS
    ),
    notes=("One process that only enqueues, jobs of one integer, asyncio's own event loop.",),
)
