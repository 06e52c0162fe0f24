"""Retries on the engine: how often, how long, whose policy counts, and what uses up a try."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from headgate import Headgate, JobFailed, JobState, RateLimited, RetryPolicy, Snooze, StrictRate, current_job
from headgate.jobs.event import Event, RetryPolicyFailed
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.until import result_within


def now() -> float:
    return asyncio.get_running_loop().time()


def gaps(starts: list[float]) -> list[float]:
    return [round(later - earlier, 1) for earlier, later in pairwise(starts)]


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(retries=3, delay=10), [10, 10, 10]),
        (RetryPolicy(delays=[1, 60]), [1, 60]),
        (RetryPolicy(retries=4, base=1, cap=3, jitter=False), [1, 2, 3, 3]),
        (RetryPolicy(retries=9, backoff=lambda failures: 5 * failures if failures < 3 else None), [5, 10]),
        (RetryPolicy(retries=0), []),
    ],
    ids=["the same", "named", "exponential", "computed", "none"],
)
def test_a_job_waits_as_its_policy_says_and_keeps_the_error_of_each_attempt(
    policy: RetryPolicy, waits: list[float]
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(retry=policy)
        async def work() -> None:
            starts.append(now())
            raise ValueError(f"try {current_job().attempt}")

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed, match=f"try {len(waits) + 1}"):
                await job.result()
            attempts = (await app.admin.job(job.id)).attempts
            assert [attempt.error and attempt.error.message for attempt in attempts] == [
                f"try {number}" for number in range(1, len(waits) + 2)
            ]
        assert gaps(starts) == waits

    run_virtual(main)


def test_a_job_that_always_fails_uses_up_its_tries_however_often_it_is_throttled() -> None:
    """The fault: a job that was throttled began to count anew, so one that always fails was tried for ever while others
    kept its bucket drained."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.task(limits=[StrictRate("1/m", name="api", margin=0)], retry=RetryPolicy(retries=3, delay=1))
        async def broken() -> None:
            tries.append(current_job().attempt)
            raise ValueError

        @app.task(limits=[StrictRate("1/m", name="api", margin=0)])
        async def other() -> None: ...

        async def drain() -> None:
            # There are always others in the line, so each retry meets a closed bucket.
            while True:
                await other.enqueue_many([()] * 2)
                await asyncio.sleep(60)

        async with app:
            job = await broken.enqueue()
            draining = asyncio.ensure_future(drain())
            with pytest.raises(JobFailed):
                await job.result(timeout=100 * 3600)
            draining.cancel()
            assert tries == [1, 2, 3, 4]
            assert (await job.status()).attempt == 4

    run_virtual(main)


def test_a_job_with_a_policy_of_its_own_keeps_the_filters_of_its_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        starts: list[float] = []

        @app.task(retry=RetryPolicy(retries=1, give_up_on=KeyError))
        async def work(kind: str) -> None:
            starts.append(now())
            raise KeyError if kind == "final" else ValueError

        async with app:
            often = work.using(retry=RetryPolicy(retries=3, delay=7)).using(timeout=50)
            job = await often.enqueue("passing")
            with pytest.raises(JobFailed):
                await job.result()
            assert gaps(starts) == [7, 7, 7]
            starts.clear()
            with pytest.raises(JobFailed):
                await (await often.enqueue("final")).result()
            assert len(starts) == 1

    run_virtual(main)


@pytest.mark.parametrize("filters", [{}, {"give_up_on": TimeoutError}, {"retry_on": RetryPolicy.NETWORK}])
def test_a_timeout_is_tried_again_unless_a_filter_says_otherwise(filters: dict[str, Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("slow", timeout=5, retry=RetryPolicy(retries=2, delay=1, **filters))
        tries: list[int] = []

        @app.task(queue="slow")
        async def work() -> None:
            tries.append(current_job().attempt)
            await asyncio.sleep(1000)

        async with app:
            with pytest.raises(JobFailed, match="TimeoutError"):
                await (await work.enqueue()).result()
        assert tries == ([1] if "give_up_on" in filters else [1, 2, 3])

    run_virtual(main)


def test_an_invalid_backoff_is_reported_and_the_job_is_retried() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, RetryPolicyFailed)

        @app.task(retry=RetryPolicy(retries=2, backoff=lambda _failures: float("nan")))
        async def work() -> None:
            raise ValueError

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed):
                await job.result()
            status = await job.status()
        assert (status.state, status.attempt) == (JobState.FAILED, 3)
        assert len(events) == 2

    run_virtual(main)


class RateLimitedWithoutInit(RateLimited):
    """A custom error without a call of `super().__init__()`."""

    def __init__(self) -> None: ...


class SnoozeWithoutInit(Snooze):
    def __init__(self) -> None: ...


def nested(times: int = 2000) -> Exception:
    error: Exception = ValueError("the innermost")
    for _ in range(times):
        error = ExceptionGroup("around it", [error])
    return error


@pytest.mark.parametrize("error", [RateLimitedWithoutInit, SnoozeWithoutInit, nested])
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_error_that_cannot_be_inspected_spends_its_attempt(error: Any, in_thread: bool) -> None:
    """It once broke out of the attempt: the job stayed running, was recovered, and ran for ever."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, heartbeat=1, lease=5)
        runs: list[int] = []

        async def work() -> None:
            fail()

        def fail() -> None:
            runs.append(1)
            raise error()

        task = app.task(name="work", retry=RetryPolicy(retries=1, delay=1))(fail if in_thread else work)
        async with app:
            job = await task.enqueue()
            with pytest.raises(JobFailed):
                await result_within(job, 100)
            assert len(runs) == 2

    run_virtual(main)
