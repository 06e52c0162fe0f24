"""How jobs end that do not run, and whether an attempt's outcome has already been written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.clock import SECOND, to_datetime
from headgate.errors import LimitInUse
from headgate.jobs.bucket_mask import BucketMask
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobError, JobState
from headgate.jobs.lifecycle import Ending, Finished
from headgate.jobs.terms import LimitTerms


def poison_error(lost: int) -> JobError:
    """Return the error of a job that has failed because too many of its attempts were lost with their nodes."""
    return JobError(
        type="PoisonousJob",
        message=f"{lost} attempts were lost with their nodes; the job does not run again until an operator retries it",
    )


EXPIRED_ERROR = JobError(type="headgate.errors.JobExpired", message="the job was not started by its expires_at")


REJECTED = "headgate.errors.LimitRejected"


def rejection_error(ref: BucketRef | None, opens_at: int | None, terms: LimitTerms | None) -> JobError:
    """Return the error of a job that waited for its limits longer than allowed; `opens_at` is wall time, if known."""
    waited_for = "its limits" if ref is None else f"key {ref.key!r} of limit {ref.limit!r}"
    until = "" if opens_at is None else f" until {to_datetime(opens_at):%Y-%m-%d %H:%M:%S} UTC"
    if terms is None or not terms.patience:
        option = "on_limit"
        said = f"{waited_for} had nothing left{until}, and on_limit does not let the job wait"
    else:
        option = "max_wait"
        kept = "kept" if opens_at is None else "would keep"
        said = f"{waited_for} {kept} the job waiting{until}, longer than its max_wait of {terms.max_wait / SECOND:g} s"
    data: dict[str, str | int | None] = {"opens_at": opens_at, "option": option}
    if ref is not None:
        data |= {"limit": ref.limit, "key": ref.key}
    return JobError(type=REJECTED, message=said, data=data)


def late_ending(
    now: int,
    expires_at: int | None,
    give_up_at: int | None,
    terms: LimitTerms | None,
    attempts: int,
    behind: BucketRef | None,
) -> tuple[JobState, JobError]:
    """Return how a job ends that has not started in time, at wall time `now`, after so many spent attempts.

    `behind` is its closed bucket.
    """
    if terms is None or give_up_at is None or (expires_at is not None and expires_at <= min(now, give_up_at)):
        return JobState.FAILED if terms is None else terms.expires_as(attempts), EXPIRED_ERROR
    return terms.rejected_as(attempts), rejection_error(behind, None, terms)


class DroppedRow(msgspec.Struct):
    """A waiting job that ends without running: its final state, its error, and which permits it keeps."""

    id: str
    lane: str
    state: JobState
    error: JobError
    kept: BucketMask


class EndedHere(msgspec.Struct, array_like=True):
    """The stored state of a job that ran on a node; `state` is as stored, so it may be "blocked"."""

    id: JobId
    fence: int
    state: str
    error: JobError | None
    cancel_requested: int
    is_complete: bool

    def is_by(self, ending: Ending) -> bool:
        """Whether this ending was written before and only its reply was lost.

        A job that became final by another way has another error; a cancellation by a user has none, and counts if one
        was requested. A job that its attempt had completed has succeeded, whatever this ending says.
        """
        if self.fence == ending.fence and self.is_complete and self.state == JobState.SUCCEEDED:
            return True
        if self.fence != ending.fence or not isinstance(ending, Finished) or ending.state != self.state:
            return False
        if ending.state is JobState.CANCELLED and ending.error is None:
            return bool(self.cancel_requested)
        return ending.error == self.error


LINES_AT_ONCE = 5000
"""How many log lines are deleted in one commit at most, so that other writes do not wait long for it."""


def prunable_at_once(lines: Sequence[int]) -> int:
    """Return how many of the jobs to prune go into one commit, given how many lines each has logged; at least 1."""
    total = 0
    for place, count in enumerate(lines):
        total += count
        if place and total > LINES_AT_ONCE:
            return place
    return len(lines)


def limit_in_use(limit: str, waiting: int, held: int) -> LimitInUse:
    """Return the error for removing a limit that jobs need."""
    return LimitInUse(
        f"limit {limit!r} cannot be removed while it is in use (waiting jobs: {waiting}, held permits: {held}); cancel "
        "the jobs or let them finish first"
    )
