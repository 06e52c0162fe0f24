"""Limiters and gates against oracles that store all starts."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import SECOND
from headgate.limits.bucket_store import Bucket
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import Gcra, RateLimit
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.memory_buckets import ExpiringMap, MemoryBuckets
from headgate.limits.standalone.rate_gate import RateGate
from headgate.limits.strict_rate import SlidingLog, StrictRate
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.seeds import examples

# A slow machine is no failure.
thorough = settings(max_examples=examples(25, 100))

rules = st.one_of(
    st.builds(Gcra, st.integers(1, 5), st.integers(1, 2000), st.integers(3, 9)),
    st.builds(SlidingLog, st.integers(3, 9), st.integers(1, 2000)),
)


@thorough
@given(
    rule=rules,
    calls=st.lists(
        st.tuples(st.integers(0, 500), st.sampled_from("abcdef"), st.integers(1, 3), st.integers(1, 4)), max_size=300
    ),
)
async def test_eviction_is_not_observable(rule: Gcra | SlidingLog, calls: list[tuple[int, str, int, int]]) -> None:
    clock = ManualClock()
    store = MemoryBuckets(clock)
    remembered: dict[str, Any] = {}
    for number, (pause, key, cost, count) in enumerate(calls):
        clock.advance(pause / SECOND)
        now = clock.now()
        # Others, so that passes continue.
        await store.take(Bucket("limit", f"other-{number}", rule))
        granted = 0
        opens_at, after = rule.take(remembered.get(key), now, cost)
        while opens_at <= now and granted < count:
            granted += 1
            remembered[key] = after
            opens_at, after = rule.take(remembered.get(key), now, cost)
        answer = await store.take(Bucket("limit", key, rule), cost, count=count)
        look = rule.snapshot(remembered.get(key), now)
        assert (answer.granted, answer.opens_at, answer.available) == (granted, opens_at, look.available)


@thorough
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300), st.integers(1, 400)), max_size=500))
def test_an_expiring_map_evicts_only_idle_entries(steps: list[tuple[int, int, int]]) -> None:
    fading: ExpiringMap[int] = ExpiringMap(lambda value: value)
    kept: dict[str, int] = {}
    now = 0
    for pause, number, lasting in steps:
        now += pause
        key = str(number)
        found = fading.find(key, now)
        if key in kept and kept[key] > now:
            assert found == kept[key]
        else:
            assert found is None or found == kept[key]
        kept[key] = fading.recent[key] = now + lasting
        active = sum(until > now for until in kept.values())
        assert active <= len(fading)


@thorough
@given(
    count=st.integers(1, 6),
    period=st.integers(1, 1000),
    pauses=st.lists(st.integers(0, 400), max_size=200),
)
def test_a_rate_limit_set_grants_exactly_what_the_strict_rule_grants(
    count: int, period: int, pauses: list[int]
) -> None:
    clock = ManualClock()
    limit_set = RateGate(count, per=period / SECOND, clock=clock)
    rule = SlidingLog(count, period)
    state: tuple[int, ...] = ()
    for pause in pauses:
        clock.advance(pause / SECOND)
        opens_at, after = rule.take(state, clock.monotonic())
        assert limit_set.delay() == (opens_at - clock.monotonic()) / SECOND
        assert limit_set.wait(0) is (opens_at <= clock.monotonic())
        if opens_at <= clock.monotonic():
            state = after


LIMITS: list[Limit] = [
    RateLimit(7, per=1, burst=4),
    RateLimit(20, per=1, burst=4),
    RateLimit(5, per=1, burst=8, start_empty=True),
    StrictRate(6, per=1, margin=0),
    StrictRate(4, per=0.3),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.rule.describe())
@pytest.mark.parametrize("seed", range(15))
def test_waiters_are_served_in_order_within_the_limit_while_others_cancel(limit: Limit, seed: int) -> None:
    random = Random(seed)
    arrivals: dict[str, list[int]] = {"a": [], "b": []}
    served: dict[str, list[int]] = {"a": [], "b": []}
    starts: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}

    async def main(clock: VirtualClock) -> None:
        limiter = Limiter(limit, clock=clock)

        async def one(number: int, key: str, cost: int, timeout: float | None) -> None:
            arrivals[key].append(number)
            decision = await limiter.acquire(key, cost, timeout)
            if decision:
                served[key].append(number)
                starts[key].append((decision.decided_at, cost))
                assert 0 <= clock.now() - decision.decided_at <= SECOND // 100

        tasks: list[asyncio.Task[None]] = []
        for number in range(120):
            key, cost = random.choice("aab"), random.choice([1, 1, 1, 2, 4])
            timeout = random.choice([None, None, 0, 0.5, 3])
            tasks.append(asyncio.create_task(one(number, key, cost, timeout)))
            await asyncio.sleep(random.choice([0, 0, 0.01, 0.2]))
            if random.random() < 0.15:
                random.choice(tasks).cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)

        for key in ("a", "b"):
            assert served[key] == sorted(served[key])
            # The same starts, and no others, are what the bucket has been charged.
            # A rate counts in fractions of a microsecond, so a slot may lie within the one that ends with the start.
            within = 1 if limit.rule.kind == "rate" else 0
            state = None
            for at, cost in starts[key]:
                opens_at, state = limit.rule.take(state, at - within, cost)
                assert opens_at <= at
            expected = limit.rule.snapshot(state, clock.now())
            actual = await limiter.snapshot(key)
            assert (actual.used, actual.available) == (expected.used, expected.available)

    run_virtual(main, seed=seed)
