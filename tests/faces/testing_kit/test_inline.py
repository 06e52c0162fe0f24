"""Inline mode, as a test of a user's would use it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from headgate import Cancel, Headgate, JobState, RateLimited, RetryPolicy, Snooze, StrictRate, current_job
from headgate.jobs.event import Event, JobFinished, JobStarted
from headgate.testing import Workbench, inline
from tests.faces.testing_kit import shop
from tests.until import patient


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    shop.seen.clear()
    yield
    shop.seen.clear()


@pytest.fixture
def jobs() -> Iterator[Workbench]:
    with inline(shop.app) as jobs:
        yield jobs


async def test_enqueueing_runs_the_job(jobs: Workbench) -> None:
    job = await shop.greet.enqueue("ada", polite=True)
    assert await job.result() == "dear ada"
    jobs.assert_enqueued(shop.greet, "ada")
    assert await (await shop.ship.enqueue(shop.Order(7, []))).result() == 7
    assert await (await shop.compute.enqueue(0)).result() == 0


async def test_jobs_enqueued_by_a_job_run_inside_it(jobs: Workbench) -> None:
    await shop.fan_out.enqueue(["a", "b"])
    await shop.greet_twice("c")
    assert shop.seen == [("a", False), ("b", False), ("c", False), ("c", True)]


async def test_the_error_of_the_handler_is_raised_and_the_retry_waits(jobs: Workbench) -> None:
    with pytest.raises(ConnectionError, match="attempt 1"):
        await shop.flaky.enqueue(1)
    (job,) = jobs.all_enqueued(shop.flaky)
    assert (job.state, job.attempt) == (JobState.WAITING, 1)
    await jobs.travel(minutes=1)
    assert jobs.all_enqueued(shop.flaky)[0].state is JobState.SUCCEEDED
    with pytest.raises(ValueError, match="broken"):
        await shop.broken.enqueue()


async def test_what_is_enqueued_side_by_side_has_run_when_each_returns(jobs: Workbench) -> None:
    async def enqueue(first: int) -> list[int]:
        handles = await shop.slow.enqueue_many([(first + 3,), (first + 2,), (first + 1,)])
        return [await handle.result() for handle in handles]

    assert await asyncio.gather(*(enqueue(first) for first in range(10))) == [[n + 3, n + 2, n + 1] for n in range(10)]
    failing = await asyncio.gather(*(shop.broken.enqueue() for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in failing] == [ValueError] * 5


async def test_errors_are_kept_where_the_test_says_so() -> None:
    with inline(shop.app, raising=False) as jobs:
        job = await shop.broken.enqueue()
        assert (await job.status()).state is JobState.FAILED
        assert jobs.all_enqueued(state="failed")[0].task == "broken"


@pytest.mark.parametrize(
    ("outcome", "state"), [(Snooze(60), "waiting"), (RateLimited(60), "waiting"), (Cancel("not needed"), "cancelled")]
)
async def test_a_job_that_is_no_failure_leaves_the_job_that_enqueues_it_alone(outcome: Exception, state: str) -> None:
    """The fault: the job that had enqueued it was snoozed or cancelled as well, and enqueued it once more."""
    app = Headgate("memory://")

    @app.task
    async def inner() -> None:
        raise outcome

    @app.task
    async def outer() -> str:
        return (await inner.enqueue()).id

    with inline(app) as jobs:
        inner_id = await (await outer.enqueue()).result()
        assert [(job.id, job.state) for job in jobs.all_enqueued(inner)] == [(inner_id, state)]


async def test_limits_delay_nothing_and_delays_wait_for_time_to_pass(jobs: Workbench) -> None:
    await shop.sync_tenant.enqueue_many([("acme",)] * 40)
    assert len(shop.seen) == 40
    await shop.greet.using(delay=60).enqueue("later")
    assert len(shop.seen) == 40
    await jobs.travel(minutes=1)
    assert len(shop.seen) == 41


async def test_a_handler_sees_the_keys_of_limits_that_delay_nothing() -> None:
    """The fault: limit_keys was empty in inline mode and in run_job, so a handler that reads one failed only there."""
    app = Headgate("memory://")

    @app.task(limits=[StrictRate("1/h", name="calls", key="{tenant}")])
    async def keys(tenant: str) -> dict[str, str]:
        return dict(current_job().limit_keys)

    with inline(app) as jobs:
        for tenant in ("acme", "acme", "globex"):
            assert await (await keys.enqueue(tenant)).result() == {"calls": tenant}
            assert await jobs.run_job(keys, tenant) == {"calls": tenant}


def test_sync_code_runs_its_jobs_in_its_own_thread(jobs: Workbench) -> None:
    assert shop.where.sync.enqueue("here").result() == "here"
    assert shop.seen == [threading.current_thread().name, "no loop"]
    shop.fan_out_blocking.sync.enqueue(["x"])
    assert shop.seen[-1] == ("x", False)
    with pytest.raises(ValueError, match="broken"):
        shop.broken.sync.enqueue()


@pytest.mark.parametrize("hops", [1, 2])
async def test_a_job_that_enqueues_itself_under_its_unique_key_does_not_wait_for_itself(hops: int) -> None:
    """The fault: the enqueue returned the running job, and waited for ever until that had ended."""
    app, seen = Headgate("memory://"), list[int]()

    @app.task(unique_key="{hop}")
    async def again(hop: int) -> None:
        seen.append(hop)
        await again.enqueue((hop + 1) % hops)

    with inline(app):
        await asyncio.wait_for(again.enqueue(0), patient(5))
    assert seen == list(range(hops))


async def test_a_duplicate_raises_no_error_of_an_attempt_before_it() -> None:
    """The fault: the error of the attempt that the first enqueue had run was raised again, and nothing had run."""
    app = Headgate("memory://")

    @app.task(unique_key="import", retry=RetryPolicy(delay=60))
    async def fails(number: int) -> None:
        raise ValueError(number)

    with inline(app):
        with pytest.raises(ValueError, match="1"):
            await fails.enqueue(1)
        assert not (await fails.enqueue(2)).is_new
        with pytest.raises(ValueError, match="3"):
            await fails.using(on_conflict="replace").enqueue(3)


async def test_a_duplicate_waits_for_the_job_that_another_caller_runs() -> None:
    """The fault: it returned while the job ran, and `result()` raised that nothing runs by itself."""
    app = Headgate("memory://")

    @app.task(unique_key="import")
    async def work() -> int:
        await asyncio.sleep(0.01)
        return 7

    async def enqueue() -> tuple[bool, int]:
        job = await work.enqueue()
        return job.is_new, await job.result()

    with inline(app):
        found = tuple(await asyncio.gather(enqueue(), enqueue(), return_exceptions=True))
        assert found == ((True, 7), (False, 7))


def test_what_several_threads_enqueue_has_run_when_each_returns() -> None:
    """The fault: a thread whose job another one ran was not told of its end, and waited for ever."""
    app = Headgate("memory://")

    @app.task
    def work(number: int) -> int:
        time.sleep(0.001)
        return number

    results = list[int]()

    def enqueue(numbers: range) -> None:
        results.extend(work.sync.enqueue(number).result() for number in numbers)

    with inline(app):
        threads = [threading.Thread(target=enqueue, args=(range(n, 60, 4),), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patient(5))
        assert sorted(results) == list(range(60))


async def test_a_subscriber_that_enqueues_does_not_wait_for_itself() -> None:
    """The fault: the job that it enqueued ended when all events were delivered, so it waited for its own end."""
    app, seen = Headgate("memory://"), list[str]()

    @app.task
    async def work() -> None: ...

    @app.task
    async def report(task: str) -> None:
        seen.append(task)

    async def report_work(event: Event) -> None:
        if isinstance(event, JobFinished) and event.task == "work":
            await report.enqueue("work")

    app.subscribe(report_work, JobFinished)
    with inline(app):
        await asyncio.wait_for(work.enqueue(), patient(5))
    assert seen == ["work"]


def test_subscribers_and_the_jobs_that_they_enqueue_wait_for_no_subscriber() -> None:
    """The faults: a job of a subscriber that enqueued another waited for that subscriber; two subscribers that enqueued
    waited for each other, and so did two calls in one."""
    app, seen = Headgate("memory://"), list[str]()

    @app.task
    async def work() -> None: ...

    @app.task
    async def report(name: str) -> None:
        await note.enqueue(name)

    @app.task
    async def note(name: str) -> None: ...

    async def report_work(event: Event) -> None:
        if isinstance(event, JobFinished) and event.task == "work":
            await asyncio.gather(report.enqueue("a"), report.enqueue("b"))

    def see(event: Event) -> None:
        if isinstance(event, JobFinished):
            seen.append(event.task)

    for subscriber in (see, report_work, report_work):
        app.subscribe(subscriber, JobFinished)
    with inline(app):
        enqueueing = threading.Thread(target=lambda: asyncio.run(work.enqueue()), daemon=True)
        enqueueing.start()
        enqueueing.join(patient(5))
        assert sorted(seen) == ["note"] * 4 + ["report"] * 4 + ["work"]


def test_a_job_inside_of_another_does_not_wait_for_subscribers_on_the_loop_of_that() -> None:
    """The fault: it waited for a task of another event loop, which did not wake it."""
    app, seen = Headgate("memory://"), list[str]()

    @app.task
    def inner() -> int:
        return 7

    @app.task
    def outer() -> int:
        return inner.sync.enqueue().result()

    async def note(event: Event) -> None:
        await asyncio.sleep(0.2)
        seen.append(type(event).__name__)

    app.subscribe(note, JobStarted, JobFinished)
    with inline(app):
        enqueueing = threading.Thread(target=outer.sync.enqueue, daemon=True)
        enqueueing.start()
        enqueueing.join(patient(5))
        assert sorted(seen) == ["JobFinished"] * 2 + ["JobStarted"] * 2
