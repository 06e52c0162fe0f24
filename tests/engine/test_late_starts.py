"""A start that comes later than its charge: the next window is measured from the start itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random

import pytest

from headgate import (
    DynamicWindow,
    FixedWindow,
    RateLimit,
    RetryPolicy,
    SlidingWindow,
    StrictRate,
    current_job,
)
from headgate.clock import SECOND
from headgate.engine.late_start import TOLERATED
from headgate.errors import StorageUnavailable
from headgate.limits.limit import AnyRule, Limit
from headgate.storage.records import Amendment, Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.test_promises import counted
from tests.internals import app_on


class SlowStore(MemoryStorage):
    """Commits a claim at once, and lets its node know of it only later."""

    longest = 0.0
    next_delay: float | None = None
    postponed = 0
    fails = 0

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._random = Random(1)

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        if claimed.jobs:
            delay, self.next_delay = self.next_delay, None
            await asyncio.sleep(self._random.uniform(0, self.longest) if delay is None else delay)
        return claimed

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        if self.fails:
            self.fails -= 1
            raise StorageUnavailable("not now")
        self.postponed += sum(amendment.actual > 0 for amendment in amendments)
        await super().amend(amendments, rules)


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


@pytest.mark.parametrize("limit", RULES, ids=lambda limit: limit.rule.describe())
@pytest.mark.parametrize("longest", [2.0, 8.0])
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
        assert store.postponed == 0

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
        assert store.postponed == 0

    run_virtual(main)
