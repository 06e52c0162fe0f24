"""A start that comes later than its charge: the next window is measured from the start itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from headgate import (
    DynamicWindow,
    FixedWindow,
    Headgate,
    JobCancelled,
    RateLimit,
    RetryPolicy,
    SlidingWindow,
    StrictRate,
    current_job,
)
from headgate.clock import SECOND
from headgate.engine.charge import MOVES, TOLERATED, StartDecision, decide_start
from headgate.errors import StorageUnavailable
from headgate.jobs.job import BucketRef, ClaimedJob, RemoteCharge
from headgate.jobs.lifecycle import Ending
from headgate.limits.limit import AnyRule, Limit
from headgate.storage.driver import NO_RULES
from headgate.storage.live_rules import LiveRules
from headgate.storage.records import Claim, Claimed, StartMove
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.test_promises import counted
from tests.internals import app_on

LATEST = SECOND // 100
"""Half of the margin of a strict rate: how long after its charge a start may happen (µs)."""


class SlowStore(MemoryStorage):
    """Commits a claim at once, and lets its node know of it only later."""

    longest = 0.0
    next_delay: float | None = None
    postponed = 0
    fails = 0
    slow_moves = 0.0
    slow_finish = 0.0
    lost_replies = 0
    moves = 0

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._random = Random(1)

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        if claimed.jobs:
            delay, self.next_delay = self.next_delay, None
            await asyncio.sleep(self._random.uniform(0, self.longest) if delay is None else delay)
        return claimed

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        await asyncio.sleep(self.slow_finish)
        return await super().finish(node, endings, rules)

    async def move_starts(
        self, node: str, starts: Sequence[StartMove], rules: Mapping[str, AnyRule]
    ) -> Mapping[tuple[str, int], int]:
        self.moves += 1
        if self.fails:
            self.fails -= 1
            raise StorageUnavailable("not now")
        moved = await super().move_starts(node, starts, rules)
        self.postponed += len(moved)
        await asyncio.sleep(self._random.uniform(0.8, 1) * self.slow_moves)
        if self.lost_replies:
            self.lost_replies -= 1
            raise StorageUnavailable("it happened, but the reply was lost")
        return moved


def test_starts_measured_in_the_handler_hold_a_strict_limit_however_slow_the_store_is() -> None:
    """The fault: with a stall of more than the margin between charge and call, an API counted twice its limit."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.longest = 2.0
        store.fails = 3
        app = app_on(store, clock=clock)
        starts: list[int] = []

        @app.task(limits=[StrictRate("5/10s", key="{tenant}")])
        async def call(tenant: str) -> None:
            starts.append(clock.monotonic())

        async with app:
            await call.enqueue_many([("acme",)] * 200)
            await asyncio.sleep(1000)
        assert len(starts) == 200
        assert counted(starts, 10 * SECOND) == 5
        assert store.postponed > 0

    run_virtual(main)


RULES: list[Limit] = [
    StrictRate("5/10s", margin=0),
    RateLimit("5/10s"),
    RateLimit("5/10s", burst=1),
    FixedWindow("5/10s"),
    SlidingWindow("5/10s", slices=10),
    DynamicWindow(per=10, capacity=5, key="{tenant}"),
]


@pytest.mark.parametrize(
    "limit",
    [*RULES[:2], *(pytest.param(each, marks=pytest.mark.nightly) for each in RULES[2:])],
    ids=lambda limit: limit.rule.describe(),
)
@pytest.mark.parametrize("longest", [pytest.param(2.0, marks=pytest.mark.nightly), 8.0])
def test_starts_measured_in_the_handler_hold_a_limit_without_a_margin_however_late_its_claims_are_answered(
    limit: Limit, longest: float
) -> None:
    """The fault: jobs charged at one instant started 8 s later, and the next ones as if they had started in time."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.longest = longest
        # One node waits for its reply while the others claim.
        apps = [app_on(store, clock=clock) for _ in range(3)]
        starts: list[int] = []
        for app in apps:
            app.limit("calls", limit)

            @app.task(name="call", limits=["calls"])
            async def call(tenant: str) -> None:
                starts.append(clock.monotonic())

        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            await asyncio.gather(*(job.result() for job in await call.enqueue_many([("acme",)] * 60)))
        assert len(starts) == 60
        for window in (5 * SECOND, 10 * SECOND, 30 * SECOND):
            assert counted(starts, window) <= limit.rule.bound(window + TOLERATED)
        assert store.postponed > 0

    run_virtual(main)


@pytest.mark.parametrize("declared", [StrictRate("900/h", margin=60), RateLimit("900/h")])
def test_a_start_is_late_by_the_rule_that_was_set(declared: Limit) -> None:
    """The fault: it was on time by half of the margin of the declared rule, and an API counted twice its limit."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.longest = 0.24
        app = app_on(store, clock=clock)
        app.limit("calls", declared)
        starts: list[int] = []

        @app.task(limits=["calls"])
        async def call() -> None:
            starts.append(clock.monotonic())

        async with app:
            await app.admin.limits.set("calls", StrictRate("5/s"))
            await call.enqueue_many([()] * 200)
            await asyncio.sleep(60)
        assert len(starts) == 200
        assert counted(starts, SECOND) == 5

    run_virtual(main)


@pytest.mark.parametrize("limit", RULES, ids=lambda limit: limit.rule.describe())
def test_starts_that_are_a_little_late_write_nothing_more(limit: Limit) -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.longest = 0.99 * TOLERATED / SECOND if not limit.rule.margin else 0.009
        app = app_on(store, clock=clock)

        @app.task(limits=[limit])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 20)
            await asyncio.sleep(60)
        assert store.moves == 0

    run_virtual(main)


def test_a_job_charged_half_a_window_ago_is_returned_without_spending_an_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        app = app_on(store, clock=clock)
        starts: list[tuple[int, int]] = []

        @app.task(limits=[StrictRate("3/10s", key="{tenant}")], retry=RetryPolicy(retries=0))
        async def call(tenant: str) -> None:
            starts.append((clock.monotonic() // SECOND, current_job().attempt))

        async with app:
            # As if the process had been frozen right after its claim was committed.
            store.next_delay = 20.0
            await call.enqueue_many([("acme",)] * 6)
            await asyncio.sleep(60)
        assert [attempt for _, attempt in starts] == [1] * 6
        assert counted([at * SECOND for at, _ in starts], 10 * SECOND) == 3
        assert starts[0][0] >= 20

    run_virtual(main)


def test_on_time_starts_write_nothing_more() -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.longest = 0.009
        app = app_on(store, clock=clock)

        @app.task(limits=[StrictRate("5/10s", key="{tenant}")])
        async def call(tenant: str) -> None: ...

        async with app:
            await call.enqueue_many([("acme",)] * 20)
            await asyncio.sleep(60)
        assert store.moves == 0

    run_virtual(main)


@pytest.mark.parametrize("slow_moves", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["coroutine", "thread", "chunk"])
def test_a_late_start_is_stored_before_its_handler_is_called(kind: str, slow_moves: float) -> None:
    """The fault: a worker that was killed a moment after a late start left the early charge, which soon made room."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.slow_moves = 8.0, slow_moves
        app = app_on(store, clock=clock)
        app.limit("api", StrictRate(3, per=20))
        called: list[int] = []

        if kind == "coroutine":

            @app.task(name="call", limits=["api"])
            async def call(number: int) -> None:
                called.append(store.limit_now())
                await asyncio.sleep(60)

        elif kind == "thread":

            @app.task(name="call", limits=["api"])
            def call_in_thread(number: int) -> None:
                called.append(store.limit_now())

        else:

            @app.chunked(3, wait=0.1, name="call", limits=["api"])
            async def call_chunk(numbers: list[int]) -> None:
                called.extend([store.limit_now()] * len(numbers))
                await asyncio.sleep(60)

        async with app:
            await app.tasks["call"].enqueue_many([(number,) for number in range(3)])
            await asyncio.sleep(15)
            # What is stored now is all that another node would know of these starts.
            stored = sorted(start.started_at for start in await store.starts("api", None, 0))
            late = [start - charge for start, charge in zip(sorted(called), stored, strict=True)]
            assert max(late) <= LATEST
            assert len(called) == 3
            assert await most_available(app) == 0
        assert store.postponed >= 3
        # Starts that are late together share their commits.
        assert store.moves <= 3

    run_virtual(main)


async def most_available(app: Headgate) -> int:
    return max(bucket.available or 0 for bucket in await app.admin.limits.list("api"))


def test_a_late_start_is_moved_once_whether_the_reply_of_the_store_is_lost_or_not() -> None:
    """The fault would be: a charge that was moved is moved from its old instant again, where it is not any more."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.lost_replies = 4.0, 2
        app = app_on(store, clock=clock)
        app.limit("api", StrictRate(3, per=20))
        called: list[int] = []

        @app.task(limits=["api"])
        async def call() -> None:
            called.append(store.limit_now())

        async with app:
            await call.enqueue_many([()] * 5)
            await asyncio.sleep(60)
            stored = sorted(start.started_at for start in await store.starts("api", None, 0))
        assert len(called) == 5
        assert [start - charge for start, charge in zip(called, stored, strict=True)] == [0] * 5
        assert store.moves == 3
        assert counted(called, 20 * SECOND) == 3

    run_virtual(main)


def test_a_charge_of_which_it_is_unknown_whether_it_was_moved_is_given_back_where_it_is() -> None:
    """The fault would be: it is given back at its old instant, and takes another job's charge with it.

    It once stayed, so that its key waited for a whole period.
    """

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.lost_replies = 4.0, MOVES
        app = app_on(store, clock=clock)
        app.limit("api", FixedWindow(3, per=60))
        attempts: list[int] = []

        @app.task(limits=["api"])
        async def call() -> None:
            attempts.append(current_job().attempt)

        async with app:
            await call.enqueue_many([()] * 4)
            await asyncio.sleep(40)
            assert attempts == [1] * 3
            assert await most_available(app) == 0
            await asyncio.sleep(120)
        assert attempts == [1] * 4

    run_virtual(main)


@pytest.mark.parametrize("fault", [{"next_delay": 4.0, "fails": MOVES}, {"next_delay": 2000.0}], ids=list)
def test_a_start_that_is_returned_is_not_taken_by_the_next_job_of_its_key(fault: Mapping[str, Any]) -> None:
    """It once was: the start was given back in one commit, and its job was in line again only after the next one."""

    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.slow_finish = 2.0
        for name, value in fault.items():
            setattr(store, name, value)
        app = app_on(store, clock=clock)
        started: list[str] = []

        @app.task(limits=[StrictRate("1/h")])
        async def call(name: str) -> None:
            started.append(name)

        async with app:
            await call.enqueue("first")
            await call.enqueue("second")
            await asyncio.sleep(2060)
            assert started == ["first"]
            await asyncio.sleep(3600)
        assert started == ["first", "second"]

    run_virtual(main)


def test_a_slow_store_spends_no_timeout_of_a_job_that_starts_late() -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.slow_moves = 1.0, 3.0
        app = app_on(store, clock=clock)
        attempts: list[int] = []

        @app.task(limits=[StrictRate("5/10s")], timeout=2, retry=RetryPolicy(retries=0))
        async def call() -> None:
            attempts.append(current_job().attempt)

        async with app:
            job = await call.enqueue()
            await job.result(timeout=60)
        assert attempts == [1]

    run_virtual(main)


def test_a_late_start_that_its_users_cancel_meanwhile_does_not_happen() -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.slow_moves = 1.0, 3.0
        app = app_on(store, clock=clock)
        called: list[int] = []

        @app.task(limits=[StrictRate("5/10s")])
        async def call() -> None:
            called.append(1)

        async with app:
            job = await call.enqueue()
            await asyncio.sleep(2)
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result(timeout=60)
        assert called == []

    run_virtual(main)


def test_a_start_whose_charge_cannot_be_moved_is_returned_without_spending_an_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        store = SlowStore(clock)
        store.next_delay, store.fails = 1.0, MOVES
        app = app_on(store, clock=clock)
        attempts: list[int] = []

        @app.task(limits=[StrictRate("5/10s")])
        async def call() -> None:
            attempts.append(current_job().attempt)

        async with app:
            job = await call.enqueue()
            await job.result(timeout=60)
        assert attempts == [1]

    run_virtual(main)


@pytest.mark.parametrize("ahead", [0, 50, -5])
@pytest.mark.parametrize("moves", [False, True])
def test_a_fixed_window_in_another_store_ends_by_the_time_of_that_store(ahead: int, moves: bool) -> None:
    """Ten seconds before its end there: the fault was that the node looked at its own clock, which differs."""
    there = 1000 * 60 * SECOND - 10 * SECOND
    here = there - ahead * SECOND
    job = ClaimedJob("id", "call", "default", "{}", 1, 1, 0, here, here, here, (BucketRef("api", ""),), charged_at=here)
    job = replace(job, remote_charges=(RemoteCharge(there - moves * SECOND, ahead * SECOND),))
    rules: dict[str, AnyRule] = {"api": FixedWindow("5/m").rule}
    decided = [
        decide_start(job, rules, LiveRules(), here + late * SECOND, here if moves else None) for late in (0, 4, 6)
    ]
    assert decided == [StartDecision.ON_TIME, StartDecision.LATE, StartDecision.TOO_LATE]
