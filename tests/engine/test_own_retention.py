"""Retention, kept results and expiry of single tasks and jobs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from headgate import (
    AttemptContext,
    DeclarationError,
    Every,
    Headgate,
    JobContext,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobState,
    RetryPolicy,
    batch,
    chain,
    current_job,
    result_of,
)
from headgate.clock import SECOND, to_datetime
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing import manual
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import app_on, client_of
from tests.until import result_within, until

HOUR = 3600


@pytest.mark.nightly
@pytest.mark.slow
def test_each_job_is_kept_as_long_as_it_or_its_task_says() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retention={"succeeded": "2h", "cancelled": "4h"})

        @app.task(retention={"succeeded": 0, "failed": "forever"}, retry=RetryPolicy(retries=0))
        async def short(*, fails: bool) -> None:
            if fails:
                raise ValueError

        @app.task
        async def usual() -> str:
            return "done"

        async with app:
            kept = await short.enqueue(fails=True)
            hour = await short.using(retention="1h").enqueue(fails=False)
            gone = await short.enqueue(fails=False)
            cancelled = await short.using(retention={"failed": 1}, delay=9).enqueue(fails=False)
            await cancelled.cancel()
            plain = await usual.enqueue()
            forever = await usual.using(retention="forever").enqueue()
            await gone.result()
            await asyncio.sleep(35)
            with pytest.raises(JobNotFound):
                await gone.status()
            assert await plain.result() == "done"
            await asyncio.sleep(HOUR)
            with pytest.raises(JobNotFound):
                await hour.status()
            await asyncio.sleep(HOUR)
            with pytest.raises(JobNotFound):
                await plain.status()
            assert (await cancelled.status()).state is JobState.CANCELLED, "of the app: 4 hours"
            await asyncio.sleep(2 * HOUR)
            with pytest.raises(JobNotFound):
                await cancelled.status()
            assert (await kept.status()).state is JobState.FAILED
            assert await forever.result() == "done"

    run_virtual(main)


def test_an_app_may_keep_no_final_jobs_but_those_that_others_still_follow() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        other, app = (app_on(store, clock=clock, retention=kept) for kept in (None, {"succeeded": 0}))

        @app.task(retry=RetryPolicy(retries=0))
        async def work(*, fails: bool = False) -> str:
            assert not fails
            return "done"

        @app.task
        async def follow(text: str) -> str:
            return text

        @other.task(name="work")
        async def of_other() -> None: ...

        async with app:
            leader = work.call()
            last = await chain(leader, follow.using(delay=120).call(result_of(leader))).enqueue()
            done, failed = await work.enqueue_many([work.call(), work.call(fails=True)])
            async with other.open():
                unmarked = await of_other.enqueue()
            assert await result_within(done, 5) == "done"
            await asyncio.sleep(65)
            with pytest.raises(JobNotFound):
                await done.status()
            assert (await failed.status()).state is JobState.FAILED
            assert (await app.job(unmarked.id).status()).state is JobState.SUCCEEDED
            assert len(await app.admin.jobs(task="work", state=JobState.SUCCEEDED)) == 2, "one is followed"
            assert await result_within(last, 120) == "done"
            await asyncio.sleep(65)
            assert [job.id for job in await app.admin.jobs(state=JobState.SUCCEEDED)] == [unmarked.id]
            await asyncio.sleep(HOUR)
            assert not await app.admin.jobs(state=JobState.SUCCEEDED)

    run_virtual(main)


def test_a_step_reads_the_result_of_a_job_that_is_not_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retention=0)
        async def first() -> int:
            return 7

        @app.task
        async def second() -> int:
            leader = current_job().follows
            assert leader is not None
            await asyncio.sleep(100)
            return await app.job(leader).result() + 1  # type: ignore[no-any-return]

        async with app:
            stored = await chain(first.call(), second.call()).enqueue()
            assert await stored.result() == 8
            await asyncio.sleep(35)
            assert [job.task for job in await app.admin.jobs()] == ["second"]

    run_virtual(main)


def test_results_that_are_not_kept_stay_for_all_that_read_them() -> None:
    """The fault: only what a job follows itself was kept for it, or the batch of that job."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retention=0)

        @app.task
        async def page(number: int, seconds: float = 0) -> int:
            await asyncio.sleep(seconds)
            return number

        @app.task
        async def add(pages: list[int], first: int = 0) -> int:
            return sum(pages) + first

        @app.task
        async def add_all() -> int:
            leader = current_job().follows
            assert leader is not None
            return sum(await app.batch(leader).result())

        def pages() -> Any:
            return page.call(1, 100), batch([page.call(2), page.call(3)])

        async with app:
            first, others = pages()
            joined = await batch([first, others, add.call(result_of(others), result_of(first))]).enqueue()
            first, others = pages()
            nested = await batch([first, others]).then(add_all.call()).enqueue()
            first, others = pages()
            later = await chain(others, first, page.call(4, 100), add.call(result_of(others))).enqueue()
            assert await result_within(joined.jobs[-1], 200) == 6
            assert await result_within(nested.then[0], 200) == 6
            assert await result_within(later, 400) == 5
            await asyncio.sleep(65)
            assert not await app.admin.jobs()

    run_virtual(main)


class Session:
    pass


@pytest.mark.parametrize("kind", ["coroutine", "thread", "resource", "thread with resource"])
@pytest.mark.parametrize("has_callback", [False, True])
def test_a_result_that_is_not_kept_may_be_of_any_type(kind: str, has_callback: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        returned = object()
        results: list[Any] = []

        @app.resource(scope="attempt")
        async def session() -> AsyncIterator[Session]:
            yield Session()

        async def coroutine() -> object:
            return returned

        def thread() -> object:
            return returned

        async def with_resource(session: Session) -> object:
            return returned

        def in_thread_with_resource(session: Session) -> object:
            return returned

        functions: dict[str, Any] = {
            "coroutine": coroutine,
            "thread": thread,
            "resource": with_resource,
            "thread with resource": in_thread_with_resource,
        }
        task = app.task(name="work", keep_result=False)(functions[kind])
        if has_callback:
            task.on_completed(lambda job, result: results.append(result))
        async with app:
            job = await task.enqueue()
            assert await job.result() is None
            assert (await app.admin.job(job.id)).record.result is None
            kept = await task.using(keep_result=True).enqueue()
            with pytest.raises(JobFailed, match="cannot be stored as JSON"):
                await kept.result()
        assert results == ([returned] if has_callback else [])

    run_virtual(main)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets that functions may be an async def or a generator."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


@plain
async def waits() -> None: ...


@plain
def yields() -> Iterator[None]:
    yield


@plain
async def yields_async() -> AsyncIterator[None]:
    yield


@plain
async def has_resource(session: Session) -> None: ...


async def forgets_to_await() -> Any:
    return waits()


@pytest.mark.parametrize("keep_result", [False, True])
@pytest.mark.parametrize(
    ("function", "process"),
    [
        *((each, False) for each in (waits, yields, yields_async, has_resource, forgets_to_await)),
        (waits, True),
    ],
)
async def test_a_function_whose_code_has_not_run_fails_its_job(
    function: Callable[..., Any], process: bool, keep_result: bool
) -> None:
    """The fault: if the result was not kept, the job succeeded and nothing had been done."""
    app = Headgate("memory://")
    results: list[Any] = []

    @app.resource(scope="attempt")
    async def session() -> AsyncIterator[Session]:
        yield Session()

    task = app.task(name="work", keep_result=keep_result, process=process)(function)
    task.on_completed(lambda job, result: results.append(result))
    async with app:
        job = await task.enqueue()
        with pytest.raises(JobFailed, match=r"'work' returned a (coroutine|generator), whose code has not run"):
            await result_within(job, 15)
        assert (await job.status()).attempt == 1
    assert results == []


def test_a_hook_that_does_not_await_its_handler_fails_the_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.around_attempt
        async def forgets(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
            return run()

        @app.task(keep_result=False)
        async def work() -> None: ...

        async with app:
            with pytest.raises(JobFailed, match="a decorator or hook around an async def must be an async def"):
                await (await work.enqueue()).result()

    run_virtual(main)


async def test_a_database_keeps_jobs_and_results_as_their_tasks_say(make_app: MakeApp) -> None:
    app = make_app()
    returned: list[object] = []

    @app.task(keep_result=False, retention={"succeeded": 0})
    async def forget() -> object:
        return object()

    @forget.on_completed
    async def note(job: JobContext, result: object) -> None:
        returned.append(result)

    @app.task(retention="forever")
    async def keep() -> int:
        return 7

    @app.task
    async def follow(value: int) -> int:
        return value

    async with app:
        gone, kept = await forget.enqueue(), await keep.enqueue()
        assert await result_within(gone, 15) is None
        assert (await app.admin.job(gone.id)).record.result is None
        leader = keep.using(retention=0).call()
        last = await chain(leader, follow.using(delay=3600).call(result_of(leader))).enqueue()
        assert (await result_within(kept, 15), await result_within(last.jobs[0], 15)) == (7, 7)
        await until(lambda: len(returned) == 1)
        storage = client_of(app).storage
        await storage.prune_by_own_retention()
        with pytest.raises(JobNotFound):
            await gone.status()
        assert (await last.jobs[0].status()).state is JobState.SUCCEEDED, "its follower may read its result"
        await app.admin.run_now(last.jobs[1].id)
        assert await result_within(last, 15) == 7
        await storage.prune_by_own_retention()
        with pytest.raises(JobNotFound):
            await last.jobs[0].status()
        assert await kept.result() == 7


async def test_a_test_gets_none_for_a_result_that_is_not_kept() -> None:
    app = Headgate("memory://")

    @app.task(keep_result=False)
    async def work() -> int:
        return 1

    with manual(app) as jobs:
        assert await jobs.run_job(work) is None
        assert await jobs.run_job(work.using(keep_result=True)) == 1


def test_a_job_expires_in_the_time_that_its_task_gives_it_or_it_has_itself() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(expires_in=60)
        async def work() -> None: ...

        async with app.open():
            begun = clock.now()

            async def expiry(**options: Any) -> float:
                job = await work.using(**options).enqueue()
                expires_at = (await app.admin.job(job.id)).record.expires_at
                assert expires_at is not None
                return (expires_at - begun) / SECOND

            assert await expiry() == 60
            assert await expiry(delay=100) == 160
            assert await expiry(expires_in="5m") == 300
            assert await expiry(expires_at=to_datetime(begun + 7 * SECOND)) == 7
            instant = work.using(expires_at=to_datetime(begun + 7 * SECOND))
            assert instant.using(expires_in=8).template.expires_at is None
        async with app:
            job = await work.using(delay=100).enqueue()
            await app.admin.queues.pause("default")
            await asyncio.sleep(162)
            with pytest.raises(JobFailed) as failed:
                await job.result()
            assert isinstance(failed.value.__cause__, JobExpired)

    run_virtual(main)


def test_an_occurrence_of_a_schedule_expires_in_the_time_of_its_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.schedule(Every(seconds=600))
        @app.task(expires_in=60, retention=0)
        async def work() -> None: ...

        async with app:
            await app.admin.queues.pause("default")
            await asyncio.sleep(610)
            (job,) = list(await app.admin.jobs())
            record = (await app.admin.job(job.id)).record
            assert record.expires_at == record.run_at + 60 * SECOND
            assert record.options is not None
            await asyncio.sleep(100)
            assert list(await app.admin.jobs()) == [], "expired, cancelled and deleted"

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expires_in": 0}, "expires_in=0 must be above 0 seconds"),
        ({"keep_result": "no"}, "keep_result='no' is not True or False"),
        ({"retention": {"done": 5}}, "retention has no entry 'done'; use succeeded, failed, cancelled"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    app = Headgate("memory://")

    async def work() -> None: ...

    with pytest.raises(DeclarationError, match=message):
        app.task(**options)(work)
    task = app.task(work)
    with pytest.raises(DeclarationError, match=message):
        task.using(**options)
    with pytest.raises(DeclarationError, match="pass expires_in or expires_at, not both"):
        task.using(expires_in=5, expires_at=to_datetime(10**16))
