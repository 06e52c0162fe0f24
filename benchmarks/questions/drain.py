"""How many jobs a second workers on PostgreSQL run and record that lay there before they began."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.headgate_contender import HeadgateContender
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import bulks


def drain(folder: Path, *, name: str, jobs: int, slots: int, processes: int = 1, keys: int = 0) -> dict[str, float]:
    """From the start of the first job until all are recorded as succeeded."""
    with postgres_server(folder) as url:
        board = Board.new(folder, jobs)
        load = Load(slots=slots)
        asyncio.run(_fill(name, url, load, jobs, keys))
        with workers(name, url, load, board, processes):
            return {"rate": jobs / asyncio.run(_drained(name, url, load, board, jobs))}


async def _fill(name: str, url: str, load: Load, jobs: int, keys: int) -> None:
    producer = contender(name, url, load)
    await producer.install()
    async with producer.open():
        for numbers in bulks(jobs):
            if keys:
                assert isinstance(producer, HeadgateContender)
                await producer.enqueue_keyed(numbers, keys)
            else:
                await producer.enqueue_many(numbers)


async def _drained(name: str, url: str, load: Load, board: Board, jobs: int) -> float:
    deadline = time.monotonic() + 240
    while 0 in board.began():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{board.began().count(0)} of {jobs} jobs have not begun")
        await asyncio.sleep(0.02)
    connection = await asyncpg.connect(url)
    # Only now: counting costs, and must not slow down what it counts.
    ended = contender(name, url, load).ended
    while await connection.fetchval(ended) < jobs:  # noqa: ASYNC110  # nothing tells of counts
        await asyncio.sleep(0.002)
    seconds = (time.monotonic_ns() - min(board.began())) / 1e9
    await connection.close()
    return seconds


_RUN = "benchmarks.questions.drain:drain"
_HEADGATE = "`headgate worker`, 100 slots (default)"
_PGQUEUER = "AsyncpgDriver on one connection, batch_size=100, no cap on tasks, `optimize_autovacuum`, uvloop"
_PROCRASTINATE = "PsycopgConnector, concurrency=30 as in its how-to, uvloop; a pool of 4 to 20 connections"
_DBOS = "a queue without limits, polled every 50 ms (default: 1 s); workflows are plain functions in its threads"
_TWO = "the same with two worker processes"


def _scenarios() -> Iterator[Scenario]:
    loads = (
        ("Headgate", "headgate", _HEADGATE, 20_000, 100),
        ("Headgate, 400 slots", "headgate", "the same with concurrency=400", 20_000, 400),
        ("pgqueuer", "pgqueuer", _PGQUEUER, 20_000, 0),
        ("procrastinate", "procrastinate", _PROCRASTINATE, 1_000, 30),
        ("DBOS", "dbos", _DBOS, 2_000, 0),
    )
    for title, name, conditions, jobs, slots in loads:
        for processes in (1, 2):
            workers_of = f"{processes} worker{'s' if processes > 1 else ''}"
            yield Scenario(
                name=f"{title}, {workers_of}",
                run=_RUN,
                conditions=conditions if processes == 1 else _TWO,
                params={"name": name, "jobs": jobs, "slots": slots, "processes": processes},
                quick={"jobs": jobs // 4},
                against={f"{peer}, as many": f"{peer}, {workers_of}" for peer in ("pgqueuer", "procrastinate", "DBOS")}
                if name == "headgate"
                else {},
            )
    for slots in (100, 400):
        yield Scenario(
            name=f"Headgate, 1,000 budgets, {slots} slots",
            run=_RUN,
            conditions=(
                f"each job draws on one of 1,000 keys of a RateLimit that is never used up; 1 worker with {slots} slots"
            ),
            params={"name": "headgate", "jobs": 20_000, "slots": slots, "keys": 1_000},
            quick={"jobs": 5_000},
            against={"pgqueuer, as many": "pgqueuer, 1 worker"},
        )


QUESTION = Question(
    name="drain",
    heading="Drain, PostgreSQL",
    asks="How many no-op jobs a second do workers run and record that lay in PostgreSQL before they began?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"),),
    scenarios=tuple(_scenarios()),
    goals=(
        *(
            Goal(
                scenario=f"Headgate, {workers_of}",
                over=f"pgqueuer, {workers_of}",
                metric="rate",
                text=f"at least 1.3 × the jobs/s of pgqueuer, {workers_of}",
                at_least=1.3,
            )
            for workers_of in ("1 worker", "2 workers")
        ),
        Goal(
            scenario="Headgate, 1,000 budgets, 100 slots",
            metric="rate",
            text="at least 10,000 jobs/s that draw on one of 1,000 budgets",
            at_least=10_000,
        ),
    ),
    notes=(
        "20,000 jobs (DBOS: 2,000, procrastinate: 1,000) are enqueued first; workers that have loaded everything then "
        "begin together. The time is that from the start of the first job until all are recorded as succeeded.",
        "pgqueuer deletes a job that succeeded and writes a line to its log; the others keep the job as it ended.",
    ),
)
