"""How much of a budget a busy key gets to use, and whether it ever gets more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import most_in_any_window, new_file, now, recorded_runs, used_share
from headgate import Headgate, RateLimit, StrictRate
from headgate.cli.worker_process import tune_process
from headgate.limits.limit import Limit
from headgate.limits.strict_rate import DEFAULT_MARGIN
from headgate.testing.virtual_time import VirtualClock, run_virtual

HOUR = 3600.0


def virtual(folder: Path, *, count: int, per: int, strict: bool, jobs: int) -> dict[str, float]:
    """An hour of virtual time, in memory: nothing but the limits themselves takes time."""
    started: list[int] = []

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[_limit(count, per, strict=strict)])
        async def call(key: str) -> None:
            started.append(clock.monotonic())

        async with app.open():
            await call.enqueue_many([("acme",)] * jobs)
            async with app:
                await asyncio.sleep(HOUR)
                runs.append(await recorded_runs(app))

    runs: list[int] = []
    run_virtual(main)
    return _kept(started, runs[0], count, per, strict=strict)


def real(folder: Path, *, count: int, per: int, seconds: float, jobs: int) -> dict[str, float]:
    """Some seconds of real time, on SQLite."""
    tune_process()
    started, runs = asyncio.run(_real(f"sqlite:///{new_file(folder)}", count, per, seconds, jobs))
    return _kept(started, runs, count, per, strict=True)


async def _real(url: str, count: int, per: int, seconds: float, jobs: int) -> tuple[list[int], int]:
    app = Headgate(url, migrate=True)
    started: list[int] = []

    @app.task(limits=[_limit(count, per, strict=True)])
    async def call(key: str) -> None:
        started.append(now())

    async with app.open():
        await call.enqueue_many([("acme",)] * jobs)
        async with app:
            await asyncio.sleep(seconds)
            return started, await recorded_runs(app)


def _limit(count: int, per: int, *, strict: bool) -> Limit:
    return StrictRate(count, per=per, key="{key}") if strict else RateLimit(count, per=per, key="{key}", burst=1)


def _kept(started: list[int], runs: int, count: int, per: int, *, strict: bool) -> dict[str, float]:
    share = used_share(started, count, per + DEFAULT_MARGIN) if strict else used_share(started, count, per, burst=1)
    return {
        "starts": len(started),
        "share": share,
        "most": most_in_any_window(started, per),
        "allowed": count,
        "attempts_per_run": len(started) / runs,
    }


_REAL = {"count": 10, "per": 2, "seconds": 20.0, "jobs": 400}

QUESTION = Question(
    name="budget",
    asks="How much of its budget does a saturated key use, and does it ever get more?",
    lead="attempts_per_run",
    metrics=(
        Metric("starts", "starts"),
        Metric("share", "share used %", 3),
        Metric("most", "most in any window"),
        Metric("allowed", "allowed"),
        Metric("attempts_per_run", "attempts per run", 2),
    ),
    scenarios=(
        Scenario(
            name="StrictRate 15/m, an hour",
            run="benchmarks.questions.budget:virtual",
            conditions="1,500 jobs of one key, an hour of virtual time, memory://, 100 slots, default margin of 20 ms",
            params={"count": 15, "per": 60, "strict": True, "jobs": 1_500},
        ),
        Scenario(
            name="RateLimit 10/s burst 1, an hour",
            run="benchmarks.questions.budget:virtual",
            conditions="37,000 jobs of one key, an hour of virtual time, memory://, 100 slots",
            params={"count": 10, "per": 1, "strict": False, "jobs": 37_000},
        ),
        Scenario(
            name="StrictRate 10/2s, 20 s",
            run="benchmarks.questions.budget:real",
            conditions="400 jobs of one key, 20 s of real time, SQLite FULL, embedded worker, 100 slots, margin 20 ms",
            params=_REAL,
            quick={"seconds": 5.0},
            quiet=True,
            against={"huey": "huey.rate_limit 10/2s, 20 s"},
        ),
        Scenario(
            name="huey.rate_limit 10/2s, 20 s",
            run="benchmarks.peers.huey_sqlite:budget",
            conditions="400 jobs of one key, 20 s of real time, SqliteHuey(fsync=True), 10 threads, windows of 2 s",
            params=_REAL,
            quick={"seconds": 5.0},
            quiet=True,
        ),
    ),
    goals=(
        Goal(
            scenario="StrictRate 15/m, an hour",
            metric="share",
            text="StrictRate: at least 99.9 % of the budget less its margin, over an hour",
            at_least=99.9,
        ),
        Goal(
            scenario="StrictRate 15/m, an hour",
            metric="most",
            text="StrictRate: never more than 15 starts in any 60 s of that hour",
            at_most=15,
        ),
        Goal(
            scenario="RateLimit 10/s burst 1, an hour",
            metric="share",
            text="RateLimit: at least 99.9 % of the budget, over an hour",
            at_least=99.9,
        ),
        Goal(
            scenario="RateLimit 10/s burst 1, an hour",
            metric="most",
            text="RateLimit with burst=1: never more than 10 starts in any second of that hour",
            at_most=10,
        ),
        Goal(
            scenario="StrictRate 10/2s, 20 s",
            metric="share",
            text="StrictRate in real time: at least 99 % of the budget less its margin",
            at_least=99.0,
        ),
        Goal(
            scenario="StrictRate 10/2s, 20 s",
            metric="most",
            text="StrictRate in real time: never more than 10 starts in any 2 s",
            at_most=10,
        ),
    ),
    notes=(
        "*share used* is when the last start was lawful, over when it was: 100 % is a key that was never kept waiting.",
        "More than 100 % of huey is budget that it gave out too early; its windows are fixed, so two can meet.",
    ),
)
