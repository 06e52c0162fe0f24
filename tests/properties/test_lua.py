"""The Lua scripts decide as the Python rules do, on a real server, with random histories in their own time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import AdaptiveRate, DynamicWindow, FixedWindow, RateLimit, SlidingWindow, StrictRate
from headgate.clock import SECOND
from headgate.limits.adaptive_rate import LONGEST_IN_LUA, PARTS, TICKS, Aimd
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.leases import Leases
from headgate.limits.limit import AnyRule
from headgate.limits.redis.redis_buckets import PREFIX, RedisBuckets, key_name
from tests.properties.bucket_model import BucketModel
from tests.properties.rule_strategies import LOWEST, counts, periods
from tests.properties.rule_strategies import RULES as ALL_RULES

# A slow machine is no failure.
from tests.seeds import examples


def fits_redis(rule: AnyRule) -> bool:
    """Whether the distance of starts at the lowest rate fits its numbers."""
    return not isinstance(rule, Aimd) or -(-rule.period * TICKS * PARTS // rule.low) <= LONGEST_IN_LUA // 1000


RULES = {kind: rules.filter(fits_redis) for kind, rules in ALL_RULES.items()}
"""Those that Redis can hold, also with a few hundred starts booked ahead."""

SAMPLES: dict[str, AnyRule] = {
    "rate": RateLimit("5/m").rule,
    "strict": StrictRate("5/m").rule,
    "fixed": FixedWindow("5/m").rule,
    "sliding": SlidingWindow("5/m").rule,
    "dynamic": DynamicWindow(count=5, per=60).rule,
    "adaptive": AdaptiveRate("5/m").rule,
}
"""One of each kind."""

NOON = 1_767_268_800 * SECOND

_made = count()

# Each example speaks to a server: a slow machine is no failure.
on_a_server = settings(max_examples=examples(15, 200))

costs = st.integers(1, LOWEST)
MORE_THAN_FITS = 1500
ids = st.sampled_from(["a", "b", "c"])
keys = st.sampled_from(["acme", "globex", "ключ", "{}", ""])
place = st.integers(0, 1000)

STEPS = st.one_of(
    st.tuples(st.just("take"), costs, st.integers(1, 5), st.none() | ids),
    st.tuples(st.just("take"), costs, st.integers(1, 2000), st.none()),
    st.tuples(st.just("reserve"), costs, ids),
    st.tuples(st.just("reserve"), costs, ids),
    st.tuples(st.just("cancel"), ids),
    st.tuples(st.just("amend"), place, costs | st.just(MORE_THAN_FITS), st.integers(-5, 200), st.integers(0, 6)),
    # For how long, in shares of the rule's period.
    st.tuples(st.just("penalize"), st.integers(0, 150)),
    # Only rules that adapt count refusals.
    st.tuples(st.just("refuse"), st.none() | place),
    st.tuples(st.just("refuse"), st.none() | place),
    st.tuples(st.just("reset")),
    st.tuples(st.just("rule_"), st.integers(0, 1)),
    st.tuples(st.just("key_"), keys),
    st.tuples(st.just("key_"), keys),
    st.tuples(st.just("key_"), keys),
    # How far the clock moves, in shares of the rule's period or in microseconds; also back.
    st.tuples(st.just("wait"), st.integers(-40, 130)),
    st.tuples(st.just("wait"), st.integers(0, 130)),
    st.tuples(st.just("tick"), st.integers(-3, 20)),
    st.tuples(st.just("open")),
)


class History:
    """Makes the same calls to the store and the model, and compares the answers."""

    def __init__(self, url: str, rules: Sequence[AnyRule]) -> None:
        self.clock = NOON
        # A busy machine may take long; how long a server may take is tested elsewhere.
        self.store = RedisBuckets.from_url(f"{url}?timeout=60", limit_time=lambda: self.clock)
        self.models: defaultdict[str, BucketModel] = defaultdict(BucketModel)
        self.rules = rules
        self.name = f"history-{id(_made)}-{next(_made)}"
        self.rule = rules[0]
        self.key = "acme"
        self.charged: list[tuple[int, int]] = []
        self.opens_at = NOON

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.name, self.key, self.rule)

    @property
    def model(self) -> BucketModel:
        """Of the one for all keys, where they share a bucket."""
        model = self.models["*" if self.rule.kind == "dynamic" else self.key]
        model.key = self.key
        return model

    async def tell(self, steps: Sequence[tuple[Any, ...]]) -> None:
        await self.store.open()
        try:
            for verb, *rest in steps:
                await getattr(self, verb)(*rest)
                assert await self.store.snapshot(self.bucket) == self.model.snapshot(self.rule, self.clock)
        finally:
            await self.store.close()

    async def take(self, cost: int, many: int, id: str | None) -> None:
        taken = await self.store.take(self.bucket, cost, count=many, id=id)
        self._compare(taken, self.model.take(self.rule, self.clock, cost, many, id))
        self.charged += [(taken.now, cost)] * min(taken.granted, 1)

    async def reserve(self, cost: int, id: str) -> None:
        taken = await self.store.reserve(self.bucket, cost, id=id)
        self._compare(taken, self.model.reserve(self.rule, self.clock, cost, id))
        self.charged.append((taken.opens_at, cost))

    async def cancel(self, id: str) -> None:
        assert await self.store.cancel(self.bucket, id=id) == self.model.cancel(self.rule, self.clock, id)

    async def amend(self, place: int, cost: int, later: int, actual: int) -> None:
        charged_at, charged = self.charged[place % len(self.charged)] if self.charged else (self.clock, cost)
        started_at = charged_at + later * self.rule.period // 100
        await self.store.amend(self.bucket, charged_at, charged, started_at, actual)
        self.model.amend(self.rule, self.clock, charged_at, charged, started_at, actual)

    async def penalize(self, share: int) -> None:
        closed_for = share * self.rule.period // 100
        await self.store.penalize(self.bucket, closed_for)
        self.model.penalize(self.rule, self.clock, closed_for)

    async def refuse(self, place: int | None) -> None:
        if self.rule.adapts:
            charged = self.charged or [(self.clock, 1)]
            charged_at = None if place is None else charged[place % len(charged)][0]
            await self.store.refuse(self.bucket, charged_at)
            self.model.refuse(self.rule, self.clock, charged_at)

    async def reset(self) -> None:
        await self.store.reset(self.bucket)
        self.model.reset()

    def _compare(self, taken: Taken, expected: Taken) -> None:
        assert taken == expected
        self.opens_at = taken.opens_at

    async def rule_(self, number: int) -> None:
        self.rule = self.rules[number % len(self.rules)]

    async def key_(self, key: str) -> None:
        self.key = key

    async def wait(self, percent: int) -> None:
        self.clock += percent * self.rule.period // 100

    async def tick(self, microseconds: int) -> None:
        self.clock += microseconds

    async def open(self) -> None:
        """Advance to the instant at which the bucket opens."""
        self.clock = max(self.clock, self.opens_at)


def tell(url: str, rules: Sequence[AnyRule], steps: Sequence[tuple[Any, ...]]) -> None:
    asyncio.run(History(url, rules).tell(steps))


@pytest.mark.slow
@pytest.mark.parametrize("kind", RULES)
@on_a_server
@given(data=st.data())
def test_a_lua_script_decides_like_its_rule(redis_url: str, kind: str, data: st.DataObject) -> None:
    rules = data.draw(st.tuples(RULES[kind], RULES[kind]))
    tell(redis_url, rules, data.draw(st.lists(STEPS, min_size=3, max_size=40)))


def one_at_a_time(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """At each instant only one lease is granted, so nobody asks for several."""
    return ("take", step[1], 1, step[3]) if step[0] == "take" else step


@on_a_server
@given(data=st.data())
def test_the_script_of_leases_decides_like_its_rule(redis_url: str, data: st.DataObject) -> None:
    leases = st.builds(Leases, count=counts, period=periods)
    rules = data.draw(st.tuples(leases, leases))
    tell(redis_url, rules, data.draw(st.lists(STEPS.map(one_at_a_time), min_size=3, max_size=40)))


@on_a_server
@given(data=st.data())
def test_a_bucket_changes_its_kind_of_rule_in_lua_as_in_python(redis_url: str, data: st.DataObject) -> None:
    any_rule = st.one_of(*RULES.values())
    rules = data.draw(st.tuples(any_rule, any_rule))
    tell(redis_url, rules, data.draw(st.lists(STEPS, min_size=3, max_size=40)))


@on_a_server
@given(rule=RULES["adaptive"], waits=st.lists(st.integers(0, 20), min_size=3, max_size=8))
def test_a_refusal_of_a_used_rate_keeps_the_debt_in_lua_as_in_python(
    redis_url: str, rule: AnyRule, waits: list[int]
) -> None:
    steps = [
        step
        for wait in waits
        for step in (("take", 1, 20, None), ("tick", wait), ("refuse", None), ("reserve", 1, f"id-{wait}"), ("open",))
    ]
    tell(redis_url, (rule, rule), steps)


def test_a_debt_of_a_fast_rate_is_at_most_a_hundred_years_of_a_slow_one_in_lua_as_in_python(redis_url: str) -> None:
    """The fault: it went beyond the numbers of Lua, which rounded it, and refused each reservation after it."""
    day = 86_400 * SECOND
    # 1000 starts per second, and one in 50 days.
    fast = Aimd(20_000, 86_400_000 * PARTS, day, 86_400_000 * PARTS, SECOND, 10, 10)
    slow = Aimd(20_000, 20_000, day, 20_000, SECOND, 10, 10)
    booked = [("reserve", 10, f"id-{number}") for number in range(200)]
    refused = [step for _ in range(10) for step in (("tick", 1), ("refuse", None))]
    after = [("reserve", 3, "later"), ("take", 1, 1, None), ("amend", 0, 10, 0, 0), ("tick", 1), ("refuse", None)]
    tell(redis_url, (fast, fast), [*booked, *refused, *after])
    # The same debt, under another rule.
    tell(redis_url, (fast, slow), [*booked, ("rule_", 1), *after])


@pytest.mark.parametrize("actual", [0, 1, 7])
@pytest.mark.parametrize("kind", RULES)
def test_a_cost_that_could_never_go_is_settled_after_its_bucket_was_forgotten_in_lua_as_in_python(
    redis_url: str, kind: str, actual: int
) -> None:
    """The fault: the scripts charged that cost anew, which not every rule can; and the store counted as away."""
    steps = [("amend", 0, MORE_THAN_FITS, 0, actual), ("take", 1, 3, None), ("wait", 100), ("take", 1, 3, None)]
    tell(redis_url, (SAMPLES[kind], SAMPLES[kind]), steps)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("state", ["", "0", ":", "-1:0", "0:0:0:0", "0:0:0:0:0", "0:0:0:0:0:0", "9" * 400, "\xff"])
def test_a_stored_text_that_cannot_be_read_stops_no_call(redis_url: str, kind: str, state: str) -> None:
    rule = SAMPLES[kind]

    async def main() -> None:
        store = RedisBuckets.from_url(redis_url)
        bucket = Bucket(f"unreadable-{next(_made)}", "acme", rule)
        await store.open()
        with redis.Redis.from_url(redis_url) as client:
            for stored in (f"1:{rule.kind}:0:0:{state}", state):
                client.set(key_name(PREFIX, bucket), stored.encode("latin-1"))
                await store.snapshot(bucket)
                await store.take(bucket)
                await store.reset(bucket)
                assert (await store.take(bucket)).granted == 1
        await store.close()

    asyncio.run(main())
