"""Whether one tenant's backlog on PostgreSQL delays the others, where each has a budget of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.contender_worker import workers
from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import bulks, most_in_any_window

PATIENCE = 45.0
"""Seconds after which the others are left undone."""


def neighbours(
    folder: Path, *, name: str, tenants: int, ahead: int, each: int, count: int, per: int, slots: int, work: float
) -> dict[str, float]:
    """From the start of the first job until those of all tenants but the first are done."""
    jobs = [(number, "tenant-0") for number in range(ahead)]
    jobs += [(ahead + number, f"tenant-{1 + number % (tenants - 1)}") for number in range((tenants - 1) * each)]
    load = Load(slots=slots, count=count, per=per, work=work)
    with postgres_server(folder) as url:
        board = Board.new(folder, len(jobs))
        asyncio.run(_fill(name, url, load, jobs))
        with workers(name, url, load, board, 1):
            seconds = _until_done(board, ahead)
            began, attempts = board.began(), board.attempts()
            done = len(jobs) - ahead - board.ended()[ahead:].count(0)
    starts: dict[str, list[int]] = {}
    for number, tenant in jobs:
        if began[number]:
            starts.setdefault(tenant, []).append(began[number] // 1000)
    return {
        "seconds": seconds,
        "done": done,
        "over_limit": sum(max(0, most_in_any_window(at, per) - count) for at in starts.values()),
        "rejected": attempts - (len(jobs) - began.count(0)),
    }


async def _fill(name: str, url: str, load: Load, jobs: Sequence[tuple[int, str]]) -> None:
    producer = contender(name, url, load)
    await producer.install()
    async with producer.open():
        for numbers in bulks(len(jobs)):
            await producer.enqueue_for(jobs[numbers.start : numbers.stop])


def _until_done(board: Board, ahead: int) -> float:
    gives_up_at = time.monotonic() + PATIENCE
    while 0 in board.ended()[ahead:] and time.monotonic() < gives_up_at:
        time.sleep(0.005)
    last = max(board.ended()[ahead:]) if 0 not in board.ended()[ahead:] else time.monotonic_ns()
    return (last - min(at for at in board.began() if at)) / 1e9


def bound(folder: Path, *, jobs: int, slots: int, work: float) -> dict[str, float]:
    return {"seconds": jobs * work / slots, "done": jobs, "over_limit": 0, "rejected": 0}


_LOAD = {"tenants": 100, "ahead": 2_000, "each": 10, "count": 15, "per": 6, "slots": 10, "work": 0.02}
_QUICK = {"tenants": 50, "ahead": 1_000}
_RUN = "benchmarks.questions.postgres_neighbours:neighbours"

QUESTION = Question(
    name="postgres-neighbours",
    heading="Neighbours, PostgreSQL",
    asks="One tenant has 2,000 jobs ahead of the 990 of 99 others: when are those done, on PostgreSQL?",
    lead="seconds",
    metrics=(
        Metric("seconds", "seconds", 2),
        Metric("done", "of the 990"),
        Metric("over_limit", "starts over the limit"),
        Metric("rejected", "attempts that were rejected"),
    ),
    scenarios=(
        Scenario(
            name="Headgate",
            run=_RUN,
            conditions=(
                "100 tenants, each 15 starts per 6 s; 2,000 jobs of tenant 0 lie ahead of 10 each of the 99 others; "
                "20 ms a job, 10 slots; StrictRate, `headgate worker`"
            ),
            params={**_LOAD, "name": "headgate"},
            quick=_QUICK,
            against={peer: peer for peer in ("bound", "pgqueuer", "procrastinate", "DBOS")},
        ),
        Scenario(
            name="pgqueuer",
            run=_RUN,
            conditions=(
                "the same with batches of 5; it limits no rates (as of version 1.6): the handler asks an exact moving "
                "window in its memory (`limits`), and raises RetryRequested with the delay that names"
            ),
            params={**_LOAD, "name": "pgqueuer"},
            quick=_QUICK,
        ),
        Scenario(
            name="procrastinate",
            run=_RUN,
            conditions=(
                "the same with concurrency=10; it limits no rates either: the same window, and a RetryDecision with "
                "the delay and a lower priority"
            ),
            params={**_LOAD, "name": "procrastinate"},
            quick=_QUICK,
        ),
        Scenario(
            name="DBOS",
            run=_RUN,
            conditions=(
                "the same with its own limit: a queue partitioned by tenant, partition_limiter of 15 per 6 s, "
                "worker_concurrency=10, polled every 50 ms"
            ),
            params={**_LOAD, "name": "dbos"},
            quick=_QUICK,
        ),
        Scenario(
            name="bound",
            run="benchmarks.questions.postgres_neighbours:bound",
            conditions="what 10 slots need for 990 jobs of 20 ms, reckoned",
            params={"jobs": 990, "slots": 10, "work": 0.02},
            quick={"jobs": 490},
        ),
    ),
    goals=(
        Goal(
            scenario="Headgate",
            over="bound",
            metric="seconds",
            text="the 990 are done within 1.2 × the bound",
            at_most=1.2,
        ),
        Goal(scenario="Headgate", metric="over_limit", text="no start over the limit", at_most=0),
        Goal(scenario="Headgate", metric="rejected", text="no attempt rejected", at_most=0),
    ),
    notes=(
        f"After {PATIENCE:.0f} s the worker is stopped: *of the 990* says how many were done by then.",
        "The time is that from the start of the first job, in a worker process of its own.",
    ),
)
