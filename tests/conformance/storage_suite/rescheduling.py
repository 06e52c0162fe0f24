"""What is promised of waiting jobs that are given another time or priority: they stay where they wait."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.job import JobState, Origin
from headgate.jobs.lifecycle import Unchanged
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import MINUTE, Conformance, StoreUser, strict

LIMITED = [("api", "acme")]


async def later(store_user: StoreUser, id: str, seconds: float) -> JobState | None:
    return await store_user.storage.reschedule(id, run_at=store_user.clock.now() + round(seconds * SECOND))


class ReschedulingConformance(Conformance):
    @pytest.mark.parametrize("buckets", [(), LIMITED], ids=["open lane", "limited"])
    async def test_a_ready_job_is_postponed(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": strict(10)}
        first, second = await store_user.add(2, buckets=buckets)
        assert await later(store_user, first, 60) is JobState.WAITING
        record = await store_user.record(first)
        assert (record.run_at, record.delayed) == (clock.now() + MINUTE, True)
        assert (await store_user.counts()).waiting == 2
        assert await store_user.take_ids() == [second]
        claimed = await store_user.claim()
        assert claimed.next_in is not None
        assert claimed.next_in <= MINUTE
        clock.advance(59.999999)
        assert await store_user.take_ids() == []
        clock.advance(0.000001)
        assert await store_user.take_ids() == [first]

    @pytest.mark.parametrize("buckets", [(), LIMITED], ids=["open lane", "limited"])
    async def test_a_delayed_job_is_moved_to_an_earlier_time(
        self, store_user: StoreUser, clock: ManualClock, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": strict(10)}
        (id,) = await store_user.add(1, buckets=buckets, delay=3600)
        assert await store_user.take() == []
        await later(store_user, id, 30)
        claimed = await store_user.claim()
        assert claimed.next_in == 30 * SECOND
        clock.advance(30)
        assert await store_user.take_ids() == [id]
        (id,) = await store_user.add(1, buckets=buckets, delay=3600)
        await later(store_user, id, -5)
        assert (await store_user.record(id)).run_at == clock.now(), "what has passed is now"
        assert await store_user.take_ids() == [id]

    async def test_a_job_that_is_already_ready_keeps_its_place(self, store_user: StoreUser) -> None:
        ids = await store_user.add(3)
        for id, seconds in ((ids[0], -100), (ids[1], 0)):
            with pytest.raises(Unchanged):
                await later(store_user, id, seconds)
        assert await store_user.take_ids() == ids

    @pytest.mark.parametrize("buckets", [(), LIMITED], ids=["open lane", "limited"])
    async def test_another_priority_moves_a_job_in_its_lane(
        self, store_user: StoreUser, buckets: list[tuple[str, str]]
    ) -> None:
        store_user.rules = {"api": strict(10)}
        ids = await store_user.add(4, buckets=buckets, priority=5)
        await store_user.storage.reschedule(ids[2], priority=9)
        await store_user.storage.reschedule(ids[0], priority=0)
        assert (await store_user.record(ids[2])).priority == 9
        assert await store_user.take_ids() == [ids[2], ids[1], ids[3], ids[0]]

    async def test_a_postponed_throttled_job_leaves_its_slot_to_the_next(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(3, buckets=LIMITED)
        assert await store_user.take_ids() == ids[:1]
        await later(store_user, ids[1], 300)
        clock.advance(60)
        assert await store_user.take_ids() == ids[2:]
        clock.advance(240)
        assert await store_user.take_ids() == [ids[1]]

    async def test_the_last_ready_job_of_a_lane_is_postponed_and_made_ready_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        first, second = await store_user.add(2, buckets=LIMITED)
        assert await store_user.take_ids() == [first]
        await later(store_user, second, 600)
        clock.advance(60)
        assert await store_user.take() == []
        await later(store_user, second, 5)
        clock.advance(5)
        assert await store_user.take_ids() == [second]

    async def test_a_postponed_costly_job_delays_no_other(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3)}
        await store_user.add(1, buckets=LIMITED, costs=(2,))
        await store_user.take_one()
        (costly,) = await store_user.add(1, buckets=LIMITED, costs=(3,))
        (cheap,) = await store_user.add(1, buckets=LIMITED, costs=(1,))
        assert await store_user.take() == []
        await later(store_user, costly, 600)
        assert await store_user.take_ids() == [cheap]

    async def test_a_rescheduled_job_keeps_its_attempts_and_key(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        job = replace(store_user.new(), unique_key="k")
        await store_user.storage.add([job])
        await store_user.retry_later(await store_user.take_one(), 60)
        await later(store_user, job.id, 5)
        rival = replace(store_user.new(), unique_key="k")
        assert await store_user.storage.add([rival]) == {rival.id: job.id}
        clock.advance(5)
        assert (await store_user.take_one()).attempt == 2

    async def test_max_wait_counts_from_the_new_time(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(1, buckets=LIMITED)
        await store_user.take()
        id = await store_user.add_one(buckets=LIMITED, patience=30)
        await later(store_user, id, 100)
        await store_user.storage.reschedule(id, priority=3)
        clock.advance(129)
        assert list(await store_user.storage.expire()) == []
        clock.advance(2)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [id]

    async def test_a_blocked_job_can_be_rescheduled_before_it_is_released(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        leader = store_user.new()
        follower = replace(store_user.new(), origin=Origin(follows=leader.id))
        await store_user.storage.add([leader, follower])
        assert await later(store_user, follower.id, 60) is JobState.WAITING
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take() == []
        clock.advance(60)
        assert await store_user.take_ids() == [follower.id]

    async def test_only_a_waiting_job_can_be_rescheduled(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        running, done = await store_user.take()
        await store_user.succeed(done)
        for id in (running.id, done.id):
            with pytest.raises(IllegalTransition, match="only the time or priority of a waiting job can be changed"):
                await later(store_user, id, 60)
        assert await later(store_user, "nobody", 60) is None
        await store_user.succeed(running)

    async def test_the_actor_of_a_reschedule_is_recorded(self, store_user: StoreUser) -> None:
        id = await store_user.add_one()
        await store_user.storage.reschedule(
            id, priority=1, audit_record=AuditRecord("ada", "reschedule", "job", id, "priority 1")
        )
        (entry,) = await store_user.storage.audit_log(AuditFilter(subject=id))
        assert (entry.actor, entry.action, entry.detail) == ("ada", "reschedule", "priority 1")
