"""How many jobs a second workers run and record that lay in the store before they began."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import asyncpg

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.headgate_contender import HeadgateContender
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import bulks, new_file

_ENDED = "SELECT count(*) FROM job WHERE state = 'succeeded'"


def drain(folder: Path, *, name: str, jobs: int, slots: int, processes: int = 1, keys: int = 0) -> dict[str, float]:
    """From the start of the first job until all are recorded as succeeded, on PostgreSQL."""
    with postgres_server(folder) as url:
        ended = contender(name, url, Load()).ended

        async def until_ended() -> None:
            connection = await asyncpg.connect(url)
            while await connection.fetchval(ended) < jobs:  # noqa: ASYNC110  # nothing tells of counts
                await asyncio.sleep(0.002)
            await connection.close()

        return _drain(folder, name, url, jobs, slots, processes, keys, until_ended)


def drain_file(folder: Path, *, jobs: int, slots: int, processes: int = 1, keys: int = 0) -> dict[str, float]:
    """The same of Headgate on a SQLite file."""
    file = new_file(folder)

    async def until_ended() -> None:
        with closing(sqlite3.connect(file)) as connection:
            while connection.execute(_ENDED).fetchone()[0] < jobs:  # noqa: ASYNC110  # nothing tells of counts
                await asyncio.sleep(0.002)

    return _drain(folder, "headgate", f"sqlite:///{file}", jobs, slots, processes, keys, until_ended)


def _drain(
    folder: Path,
    name: str,
    url: str,
    jobs: int,
    slots: int,
    processes: int,
    keys: int,
    until_ended: Callable[[], Awaitable[None]],
) -> dict[str, float]:
    board = Board.new(folder, jobs)
    load = Load(slots=slots)
    asyncio.run(_fill(name, url, load, jobs, keys))
    with workers(name, url, load, board, processes):
        return {"rate": jobs / asyncio.run(_drained(board, jobs, until_ended))}


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


async def _drained(board: Board, jobs: int, until_ended: Callable[[], Awaitable[None]]) -> float:
    deadline = time.monotonic() + 240
    while 0 in board.began():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{board.began().count(0)} of {jobs} jobs have not begun")
        await asyncio.sleep(0.02)
    # Only now: counting costs, and must not slow down what it counts.
    await until_ended()
    return (time.monotonic_ns() - min(board.began())) / 1e9


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

_RUN_FILE = "benchmarks.questions.drain:drain_file"
_ON_FILE = "`headgate worker`, 100 slots (default); SQLite, synchronous=FULL"
_BESIDE = {"huey": "huey, 4 threads", "raw": "raw sqlite3", "ungated": "Headgate"}


def _file_scenarios() -> Iterator[Scenario]:
    yield Scenario(
        name="Headgate",
        run=_RUN_FILE,
        conditions=_ON_FILE,
        params={"jobs": 40_000, "slots": 100},
        quick={"jobs": 10_000},
        against={title: of for title, of in _BESIDE.items() if title != "ungated"},
    )
    for name, conditions, params in (
        ("Headgate, 400 slots", "the same with concurrency=400", {"slots": 400}),
        ("Headgate, two workers", _TWO, {"slots": 100, "processes": 2}),
        (
            "Headgate, 100 budgets",
            "100 slots; each job draws on one of 100 keys of a RateLimit that is never used up",
            {"slots": 100, "keys": 100},
        ),
        ("Headgate, 1,000 budgets", "the same with 1,000 keys", {"slots": 100, "keys": 1_000}),
        ("Headgate, 20,000 budgets", "the same with 20,000 keys: two jobs each", {"slots": 100, "keys": 20_000}),
    ):
        yield Scenario(
            name=name,
            run=_RUN_FILE,
            conditions=conditions,
            params={"jobs": 40_000, **params},
            quick={"jobs": 10_000},
            against=_BESIDE,
        )
    yield Scenario(
        name="huey, 4 threads",
        run="benchmarks.peers.huey_sqlite:drain",
        conditions="SqliteHuey(fsync=True), its consumer with 4 threads; nothing is recorded for a result of None",
        params={"jobs": 8_000, "threads": 4},
        quick={"jobs": 2_000},
    )
    yield Scenario(
        name="raw sqlite3",
        run="benchmarks.peers.raw_sqlite:drain",
        conditions="one thread: claim in commits of 100, finish in commits of 100; FULL",
        params={"jobs": 40_000, "batch": 100},
        quick={"jobs": 10_000},
    )


ON_SQLITE = Question(
    name="sqlite-drain",
    heading="Drain, SQLite",
    asks="How many no-op jobs a second does a worker run and record that lay in a file before it began?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"),),
    scenarios=tuple(_file_scenarios()),
    goals=(
        Goal(scenario="Headgate", metric="rate", text="at least 40,000 jobs/s", at_least=40_000),
        *(
            Goal(
                scenario=f"Headgate, {keys} budgets",
                over="Headgate",
                metric="rate",
                text=f"at least 0.7 × that, if each draws on one of {keys} budgets",
                at_least=0.7,
            )
            for keys in ("100", "1,000", "20,000")
        ),
    ),
)
