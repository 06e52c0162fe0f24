"""What is promised of jobs that follow others: the end of a leader and what comes after it are one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.errors import LeaderNotFound, LeaderNotRetried, LimitInUse
from headgate.jobs.job import BucketRef, JobState, Origin
from headgate.jobs.lifecycle import POISONOUS_AFTER, Finished
from headgate.jobs.limit_sets import LimitSetChange
from headgate.jobs.query import JobFilter
from headgate.jobs.terms import LimitTerms
from headgate.storage.endings import EXPIRED_ERROR, LEADER_NOT_SUCCEEDED, REJECTED
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import (
    add_batch,
    chain,
    die,
    error_of,
    follow,
    following,
    is_blocked,
    why,
)
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once, strict
from tests.conformance.storage_suite.tags import statements

Ending = Callable[[StoreUser, str], Awaitable[Any]]


async def _fail(store_user: StoreUser, id: str) -> None:
    await store_user.fail(await store_user.take_one())


async def _cancel_waiting(store_user: StoreUser, id: str) -> None:
    await store_user.storage.cancel(id)


async def _cancel_running(store_user: StoreUser, id: str) -> None:
    job = await store_user.take_one()
    await store_user.storage.finish(store_user.node, [Finished(job.id, job.fence, JobState.CANCELLED)])


async def _cancel_while_it_is_given_back(store_user: StoreUser, id: str) -> None:
    job = await store_user.take_one()
    await store_user.storage.cancel(id)
    await store_user.give_back(job, "failed", spent=True, error=BOOM)


async def _cancel_while_its_node_leaves(store_user: StoreUser, id: str) -> None:
    await store_user.storage.join("node-b", "b")
    await store_user.take_one(node="node-b")
    await store_user.storage.cancel(id)
    await store_user.storage.leave("node-b")


async def _cancel_while_its_node_dies(store_user: StoreUser, id: str) -> None:
    await store_user.storage.join("node-b", "b")
    await store_user.take_one(node="node-b")
    await store_user.storage.cancel(id)
    await die(store_user, "node-b")


async def _poison(store_user: StoreUser, id: str) -> None:
    for time in range(POISONOUS_AFTER):
        node = f"node-{time}"
        await store_user.storage.join(node, node)
        await store_user.take_one(node=node)
        await die(store_user, node)


async def _expire(store_user: StoreUser, id: str) -> None:
    assert not (await store_user.storage.node_update()).has_expired
    store_user.clock.advance(60)
    assert (await store_user.storage.node_update()).has_expired
    assert [dropped.id for dropped in await store_user.storage.expire()] == [id]


async def _expire_in_a_claim(store_user: StoreUser, id: str) -> None:
    store_user.clock.advance(60)
    claimed = await store_user.claim()
    assert [dropped.id for dropped in claimed.dropped] == [id]
    for job in claimed.jobs:
        await store_user.give_back(job)


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


async def _followers(store_user: StoreUser, leader: str, count: int) -> list[str]:
    """So many followers of a job or batch, stored in one commit."""
    new = [following(store_user, leader) for _ in range(count)]
    await store_user.storage.add(new)
    return [job.id for job in new]


async def _release_all(store_user: StoreUser) -> None:
    """Release followers as housekeeping does, until none is left."""
    while (await store_user.storage.node_update()).has_followers and await store_user.storage.release_followers():
        pass


class FollowingConformance(Conformance):
    # ----------------------------------------------------------------------------------------- waiting

    async def test_a_follower_is_in_no_lane_until_its_leader_is_final(self, store_user: StoreUser) -> None:
        first, second, third = await chain(store_user, 3)
        assert [await is_blocked(store_user, id) for id in (first, second, third)] == [False, True, True]
        assert await store_user.storage.queue_position(second) is None
        counts = await store_user.counts()
        assert (counts.waiting, counts.running) == (3, 0)
        waiting = await store_user.storage.jobs(JobFilter(state=JobState.WAITING))
        assert [record.id for record in waiting] == [third, second, first]
        for id in (first, second, third):
            job = await store_user.take_one()
            assert job.id == id
            assert await store_user.take() == []
            await store_user.succeed(job)
        assert await store_user.take() == []
        assert (await store_user.counts()).succeeded == 3

    # --------------------------------------------------------------------------------- many followers

    async def test_a_leader_with_more_followers_than_one_commit_releases_has_all_of_them_released(
        self, store_user: StoreUser
    ) -> None:
        leader = await store_user.add_one()
        followers = await _followers(store_user, leader, MANY)
        await store_user.succeed(await store_user.take_one())
        assert (await store_user.record(leader)).state is JobState.SUCCEEDED
        await _release_all(store_user)
        assert sum([len(await store_user.take()) for _ in range(MANY // 100 + 1)]) == len(followers)
        assert (await store_user.counts()).waiting == 0

    async def test_a_leader_that_fails_has_all_of_its_followers_cancelled_however_many(
        self, store_user: StoreUser
    ) -> None:
        leader = await store_user.add_one()
        followers = await _followers(store_user, leader, MANY)
        any_way = await follow(store_user, leader, on="final")
        await store_user.fail(await store_user.take_one())
        await _release_all(store_user)
        assert set(await store_user.states(followers)) == {JobState.CANCELLED}
        assert await store_user.take_ids() == [any_way]
        assert await store_user.unrun() == (0, MANY)

    async def test_a_batch_that_ends_releases_however_many_follow_it(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 2)
        await _followers(store_user, batch, MANY)
        await store_user.succeed(*await store_user.take())
        await _release_all(store_user)
        assert sum([len(await store_user.take()) for _ in range(MANY // 100 + 1)]) == MANY

    async def test_the_first_of_many_followers_start_with_the_end_of_their_leader(self, store_user: StoreUser) -> None:
        leader = await store_user.add_one()
        await _followers(store_user, leader, MANY)
        await store_user.succeed(await store_user.take_one())
        assert len(await store_user.take()) == 100

    async def test_other_endings_of_a_commit_are_written_beside_a_leader_of_many(self, store_user: StoreUser) -> None:
        leader = await store_user.add_one()
        await _followers(store_user, leader, MANY)
        others = await store_user.add(3)
        await store_user.succeed(*await store_user.take())
        assert set(await store_user.states([leader, *others])) == {JobState.SUCCEEDED}
        await _release_all(store_user)

    async def test_a_leader_that_is_retried_before_all_followers_are_released_keeps_the_rest_blocked(
        self, store_user: StoreUser
    ) -> None:
        leader = await store_user.add_one()
        followers = await _followers(store_user, leader, MANY)
        await store_user.fail(await store_user.take_one())
        await store_user.storage.retry(leader)
        await _release_all(store_user)
        assert [await is_blocked(store_user, id) for id in (followers[0], followers[-1])] == [True, True]
        await store_user.succeed(await store_user.take_one())
        await _release_all(store_user)
        assert sum([len(await store_user.take()) for _ in range(MANY // 100 + 1)]) == MANY

    async def test_a_follower_that_is_added_while_others_are_left_is_released_at_once(
        self, store_user: StoreUser
    ) -> None:
        leader = await store_user.add_one()
        await _followers(store_user, leader, MANY)
        await store_user.succeed(await store_user.take_one())
        late = await follow(store_user, leader)
        assert not await is_blocked(store_user, late)
        await _release_all(store_user)

    async def test_without_followers_left_a_release_does_nothing(self, store_user: StoreUser) -> None:
        await chain(store_user, 2)
        await store_user.succeed(await store_user.take_one())
        assert not (await store_user.storage.node_update()).has_followers
        assert await store_user.storage.release_followers() == 0

    async def test_a_follower_stores_the_id_of_its_leader(self, store_user: StoreUser) -> None:
        first, second = await chain(store_user, 2)
        assert (await store_user.record(second)).origin == Origin(follows=first)
        await store_user.succeed(await store_user.take_one())
        claimed = await store_user.take_one()
        assert claimed.origin == Origin(follows=first)

    async def test_a_queue_with_blocked_jobs_is_a_queue_with_waiting_jobs(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add(queue="other")
        await follow(store_user, first)
        records = {record.queue: record for record in await store_user.storage.queues()}
        assert records["default"].oldest_at is None
        assert records["default"].ready_at is None
        assert {counts.queue: counts.waiting for counts in await store_user.storage.counts()} == {
            "default": 1,
            "other": 1,
        }

    async def test_a_gated_follower_waits_in_its_lane_once_it_is_released(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        _first, second = await chain(store_user, 2, buckets=[("api", "acme")])
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take() == []
        record = await store_user.record(second)
        assert (record.is_blocked, record.waits_for, record.lane_waiting) == (False, BucketRef("api", "acme"), 1)
        store_user.clock.advance(60)
        assert (await store_user.take_one()).id == second

    async def test_a_released_job_is_ready_from_then_on(self, store_user: StoreUser, clock: ManualClock) -> None:
        _first, second = await chain(store_user, 2)
        clock.advance(10)
        (other,) = await store_user.add()
        clock.advance(5)
        await store_user.succeed(*await store_user.take(1))
        record = await store_user.record(second)
        assert (record.run_at, record.delayed) == (clock.now(), False)
        assert await store_user.take_ids() == [other, second]

    async def test_a_follower_whose_own_time_is_ahead_waits_for_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        (first,) = await store_user.add()
        second = await follow(store_user, first, delay=60)
        third = await follow(store_user, first, delay=5)
        clock.advance(10)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [third]
        assert (await store_user.claim()).next_in == 50 * SECOND
        clock.advance(50)
        assert await store_user.take_ids() == [second]

    async def test_many_jobs_can_follow_one_job(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        followers = [await follow(store_user, first) for _ in range(5)]
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == followers

    async def test_a_leader_that_waits_again_is_not_final(self, store_user: StoreUser, clock: ManualClock) -> None:
        _first, second = await chain(store_user, 2)
        await store_user.give_back(
            await store_user.take_one(), "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM
        )
        assert await is_blocked(store_user, second)
        clock.advance(1)
        await store_user.give_back(await store_user.take_one(), "snoozed", run_at=clock.now())
        await store_user.storage.join("node-b", "b")
        await store_user.take_one(node="node-b")
        await die(store_user, "node-b")
        assert await is_blocked(store_user, second)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [second]

    async def test_the_ending_of_a_leader_counts_once(self, store_user: StoreUser) -> None:
        _first, second = await chain(store_user, 2)
        job = await store_user.take_one()
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        for _ in range(2):
            assert list(await store_user.storage.finish(store_user.node, [ending])) == [True]
        assert (await store_user.take_ids(), (await store_user.counts()).waiting) == ([second], 0)

    async def test_followers_are_released_into_a_paused_queue(self, store_user: StoreUser) -> None:
        _first, second = await chain(store_user, 2)
        job = await store_user.take_one()
        await store_user.storage.pause_queue("default")
        await store_user.succeed(job)
        assert await store_user.take() == []
        await store_user.storage.resume_queue("default")
        assert await store_user.take_ids() == [second]

    # --------------------------------------------------------------------------- leaders that do not succeed

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_all_followers_of_a_failed_job_are_cancelled_down_the_chain(
        self, store_user: StoreUser, ends: Ending
    ) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await store_user.add_one(expires_in=expires_in)
        second = await follow(store_user, first)
        third = await follow(store_user, second)
        await ends(store_user, first)
        assert (await store_user.record(first)).state.is_final
        assert await why(store_user, second) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(store_user, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        assert (await store_user.record(third)).finished_at == store_user.clock.now()
        assert await store_user.take() == []
        assert (await store_user.counts()).waiting == 0
        # The ending of its attempt is counted by the node, so it is not counted here.
        has_failed = (await store_user.record(first)).state is JobState.FAILED
        by_attempt = ends in (_fail, _cancel_running)
        assert await store_user.unrun() == (int(has_failed and not by_attempt), 2 + (not has_failed and not by_attempt))

    @pytest.mark.parametrize("ends", UNHAPPY, ids=lambda ends: ends.__name__.strip("_"))
    async def test_a_follower_of_any_outcome_runs_after_each_outcome(self, store_user: StoreUser, ends: Ending) -> None:
        expires_in = 60 if ends in (_expire, _expire_in_a_claim) else None
        first = await store_user.add_one(expires_in=expires_in)
        second = await follow(store_user, first, "final")
        await ends(store_user, first)
        assert await store_user.take_ids() == [second]

    async def test_a_job_that_its_limits_reject_ends_its_followers(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.take_one()
        first = await store_user.add_one(buckets=[("api", "acme")], patience=0)
        strict_one, lenient = await follow(store_user, first), await follow(store_user, first, "final")
        taken = await store_user.take_ids()
        assert (await why(store_user, first))[1] == REJECTED
        assert (await store_user.record(strict_one)).state is JobState.CANCELLED
        assert taken + await store_user.take_ids() == [lenient]

    async def test_a_long_chain_is_cancelled_completely(self, store_user: StoreUser) -> None:
        first, *others = await chain(store_user, 300)
        await store_user.storage.cancel(first)
        await _release_all(store_user)
        assert (await store_user.counts()).cancelled == 300
        error = await error_of(store_user, others[-1])
        assert error.data is not None
        assert error.data["root"] == first

    async def test_a_long_chain_comes_back_with_its_first_job_in_a_few_statements(self, store_user: StoreUser) -> None:
        """The fault: two writes for each step, so PostgreSQL ended the transaction of 5 s before a longer chain."""
        first, *others = await chain(store_user, 300)
        await store_user.storage.cancel(first)
        await _release_all(store_user)
        with statements() as counted:
            await store_user.storage.retry(first)
        assert counted["block"] == 1
        assert all([await is_blocked(store_user, id) for id in others])
        assert await store_user.take_ids() == [first]

    # ------------------------------------------------------------------------------------------- adding

    async def test_a_follower_of_a_succeeded_job_is_ready_immediately(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        await store_user.succeed(await store_user.take_one())
        second = await follow(store_user, first)
        assert not await is_blocked(store_user, second)
        assert await store_user.take_ids() == [second]

    async def test_a_follower_of_a_failed_job_is_stored_as_cancelled(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        await store_user.fail(await store_user.take_one())
        second, third = following(store_user, first), following(store_user, first, "final")
        fourth = following(store_user, second.id)
        await store_user.storage.add([second, third, fourth])
        assert await why(store_user, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first)
        assert await why(store_user, fourth.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second.id)
        assert await store_user.take_ids() == [third.id]

    async def test_a_follower_of_a_job_that_was_rejected_in_the_same_commit_is_cancelled(
        self, store_user: StoreUser
    ) -> None:
        first = store_user.new(rejection=BOOM)
        second = following(store_user, first.id)
        await store_user.storage.add([first, second])
        assert await why(store_user, second.id) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, first.id)

    async def test_a_follower_of_an_unknown_job_is_refused(self, store_user: StoreUser) -> None:
        lone, lost = store_user.new(), following(store_user, "nobody")
        with pytest.raises(LeaderNotFound, match="nobody"):
            await store_user.storage.add([lone, lost])
        assert await store_user.storage.job(lone.id) is None
        assert await store_user.storage.job(lost.id) is None

    async def test_an_addition_may_be_repeated(self, store_user: StoreUser) -> None:
        first = store_user.new()
        jobs = [first, following(store_user, first.id)]
        await store_user.storage.add(jobs)
        await store_user.storage.add(jobs)
        await store_user.succeed(await store_user.take_one())
        await store_user.storage.add(jobs)
        assert await store_user.take_ids() == [jobs[1].id]
        await store_user.storage.add(jobs)
        assert await store_user.take() == []

    # ------------------------------------------------------------------------------- what people do to them

    async def test_a_blocked_job_can_be_cancelled(self, store_user: StoreUser) -> None:
        _first, second, third = await chain(store_user, 3)
        assert await store_user.storage.cancel(second) is JobState.WAITING
        assert (await store_user.record(second)).state is JobState.CANCELLED
        assert (await store_user.record(second)).error is None
        assert await why(store_user, third) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, second)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take() == []

    async def test_a_retried_leader_blocks_the_followers_again_that_it_had_cancelled(
        self, store_user: StoreUser
    ) -> None:
        first, second, third = await chain(store_user, 3)
        fourth = await follow(store_user, second)
        await store_user.storage.cancel(fourth)
        await store_user.fail(await store_user.take_one())
        await store_user.storage.retry(first)
        assert [await is_blocked(store_user, id) for id in (second, third)] == [True, True]
        assert (await store_user.record(second)).error is None
        assert (await store_user.record(fourth)).state is JobState.CANCELLED
        for id in (first, second, third):
            job = await store_user.take_one()
            assert job.id == id
            await store_user.succeed(job)
        assert await store_user.take() == []

    async def test_a_follower_that_was_cancelled_by_an_operator_does_not_return_with_its_leader(
        self, store_user: StoreUser
    ) -> None:
        first, second = await chain(store_user, 2)
        await store_user.fail(await store_user.take_one())
        await store_user.storage.retry(first)
        await store_user.storage.cancel(second)
        await store_user.fail(await store_user.take_one())
        await store_user.storage.retry(first)
        assert (await store_user.record(second)).state is JobState.CANCELLED

    async def test_a_retried_follower_of_a_final_job_waits_as_any_other_if_that_ended_as_it_needs(
        self, store_user: StoreUser
    ) -> None:
        (first,) = await store_user.add()
        await store_user.succeed(await store_user.take_one())
        second = await follow(store_user, first)
        await store_user.fail(await store_user.take_one())
        third = await follow(store_user, second, "final")
        await store_user.storage.cancel(third)
        for id in (second, third):
            await store_user.storage.retry(id)
        assert await store_user.take_ids() == [second]
        assert await is_blocked(store_user, third)

    async def test_a_follower_is_not_retried_before_its_failed_leader(self, store_user: StoreUser) -> None:
        """The fault: it ran, so an order whose charge had failed was shipped by the retry that its error asked for."""
        charge, ship, mail = await chain(store_user, 3)
        await store_user.fail(await store_user.take_one())
        for id in (mail, ship):
            with pytest.raises(LeaderNotRetried, match=f"retry {charge} first") as refused:
                await store_user.storage.retry(id)
            assert refused.value.root == charge
        assert [(await store_user.record(id)).state for id in (ship, mail)] == [JobState.CANCELLED] * 2
        assert (
            f"because {charge} failed with {BOOM.type}; retry {charge}," in (await error_of(store_user, mail)).message
        )
        assert await store_user.take() == []
        await store_user.storage.retry(charge)
        for id in (charge, ship, mail):
            job = await store_user.take_one()
            assert job.id == id
            await store_user.succeed(job)

    async def test_a_follower_that_an_operator_cancelled_is_not_retried_before_its_leader(
        self, store_user: StoreUser
    ) -> None:
        first, second = await chain(store_user, 2)
        await store_user.storage.cancel(second)
        await store_user.fail(await store_user.take_one())
        with pytest.raises(LeaderNotRetried, match=first):
            await store_user.storage.retry(second)
        await store_user.storage.retry(first)
        await store_user.storage.retry(second)
        assert await is_blocked(store_user, second)

    async def test_a_follower_of_a_failed_batch_is_not_retried_before_the_jobs_of_the_batch(
        self, store_user: StoreUser
    ) -> None:
        batch, (good, bad) = await add_batch(store_user, 2)
        after = await follow(store_user, batch)
        last = await follow(store_user, after)
        for job in await store_user.take():
            await (store_user.succeed(job) if job.id == good else store_user.fail(job))
        for id in (after, last):
            with pytest.raises(
                LeaderNotRetried, match=f"headgate jobs retry --batch {batch} --state failed"
            ) as refused:
                await store_user.storage.retry(id)
            assert refused.value.root == batch
        assert f"because batch {batch} failed" in (await error_of(store_user, last)).message
        await store_user.storage.retry(bad)
        assert await is_blocked(store_user, last)

    async def test_a_batch_that_was_cancelled_for_its_leader_names_that(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        batch, _ = await add_batch(store_user, 2, first)
        after = await follow(store_user, batch)
        await store_user.fail(await store_user.take_one())
        late = await follow(store_user, after)
        for id in (after, late):
            assert f"because {first} failed" in (await error_of(store_user, id)).message
            with pytest.raises(LeaderNotRetried, match=f"retry {first} first"):
                await store_user.storage.retry(id)

    async def test_a_retried_follower_of_a_job_that_is_not_final_is_blocked(self, store_user: StoreUser) -> None:
        _first, second = await chain(store_user, 2)
        await store_user.storage.cancel(second)
        await store_user.storage.retry(second)
        assert await is_blocked(store_user, second)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [second]

    async def test_a_retried_follower_returns_its_permits_while_it_is_blocked(self, store_user: StoreUser) -> None:
        store_user.rules = {"lock": at_once()}
        (first,) = await store_user.add()
        await store_user.succeed(await store_user.take_one())
        second = await follow(store_user, first, "final", buckets=[("lock", "a")], hold="until_success")
        await store_user.fail(await store_user.take_one())
        leader = await store_user.add_one()
        third = await follow(store_user, leader, "final", buckets=[("lock", "a")], hold="until_success")
        assert second != third
        assert (await store_user.take_one()).id == leader

    # ------------------------------------------------------------------------------------------- deadlines

    async def test_a_blocked_job_expires(self, store_user: StoreUser, clock: ManualClock) -> None:
        (first,) = await store_user.add()
        second = await follow(store_user, first, expires_in=60)
        third = await follow(store_user, second, "final")
        clock.advance(60)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [second]
        record = await store_user.record(second)
        assert (record.state, record.error) == (JobState.FAILED, EXPIRED_ERROR)
        assert set(await store_user.take_ids()) == {first, third}

    async def test_max_wait_does_not_count_while_a_job_is_blocked(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.take_one()
        (first,) = await store_user.add()
        second = await follow(store_user, first, buckets=[("api", "acme")], patience=20)
        clock.advance(30)
        assert list(await store_user.storage.expire()) == []
        await store_user.succeed(await store_user.take_one())
        clock.advance(19)
        assert list(await store_user.storage.expire()) == []
        clock.advance(1)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [second]
        assert (await why(store_user, second))[1] == REJECTED

    # ---------------------------------------------------------------------------------------------- deploys

    async def test_blocked_jobs_are_moved_to_the_current_limits_of_their_task(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1), "new": strict(5)}
        (first,) = await store_user.add()
        second = await follow(store_user, first, buckets=[("api", "acme")])
        found = await store_user.storage.gated_jobs(frozenset({"work"}))
        assert [job.id for job in found] == [first, second]
        unknown = await store_user.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"new"}))
        assert [job.id for job in unknown] == [second]
        assert await store_user.storage.gated_jobs(frozenset({"work"}), unknown_to=frozenset({"api"})) in ([], ())
        buckets = (BucketRef("new", "acme"),)
        assert (
            await store_user.storage.change_limit_sets(
                [LimitSetChange(second, (BucketRef("api", "acme"),), buckets, None, LimitTerms(patience=SECOND))]
            )
            == 1
        )
        clock.advance(2)
        assert list(await store_user.storage.expire()) == []
        assert await is_blocked(store_user, second)
        await store_user.succeed(await store_user.take_one())
        job = await store_user.take_one()
        assert (job.id, job.buckets) == (second, buckets)

    async def test_a_limit_that_a_blocked_job_uses_is_in_use(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        (first,) = await store_user.add()
        await follow(store_user, first, buckets=[("api", "acme")])
        with pytest.raises(LimitInUse):
            await store_user.storage.forget("api")
