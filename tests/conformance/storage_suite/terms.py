"""What is promised of jobs whose limits ask more of them: those that do not wait, or not long, and free retries.

And of what starts come to be charged: late ones, settled ones and refunds.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.job import BucketRef, JobError, JobState
from headgate.jobs.lifecycle import Charge, Correction, Finished, Returned
from headgate.limits.bucket_store import Bucket
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.endings import EXPIRED_ERROR
from headgate.storage.fetched import FetchedBalance, FetchedStarts
from headgate.storage.records import Amendment, Deposit, NeededFetch, QueueCounts, RecordedStart, StartMove
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import (
    BOOM,
    MINUTE,
    Conformance,
    StoreUser,
    at_once,
    most_in_a_window,
    rate,
    recover,
    shared,
    strict,
)

API = [("api", "acme")]
ACME = BucketRef("api", "acme")
GIVEN_BACK = (Correction(ACME, 1, 0),)
NOT_CHARGED = Charge(None)
REJECTED = "headgate.errors.LimitRejected"


class TermsConformance(Conformance):
    # ------------------------------------------------------------------------------------ not waiting

    async def test_a_job_that_is_not_to_wait_is_rejected_when_it_meets_a_closed_bucket(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(4, buckets=API, patience=0)
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == ids[:2]
        assert [(dropped.id, dropped.state) for dropped in claimed.dropped] == [(id, JobState.FAILED) for id in ids[2:]]
        assert list(claimed.throttled) == []
        record = await store_user.record(ids[2])
        assert (record.state, record.finished_at, record.attempt) == (JobState.FAILED, clock.now(), 0)
        assert record.error is not None
        assert record.error.type == REJECTED
        assert record.error.data == {
            "limit": "api",
            "key": "acme",
            "opens_at": clock.now() + MINUTE,
            "option": "on_limit",
        }
        assert claimed.dropped[0].error == record.error
        assert (await store_user.claim()).next_in is None
        assert await store_user.counts() == QueueCounts("default", 0, 2, 0, 2, 0)

    async def test_a_rejected_retry_reports_the_attempts_it_had(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        (id,) = await store_user.add(buckets=API, patience=0)
        job = await store_user.take_one()
        await store_user.storage.finish(store_user.node, [Returned(job.id, job.fence, "failed", spent=True)])
        claimed = await store_user.claim()
        assert [(dropped.id, dropped.attempt) for dropped in claimed.dropped] == [(id, 1)]

    async def test_a_rejected_job_can_be_cancelled_instead_of_failed(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        ids = await store_user.add(2, buckets=[("mutex", "")], patience=0, cancels=True)
        claimed = await store_user.claim()
        assert [(dropped.id, dropped.state) for dropped in claimed.dropped] == [(ids[1], JobState.CANCELLED)]
        error = (await store_user.record(ids[1])).error
        assert error is not None
        assert error.data == {"limit": "mutex", "key": "", "opens_at": None, "option": "on_limit"}
        assert await store_user.states(ids) == [JobState.RUNNING, JobState.CANCELLED]

    @pytest.mark.parametrize(
        ("outcome", "spent", "state"),
        [
            ("snoozed", False, JobState.CANCELLED),
            ("refused", False, JobState.CANCELLED),
            ("failed", True, JobState.FAILED),
        ],
    )
    async def test_a_rejected_occurrence_is_cancelled_only_if_it_never_spent_an_attempt(
        self, store_user: StoreUser, outcome: str, spent: bool, state: JobState
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (ran, never) = await store_user.add(2, buckets=API, patience=0, skips=True)
        claimed = await store_user.claim()
        (job,) = claimed.jobs
        assert [(each.id, each.state) for each in claimed.dropped] == [(never, JobState.CANCELLED)]
        await store_user.give_back(job, outcome, spent=spent)
        dropped = (await store_user.claim()).dropped
        assert [(each.id, each.state, each.attempt) for each in dropped] == [(ran, state, int(spent))]
        assert (await store_user.record(ran)).error == dropped[0].error
        assert dropped[0].error.type == REJECTED

    @pytest.mark.parametrize("by_claim", [False, True], ids=["by expire", "by a claim"])
    @pytest.mark.parametrize("spent", [False, True])
    async def test_an_occurrence_that_has_waited_too_long_is_cancelled_only_if_it_never_spent_an_attempt(
        self, store_user: StoreUser, clock: ManualClock, by_claim: bool, spent: bool
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (id,) = await store_user.add(buckets=API, patience=30, skips=True)
        job = await store_user.take_one()
        await store_user.give_back(job, "failed", spent=spent)
        assert await store_user.take() == []
        clock.advance(60 if by_claim else 30)
        dropped = (await store_user.claim()).dropped if by_claim else await store_user.storage.expire()
        state = JobState.FAILED if spent else JobState.CANCELLED
        assert [(each.id, each.state) for each in dropped] == [(id, state)]
        assert dropped[0].error.type == REJECTED

    async def test_an_occurrence_that_was_lost_with_its_node_is_not_skipped(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.storage.join(store_user.node, "a")
        (id,) = await store_user.add(buckets=API, patience=0, skips=True)
        await store_user.take_one()
        await recover(store_user)
        dropped = (await store_user.claim(node="node-b")).dropped
        assert [(each.id, each.state, each.attempt) for each in dropped] == [(id, JobState.FAILED, 1)]

    @pytest.mark.parametrize("spent", [False, True])
    async def test_an_expired_occurrence_is_cancelled_only_if_it_never_spent_an_attempt(
        self, store_user: StoreUser, clock: ManualClock, spent: bool
    ) -> None:
        (id,) = await store_user.add(expires_in=10, skips=True)
        job = await store_user.take_one()
        await store_user.give_back(job, "failed", spent=spent, run_at=clock.now() + 20 * SECOND)
        clock.advance(10)
        state = JobState.FAILED if spent else JobState.CANCELLED
        assert [(each.id, each.state) for each in await store_user.storage.expire()] == [(id, state)]

    async def test_an_occurrence_that_ran_is_not_skipped_after_an_operator_has_retried_it(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (ran,) = await store_user.add(buckets=API, patience=0, skips=True)
        await store_user.fail(await store_user.take_one())
        (skipped,) = await store_user.add(buckets=API, patience=0, skips=True)
        assert await store_user.take() == []
        for id in (ran, skipped):
            await store_user.storage.retry(id)
        assert await store_user.take() == []
        assert await store_user.states([ran, skipped]) == [JobState.FAILED, JobState.CANCELLED]

    async def test_a_whole_backlog_of_jobs_that_do_not_wait_is_rejected(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(3)}
        ids = await store_user.add(300, buckets=API, patience=0)
        assert await store_user.take_ids() == ids[:3]
        assert await store_user.counts() == QueueCounts("default", 0, 3, 0, 297, 0)

    async def test_a_job_that_does_not_wait_is_rejected_only_for_its_own_cost(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(10)}
        costs = (8, 5, 1, 3, 1, 1)
        ids = [await store_user.add_one(buckets=API, costs=(cost,), patience=0) for cost in costs]
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == [ids[0], ids[2], ids[4]]
        assert [dropped.id for dropped in claimed.dropped] == [ids[1], ids[3], ids[5]]
        assert await store_user.counts() == QueueCounts("default", 0, 3, 0, 3, 0)
        assert list(await store_user.storage.check()) == []

    @pytest.mark.parametrize("count", [0, 1, 2])
    async def test_a_job_that_does_not_wait_waits_for_the_answer_of_another_store(
        self, store_user: StoreUser, count: int
    ) -> None:
        rule = FetchedStarts(strict(10))
        store_user.rules = {"api": rule}
        ids = await store_user.add(2, buckets=API, patience=0)
        claimed = await store_user.claim()
        assert (list(claimed.jobs), list(claimed.dropped)) == ([], [])
        assert [*claimed.needed_fetches] == [NeededFetch(ACME, rule, 1, 2, discards=True)]
        now = store_user.storage.limit_now()
        balance = FetchedBalance(count, now, now, now + MINUTE, rule.real.describe())
        await store_user.storage.deposit([Deposit(ACME, balance, MINUTE, discards=True)])
        claimed = await store_user.claim()
        assert [job.id for job in claimed.jobs] == ids[:count]
        assert [dropped.id for dropped in claimed.dropped] == ids[count:]
        assert list(await store_user.storage.check()) == []

    async def test_the_larger_of_two_deposits_stays_and_the_other_is_returned(self, store_user: StoreUser) -> None:
        """The fault: the later one always replaced the earlier one, even if it had nothing."""
        rule = FetchedStarts(strict(10))
        store_user.rules = {"api": rule}
        await store_user.add(2, buckets=API)
        await store_user.claim()
        now = store_user.storage.limit_now()
        first = FetchedBalance(5, now, now, now + MINUTE, rule.real.describe())
        (nothing,) = await store_user.storage.deposit([Deposit(ACME, first, MINUTE)])
        assert (nothing.left, nothing.charged_at) == (0, 0)
        assert len(await store_user.take_ids()) == 2
        none, fewer, more = (
            FetchedBalance(count, now, now + count if count else 0, now + MINUTE, rule.real.describe())
            for count in (0, 2, 4)
        )
        for deposited, returned in ((none, none), (fewer, fewer), (more, first)):
            (back,) = await store_user.storage.deposit([Deposit(ACME, deposited, MINUTE)])
            assert (back.left, back.charged_at) == (3 if returned is first else returned.left, returned.charged_at)
        assert await store_user.storage.withdraw([Deposit(ACME, fewer, MINUTE)]) == [0]
        assert await store_user.storage.withdraw([Deposit(ACME, first, MINUTE)]) == [0]
        assert list(await store_user.storage.check()) == []

    async def test_a_claim_in_two_parts_uses_no_slot_that_the_first_part_has_kept(self, store_user: StoreUser) -> None:
        """The fault: on PostgreSQL, the part that reads again gave it to another lane."""
        store_user.rules = {"api": FetchedStarts(strict(10)), "own": strict(1000)}
        for key in "ab":
            await store_user.add(4, buckets=[("own", key)])
        await store_user.add(2, buckets=API)
        for number in range(80):
            await store_user.add(4, buckets=[("own", f"k{number}")])
        assert len((await store_user.claim(8)).jobs) == 8
        claimed = await store_user.claim(4, keeps_for={"api"})
        assert (len(claimed.jobs), claimed.keeping) == (3, {"default": "api"})

    async def test_watchers_are_woken_by_a_rejection(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(2, buckets=API, patience=0)
        woken: list[bool] = []
        unwatch = store_user.storage.watch(lambda: woken.append(True))
        claimed = await store_user.claim()
        assert len(claimed.dropped) == 1
        assert woken
        unwatch()

    async def test_jobs_that_wait_and_jobs_that_do_not_share_their_budget(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (first,) = await store_user.add(buckets=API)
        assert await store_user.take_ids() == [first]
        patient = await store_user.add(2, buckets=API)
        (rejected,) = await store_user.add(buckets=API, patience=0)
        assert await store_user.take() == []
        assert (await store_user.record(rejected)).state is JobState.FAILED
        assert (await store_user.record(patient[0])).throttled_until == clock.now() + MINUTE
        clock.advance(60)
        (late,) = await store_user.add(buckets=API, patience=0)
        assert await store_user.take_ids() == patient[:1]
        assert (await store_user.record(late)).state is JobState.FAILED

    async def test_a_job_rejected_by_one_limit_is_charged_for_none(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(2), "mutex": at_once()}
        both = [*API, ("mutex", "")]
        (holder,) = await store_user.add(buckets=both, patience=0)
        await store_user.add(3, buckets=both, patience=0)
        assert await store_user.take_ids() == [holder]
        alone = await store_user.add(2, buckets=API)
        assert await store_user.take_ids() == alone[:1]
        assert await store_user.permits("mutex") == {holder: 1}

    async def test_a_rejected_retry_returns_its_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "mutex": at_once()}
        (id,) = await store_user.add(buckets=[*API, ("mutex", "")], patience=0, hold="until_final")
        (waiting,) = await store_user.add(buckets=[("mutex", "")])
        await store_user.retry_later(await store_user.take_one(), 0)
        assert await store_user.take_ids() == [waiting]
        assert await store_user.states([id]) == [JobState.FAILED]

    async def test_a_paused_limit_rejects_jobs_that_do_not_wait(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.pause("api")
        (id,) = await store_user.add(buckets=API, patience=0)
        claimed = await store_user.claim()
        assert [dropped.id for dropped in claimed.dropped] == [id]
        assert claimed.next_in is None

    async def test_a_delayed_job_that_does_not_wait_is_rejected_at_its_time(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (first, second) = [await store_user.add_one(buckets=API, patience=0, delay=delay) for delay in (0, 30)]
        assert await store_user.take_ids() == [first]
        assert (await store_user.record(second)).state is JobState.WAITING
        assert (await store_user.claim()).next_in == 30 * SECOND
        clock.advance(30)
        assert await store_user.take() == []
        assert (await store_user.record(second)).state is JobState.FAILED

    async def test_a_rejected_job_can_be_retried(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(2, buckets=API, patience=0)
        await store_user.take()
        clock.advance(60)
        await store_user.storage.retry(ids[1])
        assert await store_user.take_ids() == [ids[1]]

    # --------------------------------------------------------------------------- not waiting for long

    @pytest.mark.parametrize("by_claim", [False, True], ids=["by expire", "by a claim"])
    @pytest.mark.parametrize("cancels", [False, True])
    async def test_a_job_that_has_waited_too_long_is_rejected(
        self, store_user: StoreUser, clock: ManualClock, by_claim: bool, cancels: bool
    ) -> None:
        store_user.rules = {"api": strict(1)}
        (running,) = await store_user.add(buckets=API, patience=30)
        assert await store_user.take_ids() == [running]
        (late,) = await store_user.add(buckets=API, patience=30, cancels=cancels)
        (patient,) = await store_user.add(buckets=API, patience=90)
        assert await store_user.take() == []
        clock.advance(29.999999)
        assert not (await store_user.storage.node_update()).has_expired
        assert list(await store_user.storage.expire()) == []
        clock.advance(31 if by_claim else 0.000001)
        state = JobState.CANCELLED if cancels else JobState.FAILED
        if by_claim:
            claimed = await store_user.claim()
            dropped = claimed.dropped
            assert [job.id for job in claimed.jobs] == [patient]
        else:
            assert (await store_user.storage.node_update()).has_expired
            dropped = await store_user.storage.expire()
        assert [(job.id, job.task, job.queue, job.state) for job in dropped] == [(late, "work", "default", state)]
        record = await store_user.record(late)
        assert (record.state, record.error) == (state, dropped[0].error)
        assert record.error is not None
        assert record.error.type == REJECTED
        if not by_claim:
            assert record.error.data == {"limit": "api", "key": "acme", "opens_at": None, "option": "max_wait"}
        assert (await store_user.record(running)).state is JobState.RUNNING

    async def test_the_earlier_of_two_deadlines_decides_the_error(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API)
        await store_user.take()
        (expired,) = await store_user.add(buckets=API, patience=20, expires_in=10)
        (rejected,) = await store_user.add(buckets=API, patience=10, expires_in=20)
        clock.advance(10)
        assert {dropped.id for dropped in await store_user.storage.expire()} == {expired, rejected}
        assert (await store_user.record(expired)).error == EXPIRED_ERROR
        error = (await store_user.record(rejected)).error
        assert error is not None
        assert error.type == REJECTED

    async def test_max_wait_begins_again_with_each_wait(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1, per=600)}
        await store_user.add(buckets=API, patience=30)
        job = await store_user.take_one()
        clock.advance(100)
        assert list(await store_user.storage.expire()) == []
        # Ready after another 50 s, and patient for 30 s from then on.
        await store_user.retry_later(job, 50)
        clock.advance(79.999999)
        assert await store_user.take() == []
        assert list(await store_user.storage.expire()) == []
        clock.advance(0.000001)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [job.id]
        await store_user.storage.retry(job.id)
        clock.advance(29)
        assert list(await store_user.storage.expire()) == []
        clock.advance(1)
        assert [dropped.id for dropped in await store_user.storage.expire()] == [job.id]

    # ------------------------------------------------------------------------------ rejected at once

    @pytest.mark.parametrize("cancels", [False, True])
    async def test_a_job_may_be_stored_as_rejected(
        self, store_user: StoreUser, clock: ManualClock, cancels: bool
    ) -> None:
        store_user.rules = {"api": strict(1)}
        rejection = JobError(type=REJECTED, message="would wait too long", data={"limit": "api"})
        (rejected,) = await store_user.add(buckets=API, patience=30, cancels=cancels, rejection=rejection, expires_in=5)
        (accepted,) = await store_user.add(buckets=API, patience=30, cancels=cancels)
        record = await store_user.record(rejected)
        state = JobState.CANCELLED if cancels else JobState.FAILED
        assert (record.state, record.error, record.finished_at) == (state, rejection, record.enqueued_at)
        assert (await store_user.record(accepted)).lane_waiting == 1
        assert [record.id for record in await store_user.storage.final([rejected, accepted])] == [rejected]
        assert await store_user.counts() == QueueCounts("default", 1, 0, 0, int(not cancels), int(cancels))
        assert await store_user.unrun() == (int(not cancels), int(cancels))
        clock.advance(60)
        assert await store_user.take_ids() == []
        assert [dropped.id for dropped in await store_user.storage.expire()] == []
        assert await store_user.storage.prune(clock.now(), count=1) == 1
        assert await store_user.storage.job(rejected) is None

    async def test_a_job_stored_as_rejected_can_be_retried(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        (id,) = await store_user.add(buckets=API, patience=30, rejection=BOOM)
        assert await store_user.take_ids() == []
        await store_user.storage.retry(id)
        assert await store_user.take_ids() == [id]

    # ----------------------------------------------------------------------------------- free retries

    async def test_a_free_retry_is_exempt_from_rates_and_waits_for_permits(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1), "mutex": at_once()}
        both = [*API, ("mutex", "")]
        await store_user.add(buckets=both, free_retries=0b01)
        job = await store_user.take_one()
        await store_user.retry_later(job, 5)
        (other,) = await store_user.add(buckets=[("mutex", "")])
        assert await store_user.take_ids() == [other]
        clock.advance(5)
        assert await store_user.take() == []
        assert (await store_user.record(job.id)).waits_for == BucketRef("mutex", "")
        await store_user.storage.finish(store_user.node, [Finished(other, 1, JobState.SUCCEEDED)])
        again = await store_user.take_one()
        assert (again.id, again.buckets) == (job.id, (BucketRef("mutex", ""),))
        assert [start.started_at for start in await store_user.storage.starts("api", None, 0)] == [job.charged_at]

    @pytest.mark.parametrize("has_time", [False, True], ids=["handed back", "retried"])
    async def test_a_free_retry_has_the_same_max_wait_as_the_first_try(
        self, store_user: StoreUser, clock: ManualClock, has_time: bool
    ) -> None:
        """The fault: one store started what the others had given up on."""
        store_user.rules = {"api": strict(3)}
        await store_user.add(1, buckets=[("api", "acme")], free_retries=1, patience=30)
        job = await store_user.take_one()
        run_at = clock.now() + SECOND if has_time else None
        await store_user.give_back(job, "failed", spent=True, run_at=run_at, error=BOOM)
        clock.advance(40)
        claimed = await store_user.claim()
        assert [(dropped.id, dropped.error.type) for dropped in claimed.dropped] == [(job.id, REJECTED)]
        assert claimed.jobs == []

    async def test_costs_stay_with_their_limits_when_a_retry_is_free(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "tokens": strict(10)}
        await store_user.add(buckets=[*API, ("tokens", "")], costs=(1, 7), free_retries=0b01)
        await store_user.retry_later(await store_user.take_one(), 0)
        store_user.rules["tokens"] = strict(14)
        again = await store_user.take_one()
        assert (again.buckets, again.costs) == ((BucketRef("tokens", ""),), (7,))
        assert [start.cost for start in await store_user.storage.starts("tokens", None, 0)] == [7, 7]

    async def test_a_retry_that_is_free_of_a_limit_still_has_its_bucket(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1), "tokens": strict(10)}
        await store_user.add(buckets=[*API, ("tokens", "")], free_retries=0b01)
        first = await store_user.take_one()
        assert (len(first.buckets), first.uncharged) == (2, ())
        await store_user.retry_later(first, 0)
        again = await store_user.take_one()
        assert (again.buckets, again.uncharged) == ((BucketRef("tokens", ""),), (ACME,))
        assert (await store_user.record(again.id)).as_claimed().uncharged == (ACME,)

    async def test_a_retry_that_is_free_of_all_its_limits_is_charged_for_nothing(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API, free_retries=0b1)
        job = await store_user.take_one()
        for _ in range(3):
            await store_user.retry_later(job, 1)
            clock.advance(1)
            job = await store_user.take_one()
            assert (job.buckets, job.uncharged) == ((), (ACME,))
        await store_user.succeed(job)
        assert len(await store_user.storage.starts("api", "acme", 0)) == 1
        (other,) = await store_user.add(buckets=API)
        assert await store_user.take() == []
        clock.advance(57)
        assert await store_user.take_ids() == [other]

    async def test_only_a_failed_attempt_makes_the_next_one_free(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API, free_retries=0b1)
        await store_user.give_back(await store_user.take_one(), "snoozed", run_at=clock.now())
        assert await store_user.take() == []
        clock.advance(60)
        await store_user.give_back(await store_user.take_one())
        assert await store_user.take() == []
        clock.advance(60)
        await store_user.take_one()
        await recover(store_user)
        assert await store_user.take(node="node-b") == []

    async def test_a_free_retry_that_is_returned_stays_free(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API, free_retries=0b1)
        await store_user.retry_later(await store_user.take_one(), 0)
        await store_user.give_back(await store_user.take_one())
        assert len(await store_user.take()) == 1

    async def test_a_job_retried_by_an_operator_is_charged_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(buckets=API, free_retries=0b1)
        await store_user.retry_later(await store_user.take_one(), 0)
        job = await store_user.take_one()
        await store_user.fail(job)
        await store_user.storage.retry(job.id)
        assert await store_user.take() == []
        clock.advance(60)
        assert await store_user.take_ids() == [job.id]

    async def test_a_refused_free_retry_closes_its_limits_all_the_same(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(buckets=API, free_retries=0b1)
        await store_user.retry_later(await store_user.take_one(), 0)
        (other,) = await store_user.add(buckets=API)
        job = await store_user.take_one()
        await store_user.give_back(job, "refused", closed_for=30 * SECOND)
        taken = await store_user.take_ids()
        assert other not in taken
        clock.advance(30)
        assert other in await store_user.take_ids()

    # ---------------------------------------------------------------------------- what starts cost in the end

    async def test_a_refund_opens_the_bucket_for_its_lanes(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(3, buckets=API)
        job = await store_user.take_one()
        assert await store_user.take() == []
        await store_user.storage.amend([Amendment(ACME, job.charged_at, 1, job.charged_at, 0)], store_user.rules)
        assert await store_user.take_ids() == ids[1:2]
        assert await store_user.take() == []

    async def test_a_refund_wakes_watchers(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(2, buckets=API)
        job = await store_user.take_one()
        woken: list[bool] = []
        unwatch = store_user.storage.watch(lambda: woken.append(True))
        await store_user.storage.amend([Amendment(ACME, job.charged_at, 1, job.charged_at, 0)], store_user.rules)
        assert woken
        unwatch()

    async def test_a_late_start_is_moved_in_its_bucket_and_its_row_in_one_commit(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(2, buckets=API)
        job = await store_user.take_one()
        clock.advance(20)
        move = store_user.storage.move_starts
        start = StartMove(job.id, job.fence, [ACME], [1])
        # An attempt that the node no longer owns changes nothing.
        stale = StartMove(job.id, job.fence - 1, [ACME], [1])
        assert await move(store_user.node, [stale], store_user.rules) == {}
        assert await move("other", [start], store_user.rules) == {}
        assert await store_user.storage.starts("api", None, 0) == [RecordedStart("acme", job.charged_at, 1)]
        moved = await move(store_user.node, [start, stale], store_user.rules)
        at = job.charged_at + 20 * SECOND
        assert moved == {(job.id, job.fence): at}
        assert await store_user.storage.starts("api", None, 0) == [RecordedStart("acme", at, 1)]
        clock.advance(59)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == ids[1:]

    async def test_a_late_start_that_is_moved_again_counts_once_and_at_the_later_instant(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        """As after a lost reply: the store knows where it counts, whatever its node believes."""
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(4, buckets=API)
        first, _ = await store_user.take(2)
        start = StartMove(first.id, first.fence, [ACME], [1], 5 * SECOND)
        for _ in range(2):
            clock.advance(10)
            await store_user.storage.move_starts(store_user.node, [start], store_user.rules)
        clock.advance(40)
        # The other one has left the window; this one counts from 25 s on.
        assert await store_user.take_ids() == ids[2:3]
        clock.advance(24)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == ids[3:]

    async def test_a_late_start_is_not_moved_once_its_charge_may_have_made_room(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1)}
        await store_user.add(1, buckets=API)
        job = await store_user.take_one()
        clock.advance(60)
        start = StartMove(job.id, job.fence, [ACME], [1])
        assert await store_user.storage.move_starts(store_user.node, [start], store_user.rules) == {}
        assert await store_user.storage.starts("api", None, 0) == [RecordedStart("acme", job.charged_at, 1)]

    async def test_a_start_is_given_back_when_its_job_is_in_line_again(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(2, buckets=API)
        for _ in range(3):
            job = await store_user.take_one()
            assert job.id == ids[0]
            assert await store_user.take() == []
            back = Returned(job.id, job.fence, "interrupted", spent=False, charge=NOT_CHARGED, corrections=GIVEN_BACK)
            assert await store_user.finish(back) == [True]
            # As after a lost reply: it is not given back twice.
            assert await store_user.finish(back) == [False]
        assert await store_user.take_ids() == ids[:1]
        assert await store_user.take() == []

    async def test_a_moved_start_is_given_back_where_the_store_has_moved_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(4, buckets=API)
        first, second = await store_user.take(2)
        clock.advance(10)
        start = StartMove(first.id, first.fence, [ACME], [1])
        await store_user.storage.move_starts(store_user.node, [start], store_user.rules)
        # Its node does not know that, as the reply was lost.
        cancelled = Finished(first.id, first.fence, JobState.CANCELLED, charge=NOT_CHARGED, corrections=GIVEN_BACK)
        assert await store_user.finish(cancelled) == [True]
        assert await store_user.storage.starts("api", None, 0) == [RecordedStart("acme", second.charged_at, 1)]
        assert await store_user.take_ids() == ids[2:3]
        clock.advance(50)
        assert await store_user.take_ids() == ids[3:]

    async def test_the_ending_of_an_attempt_that_is_no_longer_owned_gives_nothing_back(
        self, store_user: StoreUser
    ) -> None:
        store_user.rules = {"api": strict(2)}
        await store_user.add(3, buckets=API)
        first, _ = await store_user.take(2)
        stale = Returned(first.id, first.fence - 1, "interrupted", spent=False, corrections=GIVEN_BACK)
        assert await store_user.finish(stale) == [False]
        assert list(
            await store_user.storage.finish("other", [replace(stale, fence=first.fence)], store_user.rules)
        ) == [False]
        assert await store_user.take() == []

    async def test_a_refused_start_is_given_back_and_its_bucket_stays_closed(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(2)}
        ids = await store_user.add(3, buckets=API)
        first, _ = await store_user.take(2)
        refused = Returned(
            first.id,
            first.fence,
            "refused",
            spent=False,
            closed_for=20 * SECOND,
            charge=NOT_CHARGED,
            corrections=(Correction(ACME, 1, 0, is_refused=True),),
        )
        assert await store_user.finish(refused) == [True]
        clock.advance(19)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == ids[:1]

    async def test_a_settled_cost_replaces_the_charged_one(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"tokens": strict(10)}
        buckets = [("tokens", "")]
        (big,) = await store_user.add(buckets=buckets, costs=(6,))
        job = await store_user.take_one()
        ids = [await store_user.add_one(buckets=buckets, costs=(cost,)) for cost in (5, 4, 1)]
        assert await store_user.take() == []
        tokens = BucketRef("tokens", "")
        await store_user.storage.amend([Amendment(tokens, job.charged_at, 6, job.charged_at, 2)], store_user.rules)
        assert await store_user.take_ids() == ids[:1]
        await store_user.storage.amend([Amendment(tokens, job.charged_at, 2, job.charged_at, 5)], store_user.rules)
        assert await store_user.take() == []
        clock.advance(60)
        assert await store_user.take_ids() == ids[1:]
        assert (await store_user.record(big)).state is JobState.RUNNING

    async def test_a_late_start_counts_when_it_began(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": strict(1)}
        ids = await store_user.add(2, buckets=API)
        job = await store_user.take_one()
        clock.advance(10)
        now = store_user.storage.limit_now()
        await store_user.storage.amend([Amendment(ACME, job.charged_at, 1, now, 1)], store_user.rules)
        clock.advance(59)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == ids[1:]

    async def test_amending_an_unknown_charge_changes_nothing(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(1)}
        now = store_user.storage.limit_now()
        unknown = Amendment(BucketRef("elsewhere", ""), now, 1, now, 0)
        unseen = Amendment(BucketRef("api", "nobody"), now, 1, now, 0)
        await store_user.storage.amend([unknown, unseen], store_user.rules)
        await store_user.storage.amend([], store_user.rules)
        await store_user.add(2, buckets=[("api", "nobody")])
        assert len(await store_user.take()) == 1

    @pytest.mark.parametrize("rule", [rate(100), rate(100, burst=200), strict(100), shared(100)])
    async def test_settling_has_the_same_effect_after_an_idle_bucket_was_evicted(
        self, store_user: StoreUser, clock: ManualClock, rule: AnyRule
    ) -> None:
        store_user.rules = {"kept": rule, "forgotten": rule}
        await store_user.add(1, buckets=[("kept", "acme"), ("forgotten", "acme")])
        at = (await store_user.take_one()).charged_at
        clock.advance(61)
        await store_user.storage.amend([Amendment(BucketRef("kept", "acme"), at, 1, at, 190)], store_user.rules)
        while await store_user.storage.evict():
            pass
        await store_user.storage.amend([Amendment(BucketRef("forgotten", "acme"), at, 1, at, 190)], store_user.rules)
        buckets = StoredBuckets(store_user.storage)
        kept = await buckets.snapshot(Bucket("kept", "acme", rule))
        assert await buckets.snapshot(Bucket("forgotten", "acme", rule)) == kept
        assert kept.used == (89 if rule.kind == "rate" else 0)

    async def test_a_settled_cost_of_an_evicted_bucket_delays_its_lanes(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": rate(60, burst=60)}
        await store_user.add(1, buckets=API)
        job = await store_user.take_one()
        clock.advance(2)
        while await store_user.storage.evict():
            pass
        await store_user.storage.amend([Amendment(ACME, job.charged_at, 1, job.charged_at, 120)], store_user.rules)
        (id,) = await store_user.add(1, buckets=API)
        assert await store_user.take() == []
        clock.advance(58)
        assert await store_user.take() == []
        clock.advance(1)
        assert await store_user.take_ids() == [id]

    async def test_refunding_a_start_returns_no_permit(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once()}
        await store_user.add(2, buckets=[("mutex", "")])
        job = await store_user.take_one()
        await store_user.storage.amend(
            [Amendment(job.buckets[0], job.charged_at, 1, job.charged_at, 0)], store_user.rules
        )
        assert await store_user.take() == []
        assert await store_user.permits("mutex") == {job.id: 1}

    # ----------------------------------------------------------------------------------- recorded starts

    async def test_starts_are_recorded_as_they_were_charged(self, store_user: StoreUser, clock: ManualClock) -> None:
        store_user.rules = {"api": rate(100), "tokens": strict(100)}
        for key, cost in (("acme", 3), ("globex", 5), ("acme", 2)):
            await store_user.add(buckets=[("api", key), ("tokens", "all")], costs=(1, cost))
            clock.advance(1)
        jobs = [await store_user.take_one() for _ in range(3)]
        await store_user.succeed(*jobs[:1])
        began = jobs[0].charged_at
        tokens = await store_user.storage.starts("tokens", None, 0)
        assert sorted((start.key, start.cost) for start in tokens) == [("all", 2), ("all", 3), ("all", 5)]
        acme = await store_user.storage.starts("api", "acme", 0)
        assert [(start.key, start.started_at, start.cost) for start in acme] == [("acme", began, 1)] * 2
        assert len(await store_user.storage.starts("api", None, began)) == 3
        assert list(await store_user.storage.starts("api", None, began + 1)) == []
        assert list(await store_user.storage.starts("elsewhere", None, 0)) == []

    async def test_the_recorded_starts_have_every_attempt_newest_first(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100)}
        await store_user.add(buckets=API)
        charged: list[int] = []
        for ending in ("retried", "snoozed", "lost", "left", "failed", "running"):
            job = await store_user.take_one()
            charged.append(job.charged_at)
            match ending:
                case "retried":
                    await store_user.retry_later(job, 0)
                case "snoozed":
                    await store_user.give_back(job, "snoozed", run_at=clock.now())
                case "lost":
                    await recover(store_user)
                    await store_user.storage.join(store_user.node, "a")
                case "left":
                    await store_user.storage.leave(store_user.node)
                    await store_user.storage.join(store_user.node, "a")
                case "failed":
                    await store_user.fail(job)
                    assert len(await store_user.storage.starts("api", "acme", 0)) == len(charged)
                    await store_user.storage.retry(job.id)
            clock.advance(1)
        starts = await store_user.storage.starts("api", "acme", 0)
        assert [start.started_at for start in starts] == charged[::-1]

    async def test_starts_come_in_pages_that_leave_none_out_and_repeat_none(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(1000), "other": strict(1000), 'a"],["p': strict(1000)}
        keys = ["acme", 'a"b\\c', "ü\n\t\x7f\u2028", "['x']", "acme"]
        for _ in range(3):
            for place, key in enumerate(keys):
                await store_user.add(buckets=[("other", "x"), ("api", key)], costs=(9, 1 + place))
            # One more is no start on this limit, however much it looks like one.
            await store_user.add(buckets=[('a"],["p', "acme"), ("other", "api")])
            taken = await store_user.take()
            assert len(taken) == 6
            await store_user.succeed(*taken[:4])
            clock.advance(1)
        for wanted, most in ((None, 15), ("acme", 6), ('a"b\\c', 3), ("ü\n\t\x7f\u2028", 3), ("b", 0)):
            every = list(await store_user.storage.starts("api", wanted, 0))
            assert len(every) == most
            assert {start.key for start in every} <= (set(keys) if wanted is None else {wanted})
            paged: list[RecordedStart] = []
            until, skip = NEVER, 0
            while page := await store_user.storage.starts("api", wanted, 0, until=until, skip=skip, count=2):
                assert len(page) <= 2
                paged += page
                until = page[-1].started_at
                skip = sum(start.started_at == until for start in paged)
            assert sorted(map(msgspec.structs.astuple, paged)) == sorted(map(msgspec.structs.astuple, every))
            assert [start.started_at for start in paged] == sorted((s.started_at for s in every), reverse=True)

    async def test_the_starts_of_a_limit_exclude_those_it_was_not_charged_for(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(100), "tokens": strict(100)}
        await store_user.add(2, buckets=[*API, ("tokens", "")], free_retries=0b01)
        for job in await store_user.take():
            await store_user.retry_later(job, 0)
        assert len(await store_user.take()) == 2
        (first,) = await store_user.storage.starts("api", None, 0, count=1)
        assert len(await store_user.storage.starts("api", None, 0)) == 2
        assert len(await store_user.storage.starts("tokens", None, 0, count=3)) == 3
        assert len(await store_user.storage.starts("api", None, 0, until=first.started_at, skip=2, count=5)) == 0

    async def test_an_ending_records_the_final_charge_of_its_start(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        store_user.rules = {"api": strict(100), "tokens": strict(100)}
        await store_user.add(4, buckets=[*API, ("tokens", "")], costs=(1, 10))
        late, settled, refunded, retried = await store_user.take()
        at = late.charged_at
        clock.advance(5)
        await store_user.storage.finish(
            store_user.node,
            [
                Finished(late.id, late.fence, JobState.SUCCEEDED, charge=Charge(at + SECOND)),
                Finished(settled.id, settled.fence, JobState.FAILED, error=BOOM, charge=Charge(at, (1, 25))),
                Returned(refunded.id, refunded.fence, "interrupted", spent=False, charge=Charge(None)),
                Returned(retried.id, retried.fence, "failed", spent=True, run_at=at + 60, charge=Charge(at, (0, 7))),
            ],
        )
        tokens = await store_user.storage.starts("tokens", None, 0)
        found = sorted((start.started_at - at, start.cost) for start in tokens)
        assert found == [(0, 7), (0, 25), (SECOND, 10)]
        calls = await store_user.storage.starts("api", None, 0)
        assert sorted((start.started_at - at, start.cost) for start in calls) == [(0, 0), (0, 1), (SECOND, 1)]

    async def test_a_settled_cost_is_recorded_of_the_bucket_it_was_for(self, store_user: StoreUser) -> None:
        store_user.rules = {"mutex": at_once(), "tokens": strict(100)}
        await store_user.add(buckets=[("mutex", ""), ("tokens", "")], costs=(1, 5), hold="until_final")
        await store_user.give_back(await store_user.take_one())
        job = await store_user.take_one()
        assert job.buckets == (BucketRef("tokens", ""),)
        charge = Charge(job.charged_at, (30,))
        await store_user.storage.finish(
            store_user.node, [Finished(job.id, job.fence, JobState.SUCCEEDED, charge=charge)]
        )
        starts = await store_user.storage.starts("tokens", "", 0)
        assert sorted(start.cost for start in starts) == [5, 30]

    async def test_the_recorded_starts_prove_that_a_limit_was_kept(self, store_user: StoreUser) -> None:
        store_user.rules = {"api": strict(7, per=10)}
        await store_user.add(100, buckets=API)
        await store_user.starts(100, step=0.7)
        starts = await store_user.storage.starts("api", "acme", 0)
        assert most_in_a_window([start.started_at for start in starts], 10 * SECOND) == 7
