"""Every rule that counts starts, used by a Limiter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.strict_rate import StrictRate
from headgate.testing.virtual_time import VirtualClock, run_virtual

# A virtual clock begins on the first instant of a year, which is one of a minute, too.
LIMITS: list[Limit] = [
    RateLimit("6/m"),
    StrictRate("6/m", margin=0),
    FixedWindow("6/m"),
    SlidingWindow("6/m", slices=6),
    DynamicWindow(per=60, count=6),
    DynamicWindow(per=60, capacity=12, max_count=6, slices=6),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.rule.describe())
def test_a_limiter_serves_what_its_rule_allows(limit: Limit) -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(limit, clock=clock)
        starts: list[float] = []

        async def one() -> None:
            assert await limiter.acquire("a")
            starts.append(clock.monotonic() / SECOND)

        await asyncio.gather(*(one() for _ in range(18)))
        expected = [10.0 * max(0, n - 5) if limit.rule.kind == "rate" else n // 6 * 60.0 for n in range(18)]
        assert starts == pytest.approx(expected, abs=0.00001)

    run_virtual(main)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.rule.describe())
def test_settling_holding_and_resetting_work_for_every_rule(limit: Limit) -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(limit, clock=clock)
        async with limiter.hold("a", cost=5) as held:
            assert (await limiter.snapshot("a")).available == 1
            await held.settle(2)
        assert (await limiter.snapshot("a")).used == 2
        decision = await limiter.try_acquire("a", 4)
        assert decision
        assert decision.remaining == 0
        assert 0 < decision.reset_after <= 60.1
        refused = await limiter.try_acquire("a")
        assert not refused
        assert 0 < refused.retry_after <= 60.1
        await limiter.reset("a")
        assert await limiter.try_acquire("a", 6)

    run_virtual(main)


def test_keys_of_a_dynamic_window_share_its_capacity() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(DynamicWindow(per=60, capacity=20, min_count=2), clock=clock)
        assert [bool(await limiter.try_acquire("a")) for _ in range(10)] == [True] * 10
        assert [bool(await limiter.try_acquire("b")) for _ in range(11)] == [True] * 10 + [False]
        assert not await limiter.try_acquire("a")
        assert (await limiter.snapshot("a")).used == 10

    run_virtual(main)


def test_a_new_key_waits_for_the_window_and_is_served_before_active_keys() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(DynamicWindow(per=60, capacity=4), clock=clock)
        for _ in range(4):
            assert await limiter.acquire("a")
        served: list[str] = []

        async def one(key: str) -> None:
            await limiter.acquire(key)
            served.append(key)

        await asyncio.gather(one("a"), one("b"))
        assert served == ["b", "a"]
        assert clock.monotonic() == pytest.approx(60 * SECOND, abs=10)

    run_virtual(main)


def test_a_refund_of_one_key_of_a_dynamic_window_is_available_to_others_immediately() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(DynamicWindow(per=3600, capacity=4), clock=clock)
        async with limiter.hold("a", cost=4) as held:
            waiting = asyncio.ensure_future(limiter.acquire("b", 2))
            await asyncio.sleep(1)
            assert not waiting.done()
            await held.settle(1)
            assert await waiting
        assert clock.monotonic() == SECOND

    run_virtual(main)


def test_a_dynamic_window_keeps_one_state_for_all_keys() -> None:
    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(DynamicWindow(per=60, count=1), clock=clock)
        for key in range(50):
            assert await limiter.try_acquire(str(key))
        budget: Any = limiter._budget
        assert len(budget.table._states) == 1

    run_virtual(main)
