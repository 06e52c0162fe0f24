"""The tests that every bucket store has to pass; each attacks one promise of the BucketStore protocol.

    class TestMyBuckets(BucketStoreConformance):
        @pytest_asyncio.fixture
        async def store(self) -> AsyncIterator[BucketStore]:
            store = MyBuckets()
            await store.open()
            yield store
            await store.close()

        async def elapse(self, store: BucketStore, seconds: float) -> None:
            ...  # let limit time pass

A store whose time cannot be moved keeps `elapse` as it is: it waits in real time. Every wait is short, and nothing here
relies on an instant that was not in an answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import uuid4

import pytest

from headgate.arguments import LARGEST_COUNT
from headgate.clock import FARTHEST, SECOND, SystemClock, sleep
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.adaptive_rate import AdaptiveRate
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken
from headgate.limits.concurrency import Concurrency
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.leases import Leases
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate

HOUR = 3600 * SECOND


def strict(count: int, per: float = 3600, margin: float = 0) -> AnyRule:
    return StrictRate(count, per=per, margin=margin).rule


def rate(count: int, per: float = 3600, burst: int | None = None, start_empty: bool = False) -> AnyRule:
    return RateLimit(count, per=per, burst=burst, start_empty=start_empty).rule


def shared(count: int, per: float = 3600) -> AnyRule:
    return cast(AnyRule, DynamicWindow(count=count, per=per).rule)


def adaptive(burst: int = 1) -> AnyRule:
    return AdaptiveRate("600/h", min="6/h", start="60/h", burst=burst).rule


CENTURY = FARTHEST // SECOND

WIDEST: list[Any] = [
    RateLimit(1, per=CENTURY).rule,
    RateLimit(1_000_000, per=CENTURY).rule,
    RateLimit(1, per=1, burst=CENTURY).rule,
    RateLimit(1, per=CENTURY - 1, margin=1).rule,
    StrictRate(1000, per=CENTURY - 1, margin=1).rule,
    FixedWindow(LARGEST_COUNT, per=CENTURY).rule,
    SlidingWindow(LARGEST_COUNT, per=CENTURY).rule,
    DynamicWindow(per=CENTURY, capacity=LARGEST_COUNT).rule,
    AdaptiveRate("1000000000/d", min="1/50d", burst=500).rule,
]
"""Rules of each kind, as far as a declaration goes, and for a rate as far as Redis counts exactly."""


def bucket(rule: AnyRule, key: str = "acme", limit: str | None = None) -> Bucket:
    """An unused bucket, also in a store that is kept between tests."""
    return Bucket(limit or f"conformance-{uuid4()}", key, rule)


def with_rule(old: Bucket, rule: AnyRule) -> Bucket:
    return Bucket(old.limit, old.key, rule)


def with_key(old: Bucket, key: str) -> Bucket:
    return Bucket(old.limit, key, old.rule)


class BucketStoreConformance:
    """Subclass it with a `store` fixture."""

    async def elapse(self, store: BucketStore, seconds: float) -> None:
        """Let `seconds` of limit time pass."""
        await sleep(SystemClock(), seconds)

    async def forget_idle(self, store: BucketStore) -> None:
        """Evict the full buckets, if the store does not do that by itself."""

    async def elapse_to(self, store: BucketStore, taken: Taken) -> None:
        """Let limit time pass until the answer's `opens_at`."""
        await self.elapse(store, (taken.opens_at - taken.now) / SECOND)

    # --------------------------------------------------------------------------------------------------- bounds

    @pytest.mark.parametrize("rule", WIDEST, ids=lambda rule: str(rule.describe()))
    async def test_the_widest_rules_are_charged_booked_closed_and_reset(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        used = bucket(rule)
        cost = rule.bound(1)
        taken = await store.take(used, cost)
        assert (taken.granted, taken.available) == (1, 0)
        refused = await store.take(used, cost)
        assert refused.granted == 0
        assert refused.now < refused.opens_at <= refused.now + 2 * FARTHEST
        booked = await store.reserve(used, 1, id="next")
        assert booked.now < booked.opens_at <= booked.now + FARTHEST
        await store.penalize(used, FARTHEST)
        closed = await store.snapshot(used)
        assert closed.available == 0
        assert (await store.take(used)).granted == 0
        await store.reset(used)
        assert (await store.take(used, cost)).granted == 1

    # --------------------------------------------------------------------------------------------------- taking

    @pytest.mark.parametrize("rule", [strict(3), rate(3)])
    async def test_a_bucket_grants_its_count_and_no_more(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        assert [(await store.take(used)).granted for _ in range(5)] == [1, 1, 1, 0, 0]

    async def test_a_denial_says_when_the_next_start_is_possible(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        first = await store.take(used)
        refused = await store.take(used)
        assert refused.opens_at == first.now + HOUR
        assert refused.now < refused.opens_at

    async def test_a_refused_start_consumes_nothing(self, store: BucketStore) -> None:
        used = bucket(rate(2, burst=2))
        first = await store.take(used, 2)
        refused = [await store.take(used, 2) for _ in range(20)]
        assert {answer.opens_at for answer in refused} == {first.now + HOUR}

    async def test_a_start_is_granted_at_exactly_the_predicted_instant(self, store: BucketStore) -> None:
        used = bucket(strict(1, per=0.2))
        first = await store.take(used)
        # On a busy machine 0.2 s may be over before the next bucket.
        while (refused := await store.take(used)).granted:
            assert refused.now >= first.now + SECOND // 5
            first = refused
        assert refused.opens_at == first.now + SECOND // 5
        await self.elapse_to(store, refused)
        assert (await store.take(used)).granted == 1

    async def test_keys_do_not_share_a_bucket(self, store: BucketStore) -> None:
        used = bucket(strict(1), key="a")
        assert (await store.take(used)).granted == 1
        assert (await store.take(with_key(used, "b"))).granted == 1
        assert (await store.take(with_key(used, ""))).granted == 1
        assert (await store.take(used)).granted == 0

    async def test_limits_do_not_share_a_bucket(self, store: BucketStore) -> None:
        assert (await store.take(bucket(strict(1)))).granted == 1
        assert (await store.take(bucket(strict(1)))).granted == 1

    async def test_two_names_never_share_a_bucket(self, store: BucketStore) -> None:
        limit = f"named-{uuid4()}"
        pairs = [
            (limit, "a:b"),
            (f"{limit}:a", "b"),
            (f"{limit}:a:b", ""),
            (limit, "{a}b"),
            (limit, "a}b"),
            (limit, "{}"),
            (limit, "a b\n"),
            (limit, "ä€😀"),
            (limit, "\0"),
            (limit, "x" * 1000),
            (limit, "x" * 1001),
        ]
        for name, key in pairs:
            assert (await store.take(bucket(strict(1), key, name))).granted == 1, (name, key)
        for name, key in pairs:
            assert (await store.take(bucket(strict(1), key, name))).granted == 0, (name, key)

    @pytest.mark.parametrize("rule", [strict(10), rate(10)])
    async def test_a_costly_start_takes_its_cost(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        assert (await store.take(used, 7)).available == 3
        assert (await store.take(used, 4)).granted == 0
        assert (await store.take(used, 3)).granted == 1

    @pytest.mark.parametrize("rule", [strict(3), rate(9, burst=3)])
    async def test_a_cost_above_the_capacity_is_an_error_and_consumes_nothing(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        used = bucket(rule)
        with pytest.raises(CostExceedsLimit):
            await store.take(used, 4)
        with pytest.raises(CostExceedsLimit):
            await store.reserve(used, 4, id="too much")
        assert (await store.take(used, 3)).granted == 1

    @pytest.mark.parametrize("rule", [strict(5), rate(5)])
    async def test_several_starts_are_granted_as_far_as_they_fit(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        assert (await store.take(used, count=3)).granted == 3
        partly = await store.take(used, count=100)
        assert (partly.granted, partly.available) == (2, 0)
        assert partly.opens_at > partly.now
        assert (await store.take(used, count=100)).granted == 0

    async def test_several_costly_starts_are_granted_whole(self, store: BucketStore) -> None:
        used = bucket(rate(10))
        answer = await store.take(used, 4, count=3)
        assert (answer.granted, answer.available) == (2, 2)

    async def test_an_answer_says_what_is_left_and_when_the_bucket_is_full_again(self, store: BucketStore) -> None:
        used = bucket(rate(4, per=3600))
        first = await store.take(used)
        assert first.available == 3
        assert first.full_at == first.now + HOUR // 4
        assert first.opens_at == first.now
        second = await store.take(used, 3)
        assert second.available == 0
        assert second.full_at == first.now + HOUR
        # The next one of that cost, 3 of 4.
        assert second.opens_at == first.now + HOUR * 3 // 4

    async def test_a_bucket_that_begins_empty_grants_one_and_paces_the_rest(self, store: BucketStore) -> None:
        used = bucket(rate(10, start_empty=True))
        assert (await store.take(used)).granted == 1
        refused = await store.take(used)
        assert refused.granted == 0
        # 6 minutes apart, less the moment between the two calls.
        assert 0 < refused.opens_at - refused.now <= HOUR // 10

    async def test_limit_time_never_decreases(self, store: BucketStore) -> None:
        used = bucket(rate(1000))
        instants = [(await store.take(used)).now for _ in range(50)]
        assert instants == sorted(instants)

    async def test_a_saturated_bucket_is_used_fully_and_never_exceeded(self, store: BucketStore) -> None:
        used = bucket(strict(4, per=0.1))
        granted: list[int] = []
        while len(granted) < 20:
            answer = await store.take(used, count=10)
            granted += [answer.now] * answer.granted
            assert answer.granted <= 4
            await self.elapse_to(store, answer)
        period = SECOND // 10
        for start in granted:
            assert sum(start <= other < start + period for other in granted) <= 4

    async def test_concurrent_takers_share_one_budget(self, store: BucketStore) -> None:
        used = bucket(strict(50))
        answers = await asyncio.gather(*(store.take(used) for _ in range(200)))
        assert sum(answer.granted for answer in answers) == 50

    # ------------------------------------------------------------------------------------------ answers with ids

    async def test_a_repeated_take_with_an_id_is_given_the_same_answer_and_consumes_nothing(
        self, store: BucketStore
    ) -> None:
        used = bucket(rate(10))
        first = await store.take(used, 2, count=3, id="claim-1")
        repeated = await store.take(used, 2, count=3, id="claim-1")
        assert first.granted == repeated.granted == 3
        assert (await store.snapshot(used)).available == 4

    async def test_another_id_is_another_take(self, store: BucketStore) -> None:
        used = bucket(rate(10))
        await store.take(used, id="a")
        await store.take(used, id="b")
        await store.take(with_key(used, "globex"), id="a")
        assert (await store.snapshot(used)).available == 8
        assert (await store.snapshot(with_key(used, "globex"))).available == 9

    async def test_a_repeat_after_the_bucket_is_used_up_is_still_granted(self, store: BucketStore) -> None:
        used = bucket(strict(2))
        await store.take(used, id="a")
        await store.take(used)
        assert (await store.take(used, id="b")).granted == 0
        assert (await store.take(used, id="a")).granted == 1

    # --------------------------------------------------------------------------------------------- reservations

    @pytest.mark.parametrize("rule", [strict(1), rate(1)])
    async def test_reservations_are_given_one_slot_after_another(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        slots = [(await store.reserve(used, id=str(number))).opens_at for number in range(4)]
        assert [slot - slots[0] for slot in slots] == [0, HOUR, 2 * HOUR, 3 * HOUR]

    async def test_a_reservation_for_now_says_so(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        booked = await store.reserve(used, id="a")
        assert booked.opens_at <= booked.now

    async def test_the_same_id_is_given_the_same_slot(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        await store.take(used)
        first = await store.reserve(used, id="a")
        other = await store.reserve(used, id="b")
        again = await store.reserve(used, id="a")
        assert again.opens_at == first.opens_at
        assert other.opens_at == first.opens_at + HOUR

    async def test_a_repeated_reservation_is_as_far_ahead_as_its_slot_is_now(self, store: BucketStore) -> None:
        used = bucket(strict(1, per=1))
        await store.take(used)
        first = await store.reserve(used, id="a")
        await self.elapse(store, 0.5)
        again = await store.reserve(used, id="a")
        assert (again.granted, again.opens_at) == (0, first.opens_at)
        assert again.now >= first.now + SECOND // 2
        await self.elapse_to(store, again)
        assert (await store.reserve(used, id="a")).granted == 1

    async def test_no_start_is_granted_before_those_that_are_reserved(self, store: BucketStore) -> None:
        used = bucket(rate(1))
        await store.take(used)
        booked = await store.reserve(used, id="a")
        refused = await store.take(used)
        assert refused.granted == 0
        assert refused.opens_at == booked.opens_at + HOUR

    @pytest.mark.parametrize("rule", [strict(2), rate(2)])
    async def test_reservations_are_returned_newest_first(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        await store.take(used, 2)
        first = await store.reserve(used, id="a")
        await store.reserve(used, id="b")
        assert await store.cancel(used, id="a") is False
        assert await store.cancel(used, id="b") is True
        assert await store.cancel(used, id="b") is False
        assert await store.cancel(used, id="a") is True
        assert (await store.take(used)).opens_at == first.opens_at

    async def test_the_starts_before_a_cancelled_reservation_count_again(self, store: BucketStore) -> None:
        used = bucket(strict(3))
        await store.take(used, 2)
        await store.reserve(used, 2, id="a")
        assert await store.cancel(used, id="a")
        assert (await store.snapshot(used)).used == 2
        assert (await store.take(used, 2)).granted == 0
        assert (await store.take(used)).granted == 1

    async def test_a_cancelled_id_may_book_again(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        await store.take(used)
        slot = (await store.reserve(used, id="a")).opens_at
        assert await store.cancel(used, id="a")
        assert (await store.reserve(used, id="b")).opens_at == slot
        assert (await store.reserve(used, id="a")).opens_at == slot + HOUR

    async def test_a_reservation_whose_slot_has_come_stays(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        await store.reserve(used, id="now")
        assert await store.cancel(used, id="now") is False
        assert (await store.take(used)).granted == 0

    async def test_cancelling_an_unknown_reservation_does_nothing(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        assert await store.cancel(used, id="never") is False
        assert (await store.take(used)).granted == 1

    # ------------------------------------------------------------------------------------------------ amendments

    @pytest.mark.parametrize("rule", [strict(10), rate(10)])
    async def test_a_settled_cost_is_charged_or_returned(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        taken = await store.take(used, 4)
        await store.amend(used, taken.now, 4, taken.now, 1)
        assert (await store.snapshot(used)).available == 9
        await store.amend(used, taken.now, 1, taken.now, 6)
        assert (await store.snapshot(used)).available == 4

    @pytest.mark.parametrize("rule", [strict(3), rate(3)])
    async def test_a_cost_that_is_settled_far_above_the_count_closes_the_bucket(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        used = bucket(rule)
        taken = await store.take(used)
        await store.amend(used, taken.now, 1, taken.now, 20_000)
        assert (await store.take(used)).granted == 0

    @pytest.mark.parametrize("rule", [strict(3), rate(3)])
    async def test_a_start_that_never_happened_counts_as_nothing(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        taken = await store.take(used)
        await store.amend(used, taken.now, 1, taken.now, 0)
        assert (await store.take(used, 3)).granted == 1

    async def test_a_cost_that_is_settled_after_the_bucket_was_evicted_is_charged(self, store: BucketStore) -> None:
        used = bucket(rate(3600, burst=3600))
        first = await store.take(used)
        await self.elapse(store, 1.1)
        await self.forget_idle(store)
        await store.amend(used, first.now, 1, first.now, 3600)
        left = await store.take(used)
        assert left.available <= (left.now - first.now) // SECOND

    async def test_a_start_that_never_happened_is_not_charged_to_an_evicted_bucket(self, store: BucketStore) -> None:
        used = bucket(rate(3600, burst=3600))
        first = await store.take(used)
        await self.elapse(store, 1.1)
        await self.forget_idle(store)
        await store.amend(used, first.now, 1, first.now, 0)
        assert (await store.take(used, 3600)).granted == 1

    async def test_a_late_start_moves_its_charge(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        taken = await store.take(used)
        await store.amend(used, taken.now, 1, taken.now + SECOND, 1)
        assert (await store.take(used)).opens_at == taken.now + SECOND + HOUR

    async def test_a_late_start_of_a_rate_moves_its_charge(self, store: BucketStore) -> None:
        used = bucket(rate(1))
        taken = await store.take(used)
        await store.amend(used, taken.now, 1, taken.now + SECOND, 1)
        assert (await store.take(used)).opens_at == taken.now + SECOND + HOUR

    async def test_an_amendment_says_when_it_was_made_and_whether_it_has_changed_anything(
        self, store: BucketStore
    ) -> None:
        used = bucket(Leases(1, HOUR))
        first = await store.take(used)
        changed_at = await store.amend(used, first.now, 1, first.now + 1, 1)
        refused = await store.take(used)
        assert changed_at is not None
        assert first.now <= changed_at <= refused.now
        assert refused.opens_at == first.now + 1 + HOUR
        used = bucket(Leases(1, SECOND))
        first = await store.take(used)
        await self.elapse(store, 1.1)
        second = await store.take(used)
        assert second.granted == 1
        # Another has got the lease, which the first holder renews too late.
        assert await store.amend(used, first.now, 1, second.now, 1) == 0
        third = await store.take(used)
        assert third.granted or third.opens_at == second.now + SECOND

    # -------------------------------------------------------------------------------------------------- refusals

    async def present(self, store: BucketStore, used: Bucket) -> str | None:
        return (await store.snapshot(used)).present

    async def test_a_refusal_lowers_the_rate_of_its_key_alone(self, store: BucketStore) -> None:
        used = bucket(adaptive())
        assert isinstance(store, NotesRefusals)
        assert await self.present(store, used) == "60/h"
        taken = await store.take(used)
        await store.refuse(used, taken.now)
        refused = await store.take(used)
        assert refused.granted == 0
        # Of the minute that the next start was away at 60/h, 86 s are left at 42/h, and less if some of it had passed.
        assert 0 <= taken.now + HOUR // 42 + 1 - refused.opens_at <= refused.now - taken.now + 1
        assert await self.present(store, used) == "42/h"
        assert await self.present(store, with_key(used, "globex")) == "60/h"

    async def test_refusals_of_starts_before_a_decrease_are_one(self, store: BucketStore) -> None:
        used = bucket(adaptive(burst=3))
        assert isinstance(store, NotesRefusals)
        taken = await store.take(used, count=3)
        assert taken.granted == 3
        for _ in range(3):
            await store.refuse(used, taken.now)
        assert await self.present(store, used) == "42/h"
        await self.elapse(store, 0.01)
        await store.refuse(used)
        assert await self.present(store, used) == "29.4/h"

    async def test_while_a_bucket_is_closed_a_refusal_of_an_unknown_start_is_not_counted(
        self, store: BucketStore
    ) -> None:
        used = bucket(adaptive())
        assert isinstance(store, NotesRefusals)
        await store.refuse(used)
        await store.penalize(used, HOUR)
        await self.elapse(store, 0.01)
        await store.refuse(used)
        assert await self.present(store, used) == "42/h"

    async def test_a_penalty_alone_is_no_refusal(self, store: BucketStore) -> None:
        used = bucket(adaptive())
        await store.take(used)
        await store.penalize(used, HOUR)
        assert await self.present(store, used) == "60/h"

    async def test_a_rate_grows_while_it_is_used(self, store: BucketStore) -> None:
        """The maximum within a second: a second start after a used tenth has grown by a tenth of it."""
        used = bucket(AdaptiveRate("600/m", min="6/m", start="60/m", climb=1, burst=20).rule)
        await store.take(used)
        await self.elapse(store, 0.1)
        await store.take(used)
        found = await self.present(store, used)
        assert found is not None
        assert 120 <= float(found.removesuffix("/m")) <= 600

    # ------------------------------------------------------------------------------------------------- penalties

    @pytest.mark.parametrize("rule", [strict(3), rate(3), shared(3)])
    async def test_a_penalized_bucket_grants_nothing_and_says_until_when(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        used = bucket(rule)
        first = await store.take(used)
        await store.penalize(used, HOUR)
        refused = await store.take(used, count=5)
        assert (refused.granted, refused.available) == (0, 0)
        assert refused.full_at >= refused.opens_at
        assert first.now + HOUR <= refused.opens_at <= refused.now + HOUR
        look = await store.snapshot(used)
        assert (look.available, look.used) == (0, 1)
        assert look.opens_at == refused.opens_at
        assert (await store.take(with_key(used, "globex"))).granted == 1

    async def test_a_bucket_never_seen_can_be_penalized(self, store: BucketStore) -> None:
        used = bucket(rate(7))
        await store.penalize(used, HOUR)
        assert (await store.take(used)).granted == 0
        look = await store.snapshot(used)
        assert (look.used, look.available) == (0, 0)

    async def test_a_penalty_ends_by_itself_and_the_budget_is_as_it_was(self, store: BucketStore) -> None:
        used, other = bucket(strict(3)), bucket(rate(1000))
        await store.take(used)
        while True:
            before = (await store.take(other)).now
            await store.penalize(used, SECOND // 2)
            closed = await store.snapshot(used)
            if not closed.available:
                break
            # On a busy machine half a second may be over before the look, which consumes nothing.
            assert (await store.take(other)).now >= before + SECOND // 2
        assert closed.opens_at >= before + SECOND // 2
        await self.elapse(store, (closed.opens_at - before) / SECOND)
        assert (await store.take(used, count=5)).granted == 2

    async def test_the_longest_penalty_counts(self, store: BucketStore) -> None:
        used = bucket(rate(7))
        first = await store.take(used)
        for hours in (2, 3, 1, 0):
            await store.penalize(used, hours * HOUR)
        refused = await store.take(used)
        assert first.now + 3 * HOUR <= refused.opens_at <= refused.now + 3 * HOUR

    @pytest.mark.parametrize("rule", [strict(1), rate(1)])
    async def test_a_bucket_that_its_rule_closes_for_longer_than_a_penalty_opens_by_its_rule(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        used = bucket(rule)
        first = await store.take(used)
        await store.penalize(used, HOUR // 2)
        assert (await store.take(used)).opens_at == first.now + HOUR

    @pytest.mark.parametrize("rule", [strict(1), rate(1), shared(1)])
    async def test_the_first_reservation_of_a_penalized_bucket_can_be_cancelled(
        self, store: BucketStore, rule: AnyRule
    ) -> None:
        """The fault: the bucket had no state before it, and what is none could not be stored beside the penalty."""
        used = bucket(rule)
        await store.penalize(used, HOUR)
        slot = (await store.reserve(used, id="a")).opens_at
        assert await store.cancel(used, id="a")
        assert (await store.snapshot(used)).used == 0
        assert (await store.reserve(used, id="b")).opens_at == slot

    async def test_reservations_of_a_penalized_bucket_begin_when_it_opens(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        before = await store.reserve(used, id="before")
        await store.penalize(used, 2 * HOUR)
        booked = [await store.reserve(used, id=id) for id in ("a", "b", "before")]
        slots = [each.opens_at for each in booked]
        assert before.now + 2 * HOUR <= slots[0] <= booked[0].now + 2 * HOUR
        assert slots[1] == slots[0] + HOUR
        assert slots[2] == before.opens_at

    async def test_a_start_that_was_granted_before_a_penalty_is_granted_to_a_repeat(self, store: BucketStore) -> None:
        used = bucket(rate(10))
        await store.take(used, id="a")
        await store.penalize(used, HOUR)
        assert (await store.take(used, id="a")).granted == 1
        assert (await store.take(used, id="b")).granted == 0

    async def test_a_returned_permit_does_not_open_a_penalized_bucket(self, store: BucketStore) -> None:
        used = bucket(rate(1))
        taken = await store.take(used)
        await store.penalize(used, HOUR)
        await store.amend(used, taken.now, 1, taken.now, 0)
        assert (await store.take(used)).granted == 0

    @pytest.mark.parametrize("rule", [strict(3), shared(3)])
    async def test_a_reset_lifts_a_penalty(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        await store.penalize(used, HOUR)
        assert (await store.take(used)).granted == 0
        await store.reset(used)
        assert (await store.take(used)).granted == 1

    async def test_a_penalty_stays_whatever_rule_is_declared(self, store: BucketStore) -> None:
        used = bucket(rate(10))
        await store.take(used)
        await store.penalize(used, HOUR)
        assert (await store.take(with_rule(used, rate(20)))).granted == 0
        assert (await store.take(with_rule(used, strict(20)))).granted == 0

    # --------------------------------------------------------------------------------------- looking, forgetting

    @pytest.mark.parametrize("rule", [strict(5), rate(5)])
    async def test_a_snapshot_consumes_nothing(self, store: BucketStore, rule: AnyRule) -> None:
        used = bucket(rule)
        await store.take(used, 2)
        looks = [await store.snapshot(used) for _ in range(3)]
        assert [(look.used, look.available) for look in looks] == [(2, 3)] * 3

    async def test_a_snapshot_of_a_closed_bucket_says_when_it_opens(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        taken = await store.take(used)
        look = await store.snapshot(used)
        assert (look.used, look.available, look.opens_at) == (1, 0, taken.now + HOUR)

    async def test_a_bucket_never_seen_is_full(self, store: BucketStore) -> None:
        look = await store.snapshot(bucket(rate(7)))
        assert (look.used, look.available) == (0, 7)

    async def test_a_reset_bucket_has_its_full_budget(self, store: BucketStore) -> None:
        used = bucket(strict(2))
        other = with_key(used, "globex")
        await store.take(used, 2, id="a")
        await store.take(other, 2)
        await store.reserve(used, id="b")
        await store.reset(used)
        assert (await store.take(used, 2, id="a")).granted == 1
        assert (await store.take(other)).granted == 0

    async def test_a_reset_forgets_what_was_answered_under_an_id(self, store: BucketStore) -> None:
        """The fault: a stored bucket answered a repeat from before the reset, and charged nothing for it."""
        used = bucket(strict(1))
        await store.take(used, id="a")
        assert (await store.reserve(used, id="b")).granted == 0
        await store.reset(used)
        assert (await store.reserve(used, id="b")).granted == 1
        assert (await store.take(used, id="a")).granted == 0

    async def test_resetting_a_bucket_never_seen_does_nothing(self, store: BucketStore) -> None:
        used = bucket(strict(1))
        await store.reset(used)
        assert (await store.take(used)).granted == 1

    # ---------------------------------------------------------------------------------------------- other rules

    async def test_debt_is_carried_over_to_another_rate(self, store: BucketStore) -> None:
        used = bucket(rate(10))
        await store.take(used, 6)
        assert (await store.snapshot(with_rule(used, rate(10, per=1800)))).available == 4
        await store.take(with_rule(used, rate(20)), 1)
        # 6 of 10 stay 6 starts that are owed, of 20 now.
        assert (await store.snapshot(with_rule(used, rate(20)))).available == 13

    async def test_starts_are_carried_over_to_another_strict_rate(self, store: BucketStore) -> None:
        used = bucket(strict(5))
        await store.take(used, 4)
        assert (await store.snapshot(with_rule(used, strict(6)))).available == 2
        assert (await store.take(with_rule(used, strict(3)))).granted == 0

    @pytest.mark.parametrize(("old", "new"), [(rate(5), strict(5)), (strict(5), rate(5))])
    async def test_a_bucket_of_another_kind_of_rule_starts_used_up(
        self, store: BucketStore, old: AnyRule, new: AnyRule
    ) -> None:
        used = bucket(old)
        await store.take(used)
        assert (await store.take(with_rule(used, new))).granted == 0

    async def test_permits_are_refused(self, store: BucketStore) -> None:
        with pytest.raises(DeclarationError, match="permits"):
            await store.take(Bucket("permits", "acme", cast(AnyRule, Concurrency(1).rule)))

    # ------------------------------------------------------------------------------------------ opening, closing

    async def test_opening_twice_is_fine(self, store: BucketStore) -> None:
        await store.open()
        assert (await store.take(bucket(strict(1)))).granted == 1

    async def test_closing_twice_is_fine(self, store: BucketStore) -> None:
        await store.close()
        await store.close()
        await store.open()
        assert (await store.take(bucket(strict(1)))).granted == 1
