"""Limits that count the calls of a chunked task: at most as many calls in any window as the limit allows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    Headgate,
    JobState,
    Mutex,
    RateLimit,
    RateLimited,
    StrictRate,
    current_jobs,
)
from headgate.jobs.bucket_mask import NO_BUCKETS
from headgate.testing.virtual_time import VirtualClock
from tests.engine.conftest import MakeApp
from tests.engine.test_chunks import Doc, in_virtual_time, now
from tests.internals import store_of
from tests.until import until


def test_a_limit_per_call_is_charged_once_for_a_chunk() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls: dict[str, list[tuple[float, int]]] = defaultdict(list)

        @app.chunked(10, wait=0.1, limits=[StrictRate("2/m", key="{tenant}", per_call=True)])
        async def index(docs: list[Doc]) -> None:
            assert len({each.tenant for each in docs}) == 1, "one call has the jobs of one key"
            calls[docs[0].tenant].append((now(clock), len(docs)))

        async with app:
            jobs = await index.enqueue_many([(Doc(str(number), tenant),) for number in range(30) for tenant in "ab"])
            for job in jobs:
                await job.result()
        for made in calls.values():
            assert sum(size for _, size in made) == 30
            assert all(after - first >= 60 for (first, _), (after, _) in zip(made, made[2:], strict=False))
            # 20 slots: in the worst case each call has the jobs of half of them.
            assert len(made) <= 5, made

    in_virtual_time(test)


def test_each_job_of_a_call_has_the_key_of_a_limit_that_counts_the_call() -> None:
    """The fault: only the one job that was charged for the call had it."""

    async def test(app: Headgate, clock: VirtualClock) -> None:
        keys: list[dict[str, str]] = []

        @app.chunked(3, wait=0.1, limits=[StrictRate("2/m", name="calls", key="{tenant}", per_call=True)])
        async def index(docs: list[Doc]) -> None:
            keys.extend(dict(job.limit_keys) for job in current_jobs())

        async with app:
            for job in await index.enqueue_many([(Doc(str(number), "a"),) for number in range(3)]):
                await job.result()
        assert keys == [{"calls": "a"}] * 3

    in_virtual_time(test)


def test_a_limit_of_the_queue_counts_calls_too() -> None:
    """The fault: it counted jobs, so a call had two of them."""

    async def test(app: Headgate, clock: VirtualClock) -> None:
        sizes: list[int] = []
        app.queue("search", limits=[StrictRate("2/m", name="calls", key="{tenant}", margin=0, per_call=True)])

        @app.chunked(5, wait=0.1, queue="search")
        async def index(docs: list[Doc]) -> None:
            sizes.append(len(docs))

        async with app:
            await index.enqueue_many([(Doc(str(number), "a"),) for number in range(30)])
            await asyncio.sleep(59)
            assert sizes == [5, 5]
            (limit,) = await app.admin.limits.list("calls")
            assert (limit.rule, limit.used) == ("2/m per call", 2)
            # Of the four calls that are left, two may be made in each minute.
            assert len((await app.admin.limits.what_if("calls", "a")).now.points) == 4
            await asyncio.sleep(120)
            assert sizes == [5] * 6

    in_virtual_time(test)


def test_the_prediction_of_a_backlog_counts_calls() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        last: list[float] = []

        @app.chunked(10, wait=0.1, limits=[StrictRate("1/m", name="calls", key="{tenant}", margin=0, per_call=True)])
        async def index(docs: list[Doc]) -> None:
            last.append(now(clock))

        async with app:
            await index.enqueue_many([(Doc(str(number), "a"),) for number in range(60)])
            # The first call was made, and the others wait for the next minutes.
            await asyncio.sleep(5)
            waiting = 60 - 10
            predicted = (await app.admin.limits.what_if("calls", "a", "2/m")).now
            (limit,) = [each for each in (await app.admin.overview()).limits if each.limit == "calls"]
            (worst,) = limit.worst
            assert (worst.waiting, worst.clears_at) == (waiting, predicted.clears_at)
            assert [each.waiting for each in predicted.points] == [40, 30, 20, 10, 0]
            assert predicted.clears_at is not None
            clears_in = (predicted.clears_at - app.admin.now()).total_seconds()
            began = now(clock)
            await asyncio.sleep(600)
        assert len(last) == 6
        assert last[-1] - began == pytest.approx(clears_in, abs=1.5)

    in_virtual_time(test)


def test_other_limits_of_the_task_count_its_jobs() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        sizes: list[int] = []

        @app.chunked(10, wait=0.1, limits=[StrictRate("9/m", per_call=True), StrictRate("4/m", name="jobs")])
        async def index(docs: list[Doc]) -> None:
            sizes.append(len(docs))

        async with app:
            await index.enqueue_many([(Doc(str(number)),) for number in range(12)])
            await asyncio.sleep(59)
            assert sum(sizes) == 4
            assert [(each.limit, each.used) for each in await app.admin.limits.list()] == [
                ("jobs", 4),
                ("index:rate", 1),
            ]
            assert {each.rule for each in await app.admin.limits.list()} == {"4/m + 0.02s", "9/m + 0.02s per call"}

    in_virtual_time(test)


def test_jobs_of_a_call_whose_charge_was_given_back_are_claimed_again_with_another() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls: list[list[str]] = []

        @app.chunked(10, wait=1, limits=[StrictRate("1/m", per_call=True)])
        async def index(docs: list[Doc]) -> None:
            calls.append([doc.name for doc in docs])

        async with app:
            first, *rest = await index.enqueue_many([(Doc(name),) for name in "abc"])
            await asyncio.sleep(0.5)
            await first.cancel()
            for job in rest:
                await job.result()
            assert now(clock) < 10, "the charge of the call that was never made was given back"
            assert [(await job.status()).attempt for job in rest] == [1, 1]
        assert calls == [["b", "c"]]

    in_virtual_time(test)


def test_a_charge_stays_if_the_callee_refused_one_job_of_the_call() -> None:
    async def test(app: Headgate, clock: VirtualClock) -> None:
        calls: list[float] = []

        @app.chunked(10, wait=0.1, limits=[StrictRate("1/m", per_call=True)])
        async def index(docs: list[Doc]) -> list[Exception | None]:
            calls.append(now(clock))
            return [RateLimited(retry_after=1) if len(calls) == 1 and doc.name == "a" else None for doc in docs]

        async with app:
            for job in await index.enqueue_many([(Doc(name),) for name in "abc"]):
                await job.result()
        assert len(calls) == 2
        assert calls[1] - calls[0] >= 60

    in_virtual_time(test)


async def test_a_row_says_what_each_job_of_a_call_was_charged(make_app: MakeApp) -> None:
    app = make_app()
    calls: list[int] = []
    ends = asyncio.Event()

    @app.chunked(3, wait=0.2, limits=[StrictRate("2/h", per_call=True), RateLimit("100/s", name="jobs", burst=100)])
    async def index(docs: list[Doc]) -> None:
        calls.append(len(docs))
        await ends.wait()

    async with app.open():
        jobs = await index.enqueue_many([(Doc(str(number)),) for number in range(7)])
    async with app:
        await until(lambda: sum(calls) == 6)
        records = [await store_of(app).job(job.id) for job in jobs]
        running = [each for each in records if each is not None and each.state is JobState.RUNNING]
        assert sorted(each.uncharged for each in running) == [NO_BUCKETS, NO_BUCKETS, 1, 1, 1, 1]
        assert [len(each.as_claimed().buckets) for each in running if each.is_in_call_of_another] == [1, 1, 1, 1]
        ends.set()
        for job in jobs[:6]:
            await job.result()
        assert (await jobs[6].status()).state is JobState.WAITING
    assert calls == [3, 3]


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: Concurrency(2, per_call=True), "counts running jobs"),  # type: ignore[call-arg]  # what is refused
        (lambda: Mutex("{name}", per_call=True), "per_call"),  # type: ignore[call-arg]  # what is refused
        (lambda: StrictRate("1/m", per_call=True, cost="{name}"), "has the arguments of many jobs"),
        (lambda: StrictRate("1/m", per_call=True, charge_retries=False), "a retry is a call"),
        (lambda: StrictRate("1/m", per_call=True, store="redis://localhost"), "in the store of the jobs only"),
        (lambda: StrictRate("1/m", per_call="yes"), "True or False"),  # type: ignore[arg-type]  # what is refused
    ],
)
def test_what_cannot_count_calls_says_so(declare: Any, reason: str) -> None:
    with pytest.raises((DeclarationError, TypeError), match=reason):
        declare()


def test_a_limit_counts_either_the_calls_of_all_its_tasks_or_their_jobs(make_app: MakeApp) -> None:
    app = make_app()

    @app.chunked(10, limits=[StrictRate("2/m", name="api", per_call=True)])
    async def index(docs: list[Doc]) -> None: ...

    with pytest.raises(DeclarationError, match="per_call=False, but elsewhere it has per_call=True"):

        @app.task(limits=[StrictRate("2/m", name="api")])
        async def remove(doc: Doc) -> None: ...
