"""What is promised of priorities in queues with aging: a job that waits rises, and none waits for ever."""

from __future__ import annotations

import pytest

from headgate.clock import FARTHEST, SECOND
from headgate.jobs.job import MAX_PRIORITY
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, strict

Buckets = list[tuple[str, str]]

LATER = 0.02
"""After how many seconds a claim reads the jobs again, if the last one left many."""

LANES = pytest.mark.parametrize("buckets", [[], [("api", "acme")]], ids=["open lane", "limited"])


async def one_by_one(store_user: StoreUser, count: int) -> list[str]:
    """The next jobs, each taken by a claim of its own."""
    taken = [await store_user.take_ids(1) for _ in range(count)]
    return [id for ids in taken for id in ids]


class AgingConformance(Conformance):
    @LANES
    async def test_a_job_rises_one_level_each_time_that_it_has_waited_for_its_aging(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets
    ) -> None:
        store_user.rules = {"api": strict(100)}
        low = await store_user.add(buckets=buckets, aging=60)
        clock.advance(299)
        before = await store_user.add(buckets=buckets, aging=60, priority=5)
        clock.advance(2)
        after = await store_user.add(2, buckets=buckets, aging=60, priority=5)
        highest = await store_user.add(buckets=buckets, aging=60, priority=9)
        assert await one_by_one(store_user, 5) == [*highest, *before, *low, *after]

    async def test_a_job_without_priority_starts_beside_a_stream_of_urgent_ones(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """The fault: as long as jobs of priority 9 filled all slots, one of priority 0 never started."""
        (low,) = await store_user.add(aging=2)
        has_started: list[bool] = []
        for _ in range(20):
            await store_user.add(2, aging=2, priority=9)
            jobs = await store_user.take(2)
            await store_user.succeed(*jobs)
            has_started.append(low in {job.id for job in jobs})
            clock.advance(1)
        assert has_started.index(True) == 18

    @LANES
    async def test_a_delayed_job_ages_from_its_time_on(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets
    ) -> None:
        store_user.rules = {"api": strict(100)}
        delayed = await store_user.add(buckets=buckets, aging=10, delay=60)
        late = await store_user.add(buckets=buckets, aging=10, delay=80, priority=1)
        clock.advance(65)
        before = await store_user.add(buckets=buckets, aging=10, priority=1)
        clock.advance(20)
        after = await store_user.add(buckets=buckets, aging=10, priority=1)
        assert await store_user.take_ids() == [*before, *delayed, *late, *after]

    @LANES
    async def test_a_retry_ages_from_its_time_on(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets
    ) -> None:
        store_user.rules = {"api": strict(100)}
        retried = await store_user.add(buckets=buckets, aging=10)
        await store_user.retry_later(await store_user.take_one(), 60)
        before = await store_user.add(buckets=buckets, aging=10)
        clock.advance(65)
        urgent = await store_user.add(buckets=buckets, aging=10, priority=1)
        clock.advance(10)
        after = await store_user.add(buckets=buckets, aging=10, priority=1)
        assert await store_user.take_ids() == [*before, *urgent, *retried, *after]

    @LANES
    async def test_a_job_that_is_given_back_is_found_although_later_ones_were_taken(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(buckets=buckets, aging=10, priority=3)
        first = await store_user.take_one()
        for _ in range(3):
            clock.advance(1)
            await store_user.add(2, buckets=buckets, aging=10)
            await store_user.take(1)
        await store_user.give_back(first)
        clock.advance(LATER)
        assert await store_user.take_ids(1) == [first.id]

    @LANES
    @pytest.mark.parametrize("aging", [None, 60])
    async def test_an_urgent_job_goes_first_whatever_was_taken_before(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets, aging: float | None
    ) -> None:
        store_user.rules = {"api": strict(100)}
        for _ in range(4):
            await store_user.add(2, buckets=buckets, aging=aging)
            clock.advance(1)
            await store_user.take(1)
        for priority in (1, 9, 5):
            urgent = await store_user.add(buckets=buckets, aging=aging, priority=priority)
            clock.advance(LATER)
            assert await store_user.take_ids(1) == urgent
        assert len(await store_user.take_ids()) == 4

    @LANES
    @pytest.mark.parametrize("aging", [None, 60])
    async def test_a_job_that_gets_a_higher_priority_goes_before_jobs_that_came_first(
        self, store_user: StoreUser, clock: ManualClock, buckets: Buckets, aging: float | None
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids: list[str] = []
        for _ in range(5):
            ids += await store_user.add(buckets=buckets, aging=aging)
            clock.advance(1)
        assert await one_by_one(store_user, 2) == ids[:2]
        await store_user.storage.reschedule(ids[4], priority=9)
        await store_user.storage.reschedule(ids[3], priority=9)
        await store_user.storage.reschedule(ids[3], priority=0)
        clock.advance(LATER)
        assert await one_by_one(store_user, 3) == [ids[4], ids[2], ids[3]]

    async def test_a_rescheduled_job_keeps_its_aging(self, store_user: StoreUser, clock: ManualClock) -> None:
        (id,) = await store_user.add(aging=10)
        await store_user.storage.reschedule(id, run_at=clock.now() + 30 * SECOND, priority=2)
        clock.advance(35)
        before = await store_user.add(aging=10, priority=3)
        after = await store_user.add(aging=10, priority=2)
        assert await store_user.take_ids() == [*before, id, *after]

    async def test_a_new_aging_is_that_of_jobs_that_are_enqueued_from_then_on(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        low = await store_user.add()
        high = await store_user.add(priority=1)
        clock.advance(30)
        aged = await store_user.add(priority=1, aging=60)
        clock.advance(60)
        late = await store_user.add(priority=1, aging=60)
        assert await one_by_one(store_user, 4) == [*high, *aged, *low, *late]

    async def test_the_position_and_the_oldest_job_are_those_of_the_order_and_of_the_time(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        for buckets in ([], [("api", "acme")]):
            began = clock.now()
            delayed = await store_user.add(buckets=buckets, aging=10, delay=3, priority=1)
            low = await store_user.add(buckets=buckets, aging=10)
            clock.advance(5)
            high = await store_user.add(buckets=buckets, aging=10, priority=2)
            standing = [await store_user.storage.queue_position(id) for id in (*high, *delayed, *low)]
            assert [each and each.position for each in standing] == [1, 2, 3]
            (record,) = await store_user.storage.queues()
            assert record.oldest_at == began
            await store_user.storage.cancel(low[0])
            (record,) = await store_user.storage.queues()
            assert record.oldest_at == began + 3 * SECOND
            for id in (*high, *delayed):
                await store_user.storage.cancel(id)

    async def test_the_longest_aging_keeps_the_order_of_priorities(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        century = FARTHEST / SECOND
        low = await store_user.add(aging=century)
        clock.advance(century - 1)
        high = await store_user.add(aging=century, priority=MAX_PRIORITY)
        plain = await store_user.add(priority=1)
        standing = [await store_user.storage.queue_position(id) for id in (*plain, *high, *low)]
        assert [each and each.position for each in standing] == [1, 2, 3]
        assert await one_by_one(store_user, 3) == [*plain, *high, *low]
