"""The lifecycle of a job: the outcomes of an attempt, and what becomes of its job.

                    claim                    Succeeded                    succeeded
    waiting ───────────────────▶ running ───────────────────────────────▶ failed
       ▲                            │         Failed, Cancelled           cancelled
       └────────────────────────────┘
         retry, snooze, return, recovery

A job that waits may also be failed (rejected, expired), cancelled, or skipped with what it follows.
`decide` is the one place that turns the outcome of an attempt into the ending of its job; the executor never writes. An
ending is written only if the job still runs with the same node and fence, so a late one has no effect.

A waiting job whose time or priority is changed stays in its lane, with its attempts, its unique key and its permits;
the lane keeps its place. A claim that begins after the change does not start the job before its new time; a claim that
read it before does not start it.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple, assert_never

import msgspec

from headgate.clock import SECOND
from headgate.errors import IllegalTransition
from headgate.jobs.job import BucketRef, ClaimedJob, JobError, JobState
from headgate.jobs.retry import RetryPolicy

FOLLOWS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.WAITING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED, JobState.SKIPPED}),
    JobState.RUNNING: frozenset({JobState.WAITING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.WAITING}),
    JobState.CANCELLED: frozenset({JobState.WAITING}),
    JobState.SKIPPED: frozenset(),
}
"""The states that may follow each state. Only an operator's retry leaves a final state.

Nothing leaves succeeded. So nothing leaves skipped either: the end that the job needs cannot come any more.
"""

POISONOUS_AFTER = 3
"""A job is failed when this many of its running attempts have ended with a dead node."""

UNREADABLE_TRIES = 5
"""How often an unreadable job is tried at least: by so many attempts more than it has retries, which may be used up."""

UNREADABLE_DELAY = 30 * SECOND


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is its value as JSON, or None if it is not kept."""

    result: str | None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised or timed out; its retry policy decides whether the job is tried again."""

    error: JobError


class FailedFinally(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed, and another one would not help."""

    error: JobError


class RetryRequested(msgspec.Struct, frozen=True, gc=False):
    """The handler requested a retry after `delay` microseconds; None: after that of the retry policy."""

    error: JobError
    delay: int | None


class Unreadable(msgspec.Struct, frozen=True):
    """The stored payload does not fit the task's signature; the handler was not called."""

    error: JobError


class Snoozed(msgspec.Struct, frozen=True):
    """The handler requested to run again after `delay` microseconds."""

    delay: int


class CalleeRateLimited(msgspec.Struct, frozen=True):
    """The callee reported that its own limit is reached; nothing may start on these buckets for `retry_after` µs."""

    retry_after: int


class Cancelled(msgspec.Struct, frozen=True):
    """A user cancelled the job while it ran, or its handler did; `error` is the reason of the handler."""

    error: JobError | None = None


class Interrupted(msgspec.Struct, frozen=True):
    """The node is shutting down, or never started the job; the job is returned unchanged."""


Outcome = (
    Succeeded
    | Failed
    | FailedFinally
    | RetryRequested
    | Unreadable
    | Snoozed
    | CalleeRateLimited
    | Cancelled
    | Interrupted
)


class Charge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The final charge of a start, if it differs from that of its claim.

    The start counts at `at` (limit time; None: it never happened and does not count), with `costs` (None: as claimed).
    """

    at: int | None
    costs: tuple[int, ...] | None = None


class Correction(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a start was charged in a bucket, and its `actual` cost: 0 if the attempt never began.

    `is_refused`: the callee refused the start.
    """

    ref: BucketRef
    cost: int
    actual: int
    is_refused: bool = False


class Finished(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The job is final. The store makes the `corrections` in the same commit, at the instant that it has charged."""

    id: str
    fence: int
    state: JobState
    result: str | None = None
    error: JobError | None = None
    charge: Charge | None = None
    corrections: tuple[Correction, ...] = ()


class Returned(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The job waits again in its lane.

    `run_at` (wall microseconds) delays it; None keeps its place. `spent`: whether the attempt counts. `closed_for`: its
    buckets stay closed for that many microseconds. `corrections` as in `Finished`: a start is given back when
    the job is in line again, before others of its key.
    """

    id: str
    fence: int
    outcome: str
    spent: bool
    run_at: int | None = None
    error: JobError | None = None
    closed_for: int | None = None
    charge: Charge | None = None
    corrections: tuple[Correction, ...] = ()


Ending = Finished | Returned


def require_retriable(job_id: str, state: JobState) -> None:
    """Raise IllegalTransition unless the job has failed or was cancelled."""
    if not state.is_final or JobState.WAITING not in FOLLOWS[state]:
        raise IllegalTransition(f"job {job_id} is {state}; only a failed or cancelled one can be retried")


def require_scheduled(job_id: str, state: JobState, *, is_ahead: bool, follows: str | None = None) -> None:
    """Raise IllegalTransition unless the job waits for its time; only such a job can be run now."""
    if state is not JobState.WAITING:
        raise IllegalTransition(f"job {job_id} is {state}; only a job that waits for its time can be run now")
    if follows is not None:
        raise IllegalTransition(f"job {job_id} is blocked: it waits until {follows} is final")
    if not is_ahead:
        raise IllegalTransition(
            f"job {job_id} does not wait for its time, which has come, but for a limit or a free slot; "
            f"run `headgate jobs explain {job_id}` to see which"
        )


def require_waiting(job_id: str, state: JobState) -> None:
    """Raise IllegalTransition unless the job waits; only then its time and priority can be changed."""
    if state is not JobState.WAITING:
        raise IllegalTransition(f"job {job_id} is {state}; only the time or priority of a waiting job can be changed")


def decide(
    job: ClaimedJob, outcome: Outcome, retry: RetryPolicy, now: int, random: Random, raised: BaseException | None = None
) -> Ending:
    """Return the ending of `job` for the outcome of its running attempt, at wall time `now`.

    `raised` is the exception of an attempt that failed; without it the filters of the policy do not apply. What the
    functions of the policy raise passes through.
    """
    # Attempts lost with a dead node count as attempts but use up no retry.
    failures = job.attempt - job.lost
    match outcome:
        case Succeeded():
            return succeeded(job, outcome)
        case Failed(error):
            is_retried = failures <= retry.retries and (raised is None or retry.accepts(raised))
            return _failed(job, error, now, retry.wait_after(failures, random, raised) if is_retried else None)
        case FailedFinally(error):
            return _failed(job, error, now, None)
        case RetryRequested(error, wait):
            if failures > retry.retries:
                return _failed(job, error, now, None)
            return _failed(job, error, now, retry.wait_after(failures, random, raised) if wait is None else wait)
        case Unreadable(error):
            if failures < retry.retries + UNREADABLE_TRIES:
                return Returned(job.id, job.fence, "unreadable", spent=True, run_at=now + UNREADABLE_DELAY, error=error)
            return Finished(job.id, job.fence, JobState.FAILED, error=error)
        case Snoozed(delay):
            return Returned(job.id, job.fence, "snoozed", spent=False, run_at=now + delay)
        case CalleeRateLimited(retry_after):
            return Returned(job.id, job.fence, "refused", spent=False, closed_for=retry_after)
        case Cancelled(reason):
            return Finished(job.id, job.fence, JobState.CANCELLED, error=reason)
        case Interrupted():
            return Returned(job.id, job.fence, "interrupted", spent=False)
        case _:
            assert_never(outcome)


def _failed(job: ClaimedJob, error: JobError, now: int, wait: int | None) -> Ending:
    """Return the ending of a failed attempt whose job is tried again after `wait` microseconds; None: it is not."""
    if wait is None:
        return Finished(job.id, job.fence, JobState.FAILED, error=error)
    return Returned(job.id, job.fence, "failed", spent=True, run_at=now + wait, error=error)


def succeeded(job: ClaimedJob, outcome: Succeeded) -> Finished:
    """Return the ending of a job whose attempt succeeded."""
    return Finished(job.id, job.fence, JobState.SUCCEEDED, result=outcome.result)


def is_poisonous(lost: int) -> bool:
    """Return whether a job that lost this many running attempts to dead nodes is failed instead of run again."""
    return lost >= POISONOUS_AFTER


CANCEL_REQUESTED = "its cancellation was already requested"


class Unchanged(Exception):
    """A verb would change nothing, because the job is as it should be; `reason` is why, for counts of refused jobs."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class NewTime(NamedTuple):
    """The new time of a job, whether it has to wait for it, and whether the time has changed."""

    run_at: int
    delayed: bool
    has_changed: bool


def new_time(run_at: int, requested: int | None, now: int, *, delayed: bool) -> NewTime:
    """Return the new time of a job that was ready at `run_at`; `requested` is the new time, or None for no change.

    A time in the past means at once; a job that is ready already keeps its place.
    """
    is_ahead = delayed and run_at > now
    if requested is None or (requested <= now and not is_ahead):
        return NewTime(run_at, delayed, has_changed=False)
    return NewTime(max(requested, now), requested > now, has_changed=True)
