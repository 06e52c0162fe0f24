"""What is promised of jobs that follow others: the end of a leader and what comes after it are one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.errors import LeaderNotFound, LeaderNotRetried, LimitInUse
from headgate.jobs.gating import GateChange
from headgate.jobs.job import Draw, JobState, Origin
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.storage.endings import EXPIRED_ERROR, REJECTED
from headgate.storage.following import FOLLOWERS_AT_ONCE, LEADER_NOT_SUCCEEDED
from headgate.storage.records import JobFilter
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.hands import BOOM, Conformance, Hands, at_once, strict
from tests.conformance.storage_suite.ties import (
    add_batch,
    chain,
    die,
    error_of,
    follow,
    following,
    is_blocked,
    why,
)

Ending = Callable[[Hands, str], Awaitable[Any]]


async def _fail(hands: Hands, id: str) -> None:
    await hands.fail(await hands.take_one())


async def _cancel_waiting(hands: Hands, id: str) -> None:
    await hands.storage.cancel(id)


async def _cancel_running(hands: Hands, id: str) -> None:
    job = await hands.take_one()
    await hands.storage.finish(hands.node, [Finished(job.id, job.fence, JobState.CANCELLED)])


async def _cancel_while_it_is_given_back(hands: Hands, id: str) -> None:
    job = await hands.take_one()
    await hands.storage.cancel(id)
    await hands.give_back(job, "failed", spent=True, error=BOOM)


async def _cancel_while_its_node_leaves(hands: Hands, id: str) -> None:
    await hands.storage.join("node-b", "b")
    await hands.take_one(node="node-b")
    await hands.storage.cancel(id)
    await hands.storage.leave("node-b")


async def _cancel_while_its_node_dies(hands: Hands, id: str) -> None:
    await hands.storage.join("node-b", "b")
    await hands.take_one(node="node-b")
    await hands.storage.cancel(id)
    await die(hands, "node-b")


async def _poison(hands: Hands, id: str) -> None:
    for time in range(POISONOUS_AFTER):
        node = f"node-{time}"
        await hands.storage.join(node, node)
        await hands.take_one(node=node)
        await die(hands, node)


async def _expire(hands: Hands, id: str) -> None:
    assert not (await hands.storage.upkeep()).has_expired
    hands.clock.advance(60)
    assert (await hands.storage.upkeep()).has_expired
    assert [dropped.id for dropped in await hands.storage.expire()] == [id]


async def _expire_in_a_claim(hands: Hands, id: str) -> None:
    hands.clock.advance(60)
    claimed = await hands.claim()
    assert [dropped.id for dropped in claimed.dropped] == [id]
    for job in claimed.jobs:
        await hands.give_back(job)


UNHAPPY = [
    _fail,
    _cancel_waiting,
    _cancel_running,
    _cancel_while_it_is_given_back,
    _cancel_while_its_node_leaves,
    _cancel_while_its_node_dies,
    _poison,
    _expire,
    _expire_in_a_claim,
]


MANY = 2 * FOLLOWERS_AT_ONCE + 100


async def _followers(hands: Hands, leader: str, count: int) -> list[str]:
    """So many followers of a job or batch, stored in one commit."""
    new = [following(hands, leader) for _ in range(count)]
    await hands.storage.add(new)
    return [job.id for job in new]


async def _release_all(hands: Hands) -> None:
    """What housekeepers do until nobody is left."""
    while (await hands.storage.upkeep()).has_followers and await hands.storage.release_followers():
        pass


class FollowingConformance(Conformance):
    # ----------------------------------------------------------------------------------------- waiting

    async def test_a_follower_is_in_no_lane_until_its_leader_is_final(self, hands: Hands) -> None:
        first, second, third = await chain(hands, 3)
        assert [await is_blocked(hands, id) for id in (first, second, third)] == [False, True, True]
        assert await hands.storage.queue_position(second) is None
        counts = await hands.counts()
        assert (counts.waiting, counts.running) == (3, 0)
        waiting = await hands.storage.jobs(JobFilter(state=JobState.WAITING))
        assert [record.id for record in waiting] == [third, second, first]
        for id in (first, second, third):
            job = await hands.take_one()
            assert job.id == id
            assert await hands.take() == []
            await hands.succeed(job)
        assert await hands.take() == []
        assert (await hands.counts()).succeeded == 3

    # --------------------------------------------------------------------------------- many followers

    async def test_a_leader_with_more_followers_than_one_commit_releases_has_all_of_them_released(
        self, hands: Hands
    ) -> None:
        leader = await hands.add_one()
        followers = await _followers(hands, leader, MANY)
        await hands.succeed(await hands.take_one())
        assert (await hands.record(leader)).state is JobState.SUCCEEDED
        await _release_all(hands)
        assert sum([len(await hands.take()) for _ in range(MANY // 100 + 1)]) == len(followers)
        assert (await hands.counts()).waiting == 0

    async def test_a_leader_that_fails_has_all_of_its_followers_cancelled_however_many(self, hands: Hands) -> None:
        leader = await hands.add_one()
        followers = await _followers(hands, leader, MANY)
        any_way = await follow(hands, leader, on="any")
        await hands.fail(await hands.take_one())
        await _release_all(hands)
        assert set(await hands.states(followers)) == {JobState.CANCELLED}
        assert await hands.take_ids() == [any_way]
        assert await hands.unrun() == (0, MANY)

    async def test_a_batch_that_ends_releases_however_many_follow_it(self, hands: Hands) -> None:
        batch, _ = await add_batch(hands, 2)
        await _followers(hands, batch, MANY)
        await hands.succeed(*await hands.take())
        await _release_all(hands)
        assert sum([len(await hands.take()) for _ in range(MANY // 100 + 1)]) == MANY

    async def test_the_first_of_many_followers_start_with_the_end_of_their_leader(self, hands: Hands) -> None:
        leader = await hands.add_one()
        await _followers(hands, leader, MANY)
        await hands.succeed(await hands.take_one())
        assert len(await hands.take()) == 100

    async def test_other_endings_of_a_commit_are_written_beside_a_leader_of_many(self, hands: Hands) -> None:
        leader = await hands.add_one()
        await _followers(hands, leader, MANY)
        others = await hands.add(3)
        await hands.succeed(*await hands.take())
        assert set(await hands.states([leader, *others])) == {JobState.SUCCEEDED}
        await _release_all(hands)

    async def test_a_leader_that_is_retried_before_all_its_followers_were_told_keeps_those_blocked(
        self, hands: Hands
    ) -> None:
        leader = await hands.add_one()
        followers = await _followers(hands, leader, MANY)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(leader)
        await _release_all(hands)
        assert [await is_blocked(hands, id) for id in (followers[0], followers[-1])] == [True, True]
        await hands.succeed(await hands.take_one())
        await _release_all(hands)
        assert sum([len(await hands.take()) for _ in range(MANY // 100 + 1)]) == MANY

    async def test_a_follower_that_is_added_while_others_are_left_is_released_at_once(self, hands: Hands) -> None:
        leader = await hands.add_one()
        await _followers(hands, leader, MANY)
        await hands.succeed(await hands.take_one())
        late = await follow(hands, leader)
        assert not await is_blocked(hands, late)
        await _release_all(hands)

    async def test_where_nobody_is_left_to_be_released_nothing_is_done(self, hands: Hands) -> None:
        await chain(hands, 2)
        await hands.succeed(await hands.take_one())
        assert not (await hands.storage.upkeep()).has_followers
        assert await hands.storage.release_followers() == 0

    async def test_a_follower_knows_whom_it_follows(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        assert (await hands.record(second)).origin == Origin(follows=first)
        await hands.succeed(await hands.take_one())
        claimed = await hands.take_one()
        assert claimed.origin == Origin(follows=first)

    async def test_a_queue_with_blocked_jobs_is_a_queue_with_waiting_jobs(self, hands: Hands) -> None:
        (first,) = await hands.add(queue="other")
        await follow(hands, first)
        records = {record.queue: record for record in await hands.storage.queues()}
        assert records["default"].oldest_at is None
        assert records["default"].ready_at is None
        assert {counts.queue: counts.waiting for counts in await hands.storage.counts()} == {"default": 1, "other": 1}

    async def test_a_gated_follower_waits_in_its_lane_once_it_is_released(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        _first, second = await chain(hands, 2, draws=[("api", "acme")])
        await hands.succeed(await hands.take_one())
        assert await hands.take() == []
        record = await hands.record(second)
        assert (record.is_blocked, record.waits_for, record.lane_waiting) == (False, Draw("api", "acme"), 1)
        hands.clock.advance(60)
        assert (await hands.take_one()).id == second

    async def test_a_released_job_is_ready_from_then_on(self, hands: Hands, clock: ManualClock) -> None:
        _first, second = await chain(hands, 2)
        clock.advance(10)
        (other,) = await hands.add()
        clock.advance(5)
        await hands.succeed(*await hands.take(1))
        record = await hands.record(second)
        assert (record.run_at, record.delayed) == (clock.now(), False)
        assert await hands.take_ids() == [other, second]

    async def test_a_follower_whose_own_time_is_ahead_waits_for_it(self, hands: Hands, clock: ManualClock) -> None:
        (first,) = await hands.add()
        second = await follow(hands, first, delay=60)
        third = await follow(hands, first, delay=5)
        clock.advance(10)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [third]
        assert (await hands.claim()).next_in == 50 * SECOND
        clock.advance(50)
        assert await hands.take_ids() == [second]

    async def test_many_follow_one(self, hands: Hands) -> None:
        (first,) = await hands.add()
        followers = [await follow(hands, first) for _ in range(5)]
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == followers

    async def test_a_leader_that_waits_again_is_not_final(self, hands: Hands, clock: ManualClock) -> None:
        _first, second = await chain(hands, 2)
        await hands.give_back(await hands.take_one(), "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
        assert await is_blocked(hands, second)
        clock.advance(1)
        await hands.give_back(await hands.take_one(), "snoozed", run_at=clock.now())
        await hands.storage.join("node-b", "b")
        await hands.take_one(node="node-b")
        await die(hands, "node-b")
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [second]

    async def test_the_ending_of_a_leader_counts_once(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        job = await hands.take_one()
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        for _ in range(2):
            assert list(await hands.storage.finish(hands.node, [ending])) == [True]
        assert (await hands.take_ids(), (await hands.counts()).waiting) == ([second], 0)

    async def test_a_paused_queue_takes_in_who_is_released(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        job = await hands.take_one()
        await hands.storage.pause_queue("default")
        await hands.succeed(job)
        assert await hands.take() == []
        await hands.storage.resume_queue("default")
        assert await hands.take_ids() == [second]

    # --------------------------------------------------------------------------- leaders that do not succeed

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_whoever_follows_an_unhappy_end_is_cancelled_down_the_chain(self, hands: Hands, ends: Ending) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await hands.add_one(expires_in=expires_in)
        second = await follow(hands, first)
        third = await follow(hands, second)
        await ends(hands, first)
        assert (await hands.record(first)).state.is_final
        assert await why(hands, second) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(hands, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        assert (await hands.record(third)).finished_at == hands.clock.now()
        assert await hands.take() == []
        assert (await hands.counts()).waiting == 0
        # What its attempt told is counted by the node that heard it, and so nowhere here.
        has_failed = (await hands.record(first)).state is JobState.FAILED
        by_attempt = ends in (_fail, _cancel_running)
        assert await hands.unrun() == (int(has_failed and not by_attempt), 2 + (not has_failed and not by_attempt))

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_whoever_follows_any_end_runs_after_it(self, hands: Hands, ends: Ending) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await hands.add_one(expires_in=expires_in)
        second = await follow(hands, first, "any")
        await ends(hands, first)
        assert await hands.take_ids() == [second]

    async def test_a_job_that_its_limits_reject_tells_its_followers(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        await hands.take_one()
        first = await hands.add_one(draws=[("api", "acme")], patience=0)
        strict_one, lenient = await follow(hands, first), await follow(hands, first, "any")
        taken = await hands.take_ids()
        assert (await why(hands, first))[1] == REJECTED
        assert (await hands.record(strict_one)).state is JobState.CANCELLED
        assert taken + await hands.take_ids() == [lenient]

    async def test_a_long_chain_is_cancelled_to_its_end(self, hands: Hands) -> None:
        first, *others = await chain(hands, 300)
        await hands.storage.cancel(first)
        await _release_all(hands)
        assert (await hands.counts()).cancelled == 300
        error = await error_of(hands, others[-1])
        assert error.data is not None
        assert error.data["root"] == first

    # ------------------------------------------------------------------------------------------- adding

    async def test_a_leader_that_has_succeeded_lets_its_followers_go_at_once(self, hands: Hands) -> None:
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first)
        assert not await is_blocked(hands, second)
        assert await hands.take_ids() == [second]

    async def test_a_follower_of_a_failed_job_is_stored_as_cancelled(self, hands: Hands) -> None:
        (first,) = await hands.add()
        await hands.fail(await hands.take_one())
        second, third = following(hands, first), following(hands, first, "any")
        fourth = following(hands, second.id)
        await hands.storage.add([second, third, fourth])
        assert await why(hands, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(hands, fourth.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second.id)
        assert await hands.take_ids() == [third.id]

    async def test_a_follower_of_a_job_that_was_rejected_in_the_same_commit_is_cancelled(self, hands: Hands) -> None:
        first = hands.new(rejection=BOOM)
        second = following(hands, first.id)
        await hands.storage.add([first, second])
        assert await why(hands, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first.id)

    async def test_nobody_follows_what_is_not_stored(self, hands: Hands) -> None:
        lone, lost = hands.new(), following(hands, "nobody")
        with pytest.raises(LeaderNotFound, match="nobody"):
            await hands.storage.add([lone, lost])
        assert await hands.storage.job(lone.id) is None
        assert await hands.storage.job(lost.id) is None

    async def test_an_addition_may_be_repeated(self, hands: Hands) -> None:
        first = hands.new()
        jobs = [first, following(hands, first.id)]
        await hands.storage.add(jobs)
        await hands.storage.add(jobs)
        await hands.succeed(await hands.take_one())
        await hands.storage.add(jobs)
        assert await hands.take_ids() == [jobs[1].id]
        await hands.storage.add(jobs)
        assert await hands.take() == []

    # ------------------------------------------------------------------------------- what people do to them

    async def test_a_blocked_job_can_be_cancelled(self, hands: Hands) -> None:
        _first, second, third = await chain(hands, 3)
        assert await hands.storage.cancel(second) is JobState.WAITING
        assert (await hands.record(second)).state is JobState.CANCELLED
        assert (await hands.record(second)).error is None
        assert await why(hands, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take() == []

    async def test_a_retried_leader_blocks_again_whom_it_had_cancelled(self, hands: Hands) -> None:
        first, second, third = await chain(hands, 3)
        fourth = await follow(hands, second)
        await hands.storage.cancel(fourth)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        assert [await is_blocked(hands, id) for id in (second, third)] == [True, True]
        assert (await hands.record(second)).error is None
        assert (await hands.record(fourth)).state is JobState.CANCELLED
        for id in (first, second, third):
            job = await hands.take_one()
            assert job.id == id
            await hands.succeed(job)
        assert await hands.take() == []

    async def test_who_was_retried_and_cancelled_by_hand_does_not_come_back_with_the_leader(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        await hands.storage.cancel(second)
        await hands.fail(await hands.take_one())
        await hands.storage.retry(first)
        assert (await hands.record(second)).state is JobState.CANCELLED

    async def test_a_retried_follower_of_a_final_job_waits_as_any_other_if_that_ended_as_it_needs(
        self, hands: Hands
    ) -> None:
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first)
        await hands.fail(await hands.take_one())
        third = await follow(hands, second, "any")
        await hands.storage.cancel(third)
        for id in (second, third):
            await hands.storage.retry(id)
        assert await hands.take_ids() == [second]
        assert await is_blocked(hands, third)

    async def test_a_follower_is_not_retried_before_what_went_wrong_ahead_of_it(self, hands: Hands) -> None:
        """The fault: it ran, so an order whose charge had failed was shipped by the retry that its error asked for."""
        charge, ship, mail = await chain(hands, 3)
        await hands.fail(await hands.take_one())
        for id in (mail, ship):
            with pytest.raises(LeaderNotRetried, match=f"retry {charge} first") as refused:
                await hands.storage.retry(id)
            assert refused.value.root == charge
        assert [(await hands.record(id)).state for id in (ship, mail)] == [JobState.CANCELLED] * 2
        assert f"because {charge} failed with {BOOM.type}; retry {charge}," in (await error_of(hands, mail)).message
        assert await hands.take() == []
        await hands.storage.retry(charge)
        for id in (charge, ship, mail):
            job = await hands.take_one()
            assert job.id == id
            await hands.succeed(job)

    async def test_one_that_was_cancelled_by_hand_is_not_retried_before_its_leader_either(self, hands: Hands) -> None:
        first, second = await chain(hands, 2)
        await hands.storage.cancel(second)
        await hands.fail(await hands.take_one())
        with pytest.raises(LeaderNotRetried, match=first):
            await hands.storage.retry(second)
        await hands.storage.retry(first)
        await hands.storage.retry(second)
        assert await is_blocked(hands, second)

    async def test_what_follows_a_failed_batch_is_not_retried_before_its_jobs(self, hands: Hands) -> None:
        batch, (good, bad) = await add_batch(hands, 2)
        after = await follow(hands, batch)
        last = await follow(hands, after)
        for job in await hands.take():
            await (hands.succeed(job) if job.id == good else hands.fail(job))
        for id in (after, last):
            with pytest.raises(
                LeaderNotRetried, match=f"headgate jobs retry --batch {batch} --state failed"
            ) as refused:
                await hands.storage.retry(id)
            assert refused.value.root == batch
        assert f"because batch {batch} failed" in (await error_of(hands, last)).message
        await hands.storage.retry(bad)
        assert await is_blocked(hands, last)

    async def test_a_batch_that_was_cancelled_for_its_leader_names_that(self, hands: Hands) -> None:
        (first,) = await hands.add()
        batch, _ = await add_batch(hands, 2, first)
        after = await follow(hands, batch)
        await hands.fail(await hands.take_one())
        late = await follow(hands, after)
        for id in (after, late):
            assert f"because {first} failed" in (await error_of(hands, id)).message
            with pytest.raises(LeaderNotRetried, match=f"retry {first} first"):
                await hands.storage.retry(id)

    async def test_a_retried_follower_of_a_job_that_is_not_final_is_blocked(self, hands: Hands) -> None:
        _first, second = await chain(hands, 2)
        await hands.storage.cancel(second)
        await hands.storage.retry(second)
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        assert await hands.take_ids() == [second]

    async def test_a_retried_follower_gives_its_permits_back_while_it_is_blocked(self, hands: Hands) -> None:
        hands.rules = {"lock": at_once()}
        (first,) = await hands.add()
        await hands.succeed(await hands.take_one())
        second = await follow(hands, first, "any", draws=[("lock", "a")], hold="until_success")
        await hands.fail(await hands.take_one())
        leader = await hands.add_one()
        third = await follow(hands, leader, "any", draws=[("lock", "a")], hold="until_success")
        assert second != third
        assert (await hands.take_one()).id == leader

    # ------------------------------------------------------------------------------------------- deadlines

    async def test_a_blocked_job_expires(self, hands: Hands, clock: ManualClock) -> None:
        (first,) = await hands.add()
        second = await follow(hands, first, expires_in=60)
        third = await follow(hands, second, "any")
        clock.advance(60)
        assert [dropped.id for dropped in await hands.storage.expire()] == [second]
        record = await hands.record(second)
        assert (record.state, record.error) == (JobState.FAILED, EXPIRED_ERROR)
        assert set(await hands.take_ids()) == {first, third}

    async def test_a_blocked_job_is_not_impatient(self, hands: Hands, clock: ManualClock) -> None:
        hands.rules = {"api": strict(1)}
        await hands.add(draws=[("api", "acme")])
        await hands.take_one()
        (first,) = await hands.add()
        second = await follow(hands, first, draws=[("api", "acme")], patience=20)
        clock.advance(30)
        assert list(await hands.storage.expire()) == []
        await hands.succeed(await hands.take_one())
        clock.advance(19)
        assert list(await hands.storage.expire()) == []
        clock.advance(1)
        assert [dropped.id for dropped in await hands.storage.expire()] == [second]
        assert (await why(hands, second))[1] == REJECTED

    # ---------------------------------------------------------------------------------------------- deploys

    async def test_blocked_jobs_are_moved_to_what_their_task_asks_now(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1), "new": strict(5)}
        (first,) = await hands.add()
        second = await follow(hands, first, draws=[("api", "acme")])
        found = await hands.storage.gated_jobs(frozenset({"work"}))
        assert [job.id for job in found] == [first, second]
        unknown = await hands.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"new"}))
        assert [job.id for job in unknown] == [second]
        assert await hands.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"api"})) in ([], ())
        draws = (Draw("new", "acme"),)
        assert await hands.storage.change_gates([GateChange(second, (Draw("api", "acme"),), draws, None, None)]) == 1
        assert await is_blocked(hands, second)
        await hands.succeed(await hands.take_one())
        job = await hands.take_one()
        assert (job.id, job.draws) == (second, draws)

    async def test_a_limit_that_a_blocked_job_asks_for_is_in_use(self, hands: Hands) -> None:
        hands.rules = {"api": strict(1)}
        (first,) = await hands.add()
        await follow(hands, first, draws=[("api", "acme")])
        with pytest.raises(LimitInUse):
            await hands.storage.forget("api")
