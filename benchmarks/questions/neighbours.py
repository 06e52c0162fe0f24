"""Whether one tenant's backlog delays the others, where each has a budget of its own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import most_in_any_window, new_file, now, recorded_runs
from headgate import Headgate, StrictRate
from headgate.cli.worker_process import tune_process


def headgate(
    folder: Path,
    *,
    tenants: int,
    ahead: int,
    each: int,
    count: int,
    per: int,
    slots: int,
    work: float,
    memory: bool = False,
) -> dict[str, float]:
    tune_process()
    url = "memory://" if memory else f"sqlite:///{new_file(folder)}"
    return asyncio.run(_headgate(url, tenants, ahead, each, count, per, slots, work))


async def _headgate(
    url: str, tenants: int, ahead: int, each: int, count: int, per: int, slots: int, work: float
) -> dict[str, float]:
    app = Headgate(url, concurrency=slots, migrate=True)
    started: dict[str, list[int]] = {}
    others_left = (tenants - 1) * each
    others_done = asyncio.Event()

    @app.task(limits=[StrictRate(count, per=per, key="{tenant}")])
    async def call(tenant: str) -> None:
        nonlocal others_left
        started.setdefault(tenant, []).append(now())
        await asyncio.sleep(work)
        if tenant != "tenant-0":
            others_left -= 1
            if not others_left:
                others_done.set()

    async with app.open():
        await call.enqueue_many([("tenant-0",)] * ahead)
        for _ in range(each):
            await call.enqueue_many([(f"tenant-{number}",) for number in range(1, tenants)])
        began = time.perf_counter()
        async with app:
            await asyncio.wait_for(others_done.wait(), 120)
            seconds = time.perf_counter() - began
            runs = await recorded_runs(app)
    return {
        "seconds": seconds,
        "over_limit": sum(max(0, most_in_any_window(at, per) - count) for at in started.values()),
        "attempts_per_run": sum(len(at) for at in started.values()) / runs,
    }


def bound(folder: Path, *, jobs: int, slots: int, work: float) -> dict[str, float]:
    """Nothing but the work, in plain asyncio."""
    return asyncio.run(_bound(jobs, slots, work))


async def _bound(jobs: int, slots: int, work: float) -> dict[str, float]:
    left = iter(range(jobs))

    async def slot() -> None:
        for _ in left:
            await asyncio.sleep(work)

    began = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(slots)))
    return {"seconds": time.perf_counter() - began}


_LOAD = {"tenants": 100, "ahead": 2_000, "each": 10, "count": 15, "per": 6, "slots": 10, "work": 0.02}
_QUICK = {"tenants": 50, "ahead": 1_000}
_SETTING = (
    "100 tenants, each 15 starts per 6 s; 2,000 jobs of tenant 0 lie ahead of 10 each of the 99 others; 20 ms a job"
)

QUESTION = Question(
    name="neighbours",
    asks="One tenant has 2,000 jobs ahead of the 990 of 99 others: when are those done?",
    lead="seconds",
    metrics=(
        Metric("seconds", "seconds", 2),
        Metric("over_limit", "starts over the limit"),
        Metric("attempts_per_run", "attempts per run", 2),
    ),
    scenarios=(
        Scenario(
            name="Headgate",
            run="benchmarks.questions.neighbours:headgate",
            conditions=f"{_SETTING}; StrictRate, SQLite FULL, embedded worker with 10 slots",
            params=_LOAD,
            quick=_QUICK,
            against={"bound": "bound", "huey": "huey.rate_limit"},
        ),
        Scenario(
            name="Headgate in memory",
            run="benchmarks.questions.neighbours:headgate",
            conditions="the same on memory://",
            params={**_LOAD, "memory": True},
            quick=_QUICK,
            against={"bound": "bound", "huey": "huey.rate_limit"},
        ),
        Scenario(
            name="huey.rate_limit",
            run="benchmarks.peers.huey_sqlite:neighbours",
            conditions="the same with SqliteHuey(fsync=True), 10 threads, retries as it schedules them",
            params=_LOAD,
            quick=_QUICK,
            against={"bound": "bound"},
        ),
        Scenario(
            name="bound",
            run="benchmarks.questions.neighbours:bound",
            conditions="only the work: 990 asyncio sleeps of 20 ms, and the 15 that tenant 0 may start, 10 at a time",
            params={"jobs": 1_005, "slots": 10, "work": 0.02},
            quick={"jobs": 505},
        ),
    ),
    goals=(
        Goal(
            scenario="Headgate",
            over="bound",
            metric="seconds",
            text="the 990 are done within 1.1 × the bound",
            at_most=1.1,
        ),
        Goal(scenario="Headgate", metric="over_limit", text="no start over the limit", at_most=0),
        Goal(scenario="Headgate", metric="attempts_per_run", text="one attempt per run", at_most=1.0),
    ),
)
