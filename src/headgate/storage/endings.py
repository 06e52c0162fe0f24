"""What jobs end with that end without running, and whether an attempt has ended as it says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.clock import SECOND, to_datetime
from headgate.errors import LimitInUse
from headgate.jobs.draw_set import DrawSet
from headgate.jobs.job import Draw, JobError, JobState
from headgate.jobs.lifecycle import Ending, Finished
from headgate.jobs.terms import GateTerms


def poison_error(lost: int) -> JobError:
    """What a job is failed with that lost too many running attempts with their nodes."""
    return JobError(
        type="PoisonousJob",
        message=f"{lost} attempts ended with the death of their node; it is not run again until an operator retries it",
    )


EXPIRED_ERROR = JobError(type="headgate.errors.JobExpired", message="the job was not started by its expires_at")


REJECTED = "headgate.errors.LimitRejected"


def rejection_error(draw: Draw | None, opens_at: int | None, patience: int) -> JobError:
    """What a job ends with whose limits make it wait longer than its terms allow; `opens_at` is wall time, if known."""
    waited_for = "its limits" if draw is None else f"key {draw.key!r} of limit {draw.limit!r}"
    until = "" if opens_at is None else f" until {to_datetime(opens_at):%Y-%m-%d %H:%M:%S} UTC"
    if patience == 0:
        said = f"{waited_for} had nothing left{until}, and the job is not to wait"
    else:
        said = f"{waited_for} kept the job waiting{until} beyond its max_wait of {patience / SECOND:g} s"
    data: dict[str, str | int | None] = {"opens_at": opens_at}
    if draw is not None:
        data |= {"limit": draw.limit, "key": draw.key}
    return JobError(type=REJECTED, message=said, data=data)


def late_ending(
    now: int, expires_at: int | None, give_up_at: int | None, terms: GateTerms | None, behind: Draw | None
) -> tuple[JobState, JobError]:
    """What becomes of a waiting job whose time to start has passed, at wall time `now`; it waits behind that bucket."""
    if terms is None or give_up_at is None or (expires_at is not None and expires_at <= min(now, give_up_at)):
        return JobState.FAILED if terms is None else terms.expires_as, EXPIRED_ERROR
    return terms.rejected_as, rejection_error(behind, None, terms.patience or 0)


class DroppedRow(msgspec.Struct):
    """A waiting job that ends without having run: as what, and which permits it keeps."""

    id: str
    lane: str
    state: JobState
    error: JobError
    kept: DrawSet


class EndedHere(msgspec.Struct, array_like=True):
    """What has become of a job that ran under a node; `state` is as stored, so it may be "blocked"."""

    id: str
    fence: int
    state: str
    error: JobError | None
    cancel_requested: int

    def is_by(self, ending: Ending) -> bool:
        """Whether the same ending was written before, and only the reply to it was lost.

        What becomes final without an attempt's word has an error of its own; a cancellation counts if it was asked for.
        """
        if self.fence != ending.fence or not isinstance(ending, Finished) or ending.state != self.state:
            return False
        return bool(self.cancel_requested) if ending.state is JobState.CANCELLED else ending.error == self.error


LINES_AT_ONCE = 5000
"""So many log lines are deleted in one commit, so that nobody waits long for it."""


def prunable_at_once(lines: Sequence[int]) -> int:
    """How many of the jobs that are to be pruned go in one commit, by the lines that each has logged; at least one."""
    total = 0
    for place, count in enumerate(lines):
        total += count
        if place and total > LINES_AT_ONCE:
            return place
    return len(lines)


def limit_in_use(limit: str, waiting: int, held: int) -> LimitInUse:
    """The refusal to remove a limit that jobs need."""
    return LimitInUse(
        f"limit {limit!r} cannot be removed: {waiting} jobs wait for it and {held} of its permits are held; cancel the "
        "jobs or let them finish first"
    )
