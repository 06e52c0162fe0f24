"""What is promised of how jobs end: finished, cancelled, expired; retried; and forgotten in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobError, JobState, Origin
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.query import JobFilter
from headgate.jobs.uniqueness import SUPERSEDED
from headgate.limits.rate_limit import RateLimit
from headgate.storage.endings import EXPIRED_ERROR, LEADER_NOT_SUCCEEDED, REJECTED
from headgate.storage.records import (
    QueueCounts,
)
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import new_batch_id
from tests.conformance.storage_suite.store_user import (
    BOOM,
    Conformance,
    StoreUser,
    most_in_a_window,
    strict,
)


class EndingsConformance(Conformance):
    # -------------------------------------------------------------------------------------- finishing

    async def test_a_success_is_kept_with_its_result(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add()
        job = await store_user.take_one()
        clock.advance(2)
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result='{"rows":3}')
        assert list(await store_user.storage.finish(store_user.node, [ending])) == [True]
        record = await store_user.record(job.id)
        assert (record.state, record.result, record.error) == (JobState.SUCCEEDED, '{"rows":3}', None)
        assert record.finished_at == clock.now()
        assert list(await store_user.storage.attempts(job.id)) == []

    async def test_a_failure_is_kept_with_its_error(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add()
        job = await store_user.take_one()
        clock.advance(2)
        await store_user.fail(job)
        record = await store_user.record(job.id)
        assert (record.state, record.error, record.result) == (JobState.FAILED, BOOM, None)
        (attempt,) = await store_user.storage.attempts(job.id)
        assert (attempt.number, attempt.node, attempt.outcome, attempt.error) == (1, store_user.node, "failed", BOOM)
        assert (attempt.started_at, attempt.ended_at) == (job.started_at, clock.now())

    async def test_a_cancelled_attempt_ends_as_cancelled(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        ending = Finished(job.id, job.fence, JobState.CANCELLED)
        assert list(await store_user.storage.finish(store_user.node, [ending])) == [True]
        assert (await store_user.record(job.id)).state is JobState.CANCELLED
        assert [attempt.outcome for attempt in await store_user.storage.attempts(job.id)] == ["cancelled"]

    async def test_a_success_after_a_failure_leaves_no_error(self, store_user: StoreUser) -> None:
        await store_user.add()
        await store_user.give_back(await store_user.take_one(), "failed", spent=True, error=BOOM)
        await store_user.succeed(await store_user.take_one())
        (record,) = await store_user.storage.jobs(JobFilter())
        assert (record.state, record.error) == (JobState.SUCCEEDED, None)

    async def test_a_finish_is_refused_unless_node_and_fence_still_match(self, store_user: StoreUser) -> None:
        await store_user.storage.join("node-b", "b")
        await store_user.add(3)
        stale, foreign, mine = await store_user.take()
        await store_user.give_back(stale)
        again = await store_user.take_one()
        assert (again.id, again.fence) == (stale.id, 2)
        endings: list[Ending] = [
            Finished(stale.id, stale.fence, JobState.SUCCEEDED, result="1"),
            Finished("nobody", 1, JobState.SUCCEEDED),
            Finished(mine.id, mine.fence, JobState.SUCCEEDED, result="2"),
            Returned(stale.id, stale.fence, "failed", spent=True, error=BOOM),
        ]
        assert list(await store_user.storage.finish(store_user.node, endings)) == [False, False, True, False]
        assert list(await store_user.storage.finish("node-b", [Finished(foreign.id, 1, JobState.FAILED)])) == [False]
        states = await store_user.states([stale.id, foreign.id, mine.id])
        assert states == [JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED]
        assert (await store_user.record(stale.id)).error is None

    async def test_a_finish_counts_once(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
        for _ in range(2):
            assert list(await store_user.storage.finish(store_user.node, [ending])) == [True]
        other = Returned(job.id, job.fence, "failed", spent=True)
        assert list(await store_user.storage.finish(store_user.node, [other])) == [False]
        assert (await store_user.counts()) == QueueCounts("default", 0, 0, 1, 0, 0)

    @pytest.mark.parametrize(
        ("state", "error"),
        [
            (JobState.SUCCEEDED, None),
            (JobState.FAILED, BOOM),
            (JobState.CANCELLED, None),
            (JobState.CANCELLED, JobError(type="Cancel", message="by its handler")),
        ],
    )
    async def test_an_ending_whose_reply_was_lost_can_be_repeated(
        self, store_user: StoreUser, state: JobState, error: JobError | None
    ) -> None:
        """The fault: the repeat was refused, so nobody was told of an end that was stored."""
        await store_user.storage.join("node-b", "b")
        await store_user.add(2)
        first, second = await store_user.take()
        for job in (first, second):
            if state is JobState.CANCELLED and error is None:
                await store_user.storage.cancel(job.id)
        ending = Finished(first.id, first.fence, state, error=error)
        other = Finished(second.id, second.fence, state, error=error)
        assert list(await store_user.storage.finish(store_user.node, [ending])) == [True]
        assert list(await store_user.storage.finish(store_user.node, [ending, other])) == [True, True]
        attempts = [await store_user.storage.attempts(job.id) for job in (first, second)]
        assert [len(each) for each in attempts] == [state is not JobState.SUCCEEDED] * 2
        wrong: list[Ending] = [
            Finished(first.id, first.fence + 1, state, error=error),
            Finished(first.id, first.fence, JobState.FAILED, error=JobError(type="Other", message="another one")),
            Returned(first.id, first.fence, "failed", spent=True, error=BOOM),
        ]
        assert list(await store_user.storage.finish(store_user.node, wrong)) == [False] * 3
        assert list(await store_user.storage.finish("node-b", [ending])) == [False]

    async def test_a_job_that_was_returned_is_returned_once(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add()
        job = await store_user.take_one()
        back = Returned(job.id, job.fence, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
        assert list(await store_user.storage.finish(store_user.node, [back])) == [True]
        assert list(await store_user.storage.finish(store_user.node, [back])) == [False]
        assert len(await store_user.storage.attempts(job.id)) == 1
        assert (await store_user.counts()).waiting == 1

    @pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
    async def test_an_ending_that_no_attempt_wrote_is_not_taken_for_a_repeat(
        self, store_user: StoreUser, clock: ManualClock, state: JobState
    ) -> None:
        """A job that was given back and then cancelled, or has expired, did not end as its late attempt says."""
        for expires_in in (None, 10):
            await store_user.add(expires_in=expires_in)
            job = await store_user.take_one()
            await store_user.give_back(job)
            if expires_in is None:
                await store_user.storage.cancel(job.id)
            else:
                clock.advance(20)
                assert [dropped.id for dropped in await store_user.storage.expire()] == [job.id]
            late = Finished(job.id, job.fence, state, error=BOOM if state is JobState.FAILED else None)
            assert list(await store_user.storage.finish(store_user.node, [late])) == [False]

    async def test_a_retry_is_delayed_and_its_attempt_is_spent(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            await store_user.add(buckets=buckets)
            job = await store_user.take_one()
            await store_user.give_back(job, "failed", spent=True, run_at=clock.now() + 10 * SECOND, error=BOOM)
            record = await store_user.record(job.id)
            assert (record.state, record.attempt, record.error) == (JobState.WAITING, 1, BOOM)
            assert (record.delayed, record.run_at, record.finished_at) == (True, clock.now() + 10 * SECOND, None)
            claimed = await store_user.claim()
            assert (list(claimed.jobs), claimed.next_in) == ([], 10 * SECOND)
            clock.advance(10)
            again = await store_user.take_one()
            assert (again.id, again.attempt, again.fence) == (job.id, 2, 2)
            await store_user.succeed(again)

    async def test_an_unspent_attempt_keeps_its_number_and_the_fence_grows(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add()
        for fence in range(1, 4):
            job = await store_user.take_one()
            assert (job.attempt, job.fence) == (1, fence)
            await store_user.give_back(job, "snoozed", run_at=clock.now())
            assert (await store_user.record(job.id)).attempt == 0

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_job_that_is_returned_keeps_its_place(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(4, buckets=buckets)
        jobs = await store_user.take(3)
        clock.advance(1)
        await store_user.give_back(jobs[1])
        await store_user.give_back(jobs[0])
        record = await store_user.record(ids[0])
        assert (record.delayed, record.run_at, record.attempt) == (False, jobs[0].run_at, 0)
        assert await store_user.take_ids() == [ids[0], ids[1], ids[3]]

    async def test_a_delayed_job_that_is_returned_stays_delayed(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add(delay=5)
        clock.advance(5)
        job = await store_user.take_one()
        await store_user.give_back(job)
        record = await store_user.record(job.id)
        assert (record.delayed, record.run_at) == (True, job.run_at)
        assert await store_user.take_ids() == [job.id]

    async def test_a_batch_of_endings_is_written_at_once(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(2)
        await store_user.add(2, buckets=[("api", "acme")])
        first, second, third, fourth = await store_user.take()
        endings: list[Ending] = [
            Finished(first.id, first.fence, JobState.SUCCEEDED, result="1"),
            Returned(second.id, second.fence, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM),
            Finished(third.id, third.fence, JobState.FAILED, error=BOOM),
            Returned(fourth.id, fourth.fence, "interrupted", spent=False),
        ]
        assert list(await store_user.storage.finish(store_user.node, endings)) == [True] * 4
        assert await store_user.counts() == QueueCounts("default", 2, 0, 1, 1, 0)

    async def test_every_attempt_that_did_not_succeed_is_kept_in_order(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add()
        for outcome, spent in (("failed", True), ("snoozed", False), ("unreadable", True), ("interrupted", False)):
            await store_user.give_back(await store_user.take_one(), outcome, spent=spent, error=BOOM if spent else None)
            clock.advance(1)
        job = await store_user.take_one()
        await store_user.succeed(job)
        attempts = await store_user.storage.attempts(job.id)
        kept = [(attempt.number, attempt.outcome, attempt.error) for attempt in attempts]
        assert kept == [(1, "failed", BOOM), (2, "snoozed", None), (2, "unreadable", BOOM), (3, "interrupted", None)]

    async def test_an_attempt_without_an_error_keeps_the_last_error(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.give_back(job, "failed", spent=True, error=BOOM)
        await store_user.give_back(await store_user.take_one(), "snoozed")
        assert (await store_user.record(job.id)).error == BOOM

    async def test_a_refusal_closes_the_buckets_for_all_jobs(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100), "own": strict(100)}
        await store_user.add(buckets=[("api", "acme"), ("own", "one")])
        job = await store_user.take_one()
        await store_user.give_back(job, "refused", closed_for=30 * SECOND)
        assert (await store_user.record(job.id)).attempt == 0
        neighbour = await store_user.add(buckets=[("api", "acme"), ("own", "two")])
        other_key = await store_user.add(buckets=[("api", "other"), ("own", "three")])
        assert await store_user.take_ids() == other_key
        assert (await store_user.claim()).next_in == 30 * SECOND
        clock.advance(29.999999)
        assert await store_user.take() == []
        clock.advance(0.000001)
        assert sorted(await store_user.take_ids()) == sorted([job.id, *neighbour])

    async def test_the_longest_refusal_counts(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(2, buckets=[("api", "acme")])
        first, second = await store_user.take()
        await store_user.give_back(first, "refused", closed_for=30 * SECOND)
        await store_user.give_back(second, "refused", closed_for=10 * SECOND)
        clock.advance(20)
        assert await store_user.take() == []
        clock.advance(10)
        assert len(await store_user.take()) == 2

    async def test_a_refusal_also_holds_for_lanes_that_wait_already(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2, per=10), "own": strict(100)}
        await store_user.add(2, buckets=[("api", ""), ("own", "one")])
        await store_user.add(2, buckets=[("api", ""), ("own", "two")])
        jobs = await store_user.take()
        assert len(jobs) == 2
        await store_user.give_back(jobs[0], "refused", closed_for=30 * SECOND)
        clock.advance(29)
        assert await store_user.take() == []
        clock.advance(1)
        assert len(await store_user.take()) == 2

    # ------------------------------------------------------------------------------------- cancelling

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_cancelled_waiting_job_never_runs_and_wastes_no_slot(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(5, buckets=buckets)
        clock.advance(1)
        assert await store_user.storage.cancel(ids[0]) is JobState.WAITING
        assert await store_user.storage.cancel(ids[2]) is JobState.WAITING
        record = await store_user.record(ids[0])
        assert (record.state, record.finished_at) == (JobState.CANCELLED, clock.now())
        assert (await store_user.record(ids[1])).lane_waiting == 3
        assert await store_user.counts() == QueueCounts("default", 3, 0, 0, 0, 2)
        assert await store_user.take_ids() == [ids[1], ids[3], ids[4]]

    async def test_cancelling_the_last_job_behind_a_bucket_clears_its_timer(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(3, buckets=[("api", "acme")])
        await store_user.take()
        for id in ids[1:]:
            await store_user.storage.cancel(id)
        (bucket,) = await store_user.storage.buckets()
        assert (bucket.waiting, bucket.opens_at) == (0, None)
        assert (await store_user.claim()).next_in is None

    async def test_cancelling_the_last_delayed_job_clears_its_timer(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        for buckets in ((), (("api", "acme"),)):
            (id,) = await store_user.add(delay=60, buckets=buckets)
            await store_user.take()
            await store_user.storage.cancel(id)
            assert (await store_user.claim()).next_in is None

    async def test_a_running_job_is_asked_to_stop(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        job, other = await store_user.take()
        assert await store_user.storage.cancel(job.id) is JobState.RUNNING
        record = await store_user.record(job.id)
        assert (record.state, record.cancel_requested) == (JobState.RUNNING, True)
        assert (await store_user.storage.beat(store_user.node)).cancels == {job.id}
        assert await store_user.storage.cancels(store_user.node, [job.id, other.id]) == {job.id}
        assert await store_user.storage.cancels("stranger", [job.id]) == frozenset()
        assert not (await store_user.record(other.id)).cancel_requested

    async def test_a_job_that_succeeds_before_it_notices_has_succeeded(self, store_user: StoreUser) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.storage.cancel(job.id)
        await store_user.succeed(job)
        assert (await store_user.record(job.id)).state is JobState.SUCCEEDED

    async def test_a_job_that_was_asked_to_stop_does_not_wait_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(buckets=[("api", "acme")])
        job = await store_user.take_one()
        await store_user.storage.cancel(job.id)
        await store_user.give_back(job, "failed", spent=True, run_at=clock.now() + SECOND, error=BOOM)
        record = await store_user.record(job.id)
        assert (record.state, record.finished_at) == (JobState.CANCELLED, clock.now())
        assert await store_user.counts() == QueueCounts("default", 0, 0, 0, 0, 1)
        assert (await store_user.claim()).next_in is None

    async def test_a_final_job_is_left_as_it_is(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(2)
        first, second = await store_user.take()
        await store_user.succeed(first)
        await store_user.fail(second)
        before = [await store_user.record(first.id), await store_user.record(second.id)]
        clock.advance(1)
        assert await store_user.storage.cancel(first.id) is JobState.SUCCEEDED
        assert await store_user.storage.cancel(second.id) is JobState.FAILED
        assert [await store_user.record(first.id), await store_user.record(second.id)] == before

    async def test_cancelling_an_unknown_job_returns_none(self, store_user: StoreUser) -> None:
        assert await store_user.storage.cancel("nobody") is None

    # --------------------------------------------------------------------------------------- retrying

    async def test_a_failed_job_can_be_retried_with_all_its_tries(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        await store_user.add(expires_in=60, priority=2)
        job = await store_user.take_one()
        await store_user.fail(job)
        clock.advance(100)
        assert await store_user.storage.retry(job.id) is JobState.FAILED
        record = await store_user.record(job.id)
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
        assert (record.run_at, record.delayed, record.expires_at) == (clock.now(), False, None)
        assert (record.finished_at, record.result, record.error) == (None, None, BOOM)
        assert await store_user.counts() == QueueCounts("default", 1, 0, 0, 0, 0)
        again = await store_user.take_one()
        assert (again.id, again.attempt, again.fence) == (job.id, 1, 2)

    async def test_a_cancelled_job_can_be_retried(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        for buckets in ((), (("api", "acme"),)):
            (id,) = await store_user.add(buckets=buckets)
            await store_user.storage.cancel(id)
            assert await store_user.storage.retry(id) is JobState.CANCELLED
            assert await store_user.take_ids() == [id]
            assert not (await store_user.record(id)).cancel_requested

    @pytest.mark.parametrize(
        "reason", ["headgate.Cancel", EXPIRED_ERROR.type, REJECTED, LEADER_NOT_SUCCEEDED, SUPERSEDED]
    )
    @pytest.mark.parametrize("is_blocked", [False, True])
    async def test_a_retried_job_does_not_keep_the_reason_for_which_it_had_ended(
        self, store_user: StoreUser, reason: str, is_blocked: bool
    ) -> None:
        """The fault: if a user cancelled it afterwards, the reason was still that of its first end."""
        leader = await store_user.add_one()
        origin = Origin(follows=leader, on="final")
        new = replace(store_user.new(), origin=origin) if is_blocked else store_user.new()
        await store_user.storage.add([new])
        jobs = {job.id: job for job in await store_user.take()}
        if is_blocked:
            await store_user.succeed(jobs[leader])
            jobs[new.id] = await store_user.take_one()
        job = jobs[new.id]
        ending = Finished(job.id, job.fence, JobState.CANCELLED, error=JobError(type=reason, message="withdrawn"))
        await store_user.storage.finish(store_user.node, [ending])
        await store_user.storage.retry(job.id)
        assert (await store_user.record(job.id)).error is None
        await store_user.storage.cancel(job.id)
        record = await store_user.record(job.id)
        assert (record.state, record.error) == (JobState.CANCELLED, None)

    async def test_a_job_cancelled_while_running_is_not_cancelled_again_after_a_retry(
        self, store_user: StoreUser
    ) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.storage.cancel(job.id)
        await store_user.storage.finish(store_user.node, [Finished(job.id, job.fence, JobState.CANCELLED)])
        await store_user.storage.retry(job.id)
        again = await store_user.take_one()
        assert (await store_user.storage.beat(store_user.node)).cancels == frozenset()
        await store_user.give_back(again)
        assert (await store_user.record(job.id)).state is JobState.WAITING

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_retried_job_is_claimed_once_however_often_it_was_cancelled(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(3, buckets=buckets)
        for _ in range(3):
            clock.advance(1)
            await store_user.storage.cancel(ids[1])
            await store_user.storage.retry(ids[1])
        assert await store_user.take_ids() == [ids[0], ids[2], ids[1]]
        assert await store_user.take_ids() == []

    async def test_a_retried_job_waits_for_its_limits_like_any_other(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        job = await store_user.take_one()
        await store_user.fail(job)
        await store_user.storage.retry(job.id)
        assert await store_user.take() == []
        clock.advance(60)
        assert await store_user.take_ids() == [job.id]

    async def test_only_failed_and_cancelled_jobs_can_be_retried(self, store_user: StoreUser) -> None:
        (waiting,) = await store_user.add(queue="other")
        await store_user.add(2)
        running, done = await store_user.take()
        await store_user.succeed(done)
        for id in (waiting, running.id, done.id):
            before = await store_user.record(id)
            with pytest.raises(IllegalTransition):
                await store_user.storage.retry(id)
            assert await store_user.record(id) == before

    async def test_retrying_an_unknown_job_returns_none(self, store_user: StoreUser) -> None:
        assert await store_user.storage.retry("nobody") is None

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_jobs_retried_together_are_as_jobs_retried_alone(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(100)}
        ids = await store_user.add(4, buckets=buckets, expires_in=60, priority=2, patience=30, skips=True)
        await store_user.fail(*await store_user.take())
        clock.advance(100)
        assert await store_user.storage.retry(ids[0]) is JobState.FAILED
        assert await store_user.storage.retry_lone(ids) == ids[1:]
        alone, *together = [await store_user.record(id) for id in ids]
        assert [replace(record, id=alone.id) for record in together] == [alone] * 3
        assert (alone.state, alone.run_at) == (JobState.WAITING, clock.now())
        assert await store_user.counts() == QueueCounts("default", 4, 0, 0, 0, 0)
        assert sorted(await store_user.take_ids()) == ids

    async def test_only_final_jobs_that_concern_no_others_are_retried_together(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage = store_user.storage
        cancelled, waiting, leader, unused = [store_user.new() for _ in range(4)]
        batch = NewBatch(unused.id, 1, clock.now())
        member = replace(store_user.new(), origin=Origin(batch=batch.id))
        follower = replace(store_user.new(), origin=Origin(follows=leader.id))
        unique = replace(store_user.new(), unique_key="acme")
        (done,) = await store_user.add()
        await store_user.succeed(await store_user.take_one())
        (running,) = await store_user.add()
        await store_user.take_one()
        await storage.add([cancelled, waiting, leader, member, unique, follower], [batch])
        for job in (cancelled, leader, member, unique):
            await storage.cancel(job.id)
        others = [done, running, *(job.id for job in (waiting, leader, member, unique, follower))]
        before = await store_user.states(others)
        assert await storage.retry_lone([*others, cancelled.id, "nobody"]) == [cancelled.id]
        assert await store_user.states(others) == before
        assert (await store_user.record(cancelled.id)).state is JobState.WAITING
        assert await storage.retry_lone(others) == []

    # -------------------------------------------------------------------------------------- expiring

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_claim_fails_what_has_expired_and_takes_the_rest(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(2)}
        expired = await store_user.add(3, expires_in=5, buckets=buckets)
        alive = await store_user.add(2, expires_in=6, buckets=buckets)
        clock.advance(5)
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == alive
        assert [(job.id, job.task, job.queue) for job in claimed.dropped] == [(id, "work", "default") for id in expired]
        record = await store_user.record(expired[0])
        assert (record.state, record.error, record.finished_at) == (JobState.FAILED, EXPIRED_ERROR, clock.now())
        assert await store_user.counts() == QueueCounts("default", 0, 2, 0, 3, 0)

    async def test_a_job_that_ends_in_a_claim_which_reads_twice_is_reported_once(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        late = await store_user.add_one(queue="left", expires_in=5, buckets=(("api", "acme"),))
        # A page of lanes with nothing for this node makes a claim read again, without such lanes.
        await store_user.add_one(queue="right", task="unknown", buckets=(("api", "acme"),))
        clock.advance(5)
        claimed = await store_user.claim(1, queues=("left", "right"))
        assert [dropped.id for dropped in claimed.dropped] == [late]

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_an_expired_job_does_not_change_the_order_of_those_behind_it(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(expires_in=5, buckets=buckets)
        (first,) = await store_user.add(buckets=buckets)
        (later,) = await store_user.add(buckets=buckets, delay=1)
        clock.advance(10)
        assert await store_user.take_ids(1) == [first]
        assert await store_user.take_ids(1) == [later]

    @pytest.mark.parametrize("buckets", [(), (("api", "acme"),)], ids=["ungated", "gated"])
    async def test_a_claim_fails_at_most_a_hundred_expired_jobs_of_a_lane(
        self, store_user: StoreUser, clock: ManualClock, buckets: tuple[tuple[str, str], ...]
    ) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(250, expires_in=5, buckets=buckets)
        alive = await store_user.add(1, buckets=buckets)
        clock.advance(5)
        expired: list[str] = []
        taken: list[str] = []
        for _ in range(4):
            claimed = await store_user.claim(500)
            assert len(claimed.dropped) <= 100
            expired += [job.id for job in claimed.dropped]
            taken += [job.id for job in claimed.jobs]
            if not claimed.more:
                break
        assert len(set(expired)) == len(expired) == 250
        assert taken == alive

    async def test_expired_jobs_are_failed_in_bulk_without_a_claim(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (running,) = await store_user.add(expires_in=5)
        await store_user.take()
        ids = [
            *await store_user.add(3, expires_in=5),
            *await store_user.add(3, expires_in=5, buckets=[("api", "acme")]),
        ]
        (alive,) = await store_user.add(expires_in=6)
        assert list(await store_user.storage.expire()) == []
        assert not (await store_user.storage.node_update()).has_expired
        clock.advance(5)
        assert (await store_user.storage.node_update()).has_expired
        first = await store_user.storage.expire(count=4)
        rest = await store_user.storage.expire()
        assert (len(first), len(rest)) == (4, 2)
        assert sorted(job.id for job in (*first, *rest)) == sorted(ids)
        assert await store_user.states([running, alive]) == [JobState.RUNNING, JobState.WAITING]
        assert not (await store_user.storage.node_update()).has_expired
        assert list(await store_user.storage.expire()) == []
        assert await store_user.take_ids() == [alive]

    async def test_a_lane_whose_jobs_expired_leaves_its_bucket(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(2, expires_in=5, buckets=[("api", "acme")])
        await store_user.take()
        clock.advance(5)
        assert len(await store_user.storage.expire()) == 1
        (bucket,) = await store_user.storage.buckets()
        assert (bucket.waiting, bucket.opens_at) == (0, None)
        assert (await store_user.claim()).next_in is None

    async def test_a_job_that_waits_again_can_still_expire(self, store_user: StoreUser, clock: ManualClock) -> None:
        (id,) = await store_user.add(expires_in=5)
        job = await store_user.take_one()
        clock.advance(5)
        assert list(await store_user.storage.expire()) == []
        await store_user.give_back(job)
        assert [expired.id for expired in await store_user.storage.expire()] == [id]

    @pytest.mark.parametrize("by", ["claim", "expire"])
    async def test_a_job_that_ends_without_another_attempt_reports_the_attempts_it_had(
        self, store_user: StoreUser, clock: ManualClock, by: str
    ) -> None:
        await store_user.add(expires_in=5)
        job = await store_user.take_one()
        await store_user.storage.finish(store_user.node, [Returned(job.id, job.fence, "failed", spent=True)])
        clock.advance(5)
        dropped = await store_user.storage.expire() if by == "expire" else (await store_user.claim()).dropped
        assert [(each.id, each.attempt) for each in dropped] == [(job.id, 1)]

    async def test_a_final_job_does_not_expire(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(2, expires_in=5)
        done, cancelled = await store_user.take()
        await store_user.succeed(done)
        await store_user.give_back(cancelled)
        await store_user.storage.cancel(cancelled.id)
        clock.advance(5)
        assert list(await store_user.storage.expire()) == []
        assert await store_user.states([done.id, cancelled.id]) == [JobState.SUCCEEDED, JobState.CANCELLED]

    # ---------------------------------------------------------------------------- pruning and evicting

    async def test_only_old_final_jobs_are_pruned(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(5)
        jobs = await store_user.take(4)
        await store_user.succeed(jobs[0])
        await store_user.fail(jobs[1])
        clock.advance(10)
        await store_user.succeed(jobs[2])
        assert await store_user.storage.prune(clock.now()) == 2
        assert await store_user.storage.job(jobs[0].id) is None
        assert list(await store_user.storage.attempts(jobs[1].id)) == []
        assert await store_user.counts() == QueueCounts("default", 1, 1, 1, 0, 0)
        assert await store_user.storage.prune(clock.now()) == 0
        assert await store_user.storage.prune(clock.now() + 1) == 1

    async def test_pruning_goes_in_small_steps(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add(10)
        await store_user.succeed(*await store_user.take())
        clock.advance(1)
        assert [await store_user.storage.prune(clock.now(), count=4) for _ in range(4)] == [4, 4, 2, 0]
        assert list(await store_user.storage.jobs(JobFilter())) == []
        assert list(await store_user.storage.counts()) == []

    async def test_pruning_in_parts_deletes_what_pruning_at_once_does(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        storage, edges, running = store_user.storage, [0, clock.now()], []
        for number in range(4):
            own = replace(store_user.new(), id="monday", has_own_id=True, enqueued_by="here:1")
            empty = NewBatch(new_batch_id(store_user), 0, clock.now())
            await storage.add([store_user.new(), store_user.new(), *([own] if number == 1 else [])])
            await storage.add([], [empty])
            ended, late, *others = await store_user.take()
            running.append(late)
            await store_user.succeed(ended, *others)
            clock.advance(3600)
            edges.append(clock.now())
        # These end long after their enqueue.
        await store_user.succeed(*running)
        clock.advance(1)
        begin = edges[2] + 1000 * SECOND
        assert await storage.prune(clock.now(), since=begin, until=begin + 1000 * SECOND) == 0
        pruned = [
            count
            for since, until in pairwise([*edges, clock.now()])
            for _ in range(9)
            if (count := await storage.prune(clock.now(), count=2, since=since, until=until))
        ]
        assert sum(pruned) == 9 + 4
        assert not await storage.jobs(JobFilter())
        assert not await storage.batches()

    async def test_a_retried_job_is_not_pruned(self, store_user: StoreUser, clock: ManualClock) -> None:
        await store_user.add()
        job = await store_user.take_one()
        await store_user.fail(job)
        await store_user.storage.retry(job.id)
        clock.advance(10)
        assert await store_user.storage.prune(clock.now()) == 0
        await store_user.fail(await store_user.take_one())
        assert await store_user.storage.prune(clock.now()) == 0
        assert await store_user.storage.prune(clock.now() + 1) == 1

    async def test_pruning_a_job_leaves_the_pages_of_the_others_complete(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        ids = await store_user.add(6)
        for job in (await store_user.take())[:3]:
            await store_user.succeed(job)
        clock.advance(1)
        await store_user.storage.prune(clock.now())
        assert [record.id for record in await store_user.storage.jobs(JobFilter())] == ids[:2:-1]

    async def test_idle_buckets_and_empty_lanes_are_evicted(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.storage.add([store_user.new(buckets=[("api", str(number))]) for number in range(20)])
        await store_user.succeed(*await store_user.take())
        await store_user.storage.evict()
        assert len(await store_user.storage.buckets()) == 20
        clock.advance(60)
        for _ in range(10):
            await store_user.storage.evict()
        assert list(await store_user.storage.buckets()) == []
        assert await store_user.storage.evict() == 0

    async def test_evicting_goes_in_small_steps(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.storage.add([store_user.new(buckets=[("api", str(number))]) for number in range(20)])
        await store_user.succeed(*await store_user.take())
        clock.advance(60)
        while forgotten := await store_user.storage.evict(count=3):
            # At most that many lanes, and that many buckets.
            assert forgotten <= 6
        assert list(await store_user.storage.buckets()) == []

    async def test_a_bucket_in_use_is_not_evicted(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1), "refused": strict(100)}
        await store_user.add(3, buckets=[("api", "waiting")])
        await store_user.add(buckets=[("refused", "closed")])
        jobs = await store_user.take()
        for job in jobs:
            if (await store_user.record(job.id)).buckets[0].limit == "refused":
                await store_user.give_back(job, "refused", closed_for=3600 * SECOND)
                await store_user.storage.cancel(job.id)
            else:
                await store_user.succeed(job)
        clock.advance(600)
        for _ in range(5):
            await store_user.storage.evict()
        await store_user.add(buckets=[("refused", "closed")])
        assert len(await store_user.take()) == 1
        assert {bucket.ref.limit for bucket in await store_user.storage.buckets()} == {"api", "refused"}

    async def test_a_bucket_that_is_used_again_is_not_evicted(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1), "own": strict(100)}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.succeed(*await store_user.take())
        # The empty lane goes, the bucket stays: it is not idle yet. Then both are needed again.
        await store_user.storage.evict()
        ids = await store_user.add(1, buckets=[("api", "acme")])
        clock.advance(60)
        for _ in range(3):
            await store_user.storage.evict()
        ids += await store_user.add(1, buckets=[("api", "acme"), ("own", "")])
        assert len(await store_user.take()) == 1
        clock.advance(60)
        assert len(await store_user.take()) == 1
        assert (await store_user.counts()).running == len(ids)

    async def test_eviction_changes_nothing_for_a_strict_rate(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(3, per=10)}
        starts: list[int] = []
        for second in range(100):
            if second % 7 < 5:
                await store_user.add(buckets=[("api", "acme")])
            jobs = await store_user.take()
            starts += [store_user.storage.limit_now()] * len(jobs)
            await store_user.succeed(*jobs)
            await store_user.storage.evict()
            clock.advance(1)
        assert most_in_a_window(starts, 10 * SECOND) == 3
        assert len(starts) >= 29

    async def test_eviction_changes_nothing_for_a_rate_that_starts_empty(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": RateLimit(5, per=10, start_empty=True).rule}
        await store_user.add(buckets=[("api", "acme")])
        await store_user.succeed(*await store_user.take())
        # It has saved up its burst by now, which a forgotten bucket would not have.
        clock.advance(3600)
        for _ in range(5):
            await store_user.storage.evict()
        await store_user.add(10, buckets=[("api", "acme")])
        assert len(await store_user.take()) == 5

    async def test_a_lane_of_running_jobs_survives_evicting(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=[("api", "acme")])
        job = await store_user.take_one()
        clock.advance(3600)
        for _ in range(5):
            await store_user.storage.evict()
        await store_user.give_back(job)
        assert await store_user.take_ids() == [job.id]
