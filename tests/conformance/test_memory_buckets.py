"""Buckets in memory keep the promises of every bucket store, and forget what is idle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from headgate.clock import SECOND
from headgate.limits.bucket_store import Bucket, BucketStore
from headgate.limits.rate_limit import RateLimit
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.limits.strict_rate import StrictRate
from headgate.testing.manual_clock import ManualClock
from tests.conformance.bucket_suite import BucketStoreConformance


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryBuckets]:
    store = MemoryBuckets(clock)
    await store.open()
    yield store
    await store.close()


def kept_in(store: MemoryBuckets) -> int:
    """How many buckets are in memory."""
    return sum(len(table._states) for table in store._tables.values())


class TestMemoryBuckets(BucketStoreConformance):
    async def elapse(self, store: BucketStore, seconds: float) -> None:
        assert isinstance(store, MemoryBuckets)
        assert isinstance(store.clock, ManualClock)
        store.clock.advance(seconds)


async def test_an_answer_is_stored_for_one_period(store: MemoryBuckets, clock: ManualClock) -> None:
    used = Bucket("rate", "acme", StrictRate("2/m", margin=0).rule)
    await store.take(used, id="a")
    clock.advance(59.999999)
    assert (await store.take(used, id="a")).now == store.ahead + 1000 * SECOND
    clock.advance(0.000001)
    await store.take(used, id="a")
    assert (await store.snapshot(used)).used == 1


async def test_limit_time_begins_at_wall_time_and_ignores_its_steps(clock: ManualClock) -> None:
    clock.advance(5)
    store = MemoryBuckets(clock)
    used = Bucket("rate", "acme", RateLimit("9/m").rule)
    start = clock.now()
    assert (await store.take(used)).now == start
    clock.step_wall(-3600)
    clock.advance(1)
    assert (await store.take(used)).now == start + SECOND
    clock.step_wall(7200)
    assert (await store.take(used)).now == start + SECOND


async def test_many_new_keys_never_evict_an_exhausted_one(store: MemoryBuckets, clock: ManualClock) -> None:
    rule = RateLimit(1, per=3600).rule
    assert (await store.take(Bucket("rate", "exhausted", rule))).granted == 1
    for number in range(20_000):
        clock.advance(0.01)
        await store.take(Bucket("rate", f"flood-{number}", rule))
    assert (await store.take(Bucket("rate", "exhausted", rule))).granted == 0


async def test_memory_is_proportional_to_the_active_keys(store: MemoryBuckets, clock: ManualClock) -> None:
    rule = RateLimit(1, per=1).rule
    most = 0
    for number in range(50_000):
        clock.advance(0.01)
        await store.take(Bucket("rate", f"visitor-{number}", rule))
        most = max(most, kept_in(store))
    # 100 keys are active at any instant; the map may hold twice as many and a little more.
    assert most < 400


async def test_one_busy_key_is_enough_to_evict_the_idle_ones(store: MemoryBuckets, clock: ManualClock) -> None:
    rule = RateLimit(1, per=1).rule
    for number in range(10_000):
        await store.take(Bucket("rate", f"visitor-{number}", rule))
    clock.advance(120)
    for _ in range(3000):
        clock.advance(0.001)
        await store.take(Bucket("rate", "busy", rule))
    assert kept_in(store) == 1


async def test_no_single_call_evicts_many(store: MemoryBuckets, clock: ManualClock) -> None:
    rule = RateLimit(1, per=1).rule
    for number in range(10_000):
        await store.take(Bucket("rate", f"visitor-{number}", rule))
    clock.advance(120)
    sizes = [kept_in(store)]
    while sizes[-1] > 1:
        clock.advance(0.001)
        await store.take(Bucket("rate", "busy", rule))
        sizes.append(kept_in(store))
    assert max(before - after for before, after in pairwise(sizes)) <= 8


async def test_a_bucket_that_starts_empty_is_not_new_again_when_it_is_full(
    store: MemoryBuckets, clock: ManualClock
) -> None:
    used = Bucket("rate", "acme", RateLimit("10/s", start_empty=True).rule)
    taken = await store.take(used)
    clock.advance(3600)
    for number in range(1000):
        await store.take(Bucket("rate", f"other-{number}", used.rule))
    assert (await store.take(used, 10)).granted == 1
    assert taken.full_at == taken.now + SECOND


async def test_a_bucket_left_empty_by_a_refund_is_evicted(store: MemoryBuckets, clock: ManualClock) -> None:
    rule = StrictRate("1/m").rule
    used = Bucket("strict", "acme", rule)
    taken = await store.take(used)
    await store.amend(used, taken.now, 1, taken.now, 0)
    clock.advance(200)
    for number in range(200):
        await store.take(Bucket("strict", str(number), rule))
    assert (await store.take(used)).granted == 1


async def test_a_cost_settled_after_the_bucket_was_evicted_still_counts(
    store: MemoryBuckets, clock: ManualClock
) -> None:
    rule = RateLimit("60/m").rule
    used = Bucket("tokens", "acme", rule)
    taken = await store.take(used)
    clock.advance(5)
    for number in range(1000):
        await store.take(Bucket("tokens", str(number), rule))
    await store.amend(used, taken.now, 1, taken.now, 60)
    assert (await store.snapshot(used)).available == 5
