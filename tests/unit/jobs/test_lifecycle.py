"""Lifecycle: what an attempt's outcome makes of its job."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.job import BucketRef, ClaimedJob, JobError, JobState
from headgate.jobs.lifecycle import (
    FOLLOWS,
    POISONOUS_AFTER,
    UNREADABLE_DELAY,
    UNREADABLE_TRIES,
    CalleeRateLimited,
    Cancelled,
    Ending,
    Failed,
    FailedFinally,
    Finished,
    Interrupted,
    Outcome,
    RetryRequested,
    Returned,
    Snoozed,
    Succeeded,
    Unreadable,
    decide,
    is_poisonous,
    require_retriable,
)
from headgate.jobs.retry import RetryPolicy

NOON = 1_767_268_800 * SECOND
ERROR = JobError("ValueError", "no such page")
POLICY = RetryPolicy(retries=2, base=10, jitter=False)

JOB = ClaimedJob(
    id="job",
    task="sync_tenant",
    queue="default",
    payload="[]",
    attempt=1,
    fence=7,
    lost=0,
    enqueued_at=NOON,
    run_at=NOON,
    started_at=NOON,
    buckets=(BucketRef("api", "acme"),),
)


def ending(outcome: Outcome, attempt: int = 1, lost: int = 0) -> Ending:
    job = msgspec.structs.replace(JOB, attempt=attempt, lost=lost)
    return decide(job, outcome, POLICY, NOON, Random(0))


def test_success_finishes_the_job_with_its_result() -> None:
    assert ending(Succeeded("42")) == Finished("job", 7, JobState.SUCCEEDED, result="42")


def test_a_failure_sends_the_job_back_after_the_policys_delay() -> None:
    assert ending(Failed(ERROR)) == Returned("job", 7, "failed", spent=True, run_at=NOON + 10 * SECOND, error=ERROR)
    assert ending(Failed(ERROR), attempt=2) == Returned(
        "job", 7, "failed", spent=True, run_at=NOON + 20 * SECOND, error=ERROR
    )


def test_the_failure_after_the_last_retry_finishes_the_job() -> None:
    assert ending(Failed(ERROR), attempt=3) == Finished("job", 7, JobState.FAILED, error=ERROR)


def test_a_failure_that_is_not_retryable_finishes_the_job_immediately() -> None:
    assert ending(FailedFinally(ERROR)) == Finished("job", 7, JobState.FAILED, error=ERROR)


@pytest.mark.parametrize(("delay", "wait"), [(3 * SECOND, 3 * SECOND), (None, 10 * SECOND)])
def test_a_requested_retry_comes_after_its_delay_and_uses_up_a_retry(delay: int | None, wait: int) -> None:
    requested = RetryRequested(ERROR, delay)
    assert ending(requested) == Returned("job", 7, "failed", spent=True, run_at=NOON + wait, error=ERROR)
    assert ending(requested, attempt=3) == Finished("job", 7, JobState.FAILED, error=ERROR)


def test_attempts_lost_with_their_node_use_up_no_retry() -> None:
    assert ending(Failed(ERROR), attempt=4, lost=2) == Returned(
        "job", 7, "failed", spent=True, run_at=NOON + 20 * SECOND, error=ERROR
    )
    assert ending(Failed(ERROR), attempt=5, lost=2) == Finished("job", 7, JobState.FAILED, error=ERROR)


def test_an_unreadable_job_waits_for_a_deploy_that_can_read_it() -> None:
    for attempt in range(1, POLICY.retries + UNREADABLE_TRIES):
        assert ending(Unreadable(ERROR), attempt=attempt) == Returned(
            "job", 7, "unreadable", spent=True, run_at=NOON + UNREADABLE_DELAY, error=ERROR
        )


def test_an_unreadable_job_fails_in_the_end() -> None:
    last = POLICY.retries + UNREADABLE_TRIES
    assert ending(Unreadable(ERROR), attempt=last) == Finished("job", 7, JobState.FAILED, error=ERROR)


def test_a_snooze_puts_the_job_off_and_spends_nothing() -> None:
    assert ending(Snoozed(30 * SECOND)) == Returned("job", 7, "snoozed", spent=False, run_at=NOON + 30 * SECOND)


def test_a_refusal_by_the_callee_closes_the_buckets_and_spends_nothing() -> None:
    assert ending(CalleeRateLimited(30 * SECOND)) == Returned("job", 7, "refused", spent=False, closed_for=30 * SECOND)


def test_an_interrupted_job_goes_back_as_it_was() -> None:
    assert ending(Interrupted()) == Returned("job", 7, "interrupted", spent=False)


def test_a_cancelled_job_is_cancelled() -> None:
    assert ending(Cancelled()) == Finished("job", 7, JobState.CANCELLED)
    assert ending(Cancelled(ERROR)) == Finished("job", 7, JobState.CANCELLED, error=ERROR)


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded("1"),
        Failed(ERROR),
        FailedFinally(ERROR),
        RetryRequested(ERROR, 1),
        Unreadable(ERROR),
        Snoozed(1),
        CalleeRateLimited(1),
        Cancelled(),
        Interrupted(),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_an_ending_names_the_job_and_the_fence_it_was_decided_for(outcome: Outcome) -> None:
    end = ending(outcome)
    assert (end.id, end.fence) == ("job", 7)


def test_a_job_is_poisonous_after_three_lost_attempts() -> None:
    assert [is_poisonous(lost) for lost in range(5)] == [False, False, False, True, True]
    assert POISONOUS_AFTER == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (JobState.WAITING, JobState.RUNNING),
        (JobState.WAITING, JobState.CANCELLED),
        (JobState.WAITING, JobState.FAILED),
        (JobState.WAITING, JobState.SKIPPED),
        (JobState.RUNNING, JobState.WAITING),
        (JobState.RUNNING, JobState.SUCCEEDED),
        (JobState.FAILED, JobState.WAITING),
        (JobState.CANCELLED, JobState.WAITING),
    ],
)
def test_a_state_may_follow(before: JobState, after: JobState) -> None:
    assert after in FOLLOWS[before]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (JobState.WAITING, JobState.SUCCEEDED),
        (JobState.WAITING, JobState.WAITING),
        (JobState.RUNNING, JobState.RUNNING),
        (JobState.SUCCEEDED, JobState.WAITING),
        (JobState.SUCCEEDED, JobState.FAILED),
        (JobState.FAILED, JobState.RUNNING),
        (JobState.CANCELLED, JobState.SUCCEEDED),
        (JobState.SKIPPED, JobState.WAITING),
        (JobState.RUNNING, JobState.SKIPPED),
    ],
)
def test_a_state_may_not_follow(before: JobState, after: JobState) -> None:
    assert after not in FOLLOWS[before]


@pytest.mark.parametrize("state", JobState)
def test_only_what_has_failed_or_was_cancelled_can_be_retried(state: JobState) -> None:
    if state in (JobState.FAILED, JobState.CANCELLED):
        require_retriable("1", state)
        return
    with pytest.raises(IllegalTransition, match=f"^job 1 is {state}; only a failed or cancelled one can be retried$"):
        require_retriable("1", state)


def test_every_state_has_its_followers_and_a_final_one_only_waits_again() -> None:
    assert set(FOLLOWS) == set(JobState)
    for state, followers in FOLLOWS.items():
        if state.is_final:
            assert followers <= {JobState.WAITING}
