"""Priorities with aging on the engine, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headgate import Every, Headgate
from headgate.clock import SECOND
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.internals import app_on


def seconds(clock: VirtualClock) -> float:
    return (clock.now() - START) / SECOND


@pytest.mark.parametrize(("aging", "starts_at"), [(None, None), (4, 36), ("4s", 36), (timedelta(seconds=8), 72)])
def test_a_job_of_priority_0_starts_beside_a_stream_of_priority_9(aging: Any, starts_at: float | None) -> None:
    """The fault: a stream of urgent jobs that filled all slots kept one of priority 0 waiting for ever."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("default", concurrency=2, aging=aging)
        started: list[float] = []

        @app.task
        async def work(is_urgent: bool) -> None:
            if not is_urgent:
                started.append(seconds(clock))
            await asyncio.sleep(1)

        async with app:
            urgent = work.using(priority=9)
            await urgent.enqueue_many([(True,)] * 2)
            await work.enqueue(False)
            for _ in range(90):
                await urgent.enqueue_many([(True,)] * 2)
                await asyncio.sleep(1)
        assert (not started) if starts_at is None else starts_at <= started[0] <= starts_at + 3

    run_virtual(main)


def test_jobs_of_schedules_age_as_others_of_their_queue() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("default", concurrency=1, aging=10)
        ran: list[str] = []

        @app.task
        async def work(name: str, duration: float = 0) -> None:
            ran.append(name)
            await asyncio.sleep(duration)

        @app.schedule(Every(minutes=1), overlap="allow")
        @app.task(priority=9)
        async def tick() -> None:
            ran.append("tick")

        async with app:
            await work.enqueue("long", 150)
            await asyncio.sleep(10)
            await work.enqueue("low")
            await asyncio.sleep(160)
        assert ran == ["long", "tick", "low", "tick"]

    run_virtual(main)


def test_a_deploy_gives_new_jobs_the_aging_and_waiting_ones_keep_theirs() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        ran: list[str] = []

        def release(aging: float | None) -> Headgate:
            app = app_on(store, clock=clock)
            app.queue("default", concurrency=1, aging=aging)

            @app.task(name="work")
            async def work(name: str) -> None:
                ran.append(name)

            return app

        async with release(None).open() as before:
            await before.tasks["work"].enqueue("low")
            await before.tasks["work"].using(priority=1).enqueue("high")
        await asyncio.sleep(30)
        async with release(60).open() as after:
            await after.tasks["work"].using(priority=1).enqueue("aged")
            await asyncio.sleep(60)
            await after.tasks["work"].using(priority=1).enqueue("late")
        async with release(60):
            await asyncio.sleep(1)
        assert ran == ["high", "aged", "low", "late"]

    run_virtual(main)


def test_a_job_that_overflows_ages_as_the_jobs_of_the_queue_where_it_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        app.queue("small", max_backlog=1, when_full="fallback", aging=10)
        ran: list[str] = []

        @app.task
        async def work(name: str) -> None:
            ran.append(name)

        async with app.open():
            await work.using(queue="small").enqueue("first")
            await work.enqueue("low")
            await asyncio.sleep(30)
            # In its own queue, it would be level with jobs that came 20 s after "low".
            await work.using(queue="small", priority=1).enqueue("overflown")
            async with app:
                await asyncio.sleep(1)
        assert ran.index("overflown") < ran.index("low")

    run_virtual(main)
