"""Permits whose holder cannot be stopped: a thread that continues after its attempt was asked to stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headgate import Headgate, JobCancelled, JobFailed, JobState, Mutex, RetryPolicy, current_job
from headgate.clock import SystemClock
from headgate.jobs.event import AttemptLingers
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import app_on, busy_slots_of, node_of
from tests.until import patient


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_permit_stays_held_until_the_thread_of_its_holder_has_ended(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the permit came back when the attempt was told to end, and three were inside of a mutex at once."""
    # In real time: virtual time does not advance while a thread works.
    monkeypatch.setattr("headgate.engine.attempt.LINGERS_AFTER", 0.05)
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
        assert busy_slots_of(node_of(app)) == {"default": 0}


async def test_a_node_that_ends_waits_for_no_thread_because_of_its_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was held back is recorded then, and not left to be taken for a job that never ended."""
    monkeypatch.setattr("headgate.engine.attempt.LINGERS_AFTER", 0.05)
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


async def test_a_thread_whose_attempt_ends_during_the_grace_does_not_delay_the_end_of_its_node() -> None:
    """The fault: the node waited for the rest of its grace, although no attempt ran any more."""
    app = Headgate("memory://", grace=60)
    release, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task(timeout=0.5, retry=RetryPolicy(retries=0))
    def stubborn() -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(patient(20))

    try:
        async with app.open(), asyncio.timeout(patient(10)):
            async with app:
                job = await stubborn.enqueue()
                await began.wait()
            assert not release.is_set()
            assert (await job.status()).state is JobState.FAILED
    finally:
        release.set()


async def test_a_node_that_ends_lets_threads_clean_up_that_read_that_they_are_cancelled() -> None:
    app = Headgate("memory://", grace=0.1)
    began, cleaned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def tidy() -> None:
        loop.call_soon_threadsafe(began.set)
        while not current_job().cancelled:
            threading.Event().wait(0.01)
        threading.Event().wait(0.2)
        cleaned.set()

    async with app.open():
        async with app:
            await tidy.enqueue()
            await began.wait()
        assert cleaned.is_set()
