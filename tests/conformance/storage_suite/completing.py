"""What is promised of jobs that their attempts have completed in users' transactions."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.jobs.job import ClaimedJob, JobState, Origin
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.procedures.finish import complete
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, at_once, recover, strict


async def complete_now(store_user: StoreUser, job: ClaimedJob) -> bool:
    """Complete the job as a user's transaction does that commits at once."""
    return await store_user.storage.write(lambda tx: complete(tx, job.id, job.fence))


class CompletingConformance(Conformance):
    async def test_a_job_that_its_attempt_completed_succeeds_when_its_node_dies(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """Three times, so that it would be poisonous; and what followed it, and its permit, are free."""
        store_user.rules = {"door": at_once()}
        done, other = await store_user.add(2)
        held = await store_user.add_one(buckets=[("door", "a")])
        jobs = {job.id: job for job in await store_user.take()}
        assert await complete_now(store_user, jobs[done])
        assert await complete_now(store_user, jobs[held])
        clock.advance(30)
        recovered = await recover(store_user)
        assert sorted(recovered.completed) == sorted([done, held])
        assert list(recovered.returned) == [other]
        for id in (done, held):
            record = await store_user.record(id)
            assert (record.state, record.error, record.finished_at) == (JobState.SUCCEEDED, None, clock.now())
            assert await store_user.storage.attempts(id) == []
        await store_user.add_one(buckets=[("door", "a")])
        assert len(await store_user.take(node="node-b")) == 2
        assert await store_user.storage.check() == []

    async def test_a_completed_job_succeeds_when_its_node_leaves(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        assert await complete_now(store_user, job)
        recovered = await store_user.storage.leave(store_user.node)
        assert (list(recovered.completed), list(recovered.returned)) == ([job.id], [])
        assert (await store_user.record(job.id)).state is JobState.SUCCEEDED

    async def test_only_the_running_attempt_completes_its_job(self, store_user: StoreUser, clock: ManualClock) -> None:
        waiting = await store_user.add_one()
        storage = store_user.storage
        assert not await storage.write(lambda tx: complete(tx, waiting, 0))
        first = await store_user.take_one()
        await store_user.give_back(first)
        assert not await complete_now(store_user, first)
        clock.advance(1)
        second = await store_user.take_one()
        assert not await complete_now(store_user, first)
        assert await complete_now(store_user, second)
        assert [await storage.is_complete(job.id, job.fence) for job in (first, second)] == [False, True]
        await store_user.succeed(second)
        assert not await complete_now(store_user, second)

    async def test_whatever_the_attempt_reports_a_completed_job_succeeds(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """Also if the reply is lost and the ending is written again."""
        await store_user.add(4)
        jobs = await store_user.take()
        for job in jobs:
            assert await complete_now(store_user, job)
        at = clock.now()
        endings: list[Ending] = [
            Finished(jobs[0].id, jobs[0].fence, JobState.FAILED, error=BOOM),
            Finished(jobs[1].id, jobs[1].fence, JobState.CANCELLED),
            Returned(jobs[2].id, jobs[2].fence, "failed", spent=True, run_at=at, error=BOOM),
            Returned(jobs[3].id, jobs[3].fence, "interrupted", spent=False),
        ]
        for _ in range(2):
            assert await store_user.finish(*endings) == [True] * 4
            for job in jobs:
                record = await store_user.record(job.id)
                assert (record.state, record.error, record.attempt) == (JobState.SUCCEEDED, None, 1)
                assert await store_user.storage.attempts(job.id) == []

    async def test_a_refusal_after_a_completion_closes_the_limit(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(2, buckets=[("api", "a")])
        job = await store_user.take_one()
        assert await complete_now(store_user, job)
        await store_user.finish(Returned(job.id, job.fence, "refused", spent=False, closed_for=10_000_000))
        assert (await store_user.record(job.id)).state is JobState.SUCCEEDED
        assert await store_user.take_ids() == []
        clock.advance(11)
        assert len(await store_user.take_ids()) == 1

    async def test_what_follows_a_completed_job_runs_after_its_node_has_died(self, store_user: StoreUser) -> None:
        first = await store_user.add_one()
        job = await store_user.take_one()
        follower = store_user.new()
        await store_user.storage.add([replace(follower, origin=Origin(follows=first))])
        assert await complete_now(store_user, job)
        await recover(store_user)
        assert await store_user.take_ids(node="node-b") == [follower.id]
