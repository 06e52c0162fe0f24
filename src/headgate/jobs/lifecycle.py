"""What becomes of a job: the one place that turns an attempt's outcome into its ending.

                    claim                    Succeeded                    succeeded
    waiting ───────────────────▶ running ───────────────────────────────▶ failed
       ▲                            │         Failed, Cancelled           cancelled
       └────────────────────────────┘
         retry, snooze, hand back, recovery

An ending is written only where the job is still running under the same node and fence, so a late one changes nothing.
"""

from __future__ import annotations

from random import Random
from typing import Final, assert_never

import msgspec

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.job import ClaimedJob, JobError, JobState
from headgate.jobs.outcome import (
    CalleeRateLimited,
    Cancelled,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Succeeded,
    Unreadable,
)
from headgate.jobs.retry import RetryPolicy

FOLLOWS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.WAITING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.WAITING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.WAITING}),
    JobState.CANCELLED: frozenset({JobState.WAITING}),
}
"""Which state may follow which; a final state is left only by an operator's retry, and succeeded never."""

POISONOUS_AFTER = 3
"""A job is failed when this many of its running attempts were lost with their node."""

UNREADABLE_TRIES = 5
UNREADABLE_DELAY = 30 * SECOND


class Charge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a start came to be charged, where that differs from its claim.

    It counts as of `at` (limit time; None: it never began and counts as nothing), with those costs (None: as claimed).
    """

    at: int | None
    costs: tuple[int, ...] | None = None


class Finished(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The job is final."""

    id: str
    fence: int
    state: JobState
    result: str | None = None
    error: JobError | None = None
    charge: Charge | None = None

    @property
    def charged_at(self) -> int | None:
        """When its start counts (limit time), where that differs from its claim."""
        return None if self.charge is None else self.charge.at


class Returned(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The job waits again in its lane.

    With `run_at` (wall microseconds) it is delayed until then; None keeps the place it had. `spent` tells whether the
    attempt counts. `closed_for`: its buckets grant nothing for that many microseconds.
    """

    id: str
    fence: int
    outcome: str
    spent: bool
    run_at: int | None = None
    error: JobError | None = None
    closed_for: int | None = None
    charge: Charge | None = None


Ending = Finished | Returned


def require_retriable(job_id: str, state: JobState) -> None:
    """Raise IllegalTransition unless the job can be retried. A running one waits again by its outcome only."""
    if not state.is_final or JobState.WAITING not in FOLLOWS[state]:
        raise IllegalTransition(f"job {job_id} is {state}; only a failed or cancelled one can be retried")


def require_scheduled(job_id: str, state: JobState, *, is_ahead: bool, follows: str | None = None) -> None:
    """Raise IllegalTransition unless the job waits for its time, so that it can be told to run now."""
    if state is not JobState.WAITING:
        raise IllegalTransition(f"job {job_id} is {state}; only one that waits for its time can be told to run now")
    if follows is not None:
        raise IllegalTransition(f"job {job_id} is blocked: it follows {follows}, and waits until that is final")
    if not is_ahead:
        raise IllegalTransition(
            f"job {job_id} does not wait for its time: that has come, and what it waits for is a limit or a free slot; "
            f"`headgate jobs explain {job_id}` tells which"
        )


def decide(job: ClaimedJob, outcome: Outcome, retry: RetryPolicy, now: int, random: Random) -> Ending:
    """What the outcome of `job`'s running attempt makes of it, at wall time `now`."""
    match outcome:
        case Succeeded():
            return succeeded(job, outcome)
        case Failed(error, retryable):
            # Attempts lost with a node are the node's fault: they are spent, but use up no retry.
            failures = job.attempt - job.lost
            wait = retry.wait_after(failures, random) if retryable and failures <= retry.retries else None
            if wait is not None:
                return Returned(job.id, job.fence, "failed", spent=True, run_at=now + wait, error=error)
            return Finished(job.id, job.fence, JobState.FAILED, error=error)
        case Unreadable(error):
            if job.attempt - job.lost < UNREADABLE_TRIES:
                return Returned(job.id, job.fence, "unreadable", spent=True, run_at=now + UNREADABLE_DELAY, error=error)
            return Finished(job.id, job.fence, JobState.FAILED, error=error)
        case Snoozed(delay):
            return Returned(job.id, job.fence, "snoozed", spent=False, run_at=now + delay)
        case CalleeRateLimited(retry_after):
            return Returned(job.id, job.fence, "refused", spent=False, closed_for=retry_after)
        case Cancelled():
            return Finished(job.id, job.fence, JobState.CANCELLED)
        case Interrupted():
            return Returned(job.id, job.fence, "interrupted", spent=False)
        case _:
            assert_never(outcome)


def succeeded(job: ClaimedJob, outcome: Succeeded) -> Finished:
    """The ending of a job whose attempt succeeded, which depends on nothing else."""
    return Finished(job.id, job.fence, JobState.SUCCEEDED, result=outcome.result)


def is_poisonous(lost: int) -> bool:
    """Whether a job that lost this many running attempts with their nodes is failed instead of run again."""
    return lost >= POISONOUS_AFTER
