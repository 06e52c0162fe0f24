"""How many jobs a second workers run and record, of jobs that were stored before."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.headgate_contender import HeadgateContender
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import bulks, new_file


def drain(folder: Path, *, name: str, jobs: int, slots: int, processes: int = 1, keys: int = 0) -> dict[str, float]:
    """From the start of the first job until all are recorded as succeeded, on PostgreSQL."""
    with postgres_server(folder) as url:
        return _drain(folder, name, url, jobs, slots, processes, keys, _Server(url, contender(name, url, Load()).ended))


def drain_file(folder: Path, *, jobs: int, slots: int, processes: int = 1, keys: int = 0) -> dict[str, float]:
    """The same of Headgate on a SQLite file."""
    file = new_file(folder)
    return _drain(folder, "headgate", f"sqlite:///{file}", jobs, slots, processes, keys, _File(file))


class _Server:
    """A PostgreSQL server while it is drained."""

    def __init__(self, url: str, ended: str) -> None:
        self._url = url
        self._ended = ended
        self._connection: Any = None
        self._active = 0
        self._locked = 0

    async def look(self) -> None:
        """Count the sessions that work, and those of them that wait for a lock of another."""
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        locked, active = await self._connection.fetchrow(_SESSIONS)
        self._locked += locked
        self._active += active

    async def ended(self) -> int:
        count: int = await self._connection.fetchval(self._ended)
        return count

    async def close(self) -> dict[str, float]:
        await self._connection.close()
        return {"locked": 100 * self._locked / max(1, self._active)}


class _File:
    """A SQLite file while it is drained."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)

    async def look(self) -> None:
        """Nothing is to be seen from outside."""

    async def ended(self) -> int:
        count: int = self._connection.execute("SELECT count(*) FROM job WHERE state = 'succeeded'").fetchone()[0]
        return count

    async def close(self) -> dict[str, float]:
        self._connection.close()
        return {}


_SESSIONS = """
SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
"""


def _drain(
    folder: Path, name: str, url: str, jobs: int, slots: int, processes: int, keys: int, store: _Server | _File
) -> dict[str, float]:
    board = Board.new(folder, jobs)
    load = Load(slots=slots)
    asyncio.run(_fill(name, url, load, jobs, keys))
    with workers(name, url, load, board, processes):
        return asyncio.run(_drained(board, jobs, store))


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


async def _drained(board: Board, jobs: int, store: _Server | _File) -> dict[str, float]:
    deadline = time.monotonic() + 240
    while 0 in board.began():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{board.began().count(0)} of {jobs} jobs have not begun")
        await store.look()
        await asyncio.sleep(0.02)
    # Only now: counting costs, and must not slow down what it counts.
    while await store.ended() < jobs:  # noqa: ASYNC110  # no event for counts
        await asyncio.sleep(0.002)
    seconds = (time.monotonic_ns() - min(board.began())) / 1e9
    return {"rate": jobs / seconds, **await store.close()}


_RUN = "benchmarks.questions.drain:drain"
_HEADGATE = "`headgate worker`, 100 slots (default)"
_PGQUEUER = "AsyncpgDriver on one connection, batch_size=100, no cap on tasks, `optimize_autovacuum`, uvloop"
_RAW = "plain asyncpg, uvloop: a connection claims 100 at a time, another finishes as many as have begun meanwhile"
_PROCRASTINATE = "PsycopgConnector, concurrency=30 as in its how-to, uvloop; a pool of 4 to 20 connections"
_DBOS = "a queue without limits, polled every 50 ms (default: 1 s); workflows are plain functions in its threads"


def _scenarios() -> Iterator[Scenario]:
    loads = (
        ("Headgate", "headgate", _HEADGATE, 20_000, 100, (1, 2, 4)),
        ("Headgate, 400 slots", "headgate", "the same with concurrency=400", 20_000, 400, (1, 2)),
        ("raw", "raw", _RAW, 20_000, 0, (1,)),
        ("pgqueuer", "pgqueuer", _PGQUEUER, 20_000, 0, (1, 2, 4)),
        ("procrastinate", "procrastinate", _PROCRASTINATE, 1_000, 30, (1, 2)),
        ("DBOS", "dbos", _DBOS, 2_000, 0, (1, 2)),
    )
    counts = {title: counts for title, *_, counts in loads}
    for title, name, conditions, jobs, slots, workers_counts in loads:
        for processes in workers_counts:
            yield Scenario(
                name=f"{title}, {_workers(processes)}",
                run=_RUN,
                conditions=conditions if processes == 1 else f"the same with {processes} worker processes",
                params={"name": name, "jobs": jobs, "slots": slots, "processes": processes},
                quick={"jobs": jobs // 4},
                against={
                    f"{peer}, as many": f"{peer}, {_workers(processes)}"
                    for peer in ("raw", "pgqueuer", "procrastinate", "DBOS")
                    if processes in counts[peer]
                }
                if name == "headgate"
                else {},
            )
    for keys, slots, processes in ((100, 100, 1), (1_000, 100, 1), (100_000, 100, 1), (1_000, 400, 1), (1_000, 100, 2)):
        with_slots = "" if slots == 100 else f"{slots} slots, "
        yield Scenario(
            name=f"Headgate, {keys:,} budgets, {slots} slots, {_workers(processes)}",
            run=_RUN,
            conditions=f"each job uses one of {keys:,} keys of a RateLimit that is never used up",
            params={
                "name": "headgate",
                "jobs": max(20_000, keys),
                "slots": slots,
                "keys": keys,
                "processes": processes,
            },
            quick={"jobs": 5_000},
            against={
                "pgqueuer, as many": f"pgqueuer, {_workers(processes)}",
                "ungated": f"Headgate, {with_slots}{_workers(processes)}",
            },
        )


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


QUESTION = Question(
    name="drain",
    heading="Drain, PostgreSQL",
    asks="How many no-op jobs a second do workers run and record, of jobs that PostgreSQL held before?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"), Metric("locked", "waits for locks, %", 1)),
    scenarios=tuple(_scenarios()),
    goals=(
        *(
            Goal(
                scenario=f"Headgate, {_workers(count)}",
                over=f"pgqueuer, {_workers(count)}",
                metric="rate",
                text=f"at least 1.5 × the jobs/s of pgqueuer, {_workers(count)}",
                at_least=1.5,
            )
            for count in (1, 2)
        ),
        Goal(
            scenario="Headgate, 4 workers",
            over="Headgate, 2 workers",
            metric="rate",
            text="4 workers not slower than 2",
            at_least=1.0,
        ),
        *(
            Goal(
                scenario=f"Headgate, {keys} budgets, 100 slots, 1 worker",
                over="Headgate, 1 worker",
                metric="rate",
                text=f"at least 0.7 × the jobs/s without limits, if each uses one of {keys} budgets",
                at_least=0.7,
            )
            for keys in ("100", "1,000", "100,000")
        ),
    ),
    notes=(
        "20,000 jobs (one of each key, if there are more keys; DBOS: 2,000, procrastinate: 1,000) are enqueued first; "
        "workers that have loaded everything then begin together. The time is that from the start of the first job "
        "until all are recorded as succeeded.",
        "Of the server's sessions that had something to do, so many percent waited for a lock that another one held.",
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
        ("Headgate, 2 workers", "the same with 2 worker processes", {"slots": 100, "processes": 2}),
        (
            "Headgate, 100 budgets",
            "100 slots; each job uses one of 100 keys of a RateLimit that is never used up",
            {"slots": 100, "keys": 100},
        ),
        ("Headgate, 1,000 budgets", "the same with 1,000 keys", {"slots": 100, "keys": 1_000}),
        (
            "Headgate, 100,000 budgets",
            "the same with 100,000 keys: one job each",
            {"jobs": 100_000, "slots": 100, "keys": 100_000},
        ),
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
    asks="How many no-op jobs a second does a worker run and record, of jobs that a file held before?",
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
                text=f"at least 0.7 × that, if each uses one of {keys} budgets",
                at_least=0.7,
            )
            for keys in ("100", "1,000", "100,000")
        ),
    ),
)
