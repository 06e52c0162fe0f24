"""Whole lives of jobs on the engine: retries, timeouts, cancellation, hand-back, recovery, trouble with the storage."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Headgate,
    JobCancelled,
    JobFailed,
    JobState,
    RateLimit,
    RateLimited,
    RetryPolicy,
    Snooze,
    StrictRate,
    current_job,
)
from headgate.clock import SECOND, to_datetime
from headgate.errors import JobNotFound, StorageUnavailable
from headgate.jobs.event import (
    EndingRefused,
    Event,
    JobFailure,
    JobFinished,
    JobStarted,
    JobThrottled,
    NodeDeclaredDead,
    NodeLost,
    RetryPolicyFailed,
    StorageFailed,
    TaskUnknown,
)
from headgate.storage.endings import poison_error
from headgate.storage.records import NodeControls
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.bad_stores import UnwritableStorage
from tests.internals import app_on, busy_slots_of, new_node, node_of, store_of
from tests.until import patient, result_within


def test_a_cancelled_error_raised_by_the_handler_is_retried_as_a_failure() -> None:
    """The fault: an HTTP client's own CancelledError was recorded as "cancelled by the user" and never tried again."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.task(retry=RetryPolicy(retries=2, base=1))
        async def call() -> str:
            tries.append(current_job().attempt)
            if len(tries) < 3:
                raise asyncio.CancelledError
            return "done"

        async with app:
            job = await call.enqueue()
            assert await job.result() == "done"
            assert tries == [1, 2, 3]
            attempts = (await app.admin.job(job.id)).attempts
            assert [(a.outcome, a.error and a.error.type) for a in attempts] == [
                ("failed", "asyncio.exceptions.CancelledError")
            ] * 2

    run_virtual(main)


def test_a_timeout_in_a_library_of_the_handler_is_an_ordinary_failure() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=0), timeout=100)
        async def call() -> None:
            async with asyncio.timeout(1):
                await asyncio.sleep(5)

        async with app:
            job = await call.enqueue()
            with pytest.raises(JobFailed) as failed:
                await job.result()
            assert failed.value.error_type == "TimeoutError"
            assert "its timeout of" not in failed.value.message

    run_virtual(main)


def test_a_failing_job_behind_a_drained_limit_uses_up_its_retries() -> None:
    """The fault: each deferral of a retry began to count attempts anew, so that a failing job was tried for ever."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.task(limits=[RateLimit("1/10s", key="{tenant}")], retry=RetryPolicy(retries=3, base=1, jitter=False))
        async def call(tenant: str) -> None:
            tries.append(current_job().attempt)
            raise ValueError("always")

        async with app:
            job = await call.enqueue("acme")
            with pytest.raises(JobFailed):
                await result_within(job, 3600)
            assert tries == [1, 2, 3, 4]
            assert (await job.status()).attempt == 4

    run_virtual(main)


def test_every_acknowledged_payload_runs_although_equal_ones_wait() -> None:
    """The fault: a delayed job enqueued over a waiting one of the same key was lost although the caller got an id."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        ran: list[str] = []

        @app.task(limits=[StrictRate("1/10s", key="{tenant}")])
        async def call(tenant: str, what: str) -> None:
            ran.append(what)

        async with app:
            now, later = await call.enqueue("acme", "now"), await call.using(delay=5).enqueue("acme", "later")
            assert now.id != later.id
            await later.result()
            assert ran == ["now", "later"]

    run_virtual(main)


def test_cancelling_a_final_job_changes_nothing() -> None:
    """The fault: cancelling a completed job rewrote its state to cancelled."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> int:
            return 1

        async with app:
            job = await work.enqueue()
            assert await job.result() == 1
            before = await store_of(app).job(job.id)
            assert await job.cancel() is False
            assert await store_of(app).job(job.id) == before

    run_virtual(main)


def test_an_ending_that_cannot_be_stored_is_stored_later_and_the_job_runs_once() -> None:
    """The fault: a storage error on the final write was swallowed, and the job ran again after a restart.

    Later each try was logged, three and more in a second for as long as the store was away.
    """

    async def main(clock: VirtualClock) -> None:
        store = UnwritableStorage(clock)
        app = app_on(store, clock=clock)
        ran: list[int] = []
        failure: list[Event] = []
        app.subscribe(failure.append, StorageFailed)

        @app.task
        async def work() -> int:
            ran.append(1)
            return 7

        async with app:
            store.is_full = True
            job = await work.enqueue()
            await asyncio.sleep(300)
            assert (await job.status()).state is JobState.RUNNING
            store.is_full = False
            assert await job.result() == 7
            assert ran == [1]
        assert "disk is full" in str(failure[0])
        assert failure[1].at - failure[0].at <= SECOND // 2
        assert len(failure) < 600

    run_virtual(main)


def test_a_slot_is_free_while_a_retry_waits() -> None:
    """The fault: a worker slot was held for the whole delay of a retry."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)

        @app.task(retry=RetryPolicy(delays=[600]))
        async def fails() -> None:
            raise ValueError("once more in ten minutes")

        @app.task
        async def other() -> None: ...

        async with app:
            await fails.enqueue()
            await asyncio.sleep(1)
            began = clock.monotonic()
            await (await other.enqueue()).result()
            assert clock.monotonic() - began < SECOND

    run_virtual(main)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_hours_away_from_its_slot_waits_and_then_runs() -> None:
    """The fault: a job whose slot was more than an hour ahead was failed, although it was durable."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[int] = []

        @app.task(limits=[StrictRate("1/h", key="{tenant}", margin=0)])
        async def call(tenant: str) -> None:
            ran.append(clock.monotonic())

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 6)
            status = await jobs[-1].status()
            assert status.state is JobState.WAITING
            await asyncio.gather(*(job.result() for job in jobs))
            assert [b - a for a, b in pairwise(ran)] == [3600 * SECOND] * 5

    run_virtual(main)


def test_a_throttled_job_starts_at_its_slot_and_not_a_poll_later() -> None:
    """The fault: a re-delivery near its slot was pushed back by two seconds."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[int] = []

        @app.task(limits=[RateLimit("10/s", key="{tenant}", burst=1)])
        async def call(tenant: str) -> None:
            ran.append(clock.monotonic())
            await asyncio.sleep(0.25)

        async with app:
            await call.enqueue_many([("acme",)] * 50)
            await asyncio.sleep(10)
        assert [b - a for a, b in pairwise(ran)] == [SECOND // 10] * 49

    run_virtual(main)


def test_a_user_cancels_a_running_job_and_it_is_not_retried() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        cleaned: list[bool] = []

        @app.task
        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                cleaned.append(True)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            assert await job.cancel() is True
            with pytest.raises(JobCancelled):
                await job.result(timeout=1)
            assert cleaned == [True]
            assert (await job.status()).state is JobState.CANCELLED

    run_virtual(main)


def test_another_node_gets_a_cancellation_within_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        runner, asker = app_on(store, clock=clock), app_on(store, clock=clock)

        @runner.task
        async def work() -> None:
            await asyncio.sleep(1000)

        async with runner, asker.open():
            job = await work.enqueue()
            await asyncio.sleep(1.5)
            asked = clock.monotonic()
            assert await asker.job(job.id).cancel() is True
            with pytest.raises(JobCancelled):
                await asker.job(job.id).result()
            assert clock.monotonic() - asked <= 1.1 * SECOND

    run_virtual(main)


def test_a_waiting_job_that_is_cancelled_never_runs_and_its_budget_is_never_charged() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task(limits=[StrictRate("1/m", key="{tenant}", margin=0)])
        async def call(tenant: str, what: str) -> None:
            ran.append(what)

        async with app:
            await call.enqueue("acme", "first")
            second, third = await call.enqueue("acme", "second"), await call.enqueue("acme", "third")
            await asyncio.sleep(1)
            assert await second.cancel() is True
            await third.result()
            assert ran == ["first", "third"]
            assert clock.monotonic() < 62 * SECOND, "the cancelled job left a hole in the budget"

    run_virtual(main)


def test_an_attempt_that_takes_too_long_is_cancelled_and_retried() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.task(timeout=timedelta(seconds=5), retry=RetryPolicy(retries=1, base=1))
        async def work() -> str:
            tries.append(1)
            await asyncio.sleep(3 if len(tries) > 1 else 100)
            return "in time"

        async with app:
            assert await (await work.enqueue()).result() == "in time"
            assert len(tries) == 2

    run_virtual(main)


def test_waiting_for_budget_does_not_count_towards_the_timeout() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/m", key="{tenant}")], timeout=5, retry=RetryPolicy(retries=0))
        async def call(tenant: str) -> float:
            await asyncio.sleep(4)
            return current_job().waited_for

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 3)
            waited = [await job.result() for job in jobs]
            assert waited[0] < 1
            assert 119 < waited[2] < 121

    run_virtual(main)


def test_a_handler_and_its_start_event_have_the_time_spent_waiting_for_a_limit() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, concurrency=1)
        started: list[tuple[float, float]] = []

        def note(event: Event) -> None:
            assert isinstance(event, JobStarted)
            started.append((event.waited, event.throttled))

        app.subscribe(note, JobStarted)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", margin=0)])
        async def call(tenant: str) -> tuple[float, float]:
            job = current_job()
            await asyncio.sleep(20)
            return job.waited_for, job.throttled_for

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 4)
            waits = [tuple(round(wait) for wait in await job.result()) for job in jobs]
            # One slot: the second waits for the first, the third for the limit, the fourth for that and then the third.
            assert waits == [(0, 0), (20, 0), (60, 60), (80, 60)]
            assert [(round(waited), round(throttled)) for waited, throttled in started] == waits

    run_virtual(main)


async def test_the_late_result_of_a_timed_out_thread_changes_nothing_and_its_slot_stays_taken() -> None:
    """The fault: a handler that overran its timeout went on unseen, and could complete a job recorded as failed."""
    # In real time: virtual time does not advance while a thread works, and the timeout has to pass.
    app = Headgate("memory://", concurrency=1)
    release, received = threading.Event(), threading.Event()

    @app.task(timeout=0.05, retry=RetryPolicy(retries=0))
    def stubborn() -> str:
        job = current_job()
        while not job.cancelled:
            release.wait(0.001)
        received.set()
        release.wait(patient(15))
        return "too late"

    @app.task
    def next_one() -> str:
        return "ran"

    async with app:
        try:
            job, after = await stubborn.enqueue(), await next_one.enqueue()
            with pytest.raises(JobFailed) as failed:
                await result_within(job, 5)
            assert failed.value.error_type == "TimeoutError"
            assert received.wait(patient(5)), "the handler can see that it should end"
            node = node_of(app)
            assert node is not None
            assert busy_slots_of(node) == {"default": 1}
            assert (await after.status()).state is JobState.WAITING
        finally:
            release.set()
        assert await result_within(after, 5) == "ran"
        assert (await job.status()).state is JobState.FAILED


def test_snooze_and_rate_limited_spend_no_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[tuple[int, int]] = []

        @app.task(limits=[StrictRate("100/s", key="{tenant}")], retry=RetryPolicy(retries=0))
        async def call(tenant: str) -> str:
            tries.append((current_job().attempt, clock.monotonic() // SECOND))
            if len(tries) == 1:
                raise Snooze(60)
            if len(tries) == 2:
                raise RateLimited(retry_after=30)
            return "done"

        async with app:
            job = await call.enqueue("acme")
            await asyncio.sleep(70)
            # The refusal closes the bucket for all that use it, and for no others.
            other, quiet = await call.enqueue("acme"), await call.enqueue("globex")
            assert await quiet.result(timeout=1) == "done"
            assert await job.result() == "done"
            await other.result()
            assert [attempt for attempt, _ in tries] == [1] * 5
            began = tries[0][1]
            assert [at - began for _, at in tries] == [0, 60, 70, 90, 90]

    run_virtual(main)


def test_shutdown_finishes_jobs_and_returns_the_rest_without_spending_an_attempt() -> None:
    """The fault: there was no drain; work in flight just stopped, and could overlap with its own second run."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        ended: list[str] = []

        def app() -> Headgate:
            made = app_on(store, clock=clock, grace=10)

            @made.task(name="work")
            async def work(seconds: float) -> None:
                await asyncio.sleep(seconds)
                ended.append(f"{seconds:g}")

            return made

        first = app()
        async with first:
            short = await first.tasks["work"].enqueue(5.0)
            long = await first.tasks["work"].enqueue(100.0)
            await asyncio.sleep(1)
        assert ended == ["5"]
        async with app() as second:
            assert (await second.job(short.id).status()).state is JobState.SUCCEEDED
            await second.job(long.id).result()
            status = await second.job(long.id).status()
            assert status.attempt == 1, "a shutdown spends no attempt"
            assert ended == ["5", "100"]

    run_virtual(main)


def test_a_node_that_was_declared_dead_drops_its_jobs_and_its_late_results_are_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, NodeDeclaredDead, EndingRefused, JobFinished)
        runs: list[int] = []

        @app.task
        async def work() -> int:
            runs.append(1)
            await asyncio.sleep(3 if len(runs) == 1 else 0)
            return len(runs)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            node = node_of(app)
            assert node is not None
            beat = (await store.nodes())[0].beat
            assert await store.recover(node.id, beat) is not None
            await asyncio.sleep(3)
            assert [type(event) for event in events] == [EndingRefused]
            assert await job.result() == 2
            assert len(runs) == 2
        assert [type(event) for event in events] == [EndingRefused, NodeDeclaredDead, JobFinished]

    run_virtual(main)


def test_a_result_that_could_not_be_stored_before_the_node_was_declared_dead_is_published_as_refused() -> None:
    """The fault: the job ran again, and no line, no metric and no event said that its first result was dropped."""

    class Away(MemoryStorage):
        is_away = True

        async def finish(self, *arguments: Any, **named: Any) -> Any:
            if self.is_away:
                raise StorageUnavailable("no route")
            return await super().finish(*arguments, **named)

    async def main(clock: VirtualClock) -> None:
        store = Away(clock)
        app = app_on(store, clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, NodeDeclaredDead, EndingRefused, JobFinished)

        @app.task
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            node = node_of(app)
            assert node is not None
            assert await store.recover(node.id, (await store.nodes())[0].beat) is not None
            await asyncio.sleep(15)
            assert [type(event) for event in events] == [EndingRefused, NodeDeclaredDead]
            store.is_away = False
            await job.result()
            assert (await job.status()).attempt == 2
        assert [type(event) for event in events] == [EndingRefused, NodeDeclaredDead, JobFinished]

    run_virtual(main)


def test_a_job_that_keeps_killing_its_node_is_failed_as_poisonous() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)

        @app.task
        async def bomb() -> None:
            await asyncio.sleep(1000)

        async with app.open():
            job = await bomb.enqueue()
            for _ in range(3):
                node = new_node(app)
                running = asyncio.ensure_future(node.run())
                await asyncio.sleep(1)
                running.cancel()
                await asyncio.wait([running])
                record = next(n for n in await store.nodes() if n.id == node.id)
                await store.recover(record.id, record.beat)
            status = await job.status()
            assert status.state is JobState.FAILED
            assert status.error is not None
            assert status.error.type == "PoisonousJob"

    run_virtual(main)


def test_the_log_names_a_poisonous_job() -> None:
    """The fault: "12 of its jobs wait again, 1 failed as poisonous", and a search for the job's id found nothing.

    Nobody who subscribes to failed jobs, such as Sentry, heard of it either.
    """

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app, watching = app_on(store, clock=clock), app_on(store, clock=clock)
        lost: list[Event] = []
        failed: list[Any] = []
        watching.subscribe(lost.append, NodeLost)
        watching.subscribe(failed.append, JobFailure)

        @app.task
        async def bomb() -> None:
            await asyncio.sleep(1000)

        async with app.open(), watching:
            job = await bomb.enqueue()
            for _ in range(3):
                running = asyncio.ensure_future(new_node(app).run())
                await asyncio.sleep(1)
                running.cancel()
                await asyncio.wait([running])
                await asyncio.sleep(60)
        lines = [event.line() for event in lost]
        assert [line.partition(" died: ")[2] for line in lines] == [
            "1 of its jobs wait again",
            "1 of its jobs wait again",
            f"0 of its jobs wait again, 1 failed as poisonous (three lost attempts): {job.id}",
        ]
        assert [(each.job_id, each.task, each.attempt, each.ran) for each in failed] == [(job.id, "bomb", 3, None)]
        assert failed[0].error == poison_error(3)

    run_virtual(main)


def test_a_job_that_is_cancelled_as_its_node_is_dead_is_reported() -> None:
    """The fault: "died; it ran no job", of a worker whose blocked job an operator had cancelled, and no other event."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app, watching = app_on(store, clock=clock), app_on(store, clock=clock)
        lost: list[Event] = []
        ended: list[Any] = []
        watching.subscribe(lost.append, NodeLost)
        watching.subscribe(ended.append, JobFinished)

        @app.task
        async def block() -> None:
            await asyncio.sleep(1000)

        async with app.open(), watching:
            job = await block.enqueue()
            running = asyncio.ensure_future(new_node(app).run())
            await asyncio.sleep(1)
            running.cancel()
            await asyncio.wait([running])
            await watching.admin.cancel(job.id)
            await asyncio.sleep(60)
            assert (await job.status()).state is JobState.CANCELLED
        assert [event.line().partition(" died: ")[2] for event in lost] == ["0 of its jobs wait again, 1 cancelled"]
        assert [(each.job_id, each.task, each.state) for each in ended] == [(job.id, "block", JobState.CANCELLED)]

    run_virtual(main)


def test_the_line_of_a_dead_node_names_a_few_poisonous_jobs() -> None:
    lost = NodeLost(at=0, node="web", returned=0, poisonous=12, poisonous_jobs=tuple(f"j{n}" for n in range(12)))
    assert lost.line().endswith(
        "12 failed as poisonous (three lost attempts): j0, j1, j2, j3, j4, j5, j6, j7, j8, j9, …"
    )


def test_jobs_of_an_undeclared_task_wait_and_are_reported_once() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        newer, older = app_on(store, clock=clock), app_on(store, clock=clock)
        events: list[Event] = []
        older.subscribe(events.append, TaskUnknown)

        @newer.task
        async def brand_new() -> str:
            return "ran"

        @older.task
        async def known() -> str:
            return "ran"

        async with newer.open(), older:
            jobs = [await brand_new.enqueue() for _ in range(3)]
            behind = await known.enqueue()
            assert await behind.result() == "ran"
            await asyncio.sleep(60)
            assert (await jobs[0].status()).state is JobState.WAITING
            assert len(events) == 1
        async with newer:
            assert [await job.result() for job in jobs] == ["ran"] * 3

    run_virtual(main)


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_task_that_other_nodes_declare_for_another_queue_alone_is_reported(is_gated: bool) -> None:
    """The fault: a worker of both queues was silent, although no node runs the jobs in one of them."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        declaring, both = app_on(store, clock=clock), app_on(store, clock=clock)
        events: list[TaskUnknown] = []
        both.subscribe(events.append, TaskUnknown)
        both.queue("mail")
        limits = [StrictRate("100/s", name="api")] if is_gated else []

        @declaring.task(limits=limits)
        async def send() -> None: ...

        @both.task(limits=limits)
        async def known() -> None: ...

        async with declaring.open(), both:
            await store.join("node-mail", "mail", controls=NodeControls({"mail": 1}), tasks={"mail": ["send"]})
            await send.enqueue()
            await asyncio.sleep(20)
            assert [event.task for event in events] == ["send"]

    run_virtual(main)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("how", ["gather", "group", "unawaited"])
def test_an_error_in_a_task_of_a_handler_ends_at_most_its_job(raised: type[BaseException], how: str) -> None:
    """The fault: asyncio passes SystemExit and KeyboardInterrupt on from any task, which ended the worker."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        kept: list[asyncio.Task[None]] = []

        async def deep() -> None:
            await asyncio.sleep(0.1)
            raise raised

        @app.task
        async def starts_others() -> None:
            match how:
                case "gather":
                    await asyncio.gather(asyncio.sleep(5), deep())
                case "group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(deep())
                case _:
                    kept.append(asyncio.create_task(deep()))
                    await asyncio.sleep(1)

        @app.task
        async def fine() -> str:
            async with asyncio.TaskGroup() as group:
                doing = group.create_task(asyncio.sleep(0.1, "still here"))
            return doing.result()

        async with app:
            job = await starts_others.enqueue()
            if how == "unawaited":
                await job.result()
                assert kept[0].exception() is not None
            else:
                with pytest.raises(JobFailed) as failed:
                    await job.result()
                assert raised.__name__ in (failed.value.traceback or "")
            assert await (await fine.enqueue()).result() == "still here"
        assert asyncio.get_running_loop().get_task_factory() is None, "the loop is as it was"

    run_virtual(main)


def test_a_task_factory_that_was_set_over_that_of_a_node_works_after_the_node_has_ended() -> None:
    """The fault: it called the factory of the node, which raised KeyError, so the program could start no more tasks."""

    async def main(clock: VirtualClock) -> None:
        app, loop = Headgate("memory://", clock=clock), asyncio.get_running_loop()

        @app.task
        async def work() -> None: ...

        async with app:
            # Then the node runs.
            await (await work.enqueue()).result()
            inner: Any = loop.get_task_factory()
            loop.set_task_factory(lambda *arguments, **options: inner(*arguments, **options))
        assert await asyncio.create_task(asyncio.sleep(0, "started")) == "started"

    run_virtual(main)


def test_no_error_of_a_handler_ends_the_node() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        class Unprintable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        @app.task
        async def exits() -> None:
            raise SystemExit(3)

        @app.task
        async def huge() -> None:
            raise ValueError("x" * 50_000_000)

        @app.task
        async def unprintable() -> None:
            raise Unprintable

        @app.task
        async def fine() -> str:
            return "still here"

        async with app:
            for task in (exits, huge, unprintable):
                job = await task.enqueue()
                with pytest.raises(JobFailed):
                    await job.result()
                error = (await job.status()).error
                assert error is not None
                assert len(error.message) + len(error.traceback or "") < 10_000
            assert await (await fine.enqueue()).result() == "still here"

    run_virtual(main)


def test_a_result_that_is_not_json_fails_the_job_clearly_and_does_not_run_it_again() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        runs: list[int] = []

        @app.task
        async def work() -> Any:
            runs.append(1)
            return object()

        async with app:
            with pytest.raises(JobFailed, match="cannot be stored as JSON"):
                await (await work.enqueue()).result()
            assert runs == [1]

    run_virtual(main)


def test_a_whole_backlog_expires_when_it_is_due() -> None:
    """One step of a hundred jobs a second left the last of a hundred thousand for a quarter of an hour."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", margin=0)])
        async def call(number: int) -> None: ...

        async with app:
            due = clock.now() + 5 * SECOND
            await call.using(expires_at=to_datetime(due)).enqueue_many([(number,) for number in range(3001)])
            await asyncio.sleep(9)
            (counts,) = await app.admin.counts()
            assert (counts.succeeded, counts.waiting, counts.failed) == (1, 0, 3000)

    run_virtual(main)


def test_a_job_that_is_not_started_in_time_expires() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue("acme")
            soon = to_datetime(clock.now() + 60 * SECOND)
            late = await call.using(expires_at=soon).enqueue("acme")
            with pytest.raises(JobFailed, match="not started by its expires_at") as failed:
                await late.result()
            assert type(failed.value.__cause__).__name__ == "JobExpired"
            assert 59 * SECOND < clock.monotonic() < 63 * SECOND

    run_virtual(main)


def test_throttling_is_logged_once_and_then_in_summaries() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        events: list[JobThrottled] = []
        app.subscribe(lambda event: events.append(event), JobThrottled)

        @app.task(limits=[RateLimit("1/s", key="{tenant}", burst=1)])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 100)
            await asyncio.sleep(90)
        assert 3 <= len(events) <= 4
        assert events[0].count == 1
        assert events[0].waiting == 99
        assert events[1].count >= 29

    run_virtual(main)


def test_an_operator_retries_a_failed_job_with_all_its_tries() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        broken = True

        @app.task(retry=RetryPolicy(retries=1, base=1))
        async def work() -> str:
            if broken:
                raise ValueError("not yet")
            return "fixed"

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed):
                await job.result()
            broken = False
            await app.admin.retry(job.id)
            assert await job.result() == "fixed"
            assert (await job.status()).attempt == 1
            with pytest.raises(JobNotFound):
                await app.admin.retry("no-such-job")

    run_virtual(main)


def test_a_wall_clock_that_steps_back_an_hour_stalls_no_job_and_creates_no_budget() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[int] = []

        @app.task(limits=[StrictRate("10/m", key="{tenant}", margin=0)])
        async def call(tenant: str) -> None:
            ran.append(clock.monotonic())

        async with app:
            await call.enqueue_many([("acme",)] * 25)
            await asyncio.sleep(1)
            clock.step_wall(-3600)
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(121)
            assert len(ran) == 30
            clock.step_wall(86_400)
            await call.enqueue_many([("acme",)] * 25)
            await asyncio.sleep(300)
        assert len(ran) == 55
        assert max(sum(1 for t in ran if at - 60 * SECOND < t <= at) for at in ran) == 10

    run_virtual(main)


@pytest.mark.nightly
@pytest.mark.slow
def test_many_new_keys_free_no_key_from_its_limit() -> None:
    """The fault: beyond a number of tracked keys, new ones ran without any limit."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[str] = []

        @app.task(limits=[StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None:
            ran.append(tenant)

        async with app:
            await call.enqueue_many([(f"tenant-{number}",) for number in range(20_000)])
            await asyncio.sleep(60)
            assert len(ran) == len(set(ran)) == 20_000
            again = await call.enqueue_many([(f"tenant-{number}",) for number in range(0, 20_000, 100)])
            # Buckets in use are never forgotten, however many there are.
            await store_of(app).evict(100_000)
            await asyncio.sleep(3400)
            assert len(ran) == 20_000
            await again[-1].result()
            await asyncio.sleep(1)
            assert len(ran) == 20_200

    run_virtual(main)


def test_delayed_jobs_take_no_memory_in_the_worker(tmp_path: Path) -> None:
    """The fault: every delayed job was an object in the worker, loaded anew at each start."""

    async def main(clock: VirtualClock) -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        app = Headgate(url, clock=clock, synchronous="OFF")
        ran: list[int] = []

        @app.task
        async def work(number: int) -> None:
            ran.append(number)

        async with app.open():
            for begin in range(0, 50_000, 5_000):
                later = work.using(delay=3600 + begin)
                await later.enqueue_many([(begin + number,) for number in range(5_000)])
            await work.using(delay=30).enqueue(-1)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            async with app:
                await asyncio.sleep(60)
                _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert ran == [-1]
        # 50,000 jobs as objects would be tens of megabytes.
        assert peak - before < 10_000_000

    run_virtual(main)


def test_a_backoff_that_raises_loses_no_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []
        received: list[Event] = []
        app.subscribe(received.append, RetryPolicyFailed)

        def broken(failures: int) -> float:
            raise ZeroDivisionError

        @app.task(retry=RetryPolicy(retries=2, backoff=broken))
        async def work() -> None:
            tries.append(1)
            raise ValueError("no")

        async with app:
            with pytest.raises(JobFailed):
                await result_within(await work.enqueue(), 3600)
            assert len(tries) == 3
        assert len(received) == 2

    run_virtual(main)


def test_filters_decide_which_errors_are_tried_again() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[str] = []

        @app.task(retry=RetryPolicy(retries=2, retry_on=(OSError, ValueError), give_up_on=ConnectionError))
        async def work(kind: str) -> None:
            tries.append(kind)
            raise {"value": ValueError, "type": TypeError, "connection": ConnectionError}[kind]

        async with app:
            for kind in ("value", "type", "connection"):
                with pytest.raises(JobFailed):
                    await result_within(await work.enqueue(kind), 3600)
        assert tries == ["value"] * 3 + ["type", "connection"]
        with pytest.raises(DeclarationError, match="exception classes"):
            RetryPolicy(retry_on="ValueError")  # type: ignore[arg-type]

    run_virtual(main)
