"""Instants that fit no database, as a callee's own headers may bring them: they must not end a worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from headgate import Headgate, RateLimited, Snooze, StrictRate
from headgate.jobs.event import JobReturned
from headgate.jobs.job import JobState


@pytest.mark.parametrize("raised", [RateLimited(timedelta.max), Snooze(timedelta.max), Snooze(1e15)])
async def test_a_handler_that_names_an_instant_beyond_all_time_does_not_end_its_worker(
    raised: Exception, database: Path
) -> None:
    app = Headgate(f"sqlite:///{database}")
    returned = asyncio.Event()
    app.subscribe(lambda _event: returned.set(), JobReturned)

    @app.task(limits=[StrictRate("5/s", key="callee")])
    async def call() -> None:
        raise raised

    @app.task
    async def other() -> int:
        return 1

    async with app:
        job = await call.enqueue()
        await asyncio.wait_for(returned.wait(), 5)
        assert await (await other.enqueue()).result(timeout=5) == 1
        status = await job.status()
        assert status.state is JobState.WAITING
        assert len(await app.admin.limits.list()) == 1
        assert await (await other.enqueue()).result(timeout=5) == 1
