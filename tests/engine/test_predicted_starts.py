"""Predicted starts: also of jobs that are many windows away, they are when the jobs start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headgate import FixedWindow, Headgate, SlidingWindow, StrictRate
from headgate.clock import to_datetime
from headgate.limits.limit import Limit
from headgate.testing.virtual_time import VirtualClock, run_virtual

LIMITS: list[Callable[[int], Limit]] = [
    lambda cost: StrictRate("300/m", margin=0, cost=cost),
    lambda cost: StrictRate("7/m", cost=cost),
    lambda cost: FixedWindow("300/m", cost=cost),
    lambda cost: FixedWindow("7/m", margin=1, cost=cost),
    lambda cost: SlidingWindow("300/m", cost=cost),
    lambda cost: SlidingWindow("7/m", slices=3, cost=cost),
]


@pytest.mark.slow
@pytest.mark.parametrize("cost", [1, 2])
@pytest.mark.parametrize("make", LIMITS, ids=lambda make: make(1).rule.describe())
def test_a_job_many_windows_away_starts_as_predicted(make: Callable[[int], Limit], cost: int) -> None:
    """The fault: the prediction was never more than one window ahead: "in 58 s" for four minutes."""

    async def main(clock: VirtualClock) -> None:
        app, limit = Headgate("memory://", clock=clock, concurrency=1000), make(cost)
        started: dict[int, int] = {}

        @app.task(limits=[limit])
        async def call(number: int) -> None:
            started[number] = clock.now()

        async with app:
            await asyncio.sleep(17.3)
            await call.enqueue_many([(-1 - number,) for number in range(3)])
            await asyncio.sleep(11.1)
            count = limit.rule.count
            assert count is not None
            jobs = await call.enqueue_many([(number,) for number in range(4 * count // cost)])
            await asyncio.sleep(1)
            chosen = [number for number in range(0, len(jobs), max(1, len(jobs) // 8)) if number not in started]
            assert len(chosen) >= 5
            statuses = {number: await jobs[number].status() for number in chosen}
            await jobs[-1].result()
        for number, status in statuses.items():
            assert status.predicted_start is not None
            late = (to_datetime(started[number]) - status.predicted_start).total_seconds()
            assert abs(late) < 0.1, f"job {number}: {late} s late"

    run_virtual(main)


def test_a_job_knows_until_when_it_is_throttled_while_no_worker_runs() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/m", key="{tenant}", margin=0)])
        async def call(tenant: str) -> None:
            """Uses the budget of its tenant."""

        async with app:
            first = await call.enqueue("acme")
            await first.result()
            started_at = (await first.status()).started_at
        assert started_at is not None
        async with app.open():
            jobs = [await call.enqueue("acme") for _ in range(3)]
            for job in jobs:
                status = await job.status()
                assert status.waits_for == ("call:rate", "acme")
                assert status.throttled_until is not None
                assert abs((status.throttled_until - started_at).total_seconds() - 60) < 0.1
            later = await jobs[2].status()
            assert later.predicted_start is not None
            assert abs((later.predicted_start - started_at).total_seconds() - 180) < 0.1

    run_virtual(main)
