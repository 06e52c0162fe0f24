"""Chunked tasks: one call handles several jobs, and each job has its own outcome, limits, retries and timeout."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import pytest

from headgate import (
    AttemptContext,
    DeclarationError,
    Fail,
    Headgate,
    HeadgateError,
    JobState,
    Mutex,
    RetryPolicy,
    Snooze,
    StrictRate,
    current_job,
    current_jobs,
)
from headgate.clock import SECOND
from headgate.testing import manual
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import busy_slots_of, node_of
from tests.until import result_within, until

NEW_IN_312 = pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="new in Python 3.12")


@dataclass
class Doc:
    name: str
    tenant: str = "acme"


def digest(docs: list[Doc]) -> None:
    """A function that a child process could import."""


def in_virtual_time(
    test: Callable[[Headgate, VirtualClock], Awaitable[None]], *, concurrency: int = 20, slots: int | None = None
) -> None:
    async def main(clock: VirtualClock) -> None:
        await test(Headgate("memory://", clock=clock, concurrency=concurrency, slots=slots), clock)

    run_virtual(main)


def now(clock: VirtualClock) -> float:
    return (clock.now() - START) / SECOND


def test_one_call_gets_the_jobs_that_come_within_the_wait() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls: list[tuple[float, list[str]]] = []

        @app.chunked(10, wait=0.5)
        async def index(docs: list[Doc]) -> list[str]:
            calls.append((now(clock), [doc.name for doc in docs]))
            return [doc.name.upper() for doc in docs]

        async with app:
            first = [await index.enqueue(Doc("a")), await index.enqueue(Doc("b"))]
            await asyncio.sleep(0.3)
            first.append(await index.enqueue(Doc("c")))
            assert [await job.result() for job in first] == ["A", "B", "C"]
            late = await index.enqueue(Doc("d"))
            assert await late.result() == "D"
        assert [names for _, names in calls] == [["a", "b", "c"], ["d"]]
        assert calls[0][0] == pytest.approx(0.5, abs=0.05)

    in_virtual_time(test)


def test_a_full_chunk_does_not_wait() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        sizes: list[int] = []

        @app.chunked(4, wait=3600)
        async def index(docs: list[Doc]) -> None:
            sizes.append(len(docs))

        async with app:
            jobs = await index.enqueue_many([(Doc(str(number)),) for number in range(12)])
            await asyncio.gather(*[job.result() for job in jobs])
        assert sizes == [4, 4, 4]
        assert now(clock) < 1

    in_virtual_time(test)


@pytest.mark.parametrize("settings", [{"concurrency": 3}, {"slots": 3}], ids=str)
def test_no_chunk_waits_for_more_jobs_than_slots(settings: dict[str, int]) -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        sizes: list[int] = []

        @app.chunked(100, wait=3600)
        async def index(docs: list[Doc]) -> None:
            sizes.append(len(docs))

        async with app:
            await asyncio.gather(*[job.result() for job in await index.enqueue_many([(Doc("a"),)] * 6)])
        assert sizes == [3, 3]
        assert now(clock) < 1

    in_virtual_time(test, **settings)


def test_each_job_has_the_outcome_that_the_list_has_for_it() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        seen: list[list[str]] = []

        @app.chunked(4, wait=1, retry=RetryPolicy(retries=1, delay=10))
        async def index(docs: list[Doc]) -> list[str | Exception]:
            seen.append([doc.name for doc in docs])
            answers: dict[str, str | Exception] = {
                "good": "indexed",
                "bad": ValueError("no title"),
                "worst": Fail("no such index"),
                "later": Snooze(100),
            }
            if len(docs) == 1:
                return ["at last"]
            return [answers[doc.name] for doc in docs]

        async with app:
            names = ["good", "bad", "worst", "later"]
            good, bad, worst, later = await index.enqueue_many([(Doc(name),) for name in names])
            assert await good.result() == "indexed"
            await asyncio.sleep(5)
            assert (await worst.status()).state is JobState.FAILED
            assert (await bad.status()).state is JobState.WAITING
            assert await bad.result() == "at last"
            assert await later.result() == "at last"
            assert [(await job.status()).attempt for job in (good, bad, worst, later)] == [1, 2, 1, 1]
        assert seen == [names, ["bad"], ["later"]]

    in_virtual_time(test)


def test_an_error_of_the_call_is_one_of_each_job() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls = 0

        @app.chunked(3, wait=1, retry=RetryPolicy(retries=1, delay=5))
        async def index(docs: list[Doc]) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError("the index is away")

        async with app:
            jobs = await index.enqueue_many([(Doc("a"),), (Doc("b"),), (Doc("c"),)])
            await asyncio.sleep(1)
            statuses = [await job.status() for job in jobs]
            assert {status.error.message for status in statuses if status.error} == {"the index is away"}
            await asyncio.gather(*[job.result() for job in jobs])
        assert calls == 2

    in_virtual_time(test)


@pytest.mark.parametrize("answer", [[1], "text", {"a": 1}])
def test_a_wrong_number_of_results_fails_all_and_says_how_many(answer: object) -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        @app.chunked(2, wait=1, retry=RetryPolicy(retries=3, delay=1))
        async def index(docs: list[Doc]) -> list[int]:
            return answer  # type: ignore[return-value]  # this is the mistake

        async with app:
            jobs = await index.enqueue_many([(Doc("a"),), (Doc("b"),)])
            await asyncio.sleep(10)
            for job in jobs:
                status = await job.status()
                assert (status.state, status.attempt) == (JobState.FAILED, 1)
                assert status.error is not None
                assert "was called for 2 jobs and returned" in status.error.message

    in_virtual_time(test)


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        (list[Doc], Doc),
        (list[Doc] | None, Doc),
        (None | Sequence[Doc | ValueError], Doc),
        (Optional[tuple[Doc, ...]], Doc),  # noqa: UP045  # as older code writes it
        (list[Doc] | tuple[Doc, ...], dict),
        (list, dict),
    ],
    ids=str,
)
def test_a_result_is_checked_as_an_element_of_the_list_that_the_call_returns(kind: Any, element: type) -> None:
    """The fault: with `list[…] | None` each job failed after its work, as its result was no list."""

    async def test(app: Headgate, clock: VirtualClock) -> None:
        def index(docs: list[Doc]) -> Any:
            return docs

        index.__annotations__["return"] = kind
        task: Any = app.chunked(10, wait=0)(index)
        async with app:
            job = await task.enqueue(Doc("a"))
            assert type(await result_within(job)) is element

    in_virtual_time(test)


def test_limits_are_charged_for_each_job() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls: list[tuple[float, int]] = []

        @app.chunked(10, wait=0.1, limits=[StrictRate("3/m", margin=0, key="{docs.tenant}")])
        async def index(docs: list[Doc]) -> None:
            calls.append((round(now(clock)), len(docs)))

        async with app:
            jobs = await index.enqueue_many([(Doc("a", "acme"),)] * 5 + [(Doc("b", "globex"),)])
            await asyncio.gather(*[job.result() for job in jobs])
        assert calls == [(0, 4), (60, 2)]

    in_virtual_time(test)


def test_a_cancelled_job_leaves_and_the_others_go_on() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        ended: list[str] = []

        @app.chunked(3, wait=1)
        async def index(docs: list[Doc]) -> list[str]:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            ended.append(" ".join(doc.name for doc in docs))
            return [doc.name for doc in docs]

        async with app:
            one, two, three = await index.enqueue_many([(Doc("a"),), (Doc("b"),), (Doc("c"),)])
            await asyncio.sleep(2)
            await one.cancel()
            assert [await two.result(), await three.result()] == ["b", "c"]
            assert (await one.status()).state is JobState.CANCELLED
            alone = await index.enqueue(Doc("d"))
            await asyncio.sleep(5)
            await alone.cancel()
            await asyncio.sleep(5)
            assert (await alone.status()).state is JobState.CANCELLED
            waiting = await index.enqueue(Doc("e"))
            await asyncio.sleep(0.5)
            await waiting.cancel()
            await asyncio.sleep(5)
        # Both words of the first call are there: the job that left had been handled, too.
        assert ended == ["a b c", "cancelled"]

    in_virtual_time(test)


def test_a_call_is_cancelled_if_all_its_jobs_have_left_and_one_was_too_late_for_it() -> None:
    """The fault: the job that was not handled counted as one that stayed, so the call ran on for nobody."""

    async def test(app: Headgate, clock: VirtualClock) -> None:
        ended: list[list[str]] = []

        @app.around_attempt
        async def wait(job: AttemptContext, run: Callable[[], Awaitable[object]]) -> object:
            await asyncio.sleep(8 if job.arguments["docs"].name == "late" else 0)
            return await run()

        @app.chunked(2, wait=5, limits=[StrictRate("1/10s", key="{docs.name}", margin=0)])
        async def index(docs: list[Doc]) -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                ended.append([doc.name for doc in docs])
                raise

        async with app:
            late = await index.enqueue(Doc("late"))
            await asyncio.sleep(7)
            handled = await index.enqueue(Doc("a"))
            await asyncio.sleep(2)
            await handled.cancel()
            await late.cancel()
            await asyncio.sleep(1)
            assert ended == [["a"]]

    in_virtual_time(test)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("is_eager", [False, pytest.param(True, marks=NEW_IN_312)])
def test_a_job_that_leaves_a_call_keeps_its_permit_and_slot_until_the_call_ends(how: str, is_eager: bool) -> None:
    """The fault: the next job of its key was inside of the mutex beside the call, which still worked on the first."""

    async def test(app: Headgate, clock: VirtualClock) -> None:
        if is_eager:
            # Unknown to the types of Python 3.11.
            asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
        inside: list[list[str]] = []

        @app.chunked(2, wait=1, limits=[Mutex("doc:{docs.name}")], retry=RetryPolicy(retries=0))
        async def index(docs: list[Doc]) -> None:
            inside.append([doc.name for doc in docs])
            await asyncio.sleep(10)

        async with app:
            one = await index.using(timeout=3 if how == "timeout" else None).enqueue(Doc("a"))
            await index.enqueue(Doc("b"))
            after = await index.enqueue(Doc("a"))
            await asyncio.sleep(2)
            if how == "cancel":
                await one.cancel()
            await asyncio.sleep(7)
            assert inside == [["a", "b"]]
            assert ((await one.status()).state, (await after.status()).state) == (JobState.RUNNING, JobState.WAITING)
            assert busy_slots_of(node_of(app)) == {"default": 2}
            await after.result()
            assert (await one.status()).state is (JobState.FAILED if how == "timeout" else JobState.CANCELLED)
            assert busy_slots_of(node_of(app)) == {"default": 0}
        assert inside == [["a", "b"], ["a"]]

    in_virtual_time(test)


def test_a_timeout_is_that_of_each_job() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        @app.chunked(2, wait=2, timeout=5, retry=RetryPolicy(retries=0))
        async def index(docs: list[Doc]) -> None:
            await asyncio.sleep(4)

        async with app:
            early = await index.enqueue(Doc("a"))
            await asyncio.sleep(1.9)
            late = await index.enqueue(Doc("b"))
            await asyncio.sleep(10)
            assert (await early.status()).state is JobState.FAILED
            assert (await late.status()).state is JobState.SUCCEEDED

    in_virtual_time(test)


def test_the_handler_knows_its_jobs() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        known: list[list[tuple[str, int]]] = []

        @app.chunked(2, wait=1)
        async def index(docs: list[Doc]) -> None:
            known.append([(job.headers["of"], job.attempt) for job in current_jobs()])
            with pytest.raises(HeadgateError, match=r"current_jobs\(\)"):
                current_job()

        @app.task
        async def single() -> int:
            return len(current_jobs())

        async with app:
            jobs = [await index.using(headers={"of": name}).enqueue(Doc(name)) for name in ("a", "b")]
            await asyncio.gather(*[job.result() for job in jobs])
            assert await (await single.enqueue()).result() == 1
        assert known == [[("a", 1), ("b", 1)]]
        with pytest.raises(HeadgateError, match="inside a handler"):
            current_jobs()

    in_virtual_time(test)


async def test_a_function_in_a_thread_handles_chunks() -> None:
    app = Headgate("memory://", concurrency=10)
    threads: set[int] = set()

    @app.chunked(5, wait=5)
    def index(docs: list[Doc]) -> list[str]:
        threads.add(threading.get_ident())
        assert len(current_jobs()) == len(docs)
        return [doc.name for doc in docs]

    async with app:
        jobs = await index.enqueue_many([(Doc(str(number)),) for number in range(5)])
        assert [await result_within(job, 5) for job in jobs] == ["0", "1", "2", "3", "4"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_stop_interrupts_a_chunk_and_its_jobs_wait_again() -> None:
    app = Headgate("memory://", concurrency=10, grace=0)
    began: list[int] = []

    @app.chunked(3, wait=5)
    async def index(docs: list[Doc]) -> None:
        began.append(len(docs))
        await asyncio.sleep(3600)

    async with app.open():
        async with app:
            jobs = await index.enqueue_many([(Doc("a"),)] * 3)
            await until(lambda: bool(began), 5)
        for job in jobs:
            status = await job.status()
            assert (status.state, status.attempt) == (JobState.WAITING, 0)


async def test_each_job_of_a_chunk_has_its_own_end_in_a_database(make_app: MakeApp) -> None:
    app = make_app(concurrency=10)
    seen: list[list[str]] = []

    @app.chunked(4, wait=5, limits=[StrictRate("100/m", key="{docs.tenant}")], retry=RetryPolicy(retries=1, delay=0))
    async def index(docs: list[Doc]) -> list[str | Exception]:
        seen.append(sorted(doc.name for doc in docs))
        answers: dict[str, Exception] = {"bad": Fail("no title"), "later": Snooze(0), "again": OSError("away")}
        is_first = len(seen) == 1
        return [answers[doc.name] if is_first and doc.name in answers else doc.name.upper() for doc in docs]

    async with app:
        names = ["good", "bad", "later", "again"]
        jobs = await index.enqueue_many([(Doc(name),) for name in names])
        assert await result_within(jobs[0], 15) == "GOOD"
        # Of the two jobs that run again, the call waits for two more.
        more = await index.enqueue_many([(Doc("x", "globex"),), (Doc("y", "globex"),)])
        assert [await result_within(job, 15) for job in (jobs[2], jobs[3], *more)] == ["LATER", "AGAIN", "X", "Y"]
        statuses = [await job.status() for job in jobs]
        assert [status.attempt for status in statuses] == [1, 1, 1, 2]
        assert statuses[1].state is JobState.FAILED
        (acme,) = await app.admin.limits.list("index:rate", key="acme")
        assert acme.used == 6
    assert seen == [sorted(names), ["again", "later", "x", "y"]]


async def test_hooks_see_each_job_of_a_chunk() -> None:
    app = Headgate("memory://", concurrency=10)
    around: list[str] = []

    @app.around_attempt
    async def note(job, run):  # type: ignore[no-untyped-def]  # as users write it
        result = await run()
        around.append(f"{job.id} {result}")
        return result

    @app.chunked(2, wait=5)
    async def index(docs: list[Doc]) -> list[str]:
        return [doc.name for doc in docs]

    async with app:
        jobs = await index.enqueue_many([(Doc("a"),), (Doc("b"),)])
        await asyncio.gather(*[result_within(job, 5) for job in jobs])
    assert sorted(around) == sorted([f"{jobs[0].id} a", f"{jobs[1].id} b"])


async def test_a_test_runs_one_job_at_a_time() -> None:
    app = Headgate("memory://")

    @app.chunked(100, wait=3600)
    async def index(docs: list[Doc]) -> list[str]:
        return [doc.name for doc in docs]

    with manual(app) as jobs:
        first = await index.enqueue(Doc("a"))
        await jobs.drain()
        assert await first.result() == "a"
        assert await jobs.run_job(index, Doc("b")) == "b"


def test_declarations_that_cannot_work_are_refused() -> None:
    app = Headgate("memory://")

    async def two(docs: list[Doc], index: str) -> None: ...
    async def one(doc: Doc) -> None: ...
    async def fine(docs: list[Doc]) -> None: ...

    with pytest.raises(DeclarationError, match="takes 2: put several values of a job into one dataclass"):
        app.chunked(10)(two)  # type: ignore[arg-type]  # refused by mypy as well
    with pytest.raises(DeclarationError, match=r"annotate it as a list: `doc: list\[…\]`"):
        app.chunked(10)(one)  # type: ignore[arg-type]
    for size in (0, 1001, True, "10"):
        with pytest.raises(DeclarationError, match="a whole number from 1 to 1000"):
            app.chunked(size)(fine)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="wait"):
        app.chunked(10, wait=-1)(fine)
    with pytest.raises(DeclarationError, match="leave process=True out"):
        app.chunked(10, process=True)(digest)


def test_arguments_are_checked_as_elements() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        @app.chunked(10, wait=0)
        async def index(docs: list[Doc]) -> None: ...

        async with app:
            with pytest.raises(HeadgateError, match="argument 'docs'"):
                await index.enqueue([Doc("a")])  # type: ignore[arg-type]  # a list is not an element
            await (await index.enqueue(Doc("a"))).result()

    in_virtual_time(test)


@pytest.mark.parametrize("shared", ["raised", "returned"])
def test_an_error_of_a_call_costs_each_of_its_jobs_the_same(shared: str) -> None:
    """One object is raised for all: its traceback once grew with each, and described a loop's worth of frames."""
    texts: list[str] = []
    frames: list[int] = []

    class Broken(Exception):
        def __str__(self) -> str:
            texts.append("asked")
            return "broken"

    async def test(app: Headgate, clock: VirtualClock) -> None:
        @app.chunked(200, wait=0.5, retry=RetryPolicy(retries=0))
        async def index(docs: list[Doc]) -> list[Exception | None]:
            error = Broken()
            if shared == "raised":
                raise error
            return [error] * len(docs)

        @app.around_attempt
        async def measure(attempt: object, call: Callable[[], Awaitable[object]]) -> object:
            try:
                return await call()
            except Broken as error:
                frames.append(len(list(traceback.walk_tb(error.__traceback__))))
                raise

        async with app:
            jobs = await index.enqueue_many([(Doc("a"),)] * 200)
            await asyncio.sleep(5)
            found = [await job.status() for job in (jobs[0], jobs[-1])]
            assert [each.state for each in found] == [JobState.FAILED] * 2
            assert found[0].error == found[1].error
            assert found[0].error is not None
            assert "Broken: broken" in (found[0].error.traceback or "")

    in_virtual_time(test, concurrency=200)
    assert len(frames) == 200
    assert len(set(frames)) == 1
    # What describes it, what logs it for each job; the traceback is formatted once.
    assert len(texts) < 3 * 200
