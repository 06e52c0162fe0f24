"""What is promised of limits that count starts: that they hold, and who gets what they grant."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import BucketRef, JobState
from headgate.jobs.query import JobFilter
from headgate.storage.admission import QUANTUM
from headgate.storage.records import Throttled
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import (
    MINUTE,
    Conformance,
    StoreUser,
    at_once,
    most_in_a_window,
    rate,
    strict,
)


class BudgetsConformance(Conformance):
    # ----------------------------------------------------------------------------------------- limits

    async def test_a_key_uses_its_budget_and_then_waits_for_its_next_slot(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(3)}
        ids = await store_user.add(5, buckets=[("api", "acme")])
        assert await store_user.take_ids() == ids[:3]
        assert (await store_user.claim()).next_in == MINUTE
        clock.advance(59.999999)
        assert await store_user.take_ids() == []
        clock.advance(0.000001)
        assert await store_user.take_ids() == ids[3:]

    async def test_a_lane_that_meets_a_closed_bucket_is_reported(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(3)}
        ids = await store_user.add(5, buckets=[("api", "acme")])
        throttled: list[Throttled] = []
        for _ in range(5):
            claimed = await store_user.claim()
            throttled += claimed.throttled
        (only,) = throttled
        assert only == Throttled(BucketRef("api", "acme"), clock.now() + MINUTE, 2, ids[3])

    async def test_the_first_job_that_waits_is_reported_with_its_closed_bucket(self, store_user: StoreUser) -> None:
        """That is the one that met the bucket: with a higher priority, it need not be the oldest."""
        store_user.rules = {"api": strict(3)}
        await store_user.add(buckets=[("api", "acme")], costs=(1,))
        small = await store_user.add(2, buckets=[("api", "acme")], costs=(2,), priority=9)
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == small[:1]
        assert [(met.job_id, met.waiting) for met in claimed.throttled] == [(small[1], 2)]

    async def test_no_window_ever_holds_more_than_a_strict_rate_allows(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(7, per=10)}
        await store_user.add(500, buckets=[("api", "acme")])
        starts = await store_user.starts(300, step=0.7)
        assert most_in_a_window(starts, 10 * SECOND) == 7
        assert len(starts) >= 0.9 * 7 * 30

    async def test_a_rate_grants_its_burst_and_then_paces(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": rate(15)}
        await store_user.add(100, buckets=[("api", "acme")])
        starts = await store_user.starts(60)
        begin = starts[0]
        assert [start - begin for start in starts[:15]] == [0] * 15
        assert [start - begin for start in starts[15:]] == [4 * SECOND * number for number in range(1, 15)]

    async def test_a_saturated_key_uses_its_whole_rate(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(15)}
        await store_user.add(1000, buckets=[("api", "acme")])
        started = 0
        end = clock.monotonic() + 3600 * SECOND
        while clock.monotonic() < end:
            jobs = await store_user.take()
            started += len(jobs)
            await store_user.succeed(*jobs)
            next_in = (await store_user.claim()).next_in
            assert next_in is not None
            clock.advance(next_in / SECOND)
        assert started == 15 * 60

    async def test_several_limits_open_together_or_not_at_all(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"minute": strict(2), "day": strict(5, per=3600)}
        both = [("minute", "acme"), ("day", "acme")]
        await store_user.add(10, buckets=both)
        starts = await store_user.starts(600)
        begin = starts[0]
        assert [(start - begin) // MINUTE for start in starts] == [0, 0, 1, 1, 2]
        # Nothing was taken from the minute while the day was closed.
        alone = await store_user.add(2, buckets=[("minute", "acme")])
        assert await store_user.take_ids() == alone

    async def test_the_order_of_the_limits_makes_no_difference(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"minute": strict(1), "hour": strict(1, per=3600)}
        (first,) = await store_user.add(buckets=[("hour", "acme")])
        assert await store_user.take_ids() == [first]
        await store_user.add(2, buckets=[("hour", "acme"), ("minute", "acme")])
        await store_user.add(2, buckets=[("minute", "acme"), ("hour", "acme")])
        assert await store_user.take_ids() == []
        (alone,) = await store_user.add(buckets=[("minute", "acme")])
        assert await store_user.take_ids() == [alone]

    async def test_a_lane_waits_behind_the_bucket_that_opens_last(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"minute": strict(1), "hour": strict(1, per=3600)}
        both = [("minute", "acme"), ("hour", "acme")]
        await store_user.add(2, buckets=both)
        await store_user.take()
        record = (await store_user.storage.jobs(JobFilter(state=JobState.WAITING)))[0]
        assert record.waits_for == BucketRef("hour", "acme")
        assert record.throttled_until == clock.now() + 3600 * SECOND
        assert (await store_user.claim()).next_in == 3600 * SECOND

    async def test_each_job_is_charged_its_cost(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"tokens": strict(10)}
        ids = [(await store_user.add(buckets=[("tokens", "acme")], costs=(cost,)))[0] for cost in (4, 5, 2, 1)]
        assert await store_user.take_ids() == ids[:2]
        assert (await store_user.claim()).next_in == MINUTE

    async def test_each_limit_is_charged_its_own_cost(self, store_user: StoreUser) -> None:
        store_user.rules = {"tokens": strict(10), "calls": strict(10)}
        await store_user.add(10, buckets=[("tokens", "acme"), ("calls", "acme")], costs=(5, 1))
        assert len(await store_user.take()) == 2
        assert len(await store_user.add(10, buckets=[("calls", "acme")])) == 10
        assert len(await store_user.take()) == 8

    async def test_a_cheap_job_does_not_overtake_a_costly_one_of_its_lane(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10)}
        ids = [(await store_user.add(buckets=[("tokens", "acme")], costs=(cost,)))[0] for cost in (6, 6, 1, 1)]
        assert await store_user.take_ids() == ids[:1]
        clock.advance(60)
        assert await store_user.take_ids() == ids[1:]

    async def test_a_costly_job_is_not_starved_by_cheap_jobs_added_later(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10), "own": strict(1000)}
        await store_user.add(buckets=[("tokens", ""), ("own", "cheap")], costs=(6, 1))
        await store_user.take()
        (costly,) = await store_user.add(buckets=[("tokens", ""), ("own", "costly")], costs=(10, 1))
        for second in range(61):
            cheap = await store_user.add(buckets=[("tokens", ""), ("own", f"cheap {second}")], costs=(1, 1))
            taken = await store_user.take_ids()
            if costly in taken:
                break
            # What came before the costly one waited may go; then the bucket is closed to newcomers.
            assert not set(taken) & set(cheap) or second == 0
            clock.advance(1)
        else:
            pytest.fail("the costly job never started")

    async def test_a_job_that_can_never_start_fails_and_the_others_start(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10), "other": strict(1)}
        buckets = [("other", "acme"), ("tokens", "acme")]
        (impossible,) = await store_user.add(buckets=buckets, costs=(1, 11))
        (possible,) = await store_user.add(buckets=buckets, costs=(1, 10))
        assert await store_user.take_ids() == [possible]
        record = await store_user.record(impossible)
        assert (record.state, record.finished_at, record.attempt) == (JobState.FAILED, clock.now(), 0)
        assert record.error is not None
        assert record.error.type == "headgate.errors.CostExceedsLimit"
        assert (await store_user.counts()).failed == 1

    async def test_lanes_of_different_queues_share_a_bucket(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(5, queue="left", buckets=[("api", "acme")])
        await store_user.add(5, queue="right", buckets=[("api", "acme")])
        assert len(await store_user.take(10, queues=["left"])) == 3
        assert await store_user.take(10, queues=["right"]) == []
        clock.advance(60)
        assert len(await store_user.take(10, queues=["right"])) == 3
        assert await store_user.take(10, queues=["left", "right"]) == []

    async def test_a_shared_bucket_goes_to_the_queue_that_waits_longest(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        waiting: list[str] = []
        for queue in ("right", "left"):
            waiting += await store_user.add(2, queue=queue, buckets=[("api", "acme")])
            clock.advance(1)
        assert await store_user.take_ids(queues=["left", "right"]) == waiting[:1]
        clock.advance(60)
        assert await store_user.take_ids(queues=["left", "right"]) == waiting[2:3]
        clock.advance(60)
        assert await store_user.take_ids(queues=["left", "right"]) == waiting[1:2]

    async def test_many_lanes_over_a_limit_that_they_share_hardly_delay_the_lanes_after_them(
        self, store_user: StoreUser
    ) -> None:
        """The fault: a claim visited one lane for each free slot, whether or not it could start a job."""
        store_user.rules = {"tenant": rate(1, per=600, burst=1), "user": rate(1, per=600, burst=1)}
        lanes = [[("tenant", "a"), ("user", f"{number}")] for number in range(600)]
        await store_user.storage.add([store_user.new(buckets=buckets) for buckets in lanes])
        last = await store_user.add_one(buckets=[("tenant", "b"), ("user", "b")])
        found: list[str] = []
        claims = 0
        while last not in found:
            found += [job.id for job in (await store_user.claim(2)).jobs]
            claims += 1
        assert len(found) == 2
        assert claims <= 20

    async def test_keys_are_compared_exactly(self, store_user: StoreUser) -> None:
        store_user.rules = {"a": strict(1), "a:b": strict(1), "A": strict(1)}
        distinct = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("A", "b"), ("a", "B"), ("a", " b"), ("a", "")]
        for ref in distinct:
            await store_user.add(2, buckets=[ref])
        assert len(await store_user.take()) == len(distinct)

    async def test_waiting_saves_up_no_budget(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(100, buckets=[("api", "acme")])
        await store_user.take()
        clock.advance(3600)
        assert len(await store_user.take()) == 3

    async def test_delayed_jobs_reserve_nothing(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3)}
        for minute in range(20):
            await store_user.add(3, delay=60 * minute, buckets=[("api", "acme")])
        clock.advance(3600)
        assert len(await store_user.take()) == 3
        assert len(await store_user.take()) == 0

    async def test_cancelling_a_waiting_job_costs_nothing(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3)}
        ids = await store_user.add(9, buckets=[("api", "acme")])
        for id in ids[:6]:
            await store_user.storage.cancel(id)
        assert await store_user.take_ids() == ids[6:]

    async def test_a_second_attempt_is_charged_again(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.give_back(await store_user.take_one())
        await store_user.give_back(await store_user.take_one())
        assert await store_user.take() == []
        clock.advance(60)
        assert len(await store_user.take()) == 1

    async def test_a_lowered_limit_counts_what_has_started_already(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(5)}
        await store_user.add(20, buckets=[("api", "acme")])
        await store_user.take(4)
        store_user.rules = {"api": strict(2)}
        assert await store_user.take() == []
        clock.advance(60)
        assert len(await store_user.take()) == 2

    async def test_a_raised_limit_is_used_by_the_backlog(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(20, buckets=[("api", "acme")])
        await store_user.take()
        store_user.rules = {"api": strict(5)}
        clock.advance(60)
        assert len(await store_user.take()) == 5

    # --------------------------------------------------------------------------------------- fairness

    async def test_a_full_lane_leaves_room_for_a_small_one(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1000)}
        await store_user.add(200, buckets=[("api", "big")])
        clock.advance(1)
        (small,) = await store_user.add(buckets=[("api", "small")])
        assert small in await store_user.take_ids(10)

    async def test_lanes_get_equal_shares(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1000)}
        for key in "abcde":
            await store_user.add(100, buckets=[("api", key)], payload=f'"{key}"')
        taken: list[str] = []
        for _ in range(10):
            taken += [job.payload for job in await store_user.take(10)]
            clock.advance(0.001)
        shares = [taken.count(f'"{key}"') for key in "abcde"]
        assert sum(shares) == 100
        # A turn is a few jobs, and the room may end in the middle of one.
        assert max(shares) - min(shares) <= 2 * QUANTUM

    async def test_the_lane_that_waits_longest_comes_first(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1000)}
        ids = []
        for number in (3, 1, 2, 0):
            ids += await store_user.add(buckets=[("api", str(number))])
            clock.advance(0.001)
        assert [(await store_user.take_ids(1))[0] for _ in range(4)] == ids

    async def test_a_lane_that_had_its_turn_goes_to_the_end_of_the_line(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1000)}
        for key in "abc":
            await store_user.add(2, buckets=[("api", key)], payload=f'"{key}"')
            clock.advance(0.001)
        taken = []
        for _ in range(6):
            taken.append((await store_user.take_one()).payload)
            clock.advance(0.001)
        assert taken == ['"a"', '"b"', '"c"'] * 2

    async def test_keys_whose_limits_open_get_no_more_starts_than_those_in_line(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": rate(10, per=1, burst=1)}
        for key in "abcdefgh":
            await store_user.add(30, buckets=[("api", key)], payload=f'"{key}"')
        taken: list[str] = []
        for _ in range(20):
            jobs = await store_user.take(4)
            taken += [job.payload for job in jobs]
            await store_user.succeed(*jobs)
            # By then, the limits of all keys have opened.
            clock.advance(0.2)
        assert [taken.count(f'"{key}"') for key in "abcdefgh"] == [10] * 8

    async def test_a_new_key_waits_for_one_turn_of_each_other_key(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": rate(10, per=1, burst=1)}
        for key in "abcdefgh":
            await store_user.add(30, buckets=[("api", key)])
        for _ in range(10):
            await store_user.succeed(*await store_user.take(4))
            clock.advance(0.2)
        new = await store_user.add_one(buckets=[("api", "new")])
        taken: list[str] = []
        for _ in range(3):
            jobs = await store_user.take(4)
            taken += [job.id for job in jobs]
            await store_user.succeed(*jobs)
            clock.advance(0.2)
        assert taken.index(new) == 8

    async def test_a_costly_job_is_not_starved_by_cheap_jobs_for_which_no_slot_was_free(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10, per=10), "own": strict(1000)}
        await store_user.add(buckets=[("tokens", ""), ("own", "first")], costs=(6, 1))
        await store_user.take()
        costly = await store_user.add_one(buckets=[("tokens", ""), ("own", "costly")], costs=(10, 1))
        assert await store_user.take() == []
        for second in range(21):
            # They are in line before the bucket opens. One slot becomes free a second: fewer than there are jobs.
            for number in range(2):
                buckets = [("tokens", ""), ("own", f"cheap {second} {number}")]
                await store_user.add(buckets=buckets, costs=(1, 1))
            clock.advance(1)
            if await store_user.take_ids(1) == [costly]:
                break
        else:
            pytest.fail("the costly job never started")

    async def test_a_lane_that_got_nothing_keeps_its_place_in_the_line(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": strict(1, per=1), "own": strict(100)}
        for key in "abc":
            await store_user.add(2, buckets=[("shared", ""), ("own", key)], payload=f'"{key}"')
            clock.advance(0.001)
        taken = []
        for _ in range(6):
            # Asked far too often: being looked at in vain must not send anyone to the end of the line.
            for _ in range(3):
                taken += [job.payload for job in await store_user.take()]
                clock.advance(0.4)
        assert taken[:6] == ['"a"', '"b"', '"c"'] * 2

    async def test_lanes_that_got_nothing_stay_before_those_that_were_not_read_yet(self, store_user: StoreUser) -> None:
        store_user.rules = {"shared": strict(1, per=1), "own": strict(100)}
        # One addition: their lanes are a microsecond apart, and one claim looks at a few of them.
        jobs = [store_user.new(buckets=[("shared", ""), ("own", str(number))]) for number in range(30)]
        await store_user.storage.add(jobs)
        taken: list[str] = []
        for _ in range(60):
            taken += await store_user.take_ids(10)
            store_user.clock.advance(0.5)
        assert taken == [job.id for job in jobs]

    async def test_a_shared_bucket_releases_only_what_it_grants(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": strict(3, per=1), "own": strict(100)}
        jobs = [store_user.new(buckets=[("shared", ""), ("own", str(number))]) for number in range(1000)]
        for begin in range(0, 1000, 100):
            await store_user.storage.add(jobs[begin : begin + 100])
            clock.advance(0.001)
        taken = await store_user.take_ids()
        assert len(taken) == 3
        for _ in range(20):
            clock.advance(1)
            claimed = await store_user.claim()
            assert len(claimed.jobs) == 3
            assert not claimed.more
            # Lanes that were not released were not read.
            assert len(claimed.throttled) <= 4
            taken += [job.id for job in claimed.jobs]
        # Longest waiting first: the first hundred arrived together, and no other lane starts before them.
        assert set(taken) <= {job.id for job in jobs[:100]}
        assert len(set(taken)) == 63

    async def test_a_bucket_that_grants_more_than_there_are_slots_stays_open(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"shared": strict(3, per=10), "own": strict(100)}
        for number in range(9):
            await store_user.add(buckets=[("shared", ""), ("own", str(number))])
        assert len(await store_user.take()) == 3
        clock.advance(10)
        assert [len(await store_user.take(1)) for _ in range(5)] == [1, 1, 1, 0, 0]
        clock.advance(10)
        assert len(await store_user.take()) == 3

    async def test_a_bucket_whose_waiting_lanes_were_emptied_is_open_to_new_lanes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"tokens": strict(10), "own": strict(100)}
        await store_user.add(buckets=[("tokens", ""), ("own", "first")], costs=(5, 1))
        await store_user.take()
        costly = await store_user.add_one(buckets=[("tokens", ""), ("own", "costly")], costs=(10, 1))
        assert await store_user.take() == []
        await store_user.storage.cancel(costly)
        cheap = await store_user.add(buckets=[("tokens", ""), ("own", "cheap")], costs=(5, 1))
        assert await store_user.take_ids() == cheap

    async def test_a_released_lane_may_move_behind_another_bucket(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"short": strict(1, per=10), "long": strict(1, per=60)}
        await store_user.add(buckets=[("short", "")])
        await store_user.take()
        (moved,) = await store_user.add(buckets=[("short", ""), ("long", "")])
        await store_user.take()
        await store_user.add(buckets=[("long", "")])
        assert len(await store_user.take()) == 1
        (other,) = await store_user.add(buckets=[("short", "")])
        clock.advance(10)
        assert await store_user.take_ids() == [other]
        assert (await store_user.record(moved)).waits_for == BucketRef("long", "")
        clock.advance(50)
        assert await store_user.take_ids() == [moved]

    async def test_gated_and_ungated_jobs_get_half_of_the_room_each(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(50)
        await store_user.add(50, buckets=[("api", "acme")])
        claimed = await store_user.claim(10)
        assert sum(1 for job in claimed.jobs if job.gated) == 5
        assert len(claimed.jobs) == 10

    async def test_the_odd_slot_goes_to_the_kind_that_is_named_first(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(50)
        await store_user.add(50, buckets=[("api", "acme")])
        assert (await store_user.claim(1, gated_first=True)).jobs[0].gated
        assert not (await store_user.claim(1, gated_first=False)).jobs[0].gated
        claimed = await store_user.claim(5, gated_first=False)
        assert sum(1 for job in claimed.jobs if job.gated) == 2

    async def test_slots_that_one_half_does_not_use_go_to_the_other(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(50, buckets=[("api", "acme")])
        await store_user.add(50)
        claimed = await store_user.claim(10)
        assert sum(1 for job in claimed.jobs if job.gated) == 3
        assert len(claimed.jobs) == 10
        store_user.rules = {"api": strict(100)}
        await store_user.add(50, queue="gated", buckets=[("api", "other")])
        await store_user.add(2, queue="gated")
        taken = await store_user.take(10, queues=["gated"])
        assert sum(1 for job in taken if not job.gated) == 2
        assert len(taken) == 10

    async def test_an_exhausted_key_does_not_delay_other_keys(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(2000, buckets=[("api", "noisy")])
        await store_user.take()
        for number in range(20):
            neighbour = await store_user.add(buckets=[("api", f"quiet {number}")])
            ungated = await store_user.add()
            claimed = await store_user.claim(2)
            assert sorted(job.id for job in claimed.jobs) == sorted(neighbour + ungated)
            assert list(claimed.throttled) == []

    async def test_many_exhausted_keys_do_not_delay_a_new_one(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.storage.add([store_user.new(buckets=[("api", str(number % 500))]) for number in range(1000)])
        assert len(await store_user.take(2000)) == 500
        fresh = await store_user.add(buckets=[("api", "fresh")])
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == fresh
        assert list(claimed.throttled) == []
        assert not claimed.more

    async def test_a_job_that_waits_is_never_written(
        self, store_user: StoreUser, clock: ManualClock, storage: Store
    ) -> None:
        before = self.writes(storage)
        if before is None:
            pytest.skip("this store does not count its writes")
        store_user.rules = {"api": strict(1)}
        await store_user.add(200, buckets=[("api", "acme")])
        await store_user.add(200, buckets=[("api", "other")], delay=3600)
        await store_user.take()
        settled = self.writes(storage)
        for _ in range(50):
            clock.advance(1)
            assert await store_user.take() == []
        assert self.writes(storage) == settled

    # ------------------------------------------------------------------------------------- wall clock

    async def test_limit_time_begins_at_wall_time_and_only_grows(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        begin = store_user.storage.limit_now()
        assert begin == clock.now()
        clock.step_wall(-3600)
        assert store_user.storage.limit_now() == begin
        clock.advance(1)
        assert store_user.storage.limit_now() == begin + SECOND
        clock.step_wall(86400)
        assert store_user.storage.limit_now() == begin + SECOND

    async def test_immediate_jobs_still_run_when_the_wall_clock_steps_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        before = [*await store_user.add(2), *await store_user.add(2, buckets=[("api", "acme")])]
        clock.step_wall(-3600)
        assert sorted(await store_user.take_ids()) == sorted(before)
        after = [*await store_user.add(2), *await store_user.add(2, buckets=[("api", "acme")])]
        assert sorted(await store_user.take_ids()) == sorted(after)

    async def test_limits_stay_exact_when_the_wall_clock_steps_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(10, buckets=[("api", "acme")])
        assert len(await store_user.take()) == 3
        clock.step_wall(-3600)
        assert await store_user.take() == []
        assert (await store_user.claim()).next_in == MINUTE
        clock.advance(60)
        assert len(await store_user.take()) == 3

    async def test_a_wall_clock_that_jumps_a_day_grants_nothing_extra(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"strict": strict(3), "paced": rate(3)}
        await store_user.add(50, buckets=[("strict", "acme")])
        await store_user.add(50, buckets=[("paced", "acme")])
        assert len(await store_user.take()) == 6
        clock.step_wall(86400)
        assert await store_user.take() == []
        clock.step_wall(-86400)
        assert await store_user.take() == []

    async def test_a_wall_clock_that_jumps_ahead_makes_delayed_jobs_due(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = [*await store_user.add(delay=3600), *await store_user.add(delay=3600, buckets=[("api", "acme")])]
        await store_user.take()
        clock.step_wall(3600)
        assert sorted(await store_user.take_ids()) == sorted(ids)

    async def test_a_delayed_job_waits_again_when_the_wall_clock_steps_back(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        for buckets in ((), (("api", "acme"),)):
            await store_user.add(delay=60, buckets=buckets)
        clock.advance(50)
        clock.step_wall(-50)
        clock.advance(10)
        claimed = await store_user.claim()
        assert (list(claimed.jobs), claimed.next_in) == ([], 50 * SECOND)

    # ------------------------------------------------------------------------------ how long limits held jobs back

    async def test_a_claimed_job_has_the_time_that_a_limit_delayed_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(4, buckets=[("api", "acme")])
        assert [job.throttled_for for job in await store_user.take()] == [0, 0]
        clock.advance(20)
        await store_user.add(1, buckets=[("api", "acme")])
        clock.advance(40)
        assert [job.throttled_for for job in await store_user.take()] == [MINUTE, MINUTE]
        clock.advance(60)
        assert [job.throttled_for for job in await store_user.take()] == [100 * SECOND]

    async def test_waiting_for_a_slot_is_not_waiting_for_the_limit(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(6, buckets=[("api", "acme")])
        await store_user.add(1, buckets=[("api", "globex")])
        clock.advance(5)
        assert [job.throttled_for for job in await store_user.take()] == [0, 0, 0, 0]
        # It opens while there is no free slot; then one slot at a time.
        clock.advance(60 + 30)
        received = [(await store_user.take_one()).throttled_for]
        clock.advance(10)
        received.append((await store_user.take_one()).throttled_for)
        (newcomer,) = await store_user.add(1, buckets=[("api", "acme")], priority=1)
        clock.advance(10)
        late = await store_user.take_one()
        assert (late.id, late.throttled_for) == (newcomer, 0)
        assert received == [65 * SECOND, 65 * SECOND]

    async def test_waiting_for_a_held_permit_is_waiting_for_the_limit(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"one": at_once()}
        await store_user.add(3, buckets=[("one", "acme")])
        first = await store_user.take_one()
        assert await store_user.take() == []
        clock.advance(7)
        await store_user.succeed(first)
        clock.advance(2)
        second = await store_user.take_one()
        assert (second.started_at - second.run_at, second.throttled_for) == (9 * SECOND, 7 * SECOND)

    async def test_a_delayed_job_waits_for_a_limit_from_its_time_on(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(1, buckets=[("api", "acme")])
        await store_user.take_one()
        await store_user.add(1, buckets=[("api", "acme")], delay=45)
        clock.advance(45)
        assert await store_user.take() == []
        clock.advance(15)
        assert (await store_user.take_one()).throttled_for == 15 * SECOND

    async def test_of_several_limits_the_last_that_opened_counts(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"minute": strict(1), "five": strict(1, per=300)}
        await store_user.add(1, buckets=[("minute", "acme")])
        await store_user.add(1, buckets=[("five", "acme")])
        assert len(await store_user.take()) == 2
        await store_user.add(1, buckets=[("minute", "acme"), ("five", "acme")])
        for _ in range(5):
            assert await store_user.take() == []
            clock.advance(60)
        clock.advance(3)
        assert (await store_user.take_one()).throttled_for == 300 * SECOND

    async def test_a_paused_limit_delays_jobs_until_it_is_resumed(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(10)}
        paused = await store_user.pause("api")
        await store_user.add(1, buckets=[("api", "acme")])
        assert await store_user.take() == []
        clock.advance(30)
        await store_user.unset(paused)
        clock.advance(1)
        assert (await store_user.take_one()).throttled_for == 30 * SECOND

    async def test_a_job_has_the_number_of_its_starts_that_a_limit_delayed(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2), "one": at_once()}
        prompt, also, delayed = await store_user.add(3, buckets=[("api", "acme")])
        await store_user.take()
        clock.advance(60)
        (job,) = await store_user.take()
        assert [(await store_user.record(id)).deferrals for id in (prompt, also, delayed)] == [None, None, 1]
        # Its next start waits for its time, not for the limit; the one after that waits for the limit again.
        await store_user.retry_later(job, 61)
        clock.advance(61)
        job = await store_user.take_one()
        assert (await store_user.record(delayed)).deferrals == 1
        await store_user.add(1, buckets=[("api", "acme")])
        await store_user.take_one()
        await store_user.retry_later(job, 1)
        clock.advance(1)
        assert await store_user.take() == []
        clock.advance(60)
        assert [job.id for job in await store_user.take()] == [delayed]
        assert (await store_user.record(delayed)).deferrals == 2

    async def test_a_wait_for_a_held_permit_is_a_deferral(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"one": at_once()}
        prompt, delayed = await store_user.add(2, buckets=[("one", "acme")])
        first = await store_user.take_one()
        assert await store_user.take() == []
        clock.advance(7)
        await store_user.succeed(first)
        await store_user.take_one()
        assert [(await store_user.record(id)).deferrals for id in (prompt, delayed)] == [None, 1]

    async def test_jobs_without_limits_are_never_delayed_by_one(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add(1)
        clock.advance(30)
        assert (await store_user.take_one()).throttled_for == 0
