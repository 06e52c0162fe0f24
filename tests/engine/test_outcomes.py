"""Outcomes that a handler raises: Fail, Retry and Cancel, in every kind of task."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from headgate import (
    Cancel,
    Fail,
    Handler,
    Headgate,
    JobCancelled,
    JobContext,
    JobFailed,
    JobState,
    Retry,
    RetryPolicy,
    Snooze,
    batch,
    chain,
    current_job,
)
from headgate.jobs.event import Event, JobFinished, RetryPolicyFailed
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.until import result_within


class NoSuchOrder(Fail):
    """A failure of the user's own, whose constructor calls no other."""

    def __init__(self) -> None: ...

    def __str__(self) -> str:
        return "there is no such order"


def raised(how: str) -> Exception:
    match how:
        case "fail":
            return NoSuchOrder()
        case "retry":
            return Retry(30, "not ready")
        case "cancel":
            return Cancel("withdrawn")
        case _:
            return Retry()


ENDINGS = {
    # how: state, attempts, their errors, seconds in between, callbacks
    "fail": (JobState.FAILED, ["there is no such order"], [], ["on_error there is no such order"]),
    "retry": (
        JobState.FAILED,
        ["not ready"] * 3,
        [30, 30],
        ["on_retry 1 30.0", "on_retry 2 30.0", "on_error not ready"],
    ),
    "by policy": (
        JobState.FAILED,
        ["the handler requested a retry"] * 3,
        [7, 7],
        ["on_retry 1 7.0", "on_retry 2 7.0", "on_error the handler requested a retry"],
    ),
    "cancel": (JobState.CANCELLED, ["withdrawn"], [], []),
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("kind", ["coroutine", "thread", "handler"])
def test_a_handler_decides_how_its_job_ends(kind: str, how: str) -> None:
    state, errors, waits, expected_calls = ENDINGS[how]

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []
        calls: list[str] = []
        # A filter that accepts none of them.
        policy = RetryPolicy(retries=2, delay=7, retry_on=OSError, give_up_on=Retry)

        def work(text: str) -> None:
            starts.append(clock.monotonic() / 1_000_000)
            raise raised(text)

        async def work_async(text: str) -> None:
            work(text)

        @app.handler(retry=policy)
        class Work(Handler[str]):
            async def run(self, payload: str) -> None:
                work(payload)

            def on_error(self, job: JobContext, error: BaseException) -> None:
                calls.append(f"on_error {error}")

            def on_retry(self, job: JobContext, error: BaseException, attempt: int, delay: float) -> None:
                calls.append(f"on_retry {attempt} {delay}")

        function: Any = work_async if kind == "coroutine" else work
        task = Work.task if kind == "handler" else app.task(name="work", retry=policy)(function)

        async with app:
            job = await task.enqueue(how)
            with pytest.raises(JobCancelled if state is JobState.CANCELLED else JobFailed) as ended:
                await result_within(job, 1000)
            details = await app.admin.job(job.id)
            assert details.record.state is state
            assert [attempt.error and attempt.error.message for attempt in details.attempts] == errors
            assert [round(later - sooner) for sooner, later in itertools.pairwise(starts)] == waits
            if isinstance(ended.value, JobCancelled):
                assert ended.value.reason == "withdrawn"
                assert str(ended.value) == f"job {job.id} was cancelled: withdrawn"
                assert isinstance(ended.value.__cause__, Cancel)
            else:
                assert str(ended.value).endswith(f": {errors[-1]}")
        assert calls == (expected_calls if kind == "handler" else [])

    run_virtual(main)


async def test_a_database_keeps_how_handlers_ended_their_jobs(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(retry=RetryPolicy(retries=2, delay=0, retry_on=OSError, give_up_on=Retry))
    async def end(how: str) -> None:
        raise Retry(0, "not ready") if how == "retry" else raised(how)

    @app.task
    async def after() -> None: ...

    async with app:
        for how in ("fail", "retry", "cancel"):
            state, errors, _, _ = ENDINGS[how]
            stored = await batch([end.call(how)]).then(after.call(), on="failure").enqueue()
            await result_within(stored.then[0], 15)
            (job,) = stored.jobs
            with pytest.raises(JobCancelled if state is JobState.CANCELLED else JobFailed):
                await result_within(job, 15)
            details = await app.admin.job(job.id)
            assert details.record.state is state
            assert [attempt.error and attempt.error.message for attempt in details.attempts] == errors
            status = await stored.status()
            assert (status.failed, status.cancelled) == ((0, 1) if how == "cancel" else (1, 0))


def test_what_follows_sees_how_its_leader_was_ended() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ended: list[Event] = []
        app.subscribe(ended.append, JobFinished)

        @app.task
        async def end(how: str) -> None:
            raise raised(how)

        @app.task
        async def after() -> list[int]:
            leader = current_job().follows
            assert leader is not None
            status = await app.batch(leader).status()
            return [status.failed, status.cancelled]

        async with app:
            for how, counts in (("fail", [1, 0]), ("cancel", [0, 1])):
                stored = await batch([end.call(how)]).then(after.call(), on="final").enqueue()
                assert await stored.then[0].result() == counts
                follower = await chain(end.call(how), after.call()).enqueue()
                with pytest.raises(JobCancelled):
                    await follower.result()
            await asyncio.sleep(1)
        assert [event.error and event.error.message for event in ended if isinstance(event, JobFinished)].count(
            "withdrawn"
        ) == 2

    run_virtual(main)


@pytest.mark.parametrize("answer", [Fail("no"), Retry(5), Cancel("no")])
@pytest.mark.parametrize("is_user", [True, False])
def test_a_cancellation_by_a_user_counts_and_a_timeout_leaves_the_handler_the_choice(
    answer: Exception, is_user: bool
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(timeout=None if is_user else 2, retry=RetryPolicy(retries=0))
        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                raise answer from None

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            if is_user:
                await job.cancel()
            with pytest.raises((JobCancelled, JobFailed)) as ended:
                await job.result()
        if is_user:
            assert isinstance(ended.value, JobCancelled)
            assert ended.value.reason is None
        else:
            assert isinstance(ended.value, JobCancelled) == isinstance(answer, Cancel)
            assert str(answer) in str(ended.value)

    run_virtual(main)


def test_a_job_that_a_user_cancelled_between_its_attempts_was_not_cancelled_for_its_error() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            raise Retry(1000, "not ready")

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            with pytest.raises(JobCancelled) as cancelled:
                await job.result()
        assert cancelled.value.reason is None

    run_virtual(main)


def failing(_: object) -> bool:
    raise AttributeError("status_code")


@pytest.mark.parametrize(
    "policy", [RetryPolicy(retries=2, retry_on=failing), RetryPolicy(retries=2, give_up_on=(KeyError, failing))]
)
def test_a_filter_that_raises_is_reported_and_the_job_is_tried_again(policy: RetryPolicy) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, RetryPolicyFailed)

        @app.task(retry=policy)
        async def work() -> None:
            raise ValueError("of the handler")

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed, match="of the handler"):
                await job.result()
            assert (await job.status()).attempt == 3
        assert [event.error for event in events if isinstance(event, RetryPolicyFailed)] == [
            "AttributeError: status_code"
        ] * 2

    run_virtual(main)


def test_a_backoff_gets_the_error_of_the_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(retry=RetryPolicy(retries=2, backoff=lambda failures, error: failures * error.errno))
        def work() -> None:
            starts.append(clock.monotonic() / 1_000_000)
            raise OSError(40, "busy")

        async with app:
            with pytest.raises(JobFailed):
                await (await work.enqueue()).result()
        assert [round(later - sooner) for sooner, later in itertools.pairwise(starts)] == [40, 80]

    run_virtual(main)


@pytest.mark.parametrize("signal", [Snooze, Retry])
def test_a_delay_that_is_none_is_refused_where_it_is_raised(signal: type[Exception]) -> None:
    with pytest.raises(ValueError, match="is not a duration; write seconds"):
        signal("not ready")


@pytest.mark.parametrize("is_process", [False, True], ids=["in the node", "in a child process"])
async def test_the_error_of_a_job_names_an_outcome_as_it_is_imported(is_process: bool) -> None:
    """The fault: a handler raised `Fail` of `headgate`, and people saw `headgate.tasks.signals.Fail`."""
    app = Headgate("memory://")
    names: list[str] = []
    for function in (fails, retries, cancels):
        app.task(process=is_process, retry=RetryPolicy(retries=0))(function)
    async with app:
        for task in app.tasks.values():
            job = await task.enqueue()
            with contextlib.suppress(JobFailed, JobCancelled):
                await result_within(job, 15)
            error = (await app.admin.job(job.id)).record.error
            assert error is not None
            names.append(error.type)
            assert "headgate.tasks" not in (error.traceback or "")
    assert names == ["headgate.Fail", "headgate.Retry", "headgate.Cancel"]


def fails() -> None:
    raise Fail("no")


def retries() -> None:
    raise Retry(reason="no")


def cancels() -> None:
    raise Cancel("no")
