"""What is promised of the longest durations, the last instants and the largest counts that a declaration accepts."""

from __future__ import annotations

import pytest

from headgate.arguments import LARGEST_COUNT
from headgate.clock import FARTHEST, LAST, SECOND
from headgate.jobs.job import MAX_PRIORITY, BucketRef, JobOptions, JobState, RetryTerms
from headgate.jobs.query import JobFilter
from headgate.limits.concurrency import Concurrency
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import MAX_COUNT, StrictRate
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser

CENTURY = FARTHEST / SECOND
"""The longest duration, in seconds."""

EXTREMES: dict[str, Limit] = {
    "rate, one in a century": RateLimit(1, per=CENTURY),
    "rate, the largest burst in a century": RateLimit(LARGEST_COUNT, per=CENTURY),
    "rate, the largest burst that fills in a century": RateLimit(1, per=1, burst=FARTHEST // SECOND),
    "rate, the largest count a second": RateLimit(LARGEST_COUNT, per=1, start_empty=True),
    "rate, with the longest margin": RateLimit(1, per=CENTURY - 1, margin=1),
    "strict, in a century": StrictRate(MAX_COUNT, per=CENTURY - 1, margin=1),
    "fixed, in a century": FixedWindow(LARGEST_COUNT, per=CENTURY, margin=1),
    "sliding, in a century": SlidingWindow(LARGEST_COUNT, per=CENTURY, slices=7),
    "dynamic, in a century": DynamicWindow(per=CENTURY, capacity=LARGEST_COUNT, slices=3, key="{0}"),
    "concurrency": Concurrency(LARGEST_COUNT),
}
"""Limits of each kind, as far as a declaration goes."""


def largest_cost(rule: AnyRule) -> int:
    """The most that a start may cost under this rule."""
    return rule.bound(1)


class BoundsConformance(Conformance):
    @pytest.mark.parametrize("which", EXTREMES)
    async def test_the_largest_limits_are_charged_refused_and_shown(
        self, store_user: StoreUser, storage: Store, clock: ManualClock, which: str
    ) -> None:
        rule = EXTREMES[which].rule
        store_user.rules = {"wide": rule}
        first, second, third = await store_user.add(
            3, buckets=[("wide", "acme")], costs=(largest_cost(rule),), priority=MAX_PRIORITY, patience=CENTURY
        )
        assert await store_user.take_ids() == [first]
        waiting = await store_user.record(second)
        # A permit opens with its holder, not with time.
        assert waiting.throttled_until is None or clock.now() < waiting.throttled_until <= clock.now() + 2 * FARTHEST
        assert (await store_user.record(third)).state is JobState.WAITING
        assert await storage.buckets(limit="wide", key="acme")
        clock.advance(CENTURY - 1)
        await store_user.take()
        assert len(await storage.jobs(JobFilter(count=10))) == 3

    @pytest.mark.parametrize("which", [name for name in EXTREMES if name != "concurrency"])
    async def test_a_key_may_stay_closed_until_the_last_instant(
        self, store_user: StoreUser, storage: Store, clock: ManualClock, which: str
    ) -> None:
        store_user.rules = {"wide": EXTREMES[which].rule}
        closed, _ = await store_user.add(2, buckets=[("wide", "acme")])
        await storage.penalize(BucketRef("wide", "acme"), LAST)
        assert await store_user.take_ids() == []
        assert (await store_user.record(closed)).throttled_until is not None
        clock.advance(CENTURY)
        assert await store_user.take_ids() == []
        await storage.reset(BucketRef("wide", "acme"))
        assert closed in await store_user.take_ids()

    async def test_a_job_may_be_of_the_last_instant(
        self, store_user: StoreUser, storage: Store, clock: ManualClock
    ) -> None:
        ahead = (LAST - clock.now()) / SECOND
        last = store_user.new(delay=CENTURY, patience=CENTURY, expires_in=ahead, buckets=[("wide", "acme")])
        store_user.rules = {"wide": EXTREMES["rate, one in a century"].rule}
        await storage.add([last])
        await storage.reschedule(last.id, run_at=LAST, priority=MAX_PRIORITY)
        record = await store_user.record(last.id)
        assert (record.run_at, record.priority) == (LAST, MAX_PRIORITY)
        assert await store_user.take_ids() == []
        clock.advance(CENTURY)
        assert await store_user.take_ids() == []
        assert await storage.cancel(last.id) is JobState.WAITING

    async def test_a_job_keeps_the_longest_timeout_and_delays(self, store_user: StoreUser, clock: ManualClock) -> None:
        terms = RetryTerms(retries=LARGEST_COUNT, base=CENTURY, cap=CENTURY, delay=None, delays=None)
        job = await store_user.add_one(options=JobOptions(timeout=CENTURY, retry=terms))
        taken = await store_user.take_one()
        assert taken.options == JobOptions(timeout=CENTURY, retry=terms)
        await store_user.retry_later(taken, CENTURY)
        assert (await store_user.record(job)).run_at == clock.now() + FARTHEST
