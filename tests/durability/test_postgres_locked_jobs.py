"""A user's open transaction that holds one job locked: whatever else the worker has to write, it writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from headgate import Handler, Headgate, Job, RetryPolicy
from headgate.jobs.event import EndingRefused, StorageFailed
from headgate.jobs.identity import job_number
from headgate.jobs.job import JobState, Progress
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.report import AttemptReport
from headgate.storage.postgres.storage import PostgresStorage
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite import StoreUser
from tests.durability.postgres import session_at
from tests.internals import store_of
from tests.until import becomes, patient, result_within, until

PROMPT = patient(8)
"""Seconds. The store waits up to 5 for a lock, once a minute at most, before it looks out for locked jobs. What waits
for the transaction itself waits for ever: it ends later than the wait."""


class Worker:
    """A worker with a task that waits until it is let go, and a user with a transaction open."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.app = app = Headgate(url, schema=schema)
        self.go = asyncio.Event()
        self.completed: list[int] = []
        self.received: list[Any] = []
        app.subscribe(self.received.append, EndingRefused, StorageFailed)

        @app.task(retry=RetryPolicy(retries=0))
        async def sync(number: int) -> int:
            logging.getLogger("sync").warning("number %d", number)
            await self.go.wait()
            if number < 0:
                raise ValueError("below 0")
            return number

        @app.task
        async def plain(number: int) -> int:
            return number

        @app.handler
        class Invoice(Handler[int]):
            async def run(handler, number: int) -> int:  # noqa: N805  # the worker is "self" here
                await self.go.wait()
                return number

            async def on_completed(handler, job: Any, result: int) -> None:  # noqa: N805
                self.completed.append(result)

        self.sync, self.plain, self.invoice = sync, plain, Invoice

    async def running(self, number: int) -> Job[int]:
        """A job under a unique key that runs."""
        job = await self.sync.using(unique_key="acme", on_conflict="replace").enqueue(number)
        await reaches(job, "running")
        return job

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[asyncpg.Connection]:
        """A user replaces the job of the key in a long transaction, which locks the running job."""
        async with session_at(self.url) as user:
            transaction = user.transaction()
            await transaction.start()
            await self.sync.using(unique_key="acme", on_conflict="replace", connection=user).enqueue(2)
            yield user
            await transaction.commit()


async def reaches(job: Job[int], state: str) -> None:
    async def state_of() -> str:
        return (await job.status()).state

    await becomes(state_of, state)


async def results(jobs: Sequence[Job[int]], seconds: float) -> list[int]:
    return await asyncio.gather(*(job.result(timeout=seconds) for job in jobs))


async def test_one_locked_job_delays_no_other_ending(postgres_url: str, postgres_schema: str) -> None:
    """The fault: as long as the transaction was open, nothing that the worker had done could be recorded."""
    worker = Worker(postgres_url, postgres_schema)
    async with worker.app:
        held = await worker.running(1)
        async with worker.held():
            worker.go.set()
            for number in range(3):
                assert await results([await worker.plain.enqueue(number)], PROMPT) == [number]
            assert (await held.status()).state == "running"
        assert await result_within(held, 5) == 1
        assert await store_of(worker.app).check() == []
    assert worker.received == []


async def test_a_success_in_a_batch_with_a_locked_failure_is_reported(postgres_url: str, postgres_schema: str) -> None:
    """The fault: ten were stored, the eleventh was waited for in vain, and then all eleven were told as refused."""
    worker = Worker(postgres_url, postgres_schema)
    async with worker.app:
        held = await worker.running(-1)
        jobs = [await worker.invoice.enqueue(number) for number in range(10)]
        for job in jobs:
            await reaches(job, "running")
        async with worker.held():
            worker.go.set()
            assert await results(jobs, PROMPT) == list(range(10))
            await until(lambda: len(worker.completed) == 10, 5)
            assert (await held.status()).state == "running"
        await reaches(held, "failed")
        assert [line.message for line in await store_of(worker.app).logs(held.id)] == ["number -1"]
    assert worker.received == []


async def test_one_locked_job_delays_no_other_expiry(postgres_url: str, postgres_schema: str) -> None:
    """The fault: nothing expired any more while the transaction was open, and nothing old was forgotten."""
    clock = ManualClock()
    storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
    await storage.open()
    store_user = StoreUser(storage, clock)
    try:
        first, second = await store_user.add(2, expires_in=5)
        store_user.clock.advance(10)
        async with session_at(postgres_url) as user:
            transaction = user.transaction()
            await transaction.start()
            await user.execute(f"SELECT 1 FROM {postgres_schema}.job WHERE id = $1 FOR UPDATE", job_number(first))
            async with asyncio.timeout(PROMPT):
                assert [dropped.id for dropped in await storage.expire()] == [second]
            await transaction.commit()
        assert [dropped.id for dropped in await storage.expire()] == [first]
        assert await storage.check() == []
    finally:
        await storage.close()


@pytest.mark.nightly
async def test_the_store_names_the_endings_it_could_not_write(postgres_url: str, postgres_schema: str) -> None:
    """Of a locked job neither an ending nor a report is written or refused: it is asked to say them again."""
    clock = ManualClock()
    storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
    await storage.open()
    store_user = StoreUser(storage, clock)
    try:
        await storage.join(store_user.node, "a")
        await store_user.add(3)
        held, failed, plain = await store_user.take()
        said = [AttemptReport(job.id, job.fence, Progress(0.5, None, clock.now()), ()) for job in (held, failed)]
        said.append(AttemptReport(plain.id, plain.fence + 1, None, ()))
        endings: list[Ending] = [
            Finished(held.id, held.fence, JobState.SUCCEEDED),
            Returned(failed.id, failed.fence, "failed", spent=True),
            Finished(plain.id, plain.fence, JobState.SUCCEEDED),
            Finished("nobody", 1, JobState.SUCCEEDED),
        ]
        async with session_at(postgres_url) as user:
            transaction = user.transaction()
            await transaction.start()
            await user.execute(f"SELECT 1 FROM {postgres_schema}.job WHERE id = $1 FOR UPDATE", job_number(held.id))
            async with asyncio.timeout(PROMPT):
                assert list(await storage.report(store_user.node, said, 10)) == [None, True, False]
                assert list(await storage.finish(store_user.node, endings)) == [None, True, True, False]
            await transaction.commit()
        assert list(await storage.report(store_user.node, said[:1], 10)) == [True]
        assert list(await storage.finish(store_user.node, endings[:1])) == [True]
        assert (await store_user.record(held.id)).state is JobState.SUCCEEDED
        assert await storage.check() == []
    finally:
        await storage.close()
