"""Permits whose holder cannot be stopped: a thread that continues after its attempt was asked to stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headgate import Headgate, JobCancelled, JobFailed, JobState, Mutex, RetryPolicy
from headgate.clock import SystemClock
from headgate.jobs.event import AttemptLingers
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import app_on, node_of
from tests.until import patient


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_permit_stays_held_until_the_thread_of_its_holder_has_ended(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the permit came back when the attempt was told to end, and three were inside of a mutex at once."""
    # In real time: virtual time does not advance while a thread works.
    monkeypatch.setattr("headgate.engine.executor.LINGERS_AFTER", 0.05)
    app = Headgate("memory://", concurrency=4)
    release, began, received = threading.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    happened: list[str] = []

    def on_lingering(_event: Any) -> None:
        received.set()

    app.subscribe(on_lingering, AttemptLingers)

    @app.task(limits=[Mutex("door")], retry=RetryPolicy(retries=0))
    def inside(name: str) -> None:
        happened.append(f"{name} enters")
        loop.call_soon_threadsafe(began.set)
        if name == "first":
            release.wait(patient(15))
        happened.append(f"{name} leaves")

    async with app, asyncio.timeout(patient(15)):
        try:
            first = await inside.using(timeout=0.05 if how == "timeout" else None).enqueue("first")
            await began.wait()
            second = await inside.enqueue("second")
            if how == "cancel":
                assert await first.cancel()
            await received.wait()
            assert ((await first.status()).state, (await second.status()).state) == (JobState.RUNNING, JobState.WAITING)
        finally:
            release.set()
        with pytest.raises(JobFailed if how == "timeout" else JobCancelled):
            await first.result()
        await second.result()
        assert happened == ["first enters", "first leaves", "second enters", "second leaves"]
        assert node_of(app).statistics()["busy"] == {"default": 0}


async def test_a_node_that_ends_waits_for_no_thread_because_of_its_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was held back is recorded then, and not left to be taken for a job that never ended."""
    monkeypatch.setattr("headgate.engine.executor.LINGERS_AFTER", 0.05)
    app = app_on(MemoryStorage(SystemClock()))
    release, received = threading.Event(), asyncio.Event()

    def on_lingering(_event: Any) -> None:
        received.set()

    app.subscribe(on_lingering, AttemptLingers)

    @app.task(limits=[Mutex("door")], timeout=0.05, retry=RetryPolicy(retries=0))
    def stubborn() -> None:
        release.wait(patient(20))

    try:
        async with asyncio.timeout(patient(15)):
            async with app:
                job = await stubborn.enqueue()
                await received.wait()
                node_of(app).abort()
            assert not release.is_set()
            async with app.open():
                assert (await app.job(job.id).status()).state is JobState.FAILED
    finally:
        release.set()
