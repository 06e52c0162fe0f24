"""What is promised of nodes: whose the running jobs are, and what becomes of those of a dead one."""

from __future__ import annotations

import asyncio

from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.storage.endings import poison_error
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import (
    Conformance,
    Hands,
    beat_of,
    recover,
    strict,
)


class NodesConformance(Conformance):
    async def test_a_beat_tells_who_lives_and_what_a_node_owns(self, hands: Hands, clock: ManualClock) -> None:
        await hands.storage.join("node-b", "b")
        await hands.add(3)
        jobs = await hands.take(2)
        first = await hands.storage.beat(hands.node)
        assert first.known
        assert first.owned == {job.id: job.fence for job in jobs}
        assert first.cancels == frozenset()
        nodes = {node.id: node for node in await hands.storage.nodes()}
        assert {id: (node.name, node.running) for id, node in nodes.items()} == {"node-a": ("a", 2), "node-b": ("b", 0)}
        clock.advance(5)
        await hands.storage.beat(hands.node)
        second = {node.id: node for node in await hands.storage.nodes()}
        assert second["node-a"].beat > nodes["node-a"].beat
        assert second["node-a"].beat_at == clock.now()
        assert second["node-b"].beat == nodes["node-b"].beat
        peers = (await hands.storage.upkeep()).peers
        assert {peer.id: (peer.beat, peer.is_gone) for peer in peers} == {
            node.id: (node.beat, node.is_gone) for node in second.values()
        }

    async def test_a_beat_tells_which_jobs_linger(self, hands: Hands) -> None:
        await hands.storage.beat(hands.node)
        assert [node.lingering for node in await hands.storage.nodes()] == [()]
        await hands.storage.beat(hands.node, lingering=["job-a", "job-b"])
        assert [node.lingering for node in await hands.storage.nodes()] == [("job-a", "job-b")]
        await hands.storage.beat(hands.node)
        assert [node.lingering for node in await hands.storage.nodes()] == [()]

    async def test_what_is_stored_is_dated_by_the_stores_own_now(self, hands: Hands, clock: ManualClock) -> None:
        storage = hands.storage
        for step in (0, 3600, -7200):
            clock.step_wall(step)
            clock.advance(1)
            await hands.add()
            job = await hands.take_one()
            assert job.started_at == storage.now()
            await hands.succeed(job)
            assert (await hands.record(job.id)).finished_at == storage.now()
            await storage.beat(hands.node)
            assert [node.beat_at for node in await storage.nodes()] == [storage.now()]

    async def test_a_finished_job_is_owned_no_more(self, hands: Hands) -> None:
        await hands.add(2)
        first, second = await hands.take()
        await hands.succeed(first)
        await hands.give_back(second)
        assert (await hands.storage.beat(hands.node)).owned == {}

    async def test_what_a_claim_told_of_a_job_can_be_read_again(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100), "all": strict(100)}
        await hands.add(draws=[("api", "acme"), ("all", "")], costs=(2, 3), headers={"a": "b"})
        clock.advance(1)
        job = await hands.take_one()
        assert (await hands.record(job.id)).as_claimed() == job
        await hands.give_back(job)
        clock.advance(1)
        again = await hands.take_one()
        assert again.fence == job.fence + 1
        assert (await hands.record(job.id)).as_claimed() == again

    async def test_a_beat_does_not_bring_a_node_back(self, hands: Hands) -> None:
        beat = await hands.storage.beat("stranger")
        assert not beat.known
        assert beat.owned == {}
        assert (await hands.storage.beat(hands.node)).known
        assert [node.id for node in await hands.storage.nodes()] == [hands.node]

    async def test_a_node_that_leaves_hands_its_jobs_back_unspent(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(100)}
        ids = [*await hands.add(2), *await hands.add(2, draws=[("api", "acme")])]
        await hands.take()
        clock.advance(1)
        recovered = await hands.storage.leave(hands.node)
        assert sorted(recovered.returned) == sorted(ids)
        assert list(recovered.poisonous) == []
        assert not (await hands.storage.beat(hands.node)).known
        for id in ids:
            record = await hands.record(id)
            assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
            assert [attempt.outcome for attempt in await hands.storage.attempts(id)] == ["interrupted"]
        await hands.storage.join("node-b", "b")
        assert {job.attempt for job in await hands.take(node="node-b")} == {1}

    async def test_leaving_twice_is_fine(self, hands: Hands) -> None:
        await hands.storage.leave(hands.node)
        recovered = await hands.storage.leave(hands.node)
        assert not recovered.returned
        assert not recovered.poisonous

    async def test_a_node_that_still_beats_is_not_recovered(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await hands.storage.beat(hands.node)
        seen = await beat_of(hands, hands.node)
        await hands.storage.beat(hands.node)
        assert await hands.storage.recover(hands.node, seen) is None
        assert (await hands.record(job.id)).state is JobState.RUNNING

    async def test_an_unknown_node_is_not_recovered(self, hands: Hands) -> None:
        assert await hands.storage.recover("stranger", 0) is None

    async def test_a_dead_nodes_jobs_wait_again_with_their_attempt_spent(
        self, hands: Hands, clock: ManualClock
    ) -> None:
        hands.rules = {"api": strict(2)}
        await hands.add(draws=[("api", "acme")])
        job = await hands.take_one()
        clock.advance(30)
        recovered = await recover(hands)
        assert list(recovered.returned) == [job.id]
        record = await hands.record(job.id)
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 1, 1)
        assert (record.run_at, record.delayed) == (job.run_at, False)
        (attempt,) = await hands.storage.attempts(job.id)
        assert (attempt.number, attempt.outcome, attempt.ended_at) == (1, "lost", clock.now())
        again = await hands.take_one(node="node-b")
        assert (again.attempt, again.fence, again.lost) == (2, 2, 1)

    async def test_the_late_result_of_a_dead_node_is_refused(self, hands: Hands) -> None:
        await hands.add()
        job = await hands.take_one()
        await recover(hands)
        late = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        assert list(await hands.storage.finish(hands.node, [late])) == [False]
        again = await hands.take_one(node="node-b")
        assert list(await hands.storage.finish(hands.node, [late])) == [False]
        assert (await hands.record(again.id)).state is JobState.RUNNING

    async def test_a_node_that_was_declared_dead_learns_it_and_may_join_again(self, hands: Hands) -> None:
        await hands.add(2)
        await hands.take(1)
        await recover(hands)
        beat = await hands.storage.beat(hands.node)
        assert not beat.known
        assert beat.owned == {}
        await hands.storage.join(hands.node, "a")
        assert (await hands.storage.beat(hands.node)).known
        assert len(await hands.take()) == 2

    async def test_a_node_that_is_known_and_joins_again_stays_as_it_is(self, hands: Hands, clock: ManualClock) -> None:
        """As it does after an answer that was lost."""
        await hands.add()
        job = await hands.take_one()
        before = await hands.storage.nodes()
        clock.advance(5)
        await hands.storage.join(hands.node, "another name", queues={"default": 7}, version="2")
        assert list(await hands.storage.nodes()) == list(before)
        assert set((await hands.storage.beat(hands.node)).owned) == {job.id}

    async def test_two_that_notice_a_death_recover_once(self, hands: Hands) -> None:
        await hands.add()
        await hands.take_one()
        await hands.storage.beat(hands.node)
        seen = await beat_of(hands, hands.node)
        results = await asyncio.gather(*(hands.storage.recover(hands.node, seen) for _ in range(2)))
        assert sum(1 for result in results if result is not None) == 1

    async def test_a_job_that_keeps_killing_its_node_is_failed(self, hands: Hands) -> None:
        await hands.add()
        bystander = await hands.add_one()
        for death in range(1, POISONOUS_AFTER + 1):
            jobs = await hands.take(1)
            recovered = await recover(hands)
            poisonous = death == POISONOUS_AFTER
            assert (len(recovered.poisonous), len(recovered.returned)) == ((1, 0) if poisonous else (0, 1))
            await hands.storage.join(hands.node, "a")
        record = await hands.record(jobs[0].id)
        assert (record.state, record.error) == (JobState.FAILED, poison_error(POISONOUS_AFTER))
        assert record.finished_at is not None
        assert await hands.take_ids() == [bystander]

    async def test_a_poisonous_job_that_is_retried_starts_over(self, hands: Hands) -> None:
        await hands.add()
        for _ in range(POISONOUS_AFTER):
            job = await hands.take_one()
            await recover(hands)
            await hands.storage.join(hands.node, "a")
        assert await hands.storage.retry(job.id) is JobState.FAILED
        again = await hands.take_one()
        assert (again.attempt, again.lost) == (1, 0)
        await recover(hands)
        assert (await hands.record(job.id)).state is JobState.WAITING

    async def test_a_job_of_a_gone_node_that_was_to_be_cancelled_is_cancelled(self, hands: Hands) -> None:
        await hands.add(2)
        first, second = await hands.take()
        await hands.storage.cancel(first.id)
        recovered = await recover(hands)
        assert list(recovered.returned) == [second.id]
        assert (await hands.record(first.id)).state is JobState.CANCELLED
        other = await hands.take_one(node="node-b")
        await hands.storage.cancel(other.id)
        assert list((await hands.storage.leave("node-b")).returned) == []
        assert (await hands.record(other.id)).state is JobState.CANCELLED

    async def test_a_poisonous_job_that_was_to_be_cancelled_is_cancelled(self, hands: Hands) -> None:
        await hands.add()
        for death in range(1, POISONOUS_AFTER + 1):
            job = await hands.take_one()
            if death == POISONOUS_AFTER:
                await hands.storage.cancel(job.id)
            recovered = await recover(hands)
            await hands.storage.join(hands.node, "a")
        assert not recovered.poisonous
        assert (await hands.record(job.id)).state is JobState.CANCELLED
