"""Limits that are kept in another store: exact together with other programs, and a policy for when it is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate import (
    FixedWindow,
    Headgate,
    JobState,
    RateLimit,
    RateLimited,
    RetryPolicy,
    SlidingWindow,
    StrictRate,
    current_job,
)
from headgate.admin import LimitSummary
from headgate.clock import SECOND, Clock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import Event, LimitStoreFailed, LimitStoreMisconfigured, LimitStoreRecovered, StorageFailed
from headgate.jobs.job import BucketRef
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.limit import OnLimit
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.observe.metrics import PrometheusMetrics
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of, fetched_keys_of, registry_of
from tests.until import patient, result_within


class Shared(MemoryBuckets):
    """A store that answers after a while, and sometimes not at all."""

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        super().__init__(clock)
        self.is_away = False
        self.advice: str | None = None
        self.asked = 0
        self.amended = 0
        self._delay = delay

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        self.asked += 1
        if self._delay:
            await asyncio.sleep(self._delay)
        if self.is_away:
            raise StorageUnavailable("away")
        return await super().take(bucket, cost, count=count, id=id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        self.amended += 1
        if self._delay:
            await asyncio.sleep(self._delay)
        if self.is_away:
            raise StorageUnavailable("away")
        await super().amend(bucket, charged_at, cost, started_at, actual)


def highest(starts: list[int], window: int) -> int:
    return max((sum(at <= other < at + window for other in starts) for at in starts), default=0)


def test_two_programs_and_plain_code_share_one_budget_exactly_and_use_all_of_it() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.001)
        starts: list[int] = []
        limit = StrictRate("10/m", key="{tenant}", name="api", store=shared, margin=0.02)

        def program() -> Headgate:
            app = Headgate("memory://", clock=clock)

            @app.task(name="call", limits=[limit])
            async def call(tenant: str) -> None:
                starts.append(clock.monotonic())

            return app

        first, second = program(), program()
        limiter = Limiter(limit, store=shared, clock=clock)
        async with first, second:
            for app in (first, second):
                await app.tasks["call"].enqueue_many([("acme",)] * 200)
            for _ in range(3):
                assert await limiter.acquire("acme")
                starts.append(clock.monotonic())
            await asyncio.sleep(1300)
        assert highest(starts, 60 * SECOND) == 10
        span = (max(starts) - min(starts)) / SECOND
        assert len(starts) >= 0.99 * 10 * span / 60.02
        await limiter.close()

    run_virtual(main)


@pytest.mark.parametrize("is_set", [False, True], ids=["as declared", "set at run time"])
def test_a_limit_that_a_deploy_moves_to_another_store_counts_what_was_used_before(*, is_set: bool) -> None:
    """The fault: each key had its whole budget again in the other store, beside what it had used a moment before."""

    async def main(clock: VirtualClock) -> None:
        storage, shared, starts = MemoryStorage(clock), Shared(clock), dict[str, list[int]]()

        def release(store: Shared | None) -> Headgate:
            app = app_on(storage, clock=clock)

            @app.task(name="call", limits=[StrictRate("5/m", key="{tenant}", name="api", store=store)])
            async def call(tenant: str) -> None:
                starts.setdefault(tenant, []).append(clock.monotonic())

            return app

        async def call_each(app: Headgate, *tenants: str) -> None:
            await app.tasks["call"].enqueue_many([(tenant,) for tenant in tenants for _ in range(5)])
            await asyncio.sleep(1)

        async with release(None) as before:
            if is_set:
                await before.admin.limits.set("api", StrictRate("4/m"))
            await call_each(before, "idle")
            await asyncio.sleep(120)
            await call_each(before, "acme")
        deployed_at = clock.monotonic()
        async with release(shared) as after:
            await call_each(after, "acme", "idle", "new")
            await asyncio.sleep(120)
        count = 4 if is_set else 5
        for tenant in ("acme", "idle", "new"):
            assert highest(starts[tenant], 60 * SECOND) == count
        # What nobody used, or what no longer counts, is closed to nobody.
        at_once = [sum(0 <= at - deployed_at < SECOND for at in starts[name]) for name in ("idle", "new")]
        assert at_once == [count, count]
        assert [len(starts[name]) for name in ("acme", "idle", "new")] == [10, 10, 5]

    run_virtual(main)


def test_several_nodes_use_all_of_what_another_store_grants() -> None:
    """The fault: starts that two nodes fetched at once replaced each other, and two thirds of the budget was lost."""

    async def main(clock: VirtualClock) -> None:
        storage, shared, starts = MemoryStorage(clock), Shared(clock, delay=0.001), list[int]()

        def node() -> Headgate:
            app = app_on(storage, clock=clock)
            limits = [
                StrictRate(5, per=10, key="{tenant}", name="tenant", store=shared),
                StrictRate("20/s", name="partner", store=shared),
            ]

            @app.task(name="call", limits=limits)
            async def call(tenant: int) -> None:
                starts.append(clock.monotonic())
                await asyncio.sleep(0.1)

            return app

        first, second = node(), node()
        async with first.open():
            await first.tasks["call"].enqueue_many([(tenant,) for tenant in range(60) for _ in range(5)])
        async with first, second:
            await asyncio.sleep(10)
        assert highest(starts, SECOND) == 20
        # One window of 1.02 s in ten may be lost where the nodes begin.
        assert len(starts) >= 180

    run_virtual(main)


async def test_the_limits_of_an_app_whose_clock_stands_still_can_be_read() -> None:
    """The fault: the store of a limit was opened by a wait of no time, which does not end on such a clock."""
    clock = ManualClock()
    app = Headgate("memory://", clock=clock)
    limit = StrictRate("2/s", name="api", store=MemoryBuckets(clock))
    app.limit("api", limit)
    async with app.open():
        assert (await asyncio.wait_for(app.admin.limits.bucket("api"), patient(10))).used == 0


def test_a_node_remembers_no_key_whose_starts_are_taken_or_given_back() -> None:
    """The fault: it kept a number for each key for which a job had ever started, for as long as it ran."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/s", key="{tenant}", name="api", store=Shared(clock))])
        async def call(tenant: str) -> None: ...

        async with app:
            jobs = await call.enqueue_many([(f"tenant-{number % 50}",) for number in range(200)])
            for job in jobs:
                await job.result(timeout=60)
            await asyncio.sleep(10)
            assert fetched_keys_of(app) == 0

    run_virtual(main)


@pytest.mark.parametrize(("on_limit", "ends_as"), [("discard", JobState.FAILED), ("cancel", JobState.CANCELLED)])
def test_a_job_that_does_not_wait_starts_if_the_other_store_grants_it_and_is_rejected_if_not(
    on_limit: OnLimit, ends_as: JobState
) -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.001)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", key="{tenant}", name="api", store=shared, on_limit=on_limit, on_store_error="wait")

        @app.task(limits=[limit])
        async def call(tenant: str) -> None: ...

        @app.task(limits=[limit, StrictRate("1/s", name="other")])
        async def call_too(tenant: str) -> None: ...

        async with app:
            alone = await call.enqueue("acme")
            await asyncio.sleep(0.2)
            assert (await alone.status()).state is JobState.SUCCEEDED
            jobs = [*await call.enqueue_many([("acme",)] * 12), *await call_too.enqueue_many([("globex",)])]
            await asyncio.sleep(0.5)
            states = Counter([(await job.status()).state for job in jobs])
            assert states == {JobState.SUCCEEDED: 10, ends_as: 3}
            # Closed by what the other programs have used: this one does not know it.
            await shared.take(Bucket("api", "initech", limit.rule), count=10)
            for tenant in ("initech", "umbrella"):
                job = await call.enqueue(tenant)
                await asyncio.sleep(0.5)
                assert (await job.status()).state is ends_as
                shared.is_away = True

    run_virtual(main)


@pytest.mark.parametrize("slots", [1, 10])
def test_a_drain_waits_for_the_answers_of_the_other_store(slots: int) -> None:
    """The fault: the key counts as closed during the request, so the node ended and left jobs that could start."""

    async def main(clock: VirtualClock) -> None:
        ran = list[int]()
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("3/h", name="api", store=Shared(clock, delay=0.35))])
        async def call(number: int) -> None:
            ran.append(number)

        async with app.open(), asyncio.timeout(60):
            await call.enqueue_many([(number,) for number in range(5)])
            await app._make_node(lambda: app._node_config({"default": slots}, drain="ready")).run()
        assert ran == [0, 1, 2]

    run_virtual(main)


def test_a_job_that_does_not_wait_is_rejected_although_another_job_asks_for_its_key_after_it() -> None:
    """The fault: it waited for an hour if the other store was still busy with the request for another key."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.2)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("1/h", key="{tenant}", store=shared)
        app.limit("api", limit)
        app.queue("polling", on_limit="discard")

        @app.task(queue="polling", limits=["api"])
        async def poll(tenant: str) -> None: ...

        @app.task(limits=["api"])
        async def call(tenant: str) -> None: ...

        async with app:
            await shared.take(Bucket("api", "acme", limit.rule))
            await call.enqueue("globex")
            await asyncio.sleep(0.05)
            polled = await poll.enqueue("acme")
            await asyncio.sleep(0.05)
            await call.enqueue("acme")
            await asyncio.sleep(2)
            assert (await polled.status()).state is JobState.FAILED

    run_virtual(main)


def test_a_waiting_job_requests_each_slot_of_the_other_store_once() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("6/m", key="{tenant}", store=shared)])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(10) for _ in range(100)])
            await asyncio.sleep(600)
            (counts,) = await app.admin.counts()
            # Six at once, and again each 60.02 s.
            assert counts.succeeded == 10 * 6 * 10
        assert shared.asked <= 10 * 3 * 11

    run_virtual(main)


@pytest.mark.parametrize("shared_slots", [None, 1, 2])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("backlog", ["without limits", "with limits", "fair"])
def test_jobs_that_take_each_slot_as_it_frees_do_not_keep_one_with_a_limit_elsewhere_waiting(
    backlog: str, slots: int, shared_slots: int | None
) -> None:
    """The fault: its start was fetched while no slot was free, and given back before one was, as long as they came."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.002)
        app = Headgate("memory://", clock=clock, slots=shared_slots)
        app.queue("q", concurrency=slots, fair_by="{tenant}" if backlog == "fair" else None)
        local = [RateLimit("100/s", key="{tenant}")] if backlog == "with limits" else []
        started: list[int] = []

        @app.task(queue="q", limits=local)
        async def convert(tenant: str) -> None:
            await asyncio.sleep(0.7 if slots == 2 else 0.7 + len(tenant) / 10)

        @app.task(queue="q", limits=[RateLimit("100/s", key="{tenant}", store=shared)])
        async def call(tenant: str) -> None:
            started.append(clock.monotonic())

        async with app:
            await convert.enqueue_many([("a" * (number % 3 + 1),) for number in range(100 * slots)])
            await asyncio.sleep(2.5)
            before = clock.monotonic()
            await call.enqueue_many([("acme",)] * 3)
            await asyncio.sleep(20)
        assert len(started) == 3
        assert started[-1] - before < 15 * SECOND

    run_virtual(main)


def test_a_store_that_does_not_answer_keeps_a_slot_from_other_jobs_for_half_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=1000)
        app = Headgate("memory://", clock=clock)
        app.queue("q", concurrency=1)
        finished: list[int] = []

        @app.task(queue="q")
        async def convert() -> None:
            await asyncio.sleep(0.1)
            finished.append(clock.monotonic())

        @app.task(queue="q", limits=[RateLimit("100/s", key="{tenant}", store=shared)])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(50)])
            await convert.enqueue_many([()] * 500)
            await asyncio.sleep(30)
        waits = [(later - earlier) / SECOND for earlier, later in pairwise(finished)]
        assert max(waits) < 0.7
        assert len(finished) >= 280

    run_virtual(main)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("delay", [0, 0.002, 0.1, 0.4], ids=["one store", "two", "slower", "slow"])
@pytest.mark.parametrize("lasts", [0.25, 0.8])
def test_a_job_with_two_limits_elsewhere_starts_beside_a_backlog(lasts: float, delay: float, slots: int) -> None:
    """The fault: once its first start was fetched, another job got the slot, and both starts were given back."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("q", concurrency=slots)
        first = Shared(clock, delay=0.002)
        second = Shared(clock, delay=delay) if delay else first
        started: list[int] = []

        @app.task(queue="q")
        async def convert() -> None:
            await asyncio.sleep(lasts)

        limits = [RateLimit("100/m", key="{tenant}", store=first), RateLimit("1000/m", store=second, name="all")]

        @app.task(queue="q", limits=limits)
        async def call(tenant: str) -> None:
            started.append(clock.monotonic())

        async with app:
            await convert.enqueue_many([()] * 300)
            await asyncio.sleep(2.5)
            before = clock.monotonic()
            await call.enqueue_many([("acme",)] * 3)
            await asyncio.sleep(15)
        assert len(started) == 3
        assert started[-1] - before < 12 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("delay", [0.4, 1000], ids=["slow", "away"])
def test_a_store_that_is_slow_or_away_takes_no_slot_from_jobs_of_another_store(delay: float) -> None:
    """The fault: during each fetch of that store, and half a minute after a failure, no slot was kept for any job."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        near, far = Shared(clock, delay=0.002), Shared(clock, delay=delay)
        for queue in ("near", "far"):
            app.queue(queue, concurrency=1)
        started: list[int] = []

        @app.task(queue="near")
        async def convert() -> None:
            await asyncio.sleep(0.25)

        @app.task(queue="near", limits=[RateLimit("100/s", key="{tenant}", store=near)])
        async def call(tenant: str) -> None:
            started.append(clock.monotonic())

        @app.task(queue="far", limits=[RateLimit("100/s", key="{tenant}", store=far)])
        async def call_far(tenant: str) -> None:
            await asyncio.sleep(0.25)

        async with app:
            await convert.enqueue_many([()] * 100)
            await call_far.enqueue_many([(f"t{number}",) for number in range(300)])
            await asyncio.sleep(2.5)
            before = clock.monotonic()
            await call.enqueue_many([("acme",)] * 3)
            await asyncio.sleep(10)
        assert len(started) == 3
        assert started[-1] - before < 2 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("lasts", [0.17, 0.25, 0.35, 0.6])
def test_starts_of_a_slow_store_that_were_left_too_long_do_not_stand_for_new_ones(lasts: float) -> None:
    """The fault: nobody may take them after half a period, yet no slot was kept, and new ones were not stored."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("q", concurrency=1)
        started: list[int] = []

        @app.task(queue="q")
        async def convert() -> None:
            await asyncio.sleep(lasts)

        @app.task(queue="q", limits=[RateLimit("100/s", key="{tenant}", store=Shared(clock, delay=0.3))])
        async def call(tenant: str) -> None:
            started.append(clock.monotonic())

        async with app:
            await convert.enqueue_many([()] * 200)
            await asyncio.sleep(2.5)
            before = clock.monotonic()
            await call.enqueue_many([("acme",)] * 10)
            await asyncio.sleep(20)
        assert len(started) == 10
        assert started[-1] - before < 15 * SECOND

    run_virtual(main)


def test_unused_starts_are_returned() -> None:
    """One slot is free, three starts are fetched for it: the two that are left must not be lost to the others."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", store=shared)

        @app.task(limits=[limit, StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(5)
            snapshot = await shared.snapshot(Bucket("api", "", limit.rule))
            assert snapshot.used == 1

    run_virtual(main)


def test_the_return_of_unused_starts_does_not_delay_other_keys() -> None:
    """The fault: they were returned one after another, and no start was fetched before the last of them."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.05)
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("10/h", name="api", key="{tenant}", store=shared), StrictRate("1/h")])
        async def call(tenant: str) -> None: ...

        @app.task(limits=[StrictRate("10/h", name="other", store=shared)])
        async def note() -> None: ...

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(40)])
            await asyncio.sleep(0.5)
            began = clock.monotonic()
            await (await note.enqueue()).result()
            assert clock.monotonic() - began < SECOND // 2

    run_virtual(main)


@pytest.mark.parametrize("seconds", [0.03, 0.1, 0.3])
def test_a_node_that_stops_returns_all_starts_that_no_job_has_taken(seconds: float) -> None:
    """The fault: those that were being fetched, were kept for the next claim or were being returned counted as used."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.05)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", key="{tenant}", store=shared)
        started: list[str] = []

        @app.task(limits=[limit, StrictRate("1/h")])
        async def call(tenant: str) -> None:
            started.append(tenant)

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(40)])
            await asyncio.sleep(seconds)
        used = [(await shared.snapshot(Bucket("api", f"t{number}", limit.rule))).used for number in range(40)]
        assert shared.asked == 40
        assert sum(used) == len(started)

    run_virtual(main)


def test_a_node_that_stops_returns_hundreds_of_unused_starts_at_once() -> None:
    """The fault: they were returned one after another, those that took longer than 5 s together not at all."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.05)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", key="{tenant}", store=shared)

        @app.task(limits=[limit, StrictRate("1/h")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(300)])
            await asyncio.sleep(0.1)
        used = [(await shared.snapshot(Bucket("api", f"t{number}", limit.rule))).used for number in range(300)]
        assert (shared.asked > 100, sum(used)) == (True, 1)

    run_virtual(main)


def test_unused_starts_are_returned_once_the_store_is_called_again() -> None:
    """The fault: those that were to be given back while it was not called, after a failure, counted as used."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", store=shared)

        @app.task(limits=[limit, StrictRate("1/h", key="{tenant}")])
        async def call(tenant: str) -> None: ...

        @app.task(limits=[StrictRate("10/h", name="other", store=shared)])
        async def note() -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(0.05)
            shared.is_away = True
            # It finds that out.
            await note.enqueue()
            await asyncio.sleep(0.2)
            shared.is_away = False
            await asyncio.sleep(5)
            assert (await shared.snapshot(Bucket("api", "", limit.rule))).used == 1

    run_virtual(main)


def test_a_store_that_is_found_away_does_not_lose_the_unused_starts_of_all_keys() -> None:
    """The fault: they were sent together, so the first failure kept none of the others back."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", key="{tenant}", store=shared)

        @app.task(limits=[limit, StrictRate("1/h")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([(f"t{number}",) for number in range(30)])
            await asyncio.sleep(0.05)
            shared.is_away = True
            await asyncio.sleep(1)
            shared.is_away = False
            await asyncio.sleep(60)
            used = [(await shared.snapshot(Bucket("api", f"t{number}", limit.rule))).used for number in range(30)]
            # One has started, one is lost by each failure: of the first call, and of that after the first pause.
            assert (shared.asked > 20, sum(used)) == (True, 3)

    run_virtual(main)


def test_starts_that_those_of_another_node_replace_are_returned() -> None:
    """The fault: what a node had fetched and not used yet was lost if the next one fetched for another key."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.05)
        storage = MemoryStorage(clock)
        limit = StrictRate("10/h", name="api", store=shared)

        def node(queue: str) -> Headgate:
            app = app_on(storage, clock=clock)
            app.queue(queue)

            @app.task(name=queue, queue=queue, limits=[limit, StrictRate("1/h", key="{tenant}", name="own")])
            async def call(tenant: str) -> None: ...

            return app

        first, second = node("first"), node("second")
        async with first, second:
            await first.tasks["first"].enqueue_many([("acme",)] * 5)
            await asyncio.sleep(0.02)
            await second.tasks["second"].enqueue_many([("globex",)] * 3)
            await asyncio.sleep(5)
            assert sum(counts.succeeded for counts in await first.admin.counts()) == 2
            assert (await shared.snapshot(Bucket("api", "", limit.rule))).used == 2

    run_virtual(main)


def test_a_job_with_several_limits_in_a_slow_store_starts() -> None:
    """The fault: the start of one was given back while that of the other was fetched, again and again."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.15)
        app = Headgate("memory://", clock=clock)
        limits = [StrictRate("10/m", name=name, store=shared) for name in ("one", "two", "three")]

        @app.task(limits=limits)
        async def call() -> None: ...

        async with app:
            await result_within(await call.enqueue(), 5)
            await asyncio.sleep(5)
            assert [(await shared.snapshot(Bucket(each.name or "", "", each.rule))).used for each in limits] == [
                1,
                1,
                1,
            ]

    run_virtual(main)


def test_while_the_other_store_is_unavailable_jobs_run_or_wait_as_declared() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        app = Headgate("memory://", clock=clock)
        started: Counter[str] = Counter()
        events: list[Event] = []
        app.subscribe(events.append, LimitStoreFailed, LimitStoreRecovered)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="open", store=shared)])
        async def runs(tenant: str) -> None:
            started["runs"] += 1

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="closed", store=shared, on_store_error="wait")])
        async def waits(tenant: str) -> None:
            started["waits"] += 1

        async with app:
            await runs.enqueue_many([("acme",)] * 20)
            await waits.enqueue_many([("acme",)] * 20)
            await asyncio.sleep(30)
            assert started == {"runs": 20}
            received = Counter(event.limit for event in events if isinstance(event, LimitStoreFailed))
            assert set(received) <= {"open", "closed"}
            assert 1 <= sum(received.values()) <= 10, (
                "a warning for each time that it was really asked, not for each job"
            )
            shared.is_away = False
            await asyncio.sleep(60)
            assert 2 <= started["waits"] <= 4
            assert any(isinstance(event, LimitStoreRecovered) for event in events)
            await asyncio.sleep(600)
            assert started == {"runs": 20, "waits": 20}
            assert all(job.state is JobState.SUCCEEDED for job in await app.admin.jobs(count=100))

    run_virtual(main)


def test_a_store_that_is_away_and_back_is_reported_for_each_limit_that_it_keeps() -> None:
    """The fault: the log said that the store of one limit was away, and that the one of another was back."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        app = Headgate("memory://", clock=clock)
        events: list[Event] = []
        app.subscribe(events.append, LimitStoreFailed, LimitStoreRecovered)

        for name in ("one", "two"):

            @app.task(name=name, limits=[StrictRate("5/m", name=name, store=shared, on_store_error="wait")])
            async def call() -> None: ...

        async with app:
            await asyncio.gather(*(task.enqueue() for task in app.tasks.values()))
            await asyncio.sleep(20)
            failed = {event.limit: event.error for event in events if isinstance(event, LimitStoreFailed)}
            assert failed == {"one": "away", "two": "away"}
            assert len(events) <= 8, "once for each limit, and each time that the store was really asked"
            shared.is_away = False
            await asyncio.sleep(60)
            assert sorted(event.limit for event in events if isinstance(event, LimitStoreRecovered)) == ["one", "two"]

    run_virtual(main)


def test_starts_without_a_limit_are_not_kept_until_its_store_is_back() -> None:
    """The fault: they were granted for all free slots, and those that no job took started jobs half an hour later."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("10/h", name="api", store=shared, margin=0)

        @app.task(limits=[limit])
        async def call() -> None: ...

        async def succeeded() -> int:
            (counts,) = await app.admin.counts()
            return counts.succeeded

        async with app:
            await call.enqueue_many([()] * 12)
            await asyncio.sleep(3590)
            shared.is_away = True
            await asyncio.sleep(60)
            assert await succeeded() == 12
            shared.is_away = False
            await call.enqueue_many([()] * 30)
            await asyncio.sleep(60)
            assert await succeeded() == 22
            assert (await shared.snapshot(Bucket("api", "", limit.rule))).used == 10

    run_virtual(main)


def test_while_the_store_is_unavailable_all_nodes_of_a_database_use_one_share() -> None:
    """A quarter of 40 a minute, for two nodes together, all of it, and the whole limit when the store is back."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        storage = MemoryStorage(clock)
        starts: list[int] = []
        failures: list[Event] = []

        def program() -> Headgate:
            app = app_on(storage, clock=clock)
            limit = StrictRate(
                "40/m", key="{tenant}", name="api", store=shared, on_store_error="share", sharers=4, margin=0
            )

            @app.task(name="call", limits=[limit])
            async def call(tenant: str) -> None:
                starts.append(clock.monotonic())

            app.subscribe(failures.append, LimitStoreFailed)
            return app

        first, second = program(), program()
        async with first, second:
            await first.tasks["call"].enqueue_many([("acme",)] * 400)
            await asyncio.sleep(599)
            assert highest(starts, 60 * SECOND) == 10
            assert len(starts) >= 95
            assert (await first.admin.history.limit("api")).unlimited == len(starts)
            assert {failure.sharers for failure in failures if isinstance(failure, LimitStoreFailed)} == {4}
            assert "api (share)" in {bucket.limit for bucket in await first.admin.limits.list()}
            shared.is_away = False
            await asyncio.sleep(60)
            starts.clear()
            await asyncio.sleep(180)
            assert 119 <= len(starts) <= 121
            # The store counts what it charged; the share counted what it granted.
            assert highest(starts, 60 * SECOND) == 40

    run_virtual(main)


def test_a_share_that_cannot_be_read_is_asked_again_and_ends_no_node() -> None:
    class Failing(MemoryStorage):
        failures = 3

        async def visit(self, ref: BucketRef, *args: Any, **kwargs: Any) -> Any:
            if ref.limit == "api (share)" and self.failures:
                self.failures -= 1
                raise StorageUnavailable("the database restarts")
            return await super().visit(ref, *args, **kwargs)

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        storage = Failing(clock)
        failures: list[StorageFailed] = []
        app = app_on(storage, clock=clock)
        app.subscribe(failures.append, StorageFailed)

        @app.task(limits=[RateLimit("10/s", name="api", store=shared, on_store_error="share", sharers=2)])
        async def call() -> None: ...

        async with app:
            job = await call.enqueue()
            await asyncio.sleep(2.5)
            assert (await job.status()).state is JobState.WAITING
            await result_within(job, 2)
            assert storage.failures == 0
        said = {(failure.doing, failure.error) for failure in failures}
        assert said == {("taking from the share of a limit", "the database restarts")}
        assert len(failures) == 3

    run_virtual(main)


def test_a_job_that_costs_more_than_a_share_waits_for_the_store() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        app = Headgate("memory://", clock=clock)

        @app.task(
            limits=[FixedWindow("40/m", name="api", cost="{cost}", store=shared, on_store_error="share", sharers=4)]
        )
        async def call(cost: int) -> None: ...

        async with app:
            small, large = await call.enqueue(10), await call.enqueue(11)
            await result_within(small, 5)
            await asyncio.sleep(120)
            assert (await large.status()).state is JobState.WAITING
            shared.is_away = False
            await result_within(large, 60)

    run_virtual(main)


@pytest.mark.nightly
def test_starts_without_a_limit_whose_store_is_away_are_counted() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        app = Headgate("memory://", clock=clock)
        metrics = PrometheusMetrics(registry=CollectorRegistry())
        app.instrument(metrics)

        @app.task(limits=[StrictRate("5/m", key="{tenant}", name="api", store=shared), StrictRate("100/m", name="own")])
        async def call(tenant: str) -> None: ...

        def decided(limit: str, decision: str) -> float | None:
            labels = {"limit": limit, "decision": decision}
            return metrics.registry.get_sample_value("headgate_limit_decisions_total", labels)

        async with app:
            await call.enqueue_many([("acme",)] * 20)
            await asyncio.sleep(30)
            assert (decided("api", "unlimited"), decided("api", "granted")) == (20, 0)
            assert (decided("own", "unlimited"), decided("own", "granted")) == (0, 20)
            shared.is_away = False
            await asyncio.sleep(60)
            await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(30)
            assert (decided("api", "unlimited"), decided("api", "granted")) == (20, 5)
            assert (await app.admin.history.limit("api")).unlimited == 20
            assert (await app.admin.history.limit("own")).unlimited == 0
            assert list(await app.admin.limits.summary("own", "api")) == [
                LimitSummary("api", keys=1, is_exact=True, unlimited=20),
                LimitSummary("own", keys=1, is_exact=True, unlimited=0),
            ]
            await asyncio.sleep(86_400)
            (api,) = await app.admin.limits.summary("api")
            assert api.unlimited == 0

    run_virtual(main)


def test_costs_settlements_and_live_rules_reach_the_other_store() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        limit = StrictRate("100/h", name="tokens", cost="{estimate}", store=shared, margin=0)
        started = 0

        @app.task(limits=[limit], retry=RetryPolicy(retries=0))
        async def ask(estimate: int, actual: int) -> None:
            nonlocal started
            started += 1
            current_job().settle("tokens", actual)

        async with app:
            await (await ask.enqueue(60, 10)).result()
            await asyncio.sleep(1)
            assert (await shared.snapshot(Bucket("tokens", "", limit.rule))).used == 10
            await ask.enqueue_many([(60, 60)] * 3)
            await asyncio.sleep(5)
            assert started == 2
            await app.admin.limits.set("tokens", StrictRate("200/h", margin=0))
            await asyncio.sleep(5)
            assert started == 4
            await app.admin.limits.pause("tokens")
            job = await ask.enqueue(5, 5)
            await asyncio.sleep(60)
            assert (await job.status()).state is JobState.WAITING
            await app.admin.limits.resume("tokens")
            await result_within(job, 5)

    run_virtual(main)


def test_a_start_that_was_not_charged_in_the_other_store_refunds_nothing_there() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.is_away = True
        app = Headgate("memory://", clock=clock)
        limit = FixedWindow("100/d", name="tokens", cost=40, store=shared)
        may_settle = asyncio.Event()

        @app.task(limits=[limit])
        async def ask() -> None:
            await may_settle.wait()
            current_job().settle("tokens", 1)

        async with app:
            job = await ask.enqueue()
            await asyncio.sleep(1)
            assert (await job.status()).state is JobState.RUNNING
            shared.is_away = False
            bucket = Bucket("tokens", "", limit.rule)
            await shared.take(bucket, 50)
            may_settle.set()
            await result_within(job, 5)
            await asyncio.sleep(1)
            assert (await shared.snapshot(bucket)).used == 50

    run_virtual(main)


def test_the_last_settled_costs_reach_the_other_store_before_the_node_ends() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.05)
        app = Headgate("memory://", clock=clock)
        limit = FixedWindow("1000/d", name="tokens", store=shared)

        @app.task(limits=[limit])
        async def ask() -> None:
            await asyncio.sleep(5)
            current_job().settle("tokens", 100)

        async with app:
            await ask.enqueue_many([()] * 5)
            await asyncio.sleep(1)
        assert (await shared.snapshot(Bucket("tokens", "", limit.rule))).used == 500

    run_virtual(main)


def test_corrections_of_charges_do_not_wait_for_an_unavailable_store() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=2.0)
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[FixedWindow("1000/d", key="{tenant}", name="tokens", store=shared)])
        async def ask(tenant: str) -> None:
            if tenant == "first":
                await asyncio.sleep(10)
                current_job().settle("tokens", 7)

        async with app:
            await ask.enqueue_many([("first",)] * 8)
            await asyncio.sleep(9)
            shared.is_away = True
            await asyncio.sleep(4)
            asked_at = clock.monotonic()
            await result_within(await ask.enqueue("other"), 60)
            assert clock.monotonic() - asked_at < 6 * SECOND
            assert shared.amended < 8

    run_virtual(main)


def test_corrections_and_penalties_made_while_the_store_is_not_called_are_sent_when_it_is_called_again() -> None:
    """The fault: they were dropped: other jobs got what these had used, and other programs did not hold back."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        tokens = FixedWindow("1000/d", name="tokens", store=shared, on_store_error="wait")
        api = StrictRate("10/m", name="api", store=shared, on_store_error="wait")

        @app.task(limits=[tokens])
        async def ask() -> None:
            await asyncio.sleep(10)
            current_job().settle("tokens", 100)

        @app.task(limits=[api])
        async def call() -> None:
            await asyncio.sleep(10)
            raise RateLimited(retry_after=600)

        async with app:
            await ask.enqueue_many([(), ()])
            await call.enqueue()
            await asyncio.sleep(9.8)
            shared.is_away = True
            # It finds that out, and the store is not called again for half a second.
            await ask.enqueue()
            await asyncio.sleep(0.4)
            shared.is_away = False
            await asyncio.sleep(5)
            assert (await shared.snapshot(Bucket("tokens", "", tokens.rule))).used == 201
            assert (await shared.snapshot(Bucket("api", "", api.rule))).opens_at - clock.now() > 500 * SECOND

    run_virtual(main)


@pytest.mark.parametrize("settles", [True, False])
def test_corrections_use_the_rule_that_was_set(settles: bool) -> None:
    """The fault: they used the declared rule, so the state was rescaled back and forth, and the bucket was closed."""

    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)
        app.limit("tokens", SlidingWindow("1000/m", cost="{tokens}", store=shared))
        started: list[int] = []

        @app.task(limits=["tokens"], retry=RetryPolicy(retries=1))
        async def ask(tokens: int) -> None:
            started.append(clock.now() // SECOND)
            if settles:
                current_job().settle("tokens", tokens - 1)
            elif len(started) == 1:
                raise RateLimited(retry_after=1)

        async with app:
            set_rule = SlidingWindow("2000/h")
            await app.admin.limits.set("tokens", set_rule)
            began = clock.now() // SECOND
            for _ in range(3):
                await ask.enqueue(5)
                await asyncio.sleep(10)
            await app.admin.limits.penalize("tokens", "", 1)
            assert [at - began for at in started] == ([0, 10, 20] if settles else [0, 1, 10, 20])
            used = (await shared.snapshot(Bucket("tokens", "", set_rule.rule))).used
            assert used == (12 if settles else 15)

    run_virtual(main)


def test_a_correction_that_a_store_answers_with_an_error_opens_no_other_limit() -> None:
    """The fault: the store counted as away, and all limits in it failed open, because of one job that settled twice."""

    class Refusing(Shared):
        async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
            error = StorageUnavailable("user_script:43: bad argument")
            error.has_answered = True
            raise error

    async def main(clock: VirtualClock) -> None:
        shared = Refusing(clock)
        app = Headgate("memory://", clock=clock)
        started = 0

        @app.task(limits=[FixedWindow("1000/d", name="tokens", store=shared)])
        async def ask() -> None:
            current_job().settle("tokens", 7)

        @app.task(limits=[StrictRate("2/h", name="api", store=shared)])
        async def call() -> None:
            nonlocal started
            started += 1

        async with app:
            await (await ask.enqueue()).result()
            await call.enqueue_many([()] * 10)
            await asyncio.sleep(60)
            assert started == 2

    run_virtual(main)


def test_operators_read_and_reset_buckets_in_another_store() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("2/h", key="{tenant}", name="api", store=shared)])
        async def call(tenant: str) -> None: ...

        async with app:
            jobs = await call.enqueue_many([("acme",)] * 5)
            await asyncio.sleep(1)
            (bucket,) = await app.admin.limits.list()
            assert (bucket.used, bucket.available, bucket.waiting) == (2, 0, 3)
            assert "waits for limit 'api'" in (await app.admin.explain(jobs[-1].id)).reason
            await app.admin.limits.reset("api", "acme")
            await asyncio.sleep(1)
            (bucket,) = await app.admin.limits.list()
            assert (bucket.used, bucket.waiting) == (2, 1)

    run_virtual(main)


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_store_that_does_not_answer_is_asked_once_for_all_keys(has_answered: bool) -> None:
    """The fault: each of the keys waited for Redis in turn, 2 s a key."""

    class Silent(Shared):
        async def snapshot(self, bucket: Bucket) -> Snapshot:
            self.asked += 1
            error = StorageUnavailable("no answer within 2 s")
            error.has_answered = has_answered
            raise error

    async def main(clock: VirtualClock) -> None:
        silent = Silent(clock)
        app = Headgate("memory://", clock=clock)
        limits = [StrictRate("1/h", key="{tenant}", name=name, store=silent) for name in ("api", "own")]

        @app.task(limits=[StrictRate("2/h", key="{tenant}", name="near"), *limits])
        async def call(tenant: str) -> None: ...

        async def asked_for(read: Awaitable[object]) -> int:
            silent.asked = 0
            await read
            return silent.asked

        async with app:
            jobs = await call.enqueue_many([(f"t{number}",) for number in range(5)] * 2)
            await asyncio.sleep(1)
            listed = await app.admin.limits.list()
            assert {bucket.limit: bucket.used for bucket in listed} == {"near": 1, "api": None, "own": None}
            assert await asked_for(app.admin.limits.list()) == (10 if has_answered else 1)
            assert await asked_for(app.admin.overview()) == (5 if has_answered else 1)
            assert await asked_for(app.admin.explain(jobs[-1].id)) == (2 if has_answered else 1)

    run_virtual(main)


def test_a_refusal_that_one_program_gets_delays_all_programs() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock, delay=0.001)
        limit = RateLimit("10/s", key="{tenant}", name="api", store=shared)
        starts: list[tuple[str, float]] = []

        def program(name: str) -> Headgate:
            app = Headgate("memory://", clock=clock)

            @app.task(name="call", limits=[limit])
            async def call(tenant: str) -> None:
                starts.append((name, clock.monotonic() / SECOND))
                if len(starts) == 1:
                    raise RateLimited(retry_after=30)

            return app

        first, second = program("first"), program("second")
        async with first, second:
            job = await first.tasks["call"].enqueue("acme")
            await asyncio.sleep(1)
            other = await second.tasks["call"].enqueue("acme")
            unhindered = await second.tasks["call"].enqueue("globex")
            await unhindered.result(timeout=1)
            await asyncio.sleep(20)
            assert len(starts) == 2
            await result_within(other, 60)
            await result_within(job, 60)
            assert all(at >= 30 for _, at in starts[2:])
            await first.admin.limits.penalize("api", "acme", 100)
            began = clock.monotonic() / SECOND
            await result_within(await second.tasks["call"].enqueue("acme"), 200)
            assert clock.monotonic() / SECOND - began >= 99
            await first.admin.limits.penalize("api", "acme", 100)
            await first.admin.limits.reset("api", "acme")
            await result_within(await second.tasks["call"].enqueue("acme"), 5)

    run_virtual(main)


def test_jobs_start_when_a_limit_is_resumed_in_the_store_of_another_app() -> None:
    """The fault: they waited for a hundred years."""

    async def main(clock: VirtualClock) -> None:
        storage = MemoryStorage(clock)
        other, app = app_on(storage, clock=clock), Headgate("memory://", clock=clock)
        other.limit("api", StrictRate("10/m"))

        @app.task(limits=[StrictRate("10/m", name="api", store=StoredBuckets(storage))])
        async def call() -> None: ...

        async with other, app:
            await other.admin.limits.pause("api")
            job = await call.enqueue()
            await asyncio.sleep(100)
            assert (await job.status()).state is JobState.WAITING
            await other.admin.limits.resume("api")
            await result_within(job, 31)

    run_virtual(main)


def test_a_misconfigured_store_is_reported_once() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = Shared(clock)
        shared.advice = "it forgets"
        app = Headgate("memory://", clock=clock)
        received: list[Event] = []
        app.subscribe(received.append, LimitStoreMisconfigured)

        @app.task(limits=[StrictRate("2/m", key="{tenant}", name="api", store=shared)])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([(tenant,) for tenant in "abc"] * 3)
            await asyncio.sleep(200)
        assert [(event.limit, event.advice) for event in received if isinstance(event, LimitStoreMisconfigured)] == [
            ("api", "it forgets")
        ]

    run_virtual(main)


def test_limits_url_moves_all_rates_of_an_app_and_leaves_permits_with_the_jobs(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, limits_url="memory://")

        @app.task(limits=[RateLimit("1/h", name="rate")])
        async def call() -> None: ...

        async with app:
            await call.enqueue_many([()] * 3)
            await asyncio.sleep(1)
            store = client_of(app).remote_limits.store_of(registry_of(app).limits["rate"])
            assert store is not None
            assert (await store.snapshot(Bucket("rate", "", RateLimit("1/h").rule))).used == 1
            # Plain code uses the same.
            assert not await app.limiter("rate").try_acquire()

    run_virtual(main)
