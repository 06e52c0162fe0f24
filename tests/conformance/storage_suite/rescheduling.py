"""What is promised of waiting jobs that are given another time or priority: they stay where they wait."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.audit import AuditFilter, AuditRecord
from headgate.jobs.job import JobState, Origin
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import MINUTE, Conformance, Hands, strict

LIMITED = [("api", "acme")]


async def later(hands: Hands, id: str, seconds: float) -> JobState | None:
    return await hands.storage.reschedule(id, run_at=hands.clock.now() + round(seconds * SECOND))


class ReschedulingConformance(Conformance):
    @pytest.mark.parametrize("draws", [(), LIMITED], ids=["open lane", "limited"])
    async def test_a_ready_job_is_put_off(self, hands: Hands, clock: ManualClock, draws: list[tuple[str, str]]) -> None:
        hands.rules = {"api": strict(10)}
        first, second = await hands.add(2, draws=draws)
        assert await later(hands, first, 60) is JobState.WAITING
        record = await hands.record(first)
        assert (record.run_at, record.delayed) == (clock.now() + MINUTE, True)
        assert (await hands.counts()).waiting == 2
        assert await hands.take_ids() == [second]
        claimed = await hands.claim()
        assert claimed.next_in is not None
        assert claimed.next_in <= MINUTE
        clock.advance(59.999999)
        assert await hands.take_ids() == []
        clock.advance(0.000001)
        assert await hands.take_ids() == [first]

    @pytest.mark.parametrize("draws", [(), LIMITED], ids=["open lane", "limited"])
    async def test_a_delayed_job_is_brought_forward(
        self, hands: Hands, clock: ManualClock, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": strict(10)}
        (id,) = await hands.add(1, draws=draws, delay=3600)
        assert await hands.take() == []
        await later(hands, id, 30)
        claimed = await hands.claim()
        assert claimed.next_in == 30 * SECOND
        clock.advance(30)
        assert await hands.take_ids() == [id]
        (id,) = await hands.add(1, draws=draws, delay=3600)
        await later(hands, id, -5)
        assert (await hands.record(id)).run_at == clock.now(), "what has passed is now"
        assert await hands.take_ids() == [id]

    async def test_who_is_ready_already_keeps_its_place(self, hands: Hands) -> None:
        ids = await hands.add(3)
        await later(hands, ids[0], -100)
        await later(hands, ids[1], 0)
        assert await hands.take_ids() == ids

    @pytest.mark.parametrize("draws", [(), LIMITED], ids=["open lane", "limited"])
    async def test_another_priority_is_another_place_in_its_lane(
        self, hands: Hands, draws: list[tuple[str, str]]
    ) -> None:
        hands.rules = {"api": strict(10)}
        ids = await hands.add(4, draws=draws, priority=5)
        await hands.storage.reschedule(ids[2], priority=9)
        await hands.storage.reschedule(ids[0], priority=0)
        assert (await hands.record(ids[2])).priority == 9
        assert await hands.take_ids() == [ids[2], ids[1], ids[3], ids[0]]

    async def test_a_throttled_job_that_is_put_off_leaves_its_slot_to_the_next(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(1)}
        ids = await hands.add(3, draws=LIMITED)
        assert await hands.take_ids() == ids[:1]
        await later(hands, ids[1], 300)
        clock.advance(60)
        assert await hands.take_ids() == ids[2:]
        clock.advance(240)
        assert await hands.take_ids() == [ids[1]]

    async def test_the_last_ready_job_of_a_lane_is_put_off_and_comes_back(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(1)}
        first, second = await hands.add(2, draws=LIMITED)
        assert await hands.take_ids() == [first]
        await later(hands, second, 600)
        clock.advance(60)
        assert await hands.take() == []
        await later(hands, second, 5)
        clock.advance(5)
        assert await hands.take_ids() == [second]

    async def test_a_costly_job_that_is_put_off_keeps_nobody_waiting(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(3)}
        await hands.add(1, draws=LIMITED, costs=(2,))
        await hands.take_one()
        (costly,) = await hands.add(1, draws=LIMITED, costs=(3,))
        (cheap,) = await hands.add(1, draws=LIMITED, costs=(1,))
        assert await hands.take() == []
        await later(hands, costly, 600)
        assert await hands.take_ids() == [cheap]

    async def test_its_attempts_and_its_key_are_kept(self, hands: Hands, clock: ManualClock) -> None:
        job = replace(hands.new(), unique_key="k")
        await hands.storage.add([job])
        await hands.retry_later(await hands.take_one(), 60)
        await later(hands, job.id, 5)
        rival = replace(hands.new(), unique_key="k")
        assert await hands.storage.add([rival]) == {rival.id: job.id}
        clock.advance(5)
        assert (await hands.take_one()).attempt == 2

    async def test_patience_counts_from_the_new_time(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(1, draws=LIMITED)
        await hands.take()
        id = await hands.add_one(draws=LIMITED, patience=30)
        await later(hands, id, 100)
        await hands.storage.reschedule(id, priority=3)
        clock.advance(129)
        assert list(await hands.storage.expire()) == []
        clock.advance(2)
        assert [dropped.id for dropped in await hands.storage.expire()] == [id]

    async def test_a_blocked_job_is_told_its_time_before_it_is_released(self, hands: Hands, clock: ManualClock) -> None:
        leader = hands.new()
        follower = replace(hands.new(), origin=Origin(follows=leader.id))
        await hands.storage.add([leader, follower])
        assert await later(hands, follower.id, 60) is JobState.WAITING
        await hands.succeed(await hands.take_one())
        assert await hands.take() == []
        clock.advance(60)
        assert await hands.take_ids() == [follower.id]

    async def test_only_a_job_that_waits_is_given_another_time(self, hands: Hands) -> None:
        await hands.add(2)
        running, done = await hands.take()
        await hands.succeed(done)
        for id in (running.id, done.id):
            with pytest.raises(IllegalTransition, match="only the time or priority of a waiting job can be changed"):
                await later(hands, id, 60)
        assert await later(hands, "nobody", 60) is None
        await hands.succeed(running)

    async def test_who_did_it_is_kept(self, hands: Hands) -> None:
        id = await hands.add_one()
        await hands.storage.reschedule(
            id, priority=1, audit_record=AuditRecord("ada", "reschedule", "job", id, "priority 1")
        )
        (entry,) = await hands.storage.audit_log(AuditFilter(subject=id))
        assert (entry.actor, entry.action, entry.detail) == ("ada", "reschedule", "priority 1")
