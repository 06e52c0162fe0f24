"""What is promised of batches: how their jobs are counted, who follows them, and the permits that they hold."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import LeaderNotFound
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.job import BucketRef, JobState, Origin
from headgate.storage.endings import LEADER_NOT_SUCCEEDED
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import (
    MUTEX,
    add_batch,
    batch_of,
    die,
    follow,
    following,
    hold,
    is_blocked,
    new_batch_id,
    why,
)
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once, strict


class BatchesConformance(Conformance):
    async def test_a_batch_counts_how_its_jobs_end(self, store_user: StoreUser, clock: ManualClock) -> None:
        started = clock.now()
        batch, ids = await add_batch(store_user, 4)
        assert await batch_of(store_user, batch) == BatchRecord(batch, 4, 4, 0, 0, 0, 0, started, None)
        jobs = await store_user.take()
        assert [job.id for job in jobs] == ids
        assert jobs[0].origin == Origin(batch=batch)
        clock.advance(1)
        await store_user.succeed(jobs[0], jobs[1])
        await store_user.fail(jobs[2])
        assert await batch_of(store_user, batch) == BatchRecord(batch, 4, 1, 2, 1, 0, 0, started, None)
        await store_user.give_back(jobs[3])
        await store_user.storage.cancel(ids[3])
        record = await batch_of(store_user, batch)
        assert record == BatchRecord(batch, 4, 0, 2, 1, 1, 0, started, clock.now())
        assert record.ended_as is JobState.FAILED

    async def test_followers_of_a_batch_are_released_by_the_last_of_its_jobs(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 2)
        after = await follow(store_user, batch)
        first, second = await store_user.take()
        await store_user.succeed(second)
        assert await store_user.take() == []
        await store_user.succeed(first)
        assert await store_user.take_ids() == [after]

    async def test_a_failed_batch_cancels_the_followers_that_need_its_success(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 2)
        strict_one, lenient = await follow(store_user, batch), await follow(store_user, batch, "final")
        first, second = await store_user.take()
        await store_user.fail(first)
        assert await is_blocked(store_user, strict_one)
        await store_user.succeed(second)
        assert await why(store_user, strict_one) == (JobState.CANCELLED, LEADER_NOT_SUCCEEDED, batch)
        assert await store_user.take_ids() == [lenient]

    async def test_batches_are_listed_page_by_page_the_newest_first(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ids: list[str] = []
        for size in (1, 0, 2, 1):
            clock.advance(1)
            ids.insert(0, (await add_batch(store_user, size))[0])
        await store_user.succeed(await store_user.take_one())
        storage = store_user.storage
        first = await storage.batches(count=3)
        second = await storage.batches(cursor=first[-1].id, count=3)
        assert [batch.id for batch in (*first, *second)] == ids
        assert [(batch.total, batch.pending, batch.succeeded) for batch in first] == [(1, 1, 0), (2, 2, 0), (0, 0, 0)]
        assert await storage.batches(cursor=ids[-1]) == []
        assert {batch.id for batch in await storage.batches_by_id([*ids[:3], "nobody"])} == {*ids[:3]}
        pending = await storage.batches(pending_only=True, count=1)
        assert [batch.id for batch in pending] == ids[:1]
        pending = await storage.batches(pending_only=True, cursor=ids[0], count=5)
        assert [batch.id for batch in pending] == [ids[1]]

    async def test_the_tasks_of_batches_are_those_of_their_own_jobs_by_name(self, store_user: StoreUser) -> None:
        first, _ = await add_batch(store_user, 3, task="send")
        empty, _ = await add_batch(store_user, 0)
        mixed, inner, now = new_batch_id(store_user), new_batch_id(store_user), store_user.clock.now()
        members = [("sync", mixed), ('Ärger "x"', mixed), ("sync", mixed), ("within", inner)]
        jobs = [replace(store_user.new(task=task), origin=Origin(batch=batch)) for task, batch in members]
        storage = store_user.storage
        await storage.add(jobs, [NewBatch(mixed, 4, now, name="Büro"), NewBatch(inner, 1, now, batch=mixed)])
        names = {id: record.name for id in (mixed, inner) if (record := await storage.batch(id)) is not None}
        assert names == {mixed: "Büro", inner: None}
        found = await storage.tasks_of_batches([first, empty, mixed, "nobody"])
        assert {id: list(tasks) for id, tasks in found.items()} == {
            first: ["send"], empty: [], mixed: sorted(["sync", "Ärger \"x\""])
        }  # fmt: skip
        # Whichever jobs are read, there is one task.
        assert [len(tasks) for tasks in (await storage.tasks_of_batches([mixed], 1)).values()] == [1]
        assert await storage.tasks_of_batches([]) == {}

    async def test_an_empty_batch_is_final_immediately(self, store_user: StoreUser, clock: ManualClock) -> None:
        batch, _ = await add_batch(store_user, 0)
        assert await batch_of(store_user, batch) == BatchRecord(batch, 0, 0, 0, 0, 0, 0, clock.now(), clock.now())
        after = await follow(store_user, batch)
        assert await store_user.take_ids() == [after]

    async def test_a_batch_may_follow_and_be_followed(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        batch, ids = await add_batch(store_user, 3, first)
        last = await follow(store_user, batch)
        await store_user.succeed(await store_user.take_one())
        middle = await store_user.take()
        assert [job.id for job in middle] == ids
        await store_user.succeed(*middle)
        assert await store_user.take_ids() == [last]

    async def test_a_batch_that_is_cancelled_with_its_leader_ends_its_followers(self, store_user: StoreUser) -> None:
        (first,) = await store_user.add()
        batch, _ = await add_batch(store_user, 3, first)
        last = await follow(store_user, batch)
        await store_user.fail(await store_user.take_one())
        assert (await batch_of(store_user, batch)).ended_as is JobState.CANCELLED
        assert (await why(store_user, last))[2] == batch
        await store_user.storage.retry(first)
        assert (await batch_of(store_user, batch)).pending == 3
        assert await is_blocked(store_user, last)
        await store_user.succeed(await store_user.take_one())
        await store_user.succeed(*await store_user.take())
        assert await store_user.take_ids() == [last]

    async def test_a_batch_with_a_retried_job_is_not_final(self, store_user: StoreUser) -> None:
        batch, _ = await add_batch(store_user, 2)
        strict_one, lenient = await follow(store_user, batch), await follow(store_user, batch, "final")
        first, second = await store_user.take()
        await store_user.fail(first)
        await store_user.succeed(second)
        await store_user.succeed(await store_user.take_one())
        assert (await store_user.record(lenient)).state is JobState.SUCCEEDED
        await store_user.storage.retry(first.id)
        record = await batch_of(store_user, batch)
        assert (record.pending, record.failed, record.finished_at) == (1, 0, None)
        assert await is_blocked(store_user, strict_one)
        await store_user.succeed(await store_user.take_one())
        assert (await batch_of(store_user, batch)).ended_as is JobState.SUCCEEDED
        assert await store_user.take_ids() == [strict_one]

    async def test_jobs_that_are_rejected_from_the_start_count_in_their_batch(self, store_user: StoreUser) -> None:
        id = new_batch_id(store_user)
        jobs = [replace(store_user.new(rejection=BOOM), origin=Origin(batch=id)) for _ in range(2)]
        after = following(store_user, id, "final")
        await store_user.storage.add([*jobs, after], [NewBatch(id, 2, store_user.clock.now())])
        assert (await batch_of(store_user, id)).failed == 2
        assert await store_user.take_ids() == [after.id]

    async def test_a_batch_is_deleted_with_the_last_of_its_jobs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        batch, _ = await add_batch(store_user, 2)
        first, second = await store_user.take()
        await store_user.succeed(first)
        clock.advance(10)
        await store_user.succeed(second)
        clock.advance(10)
        assert await store_user.storage.prune(clock.now() - 10 * SECOND) == 1
        assert await store_user.storage.batch(batch) is not None
        assert await store_user.storage.prune(clock.now()) == 1
        assert await store_user.storage.batch(batch) is None
        with pytest.raises(LeaderNotFound):
            await follow(store_user, batch)

    async def test_a_batch_whose_jobs_were_deleted_earlier_is_pruned_by_its_own_age(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """How long jobs are kept depends on how they ended, so the last one to go may be the first that ended."""
        batch, _ = await add_batch(store_user, 2)
        first, second = await store_user.take()
        await store_user.fail(first)
        clock.advance(10)
        await store_user.succeed(second)
        clock.advance(10)
        assert await store_user.storage.prune(clock.now() - SECOND, states=frozenset({JobState.SUCCEEDED})) == 1
        assert await store_user.storage.prune(clock.now() - 15 * SECOND, states=frozenset({JobState.FAILED})) == 1
        assert await store_user.storage.prune(clock.now() - 15 * SECOND) == 0
        assert await store_user.storage.batch(batch) is not None
        assert await store_user.storage.prune(clock.now() - SECOND) == 1
        assert await store_user.storage.batch(batch) is None
        assert await store_user.storage.prune(clock.now() - SECOND) == 0

    # ------------------------------------------------------------------------- batches that hold permits

    async def test_all_jobs_of_a_batch_run_under_one_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        batch, ids = await hold(store_user, 3)
        store_user.clock.advance(1)
        other, others = await hold(store_user, 2)
        store_user.clock.advance(1)
        single = await store_user.add_one(buckets=MUTEX)
        jobs = await store_user.take()
        assert [job.id for job in jobs] == ids
        assert await store_user.permits("mutex", "a") == {f"batch:{batch}": 3}
        assert await store_user.take() == []
        await store_user.succeed(*jobs[:2])
        assert await store_user.take() == []
        await store_user.fail(jobs[2])
        second = await store_user.take()
        assert [job.id for job in second] == others
        assert await store_user.permits("mutex", "a") == {f"batch:{other}": 2}
        await store_user.succeed(*second)
        assert await store_user.take_ids() == [single]

    async def test_a_batch_keeps_its_permit_while_none_of_its_jobs_runs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        batch, ids = await hold(store_user, 2)
        first, second = await store_user.take()
        single = await store_user.add_one(buckets=MUTEX)
        await store_user.retry_later(first, 10)
        await store_user.give_back(second, "snoozed", run_at=clock.now() + 20 * SECOND)
        assert await store_user.permits("mutex", "a") == {f"batch:{batch}": 0}
        assert await store_user.take() == []
        clock.advance(10)
        again = await store_user.take_one()
        assert again.id == ids[0]
        await store_user.succeed(again)
        assert await store_user.take() == []
        clock.advance(10)
        await store_user.succeed(await store_user.take_one())
        assert await store_user.take_ids() == [single]

    async def test_a_batch_keeps_its_permit_when_its_node_dies(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        batch, ids = await hold(store_user, 2)
        await store_user.storage.join("node-b", "b")
        assert len(await store_user.take(node="node-b")) == 2
        single = await store_user.add_one(buckets=MUTEX)
        await die(store_user, "node-b")
        assert await store_user.permits("mutex", "a") == {f"batch:{batch}": 0}
        jobs = await store_user.take()
        assert [job.id for job in jobs] == ids
        await store_user.succeed(*jobs)
        assert await store_user.take_ids() == [single]

    @pytest.mark.parametrize("is_running", [True, False], ids=["running", "waiting"])
    async def test_a_batch_whose_last_job_is_cancelled_returns_its_permit(
        self, store_user: StoreUser, is_running: bool
    ) -> None:
        store_user.rules = {"mutex": at_once()}
        batch, (_, last) = await hold(store_user, 2)
        first = await store_user.take_one()
        single = await store_user.add_one(buckets=MUTEX)
        taken = await store_user.take() if is_running else []
        await store_user.succeed(first)
        await store_user.storage.cancel(last)
        for job in taken:
            await store_user.give_back(job)
        assert (await batch_of(store_user, batch)).pending == 0
        assert await store_user.take_ids() == [single]

    async def test_the_jobs_of_a_batch_with_a_permit_start_from_all_lanes(self, store_user: StoreUser) -> None:
        """The fault: a lane that waited for the mutex of its own batch would have waited for itself."""
        store_user.rules = {"mutex": at_once(), "api": strict(1)}
        queues = ("default", "other")
        await store_user.add(buckets=MUTEX)
        single = await store_user.take_one()
        api = {"buckets": [*MUTEX, ("api", "acme")]}
        _, ids = await hold(store_user, api, api, {"queue": "other"}, {"queue": "other"})
        assert await store_user.take(queues=queues) == []
        await store_user.succeed(single)
        jobs = await store_user.take(queues=queues)
        assert {job.id for job in jobs} == {ids[0], *ids[2:]}
        await store_user.succeed(*jobs)
        late = await store_user.add_one(buckets=MUTEX)
        assert await store_user.take(queues=queues) == []
        store_user.clock.advance(60)
        job = await store_user.take_one(queues=queues)
        assert job.id == ids[1]
        await store_user.succeed(job)
        assert await store_user.take_ids() == [late]

    async def test_a_batch_that_is_claimed_queue_by_queue_does_not_block_itself(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(buckets=MUTEX)
        single = await store_user.take_one()
        _, (first, second) = await hold(store_user, {}, {"queue": "other"})
        assert await store_user.take(queues=("other", "default")) == []
        await store_user.succeed(single)
        jobs = await store_user.take()
        assert [job.id for job in jobs] == [first]
        late = await store_user.add_one(buckets=MUTEX)
        assert await store_user.take() == []
        more = await store_user.take(queues=("other",))
        assert [job.id for job in more] == [second]
        await store_user.succeed(*jobs, *more)
        assert await store_user.take_ids() == [late]

    async def test_a_reset_takes_the_permit_of_a_batch_of_which_no_job_runs(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await hold(store_user, 1)
        await store_user.retry_later(await store_user.take_one(), 60)
        single = await store_user.add_one(buckets=MUTEX)
        assert await store_user.take() == []
        assert await store_user.storage.reset(BucketRef("mutex", "a")) == 0
        assert await store_user.take_ids() == [single]

    async def test_a_batch_that_comes_back_takes_its_permit_again(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        batch, _ = await hold(store_user, 1)
        job = await store_user.take_one()
        await store_user.fail(job)
        single = await store_user.add_one(buckets=MUTEX)
        running = await store_user.take_one()
        assert running.id == single
        await store_user.storage.retry(job.id)
        assert await store_user.take() == []
        await store_user.succeed(running)
        assert (await store_user.take_one()).id == job.id
        assert await store_user.permits("mutex", "a") == {f"batch:{batch}": 1}

    async def test_a_batch_that_is_resumed_continues_under_its_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        _, (_, last) = await hold(store_user, 2)
        first = await store_user.take_one()
        single = await store_user.add_one(buckets=MUTEX)
        pause = await store_user.pause("mutex")
        assert await store_user.take() == []
        await store_user.unset(pause)
        taken = await store_user.take_one()
        assert taken.id == last
        await store_user.succeed(first, taken)
        assert await store_user.take_ids() == [single]

    async def test_batches_that_become_final_in_one_commit_all_return_their_permits(
        self, store_user: StoreUser
    ) -> None:
        """The fault: of several under one limit only the last gave its permit back, and the others kept theirs."""
        store_user.rules = {"mutex": at_once(3)}
        for _ in range(3):
            await hold(store_user, 1)
        jobs = await store_user.take()
        assert len(jobs) == 3
        await store_user.succeed(*jobs)
        assert await store_user.permits("mutex", "a") == {}
        ids = await store_user.add(3, buckets=MUTEX)
        assert await store_user.take_ids() == ids

    @pytest.mark.parametrize("how", ["expires", "is rejected"])
    async def test_a_claim_that_drops_the_last_job_of_a_batch_releases_its_permit(
        self, store_user: StoreUser, clock: ManualClock, how: str
    ) -> None:
        """The fault: the claim closed the bucket for good that the batch, ending with that job, had just opened."""
        store_user.rules = {"mutex": at_once(), "api": strict(1, 1000)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.take_one()
        last: dict[str, Any] = {"delay": 50, "expires_in": 60}
        if how == "is rejected":
            last = {"delay": 50, "buckets": [*MUTEX, ("api", "acme")], "patience": 0}
        batch, (first, _) = await hold(store_user, {}, last)
        job = await store_user.take_one()
        assert job.id == first
        await store_user.succeed(job)
        clock.advance(70)
        _, (other,) = await hold(store_user, 1)
        assert await store_user.take_ids() == [other]
        assert (await batch_of(store_user, batch)).pending == 0
