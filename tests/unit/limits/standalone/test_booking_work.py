"""What a booking costs, in executed lines: the same however many starts of its key are booked ahead of it."""

from __future__ import annotations

import asyncio

import pytest

from headgate.clock import SECOND
from headgate.limits.bucket_store import Bucket
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.limits.strict_rate import StrictRate
from headgate.testing.manual_clock import ManualClock
from tests.executed_lines import lines_of


async def lines_of_one_more(limit: Limit, booked: int) -> int:
    clock = ManualClock()
    buckets, bucket = MemoryBuckets(clock), Bucket("calls", "acme", limit.rule)
    for number in range(booked):
        await buckets.reserve(bucket, id=f"start {number}")
    clock.advance(0.01)
    slot = (await buckets.reserve(bucket, id="the last but one")).opens_at
    lines = lines_of(buckets.reserve(bucket, id="the last"))
    again = await buckets.reserve(bucket, id="the last")
    assert again.opens_at >= slot > clock.monotonic() + (booked // 20) * SECOND
    return lines


@pytest.mark.parametrize(
    "limit",
    [RateLimit("10/s"), StrictRate("10/s"), FixedWindow("10/s"), SlidingWindow("10/s", slices=10)],
    ids=lambda limit: type(limit).__name__,
)
def test_a_reservation_costs_the_same_behind_any_number_of_others(limit: Limit) -> None:
    """The fault: each booking looked through all of its key, so a flood of n took n² steps."""
    few, many = (asyncio.run(lines_of_one_more(limit, booked)) for booked in (100, 5000))
    assert many <= 1.2 * few + 20
