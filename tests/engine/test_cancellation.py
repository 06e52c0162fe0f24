"""Whose cancellation it is: the user's, the clock's, the shutdown's, or the handler's own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headgate import (
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    JobState,
    RateLimited,
    RetryPolicy,
    Snooze,
    current_job,
    current_jobs,
)
from headgate.admin import JobQuery
from headgate.clock import SECOND, SystemClock
from headgate.engine.attempt import CancelledBy
from headgate.errors import PayloadError
from headgate.jobs.event import AttemptLingers
from headgate.jobs.job import ClaimedJob, JobRecord
from headgate.jobs.query import JobFilter
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import app_on, busy_slots_of, node_of, store_of
from tests.until import patient, result_within


async def test_a_purge_of_a_queue_that_is_stopped_records_all_that_it_cancelled(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: of 2,560 jobs that it had cancelled at a ^C, the audit entry counted 20 too few."""
    app = make_app()

    @app.task
    async def work() -> None: ...

    calls: list[str] = []

    async def cancel(store: Store, job_id: str, **options: Any) -> JobState | None:
        calls.append(job_id)
        if len(calls) == 45:
            asyncio.get_running_loop().call_soon(purge.cancel)
        return await cancel_one(store, job_id, **options)

    cancel_one = Store.cancel
    monkeypatch.setattr(Store, "cancel", cancel)
    async with app.open():
        await work.enqueue_many([()] * 100)
        purge = asyncio.create_task(app.admin.queues.purge("default"))
        with pytest.raises(asyncio.CancelledError):
            await purge
        cancelled = await app.admin.count(state=JobState.CANCELLED)
        assert 40 < cancelled < 100
        assert (await app.admin.audit_log(kind="queue"))[0].detail == f"{cancelled} waiting jobs cancelled"


def test_a_job_that_waits_again_while_others_are_cancelled_is_cancelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: it ran while the waiting jobs were listed, and waited when the running ones were."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        fails = asyncio.Event()

        @app.task(retry=RetryPolicy(delays=[60]))
        async def call() -> None:
            await fails.wait()
            raise ValueError

        async with app:
            job = await call.enqueue()
            await asyncio.sleep(1)
            list_jobs = store_of(app).jobs

            new: list[Job[None]] = []

            async def listed(filter: JobFilter) -> Sequence[JobRecord]:
                found = await list_jobs(filter)
                fails.set()
                await asyncio.sleep(1)
                # Not those that are enqueued after all waiting ones were listed.
                new.append(await call.using(delay=60).enqueue())
                return found

            monkeypatch.setattr(store_of(app), "jobs", listed)
            assert (await app.admin.cancel_many(JobQuery(task="call"))).changed == 1
            assert (await job.status()).state is JobState.CANCELLED
            assert {(await each.status()).state for each in new} == {JobState.WAITING}

    run_virtual(main)


async def inner_timeout() -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(5)


async def inner_wait_for() -> None:
    await asyncio.wait_for(asyncio.sleep(5), 1)


async def inner_cancel() -> None:
    task = asyncio.ensure_future(asyncio.sleep(5))
    asyncio.get_running_loop().call_later(1, task.cancel)
    await task


async def inner_group() -> None:
    async def fails() -> None:
        raise ConnectionError

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(5))
        group.create_task(fails())


def cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancels_itself() -> None:
    cancel_this_task()
    await asyncio.sleep(5)


@pytest.mark.parametrize("failure", [inner_timeout, inner_wait_for, inner_cancel, inner_group, cancels_itself])
def test_a_cancellation_by_a_library_of_the_handler_is_an_ordinary_failure(failure: Callable[[], Any]) -> None:
    """The fault: the timeout of an HTTP client was taken for a user's cancellation, and the job was never retried."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(delays=[1]), timeout=100)
        async def call() -> str:
            if current_job().attempt == 1:
                await failure()
            return "done"

        async with app:
            job = await call.enqueue()
            assert await job.result() == "done"
            (first,) = (await app.admin.job(job.id)).attempts
            assert first.outcome == "failed"
            assert first.error is not None
            assert failure.__name__ in (first.error.traceback or ""), "it is told where it came from"

    run_virtual(main)


@pytest.mark.parametrize("error", [None, ConnectionError()])
def test_an_attempt_that_cancels_itself_and_ends_in_its_first_step_has_failed(error: Exception | None) -> None:
    """Nothing awaits after the cancellation, so it reaches only the asyncio task of the attempt."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(delays=[1]))
        async def call() -> str:
            if current_job().attempt == 1:
                cancel_this_task()
                if error is not None:
                    raise error
            return "done"

        async with app:
            job = await call.enqueue()
            assert await job.result() == "done"
            (first,) = (await app.admin.job(job.id)).attempts
            assert first.outcome == "failed"

    run_virtual(main)


@pytest.mark.parametrize(
    "cause", [CancelledBy.USER, CancelledBy.TIMEOUT, CancelledBy.SHUTDOWN, CancelledBy.LEASE, None]
)
def test_an_attempt_that_is_cancelled_before_its_first_step_ends_by_its_cause_and_frees_its_slot(
    cause: CancelledBy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no line of its coroutine runs. Without a cause, other code in the process has cancelled its task."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        runs: list[int] = []

        @app.task(retry=RetryPolicy(delays=[1]), timeout=60)
        async def work() -> str:
            runs.append(current_job().attempt)
            return "done"

        async with app:
            attempts = node_of(app).attempts
            start = attempts.start

            def start_and_cancel(job: ClaimedJob) -> None:
                monkeypatch.setattr(attempts, "start", start)
                before = asyncio.all_tasks()
                start(job)
                (task,) = asyncio.all_tasks() - before
                if cause is None:
                    task.cancel()
                else:
                    (attempt,) = attempts
                    attempt.cancel(cause)

            monkeypatch.setattr(attempts, "start", start_and_cancel)
            job = await work.enqueue()
            if cause is CancelledBy.USER:
                with pytest.raises(JobCancelled):
                    await job.result()
                assert not runs
            else:
                assert await job.result() == "done"
                assert runs == [2 if cause in (CancelledBy.TIMEOUT, None) else 1], "a returned attempt is not spent"
            assert busy_slots_of(node_of(app)) == {"default": 0}
            assert len(attempts) == 0

    run_virtual(main)


@pytest.mark.parametrize("raised", [StopIteration, asyncio.CancelledError, TimeoutError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_nothing_that_a_handler_raises_ends_its_node_or_goes_unrecorded(
    raised: type[BaseException], where: str
) -> None:
    """The fault: a StopIteration out of a thread cannot be carried by a future, and its job ran for ever."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        async def on_the_loop() -> None:
            raise raised

        def in_a_thread() -> None:
            raise raised

        bad = app.task(on_the_loop) if where == "loop" else app.task(in_a_thread)

        @app.task
        async def fine() -> str:
            return "still here"

        async with app:
            with pytest.raises(JobFailed):
                await result_within(await bad.enqueue())
            assert await (await fine.enqueue()).result() == "still here"

    run_virtual(main)


def test_an_error_that_refers_to_itself_or_cannot_be_printed_is_recorded() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        class Unprintable(Exception):
            def __str__(self) -> str:
                raise SystemExit

            __repr__ = __str__

        @app.task
        async def cyclic() -> None:
            first, second = ValueError("first"), ValueError("second")
            first.__cause__, second.__cause__ = second, first
            first.args = (first,)
            raise first

        @app.task
        async def unprintable() -> None:
            raise ValueError("outer") from Unprintable()

        @app.task
        async def silent() -> None:
            raise Unprintable

        async with app:
            for task in (cyclic, unprintable, silent):
                with pytest.raises(JobFailed):
                    await result_within(await task.enqueue())

    run_virtual(main)


def test_a_payload_error_raised_by_the_handler_is_retried() -> None:
    """The fault: a handler that enqueued something wrong was taken for one whose result could not be stored."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(delays=[1]))
        async def work() -> str:
            if current_job().attempt == 1:
                raise PayloadError("of another job")
            return "done"

        async with app:
            assert await (await work.enqueue()).result() == "done"

    run_virtual(main)


def test_a_handler_that_returns_although_its_user_cancelled_it_has_succeeded() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def finishes() -> str:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "what there was until then"
            return "all"

        async with app:
            job = await finishes.enqueue()
            await asyncio.sleep(1)
            assert await job.cancel() is True
            assert await job.result() == "what there was until then"

    run_virtual(main)


@pytest.mark.parametrize("answer", [Snooze(5), RateLimited(5), ValueError("while cleaning up"), TimeoutError()])
def test_a_cancelled_job_stays_cancelled_whatever_its_handler_raises_then(answer: Exception) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        runs: list[int] = []

        @app.task
        async def work() -> None:
            runs.append(1)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                raise answer from None

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result()
            await asyncio.sleep(100)
            assert runs == [1]

    run_virtual(main)


def test_a_timeout_is_a_timeout_although_a_library_converts_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(timeout=5, retry=RetryPolicy(retries=3, give_up_on=TimeoutError))
        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError as error:
                raise ConnectionError("the client was closed") from error

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed, match="its timeout of 5 s") as failed:
                await job.result()
            assert failed.value.error_type == "TimeoutError"
            assert "the client was closed" in (failed.value.traceback or "")
            assert (await job.status()).attempt == 1

    run_virtual(main)


def test_a_handler_is_cancelled_once_so_that_it_can_clean_up() -> None:
    """The fault: a cancelled job was cancelled anew each second, in the middle of giving back what it held."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app, elsewhere = app_on(store, clock=clock), app_on(store, clock=clock)
        cleaned: list[int] = []

        @app.task
        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(4)
                cleaned.append(clock.monotonic())

        async with app, elsewhere.open():
            job = await work.enqueue()
            await asyncio.sleep(1)
            await elsewhere.job(job.id).cancel()
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result()
            assert len(cleaned) == 1

    run_virtual(main)


def test_an_attempt_that_swallows_its_cancellation_keeps_slot_and_lease_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        received: list[Any] = []
        app.subscribe(received.append, AttemptLingers)

        @app.task
        async def stubborn() -> str:
            until = clock.monotonic() + 100 * SECOND
            while clock.monotonic() < until:
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    continue
            return "to the end"

        @app.task
        async def next_one() -> str:
            return "ran"

        async with app:
            job, after = await stubborn.enqueue(), await next_one.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            await asyncio.sleep(4)
            assert not received
            await asyncio.sleep(50)
            (event,) = received
            assert (event.job_id, event.executor, event.cause) == (job.id, "loop", "user")
            assert node_of(app).attempts.lingering == [job.id]
            assert busy_slots_of(node_of(app)) == {"default": 1}
            assert [node.lingering for node in await app.admin.nodes()] == [(job.id,)]
            assert (await job.status()).state is JobState.RUNNING
            assert (await after.status()).state is JobState.WAITING
            assert await job.result() == "to the end"
            assert await after.result() == "ran"
            assert node_of(app).attempts.lingering == []
            await asyncio.sleep(6)
            assert [node.lingering for node in await app.admin.nodes()] == [()]

    with caplog.at_level(logging.WARNING, "headgate"):
        run_virtual(main)
    assert "still runs 5 s later, in a slot of queue default: its handler swallows CancelledError" in caplog.text


def test_an_attempt_that_ends_in_time_is_not_reported() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[Any] = []
        app.subscribe(received.append, AttemptLingers)

        @app.task
        async def work() -> None:
            await asyncio.sleep(1000)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            await asyncio.sleep(100)
        assert not received

    run_virtual(main)


async def test_a_thread_that_continues_after_its_timeout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # In real time: virtual time does not advance while a thread works.
    monkeypatch.setattr("headgate.engine.attempt.LINGERS_AFTER", 0.05)
    app = Headgate("memory://", concurrency=1)
    release, received = threading.Event(), asyncio.Event()
    events: list[Any] = []

    def on_lingering(event: Any) -> None:
        events.append(event)
        received.set()

    app.subscribe(on_lingering, AttemptLingers)

    @app.task(timeout=0.02, retry=RetryPolicy(retries=0))
    def stubborn() -> None:
        release.wait(patient(10))

    async with app:
        try:
            job = await stubborn.enqueue()
            with pytest.raises(JobFailed):
                await result_within(job, 5)
            async with asyncio.timeout(patient(5)):
                await received.wait()
            assert (events[0].executor, events[0].cause) == ("thread", "timeout")
            assert node_of(app).attempts.lingering == [job.id]
        finally:
            release.set()


def test_a_shutdown_returns_a_job_without_spending_an_attempt_even_if_its_handler_fails() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)

        def make() -> Headgate:
            app = app_on(store, clock=clock, grace=1)

            @app.task(name="work", retry=RetryPolicy(retries=0))
            async def work() -> str:
                try:
                    await asyncio.sleep(100 if not ended else 0)
                except asyncio.CancelledError:
                    ended.append(1)
                    raise RuntimeError("interrupted in the middle") from None
                return "done"

            return app

        ended: list[int] = []
        first = make()
        async with first:
            job = await first.tasks["work"].enqueue()
            await asyncio.sleep(1)
        assert ended == [1]
        second = make()
        async with second:
            handle = second.job(job.id)
            assert await handle.result() == "done"
            assert (await handle.status()).attempt == 1

    run_virtual(main)


async def test_a_thread_that_a_coroutine_has_started_can_read_that_its_job_was_cancelled() -> None:
    """The fault: only threads of plain handlers could, so this one worked on as if nobody had asked it to end."""
    app = app_on(MemoryStorage(SystemClock()))
    has_begun, has_seen, give_up = threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        has_begun.set()
        while not current_job().cancelled and not give_up.wait(0.005):
            pass
        if current_job().cancelled:
            has_seen.set()

    @app.task
    async def work() -> None:
        await asyncio.to_thread(compute)

    async with app:
        job = await work.enqueue()
        try:
            assert await asyncio.to_thread(has_begun.wait, patient(5))
            assert await job.cancel()
            assert await asyncio.to_thread(has_seen.wait, patient(5))
        finally:
            give_up.set()


def test_a_coroutine_for_several_jobs_can_read_which_of_them_was_cancelled() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[bool] = []

        @app.chunked(2)
        async def work(numbers: list[int]) -> None:
            await asyncio.sleep(10)
            seen.extend(job.cancelled for job in current_jobs())

        async with app:
            first, second = await work.enqueue_many([(1,), (2,)])
            await asyncio.sleep(5)
            await second.cancel()
            await first.result()
            assert seen == [False, True]

    run_virtual(main)


@pytest.mark.parametrize("asked", ["here", "elsewhere"])
async def test_a_thread_can_read_that_its_job_was_cancelled(asked: str) -> None:
    # In real time: virtual time does not advance while a thread works.
    store = MemoryStorage(SystemClock())
    # No heartbeat comes before the test ends: a node elsewhere hears of it by itself, within a second.
    app, other = app_on(store, heartbeat=300, lease=900), app_on(store)
    has_begun, has_seen, give_up = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        job = current_job()
        assert not job.cancelled
        has_begun.set()
        while not job.cancelled and not give_up.wait(0.005):
            pass
        if job.cancelled:
            has_seen.set()

    async with app, other.open():
        job = await work.enqueue()
        try:
            assert await asyncio.to_thread(has_begun.wait, patient(5))
            assert await (other if asked == "elsewhere" else app).job(job.id).cancel()
            assert await asyncio.to_thread(has_seen.wait, patient(5))
        finally:
            give_up.set()
        with pytest.raises(JobCancelled):
            await result_within(job, 5)
