"""What is promised of joins and of batches in batches: when what follows them is released, and what a retry undoes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headgate.errors import BatchClosed, IllegalTransition, LeaderNotFound, LeaderNotRetried
from headgate.jobs.batch import NewBatch
from headgate.jobs.history import ALL
from headgate.jobs.job import JobState, NewJob, Origin
from headgate.jobs.query import JobFilter
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from headgate.storage.records import Dependency
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import (
    On,
    add_batch,
    batch_of,
    error_of,
    follow,
    following,
    is_blocked,
    new_batch_id,
    why,
)
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser


def joined(
    store_user: StoreUser, leaders: list[str], on: On = "success", count: int = 1
) -> tuple[list[NewJob], NewBatch]:
    """Jobs that follow all these leaders, and the join that they share."""
    join = NewBatch(new_batch_id(store_user), len(leaders), store_user.clock.now(), None, tuple(leaders))
    return [following(store_user, join.id, on) for _ in range(count)], join


async def join(store_user: StoreUser, leaders: list[str], on: On = "success") -> str:
    jobs, batch = joined(store_user, leaders, on)
    await store_user.storage.add(jobs, [batch])
    return jobs[0].id


async def states(store_user: StoreUser, *ids: str) -> list[JobState]:
    return [(await store_user.record(id)).state for id in ids]


async def release_all(store_user: StoreUser) -> int:
    """Release all followers that are left; returns how many commits that took."""
    commits = 0
    while await store_user.storage.release_followers():
        commits += 1
    return commits


class JoinsConformance(Conformance):
    async def test_a_job_with_several_leaders_is_released_by_the_last_of_them(self, store_user: StoreUser) -> None:
        leaders = await store_user.add(3)
        after = await join(store_user, leaders)
        jobs = await store_user.take()
        await store_user.succeed(jobs[2])
        await store_user.succeed(jobs[0])
        assert await is_blocked(store_user, after)
        await store_user.succeed(jobs[1])
        assert await store_user.take_ids() == [after]

    async def test_leaders_that_end_in_one_commit_release_their_follower_once(self, store_user: StoreUser) -> None:
        after = await join(store_user, await store_user.add(3))
        await store_user.succeed(*await store_user.take())
        assert await store_user.take_ids() == [after]

    async def test_a_failed_leader_cancels_when_all_are_final_and_is_named(self, store_user: StoreUser) -> None:
        leaders = await store_user.add(2)
        after = await join(store_user, leaders)
        last = await follow(store_user, after)
        first, second = await store_user.take()
        await store_user.fail(first)
        assert await is_blocked(store_user, after)
        await store_user.succeed(second)
        assert (await store_user.record(after)).state is JobState.CANCELLED
        assert (
            f"because {first.id} failed with ValueError; retry {first.id}, and"
            in (await error_of(store_user, after)).message
        )
        assert f"retry {first.id}, and" in (await error_of(store_user, last)).message
        await store_user.storage.retry(first.id)
        assert await is_blocked(store_user, after)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [after]

    async def test_on_failure_needs_one_leader_that_failed_or_was_cancelled(self, store_user: StoreUser) -> None:
        one, other = await store_user.add_one(), await store_user.add_one()
        wanted, needless = await join(store_user, [one, other], "failure"), await follow(store_user, one, "failure")
        first, second = await store_user.take()
        await store_user.succeed(first)
        assert (await why(store_user, needless)) == (JobState.SKIPPED, None, None)
        with pytest.raises(IllegalTransition, match="is skipped; only a failed or cancelled one can be retried"):
            await store_user.storage.retry(needless)
        await store_user.fail(second)
        assert await store_user.take_ids() == [wanted]

    async def test_what_needs_the_end_of_a_skipped_job_is_skipped_with_it(self, store_user: StoreUser) -> None:
        one = await store_user.add_one()
        skipped = await follow(store_user, one, "failure")
        unneeded = [await follow(store_user, skipped), await follow(store_user, skipped, "failure")]
        in_any_case = await follow(store_user, skipped, "final")
        await store_user.succeed(await store_user.take_one())
        assert await states(store_user, skipped, *unneeded) == [JobState.SKIPPED] * 3
        # What is added later is what it would be if it had been there.
        late = [await follow(store_user, skipped), await follow(store_user, skipped, "failure")]
        assert await states(store_user, *late) == [JobState.SKIPPED] * 2
        assert await store_user.take_ids() == [in_any_case]
        assert (await store_user.counts()).skipped == 5
        assert list(await store_user.storage.check()) == []

    async def test_skipped_leaders_do_not_keep_others_from_having_succeeded(self, store_user: StoreUser) -> None:
        one = await store_user.add_one()
        skipped = [await follow(store_user, one, "failure") for _ in range(2)]
        merged, needless = (
            await join(store_user, [one, skipped[0]]),
            await join(store_user, [one, skipped[0]], "failure"),
        )
        of_skipped = await join(store_user, skipped)
        await store_user.succeed(await store_user.take_one())
        assert await states(store_user, needless, of_skipped) == [JobState.SKIPPED] * 2
        assert await store_user.take_ids() == [merged]

    async def test_skipped_jobs_are_counted_in_their_batch_the_charts_and_the_lists(
        self, store_user: StoreUser
    ) -> None:
        one = await store_user.add_one()
        batch = new_batch_id(store_user)
        new = [following(store_user, one, "failure", batch=batch), following(store_user, one, "final", batch=batch)]
        ids = [job.id for job in new]
        last = following(store_user, batch)
        await store_user.storage.add([*new, last], [NewBatch(batch, len(new), store_user.clock.now())])
        await store_user.succeed(await store_user.take_one())
        assert await states(store_user, *ids) == [JobState.SKIPPED, JobState.WAITING]
        await store_user.succeed(await store_user.take_one())
        found = await batch_of(store_user, batch)
        assert (found.pending, found.succeeded, found.skipped, found.ended_as) == (0, 1, 1, JobState.SUCCEEDED)
        assert await store_user.take_ids() == [last.id]
        for order in (False, True):
            page = await store_user.storage.jobs(JobFilter(state=JobState.SKIPPED, oldest_first=order))
            assert [record.id for record in page] == [ids[0]]
        while await store_user.storage.gather_history(1):
            pass
        (row,) = await store_user.storage.jobs_history(10, ALL, ALL, 0)
        assert (row.skipped, row.cancelled) == (1, 0)

    async def test_a_cancelled_job_that_is_not_needed_is_skipped_by_its_retry(self, store_user: StoreUser) -> None:
        """The fault: the retry was refused. As the job had been cancelled, no retry let what followed the batch run."""
        one = await store_user.add_one()
        batch = new_batch_id(store_user)
        first = following(store_user, one, "failure", batch=batch)
        second = following(store_user, first.id, batch=batch)
        last, needless = following(store_user, batch), following(store_user, batch, "failure")
        members = [first, second, following(store_user, one, batch=batch)]
        await store_user.storage.add(
            [*members, last, needless], [NewBatch(batch, len(members), store_user.clock.now())]
        )
        for job in (second, first):
            await store_user.storage.cancel(job.id)
        await store_user.succeed(await store_user.take_one())
        await store_user.succeed(await store_user.take_one())
        assert await states(store_user, last.id) == [JobState.CANCELLED]
        assert await store_user.take_ids() == [needless.id]
        with pytest.raises(LeaderNotRetried):
            await store_user.storage.retry(second.id)
        for job in (first, second):
            assert await store_user.storage.retry(job.id) is JobState.CANCELLED
        assert await states(store_user, first.id, second.id) == [JobState.SKIPPED] * 2
        found = await batch_of(store_user, batch)
        assert (found.pending, found.succeeded, found.cancelled, found.skipped) == (0, 1, 0, 2)
        assert await store_user.take_ids() == [last.id]
        assert list(await store_user.storage.check()) == []

    async def test_leaders_that_are_final_already_are_counted_at_once(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        await store_user.succeed(await store_user.take_one())
        (second,) = await store_user.add()
        after = await join(store_user, [first, second])
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [after]
        assert not await is_blocked(store_user, await join(store_user, [first, second]))
        with pytest.raises(LeaderNotFound):
            await join(store_user, [first, "gone"])

    async def test_an_addition_with_a_join_may_be_repeated(self, store_user: StoreUser) -> None:
        leaders = await store_user.add(2)
        jobs, batch = joined(store_user, leaders)
        await store_user.storage.add(jobs, [batch])
        await store_user.succeed((await store_user.take())[0])
        await store_user.storage.add(jobs, [batch])
        assert (await batch_of(store_user, batch.id)).pending == 1

    async def test_a_join_among_more_followers_than_one_commit_releases_counts_its_leader(
        self, store_user: StoreUser
    ) -> None:
        """The fault on SQLite: joins came after all followers, so the next portion began behind this one."""
        one, other = await store_user.add(2)
        await join(store_user, [one, other])
        store_user.clock.advance(1)
        await store_user.storage.add([following(store_user, one) for _ in range(FOLLOWERS_AT_ONCE)])
        await store_user.succeed(*await store_user.take(2))
        await release_all(store_user)
        assert len(await store_user.take(2 * FOLLOWERS_AT_ONCE)) == FOLLOWERS_AT_ONCE + 1

    async def test_a_job_may_lead_more_joins_than_one_commit_counts(self, store_user: StoreUser) -> None:
        one, other = await store_user.add_one(), await store_user.add_one()
        pairs = [joined(store_user, [one, other]) for _ in range(FOLLOWERS_AT_ONCE + 200)]
        await store_user.storage.add([jobs[0] for jobs, _ in pairs], [batch for _, batch in pairs])
        direct = await follow(store_user, one)
        first, second = await store_user.take()
        await store_user.succeed(first)
        assert list(await store_user.storage.check()) == []
        assert await release_all(store_user) == 1
        assert await store_user.take_ids() == [direct]
        await store_user.fail(second)
        assert list(await store_user.storage.check()) == []
        assert await release_all(store_user) >= 1
        assert (await store_user.counts()).cancelled == len(pairs)

    async def test_a_leader_of_many_joins_that_is_retried_is_counted_by_none(self, store_user: StoreUser) -> None:
        one, other = await store_user.add_one(), await store_user.add_one()
        pairs = [joined(store_user, [one, other], "final") for _ in range(FOLLOWERS_AT_ONCE + 5)]
        await store_user.storage.add([jobs[0] for jobs, _ in pairs], [batch for _, batch in pairs])
        first, second = await store_user.take()
        await store_user.fail(first)
        await store_user.storage.retry(one)
        assert list(await store_user.storage.check()) == []
        await store_user.succeed(second, await store_user.take_one())
        await release_all(store_user)
        assert len(await store_user.take(5000)) == len(pairs)

    async def test_a_batch_counts_batches_and_is_final_with_the_last(self, store_user: StoreUser) -> None:
        now = store_user.clock.now()
        outer, inner = new_batch_id(store_user), new_batch_id(store_user)
        jobs = [replace(store_user.new(), origin=Origin(batch=each)) for each in (outer, inner, inner)]
        after = following(store_user, outer)
        batches = [NewBatch(outer, 2, now), NewBatch(inner, 2, now, outer)]
        await store_user.storage.add([*jobs, after], batches)
        one, two, three = await store_user.take()
        await store_user.succeed(one, two)
        assert (await batch_of(store_user, outer)).pending == 1
        await store_user.fail(three)
        assert (await batch_of(store_user, outer)).ended_as is JobState.FAILED
        assert f"--batch {inner} --state failed" in (await error_of(store_user, after.id)).message
        assert await store_user.storage.jobs_of_batch(outer) == [job.id for job in jobs]
        await store_user.storage.retry(three.id)
        assert (await batch_of(store_user, outer)).pending == 1
        assert await is_blocked(store_user, after.id)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [after.id]

    async def test_a_batch_that_grows_is_final_after_the_new_jobs(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 1)
        after = await follow(store_user, batch)
        new = [replace(store_user.new(), origin=Origin(batch=batch)) for _ in range(2)]
        grown = NewBatch(batch, 2, store_user.clock.now(), grows=True)
        rejected = replace(store_user.new(rejection=BOOM), origin=Origin(batch=batch))
        await store_user.storage.add([*new, rejected], [grown])
        # A repeat after a lost reply counts nothing twice.
        await store_user.storage.add([*new, rejected], [grown])
        record = await batch_of(store_user, batch)
        assert (record.total, record.pending, record.failed) == (4, 3, 1)
        await store_user.succeed(*await store_user.take())
        assert (await batch_of(store_user, batch)).ended_as is JobState.FAILED
        assert (await store_user.record(after)).state is JobState.CANCELLED
        late = replace(store_user.new(), origin=Origin(batch=batch))
        with pytest.raises(BatchClosed):
            await store_user.storage.add([late], [grown])
        assert await store_user.storage.job(late.id) is None

    async def test_two_additions_to_a_batch_at_once_are_both_counted(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 1)
        grown = NewBatch(batch, 1, store_user.clock.now(), grows=True)
        new = [replace(store_user.new(), origin=Origin(batch=batch)) for _ in range(8)]
        await asyncio.gather(*(store_user.storage.add([job], [grown]) for job in new))
        assert (await batch_of(store_user, batch)).pending == 9
        await store_user.succeed(*await store_user.take())
        assert (await batch_of(store_user, batch)).succeeded == 9

    async def test_joins_are_not_listed_and_show_what_they_count(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 1)
        (leader,) = await store_user.add()
        after = await join(store_user, [batch, leader], "final")
        assert [each.id for each in await store_user.storage.batches()] == [batch]
        assert [each.id for each in await store_user.storage.batches(pending_only=True)] == [batch]
        dependencies = await store_user.storage.dependencies(after)
        expected = [Dependency(batch, None, "pending", "final"), Dependency(leader, "work", "waiting", "final")]
        assert dependencies.leaders == sorted(expected, key=lambda each: each.id)
        assert dependencies.followers == []
        for id in (batch, leader):
            assert (await store_user.storage.dependencies(id)).followers == [
                Dependency(after, "work", "blocked", "final")
            ]

    async def test_members_of_a_batch_that_are_pruned_are_known_unless_they_were_skipped(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage, now = store_user.storage, clock.now()
        outer, inner, empty = (new_batch_id(store_user) for _ in range(3))
        first = replace(store_user.new(), origin=Origin(batch=outer))
        unneeded = following(store_user, first.id, "failure", batch=outer)
        inside = [replace(store_user.new(), origin=Origin(batch=inner)) for _ in range(2)]
        batches = [NewBatch(outer, 4, now), NewBatch(inner, 2, now, outer), NewBatch(empty, 0, now, outer)]
        await storage.add([first, unneeded, *inside], batches)
        after, join = joined(store_user, [first.id, inner])
        await storage.add(after, [join])

        async def pruned(*ids: str) -> list[int]:
            assert (await storage.delete(ids, finished_before=clock.now())).deleted == set(ids)
            assert await storage.prune(0) == 0
            return [await storage.pruned_members(id) for id in (outer, inner, empty, join.id)]

        assert await pruned() == [0, 0, 0, 0]
        for _ in range(2):
            await store_user.succeed(*await store_user.take())
        clock.advance(10)
        # Then the batches of that age, of which only the empty one has no job.
        for count in (1, 0):
            assert await storage.prune(clock.now(), states=frozenset({JobState.SKIPPED})) == count
        assert await pruned() == [0, 0, 0, 0]
        assert await pruned(inside[0].id) == [1, 1, 0, 1]
        assert await pruned(inside[1].id) == [2, 2, 0, 2]
        assert await pruned(first.id) == [1, 2, 0, 3]
        for count in (1, 3, 0):
            assert await storage.prune(clock.now()) == count
        assert [await storage.batch(id) for id in (outer, inner, empty, join.id)] == [None] * 4

    async def test_joins_and_batches_of_batches_are_pruned_after_their_jobs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        now = clock.now()
        outer, inner = new_batch_id(store_user), new_batch_id(store_user)
        job = replace(store_user.new(), origin=Origin(batch=inner))
        await store_user.storage.add([job], [NewBatch(outer, 1, now), NewBatch(inner, 1, now, outer)])
        jobs, batch = joined(store_user, [outer, job.id])
        await store_user.storage.add(jobs, [batch])
        await store_user.succeed(await store_user.take_one())
        clock.advance(10)
        while await store_user.storage.prune(clock.now()):
            pass
        # What has not run yet may ask what it followed.
        assert (await store_user.storage.dependencies(jobs[0].id)).leaders == [
            Dependency(id, None, "succeeded", None) for id in sorted((outer, job.id))
        ]
        await store_user.succeed(await store_user.take_one())
        clock.advance(10)
        for _ in range(4):
            await store_user.storage.prune(clock.now())
        assert [await store_user.storage.batch(id) for id in (outer, inner, batch.id)] == [None] * 3

    async def test_pruning_goes_on_while_joins_are_left(self, store_user: StoreUser, clock: ManualClock) -> None:
        for _ in range(5):
            await join(store_user, await store_user.add(2))
        for _ in range(2):
            await store_user.succeed(*await store_user.take())
        clock.advance(10)
        assert [await store_user.storage.prune(clock.now(), count=4) for _ in range(7)] == [4, 4, 4, 3, 4, 1, 0]
