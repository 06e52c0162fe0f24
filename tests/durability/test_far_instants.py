"""Instants that fit no database, as a callee's own headers may bring them: they must not end a worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate, RateLimit, RateLimited, RetryPolicy, Snooze, StrictRate
from headgate.jobs.event import JobReturned
from headgate.jobs.job import JobOptions, JobState, NewJob, RetryTerms
from tests.internals import client_of, store_of
from tests.until import patient, result_within, until


@pytest.mark.parametrize("raised", [RateLimited(timedelta.max), Snooze(timedelta.max), Snooze(1e15)])
async def test_a_handler_with_an_instant_out_of_range_does_not_end_its_worker(
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
        await asyncio.wait_for(returned.wait(), patient(5))
        assert await result_within(await other.enqueue(), 5) == 1
        status = await job.status()
        assert status.state is JobState.WAITING
        assert len(await app.admin.limits.list()) == 1
        assert await result_within(await other.enqueue(), 5) == 1


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, database: Path) -> dict[str, Any]:
    """Where an app's jobs live, as it is given to `Headgate`."""
    if request.param == "postgres":
        return {
            "url": request.getfixturevalue("postgres_url"),
            "schema": request.getfixturevalue("postgres_schema"),
        }
    return {"url": "memory://" if request.param == "memory" else f"sqlite:///{database}"}


async def test_the_longest_accepted_times_do_not_end_a_worker(store: dict[str, Any]) -> None:
    app = Headgate(**store, retention="5200w", grace=1)

    @app.task(
        limits=[
            StrictRate("1/5199w", key="{key}", max_wait="5200w"),
            RateLimit(1, per=1, burst=100 * 365 * 86400, key="{key}"),
        ],
        timeout="5200w",
        retry=RetryPolicy(delay="5200w"),
    )
    async def call(key: str) -> str:
        return key

    async with app:
        first, second = await call.enqueue_many([("acme",), ("acme",)])
        assert await result_within(first) == "acme"
        last = datetime.max.replace(tzinfo=UTC)
        far = await call.using(at=last, expires_at=last, priority=9, predict=True).enqueue("globex")
        assert (await far.status()).run_at == last
        await app.admin.limits.penalize("call:rate", "initech", last)
        closed = await call.using(predict=True).enqueue("initech")
        assert closed.prediction is not None
        waiting = await second.status()
        assert waiting.predicted_start is not None
        assert waiting.predicted_start - app.admin.now() > timedelta(days=30_000)
        for job in (second, far, closed):
            assert await app.admin.explain(job.id)
        assert len(await app.admin.jobs()) == 4
        assert len(await app.admin.limits.list()) >= 2
        # The worker continues.
        assert await result_within(await call.enqueue("umbrella")) == "umbrella"


async def test_a_start_predicted_beyond_the_last_instant_is_shown_as_the_last_instant(store: dict[str, Any]) -> None:
    app = Headgate(**store)

    @app.task(limits=[StrictRate("1/5200w")])
    async def call() -> None: ...

    async with app:
        jobs = await call.enqueue_many([()] * 100)
        await result_within(jobs[0])
        status = await jobs[-1].status()
        assert status.predicted_start == datetime.max.replace(tzinfo=UTC)
        promised = await call.using(predict=True).enqueue()
        assert promised.prediction is not None
        assert promised.prediction.predicted_start == datetime.max.replace(tzinfo=UTC)
        assert await app.admin.explain(jobs[-1].id)
        assert len(await app.admin.jobs(count=200)) == 101


async def test_what_an_older_release_stored_beyond_the_bounds_does_not_end_a_worker(store: dict[str, Any]) -> None:
    app = Headgate(**store, grace=1)

    @app.task
    async def work(fails: bool = False) -> int:
        if fails:
            raise ValueError
        return 1

    async with app.open():
        terms = RetryTerms(retries=10**18, delay=1e300)
        now = store_of(app).now()
        jobs = [
            NewJob(
                id=client_of(app).new_id(), task="work", queue="default", payload=payload, priority=0, delayed=False,
                run_at=now, enqueued_at=now, options=JobOptions(timeout=1e305, retry=terms),
            )
            for payload in ("{}", '{"fails":true}')
        ]  # fmt: skip
        await store_of(app).add(jobs)
    async with app:
        assert await result_within(app.job(jobs[0].id)) == 1
        failed = app.job(jobs[1].id)

        async def is_tried_again() -> bool:
            return (await failed.status()).attempt == 1 and (await failed.status()).state is JobState.WAITING

        await until(is_tried_again)
        assert (await failed.status()).run_at > app.admin.now() + timedelta(days=36_000)
        assert await result_within(await work.enqueue()) == 1
