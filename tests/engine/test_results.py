"""What `job.result()` comes to, and for how long a job can be asked for it."""

from __future__ import annotations

import asyncio
import re
import traceback
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from headgate import Headgate, JobCancelled, JobFailed, JobNotFound, JobState, NotOpen, RetryPolicy, Task, batch
from headgate.clock import SECOND
from headgate.errors import AttemptFailed, StorageLost, StorageUnavailable
from headgate.storage.driver import Procedure, ReadKind
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on

HOUR = 3600

R = TypeVar("R")


class SlowStorage(MemoryStorage):
    """A store whose answers take a while."""

    seconds = 1.0

    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        answer = await super().read(procedure, kind)
        await asyncio.sleep(self.seconds)
        return answer


def test_waiting_too_long_for_a_result_raises_and_the_job_continues() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def slow() -> str:
            await asyncio.sleep(60)
            return "done"

        async with app:
            job = await slow.enqueue()
            began = clock.monotonic()
            with pytest.raises(TimeoutError):
                await job.result(timeout=5)
            assert clock.monotonic() - began == 5 * SECOND
            with pytest.raises(TimeoutError):
                await job.result(timeout=0)
            assert (await job.status()).state is JobState.RUNNING
            assert await job.result() == "done"
            assert await job.result(timeout=0) == "done"

    run_virtual(main)


def test_the_error_of_a_failed_job_comes_with_the_traceback_of_its_last_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=1, delay=1))
        async def work() -> None:
            raise ValueError("the card was refused")

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed) as failed:
                await job.result()
        error = failed.value
        assert (error.job_id, error.error_type, error.message) == (job.id, "ValueError", "the card was refused")
        assert isinstance(error.__cause__, AttemptFailed)
        printed = "".join(traceback.format_exception(error))
        assert 'raise ValueError("the card was refused")' in printed, "a log shows where the handler failed"

    run_virtual(main)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_traceback_begins_with_the_task_of_the_user(is_async: bool) -> None:
    """The fault: the log of each failed job began with the lines of Headgate's executor, and of Python's threads."""

    def pay(card: str) -> None:
        raise ValueError("the card was refused")

    async def pay_online(card: str) -> None:
        pay(card)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        work: Task[[str], None] = app.task(retry=RetryPolicy(retries=0))(pay_online if is_async else pay)
        async with app:
            job = await work.enqueue("visa")
            with pytest.raises(JobFailed) as failed:
                await job.result()
        frames = re.findall(r'^  File "(.*)", line \d+, in (\w+)$', failed.value.traceback or "", re.MULTILINE)
        assert frames == [(__file__, "pay_online")] * is_async + [(__file__, "pay")]

    run_virtual(main)


def test_many_callers_can_wait_for_one_result() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> dict[str, int]:
            await asyncio.sleep(10)
            return {"pages": 3}

        @app.task
        async def forever() -> None:
            await asyncio.sleep(HOUR)

        async with app:
            job, cancelled = await work.enqueue(), await forever.enqueue()
            results = await asyncio.gather(*(app.job(job.id).result() for _ in range(50)))
            assert results == [{"pages": 3}] * 50
            assert await app.job(job.id).result() == {"pages": 3}
            await cancelled.cancel()
            for _ in range(2):
                with pytest.raises(JobCancelled):
                    await cancelled.result()

    run_virtual(main)


def test_whoever_begins_to_wait_while_the_app_closes_is_told_so() -> None:
    """The fault: the read of the job ended after all waiters had been told, and this one waited for ever."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            job = await work.enqueue()
            waiting = asyncio.create_task(job.result())
            await asyncio.sleep(0.5)
        with pytest.raises(NotOpen):
            await asyncio.wait_for(waiting, 3600)

    run_virtual(main)


@pytest.mark.parametrize("timeout", [5, 10.5])
def test_a_timeout_ends_the_wait_for_a_store_that_does_not_answer(timeout: float) -> None:
    """The fault: the first read, the look for a worker after 10 s and the last look took as long as they took."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStorage(clock)
        app, work = awaited(store, clock)
        async with app.open():
            job, together = await work.enqueue(), await batch([work.call()]).enqueue()
            store.seconds = 60
            for wait in (job.result, together.wait):
                began = clock.monotonic()
                with pytest.raises(TimeoutError, match="was not final within"):
                    await wait(timeout)
                assert clock.monotonic() - began <= (timeout + 1) * SECOND

    run_virtual(main)


def test_whoever_waits_for_a_job_that_he_has_stored_is_not_told_that_it_is_not_there() -> None:
    """The fault: he shared the read of another who had asked for that id before."""

    async def main(clock: VirtualClock) -> None:
        own, (app, work) = uuid4(), awaited(SlowStorage(clock), clock)
        async with app.open():
            early = asyncio.create_task(app.job(str(own)).result())
            await asyncio.sleep(1.5)
            job = await work.using(id=own).enqueue()
            waits = early, asyncio.create_task(job.result())
            await asyncio.sleep(5)
            await job.cancel()
            for each in waits:
                with pytest.raises(JobCancelled):
                    await asyncio.wait_for(each, 60)

    run_virtual(main)


def test_many_results_are_asked_for_together() -> None:
    """The fault: each of 10,000 calls read its job, all at once, and again after 10 s to look for a worker."""

    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)
        async with app:
            jobs = await work.enqueue_many([()] * 1000)
            store.reads = 0
            waiting = asyncio.gather(*(job.result() for job in jobs))
            await asyncio.sleep(0.001)
            assert store.reads < 20
            assert set(await waiting) == {"done"}
            store.reads = 0
            assert set(await asyncio.gather(*(job.result() for job in jobs))) == {"done"}
            assert store.reads < 20

    run_virtual(main)


def test_whoever_begins_to_wait_during_an_outage_is_told_so() -> None:
    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)
        async with app:
            job, other, together = await work.enqueue(), await work.enqueue(), await batch([work.call()]).enqueue()
            waiting = asyncio.create_task(job.result())
            await asyncio.sleep(5)
            store.error = StorageUnavailable("it is away")
            for wait in (other.result, together.wait):
                with pytest.raises(StorageUnavailable, match="it is away"):
                    await asyncio.wait_for(wait(), 60)
            store.error = None
            assert await waiting == "done"
            with pytest.raises(JobNotFound):
                await asyncio.wait_for(app.job("unknown").result(), 1)
            with pytest.raises(JobNotFound):
                await app.batch("unknown").wait(timeout=0)

    run_virtual(main)


def test_a_result_outlives_every_process_until_its_retention_is_over(tmp_path: Path) -> None:
    """The fault: what a handler returned was kept nowhere, and nobody could wait for a task."""

    async def main(clock: VirtualClock) -> None:
        def made() -> Headgate:
            app = Headgate(f"sqlite:///{tmp_path}/jobs.db", clock=clock, retention=100, synchronous="OFF")

            @app.task
            async def work() -> str:
                return "kept"

            return app

        first = made()
        async with first:
            job = await first.tasks["work"].enqueue()
            assert await job.result() == "kept"
        async with made() as second:
            await asyncio.sleep(90)
            assert await second.job(job.id).result() == "kept"
            await asyncio.sleep(60)
            with pytest.raises(JobNotFound, match="retention"):
                await second.job(job.id).result()
            with pytest.raises(JobNotFound):
                await second.job(job.id).status()
            with pytest.raises(JobNotFound):
                await second.job(job.id).cancel()

    run_virtual(main)


class AwayStorage(MemoryStorage):
    """A store whose reads fail on request, and are counted; what is written is stored."""

    error: Exception | None = None
    reads = 0

    async def read(self, procedure: Procedure[R], kind: ReadKind) -> R:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return await super().read(procedure, kind)


def awaited(store: Store, clock: VirtualClock) -> tuple[Headgate, Task[[], str]]:
    """An app, and a task for whose jobs somebody waits."""
    app = app_on(store, clock=clock)

    @app.task
    async def work() -> str:
        await asyncio.sleep(30)
        return "done"

    return app, work


def test_many_who_wait_for_batches_share_their_reads() -> None:
    """The fault: each of them read its batch after every change of any job: 200 waiters took a whole processor."""

    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)

        @app.task
        async def quick(number: int) -> None: ...

        async with app:
            batches = [await batch([work.call()]).enqueue() for _ in range(200)]
            waiting = asyncio.gather(*(each.wait() for each in batches))
            await asyncio.sleep(1)
            store.reads = 0
            for number in range(20):
                await (await quick.enqueue(number)).result()
                await asyncio.sleep(0.1)
            assert store.reads < 400
            assert {status.succeeded for status in await waiting} == {1}

    run_virtual(main)


@pytest.mark.parametrize("error", [StorageLost("the file was removed"), ValueError("a fault")])
def test_whoever_waits_is_told_that_the_result_cannot_be_read_any_more(error: Exception) -> None:
    """The fault: result() and wait() went on for ever on a file that was removed, and after an unexpected error."""

    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)
        async with app.open():
            job, together = await work.enqueue(), await batch([work.call()]).enqueue()
            waits = [asyncio.create_task(wait()) for wait in (job.result, job.result, together.wait, together.result)]
            await asyncio.sleep(20)
            store.error = error
            for each in waits:
                with pytest.raises(type(error), match=str(error)):
                    await asyncio.wait_for(each, 60)
            store.error = None
            # And the next one is served again.
            waiting = asyncio.create_task(job.result())
            await asyncio.sleep(5)
            await job.cancel()
            with pytest.raises(JobCancelled):
                await asyncio.wait_for(waiting, 60)

    run_virtual(main)


@pytest.mark.parametrize("seconds", [5, 25])
def test_whoever_waits_for_a_job_that_is_deleted_is_told_so(seconds: float) -> None:
    """The fault: result() waited for ever for a job that was deleted between its end and the next read."""

    async def main(clock: VirtualClock) -> None:
        app, work = awaited(MemoryStorage(clock), clock)
        async with app.open():
            job, together = await work.enqueue(), await batch([work.call()]).enqueue()
            waits = job.result(), job.result(3600), together.wait(), together.result(3600)
            waiting = [asyncio.create_task(each) for each in waits]
            await asyncio.sleep(seconds)
            for each in (job, *together.jobs):
                await each.cancel()
                await app.admin.delete(each.id)
            for wait in waiting:
                with pytest.raises(JobNotFound):
                    await asyncio.wait_for(wait, 60)

    run_virtual(main)


def test_a_job_that_was_deleted_does_not_continue_to_run() -> None:
    """The fault: the error of a timeout said "it continues to run"."""

    async def main(clock: VirtualClock) -> None:
        app, work = awaited(MemoryStorage(clock), clock)
        async with app.open():
            job = await work.enqueue()
            waiting = asyncio.create_task(job.result(5))
            await asyncio.sleep(1)
            await job.cancel()
            await app.admin.delete(job.id)
            with pytest.raises(JobNotFound):
                await waiting

    run_virtual(main)


def test_a_result_that_was_there_in_time_is_returned_although_the_store_was_away_until_the_timeout() -> None:
    """The fault: TimeoutError, "it continues to run", of a job that had succeeded ten seconds before."""

    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)
        async with app:
            job, together = await work.enqueue(), await batch([work.call()]).enqueue()
            waiting = asyncio.gather(job.result(40), together.wait(40))
            await asyncio.sleep(29)
            store.error = StorageUnavailable("it is away")
            await asyncio.sleep(10.9)
            store.error = None
            result, status = await waiting
            assert (result, status.succeeded) == ("done", 1)

    run_virtual(main)


@pytest.mark.parametrize("begins", [5, 15])
def test_an_outage_while_a_result_is_awaited_is_waited_for(begins: float) -> None:
    """The fault: an outage ten seconds after the call was raised, an earlier or a later one was not."""

    async def main(clock: VirtualClock) -> None:
        store = AwayStorage(clock)
        app, work = awaited(store, clock)
        async with app:
            job, together = await work.enqueue(), await batch([work.call()]).enqueue()
            waiting = asyncio.gather(job.result(), job.result(3600), together.wait(), together.result(3600))
            await asyncio.sleep(begins)
            store.error = StorageUnavailable("it is away")
            await asyncio.sleep(12)
            store.error = None
            one, other, status, results = await asyncio.wait_for(waiting, 60)
        assert (one, other, status.succeeded, results) == ("done", "done", 1, ["done"])

    run_virtual(main)
