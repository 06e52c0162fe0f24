"""How jobs end that do not run: late, rejected, or because of how the job ended that they follow."""

from __future__ import annotations

from typing import NamedTuple

from headgate.clock import SECOND, to_datetime
from headgate.errors import LeaderNotRetried
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobError, JobState, Origin
from headgate.jobs.terms import LimitTerms


def poison_error(lost: int) -> JobError:
    """Return the error of a job that has failed because too many of its attempts were lost with their nodes."""
    return JobError(
        type="PoisonousJob",
        message=f"{lost} attempts were lost with their nodes; the job does not run again until an operator retries it",
    )


EXPIRED_ERROR = JobError(type="headgate.errors.JobExpired", message="the job was not started by its expires_at")


REJECTED = "headgate.errors.LimitRejected"

LEADER_NOT_SUCCEEDED = "LeaderNotSucceeded"


def rejection_error(ref: BucketRef | None, opens_at: int | None, terms: LimitTerms | None) -> JobError:
    """Return the error of a job that waited for its limits longer than allowed; `opens_at` is wall time, if known."""
    whose = f"key {ref.key!r} of " if ref is not None and ref.key else ""
    waited_for = "its limits" if ref is None else f"{whose}limit {ref.limit!r}"
    until = "" if opens_at is None else f" until {to_datetime(opens_at):%Y-%m-%d %H:%M:%S} UTC"
    if terms is None or not terms.patience:
        option = "on_limit"
        said = f"{waited_for} had nothing left{until}, and on_limit does not let the job wait"
    else:
        option = "max_wait"
        kept = "kept" if opens_at is None else "would keep"
        said = f"{waited_for} {kept} the job waiting{until}, longer than its max_wait of {terms.max_wait / SECOND:g} s"
    bucket = {} if ref is None else {"limit": ref.limit, "key": ref.key}
    data: dict[str, str | int | None] = {"opens_at": opens_at, "option": option, **bucket}
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


class EndedJob(NamedTuple):
    """A job or a batch that has just become final; what follows a batch is always read."""

    id: JobId
    state: JobState
    is_followed: bool
    batch: JobId | None


class LeaderError(NamedTuple):
    """The error of a leader that did not succeed.

    The error of a batch is that of one of its jobs; of a job that was cancelled for its own leader only if all were.
    The error of a join, and of a batch in which only batches did not succeed, is a `leader_error` that names one of
    them.
    """

    leader: JobId
    error: JobError | None
    is_batch: bool = False
    is_join: bool = False


class RootLeader(NamedTuple):
    """The job or batch at which a chain of followers failed, and which has to be retried for all of them."""

    id: str
    ended: JobState
    is_batch: bool = False
    error: str | None = None

    @property
    def how(self) -> str:
        if self.ended is JobState.CANCELLED:
            return "was cancelled"
        return "failed" if self.error is None else f"failed with {self.error}"

    @property
    def named(self) -> str:
        return f"batch {self.id}" if self.is_batch else self.id

    @property
    def remedy(self) -> str:
        """Name the jobs that the user has to retry."""
        if self.is_batch:
            return f"the jobs of {self.named} (`headgate jobs retry --batch {self.id} --state {self.ended.value}`)"
        return self.id


def root_of(leader: str, ended: JobState, cause: LeaderError | None) -> RootLeader:
    """Return where the failure began: at the leader, or at the job or batch for which the leader was cancelled."""
    error = None if cause is None else cause.error
    if error is not None and error.type == LEADER_NOT_SUCCEEDED and error.data is not None:
        data = error.data
        type = data.get("root_error")
        return RootLeader(
            str(data.get("root", data.get("leader"))),
            JobState(str(data.get("root_ended", data.get("ended")))),
            data.get("root_kind") == "batch",
            None if type is None else str(type),
        )
    is_batch = cause is not None and cause.is_batch
    return RootLeader(leader, ended, is_batch, None if error is None else error.type)


def leader_error(leader: str, ended: JobState, cause: LeaderError | None = None) -> JobError:
    """Return the error of a job that is cancelled because its leader did not succeed; it names where that began."""
    root = root_of(leader, ended, cause)
    if root.id == leader:
        why = f"it follows {root.named}, which {root.how}"
    elif cause is not None and cause.is_join:
        why = f"it follows several jobs or batches, and one did not succeed because {root.named} {root.how}"
    else:
        why = f"it follows {leader}, which was cancelled because {root.named} {root.how}"
    return JobError(
        type=LEADER_NOT_SUCCEEDED,
        message=f"{why}; retry {root.remedy}, and this job waits again with it",
        data={
            "leader": leader,
            "ended": ended.value,
            "root": root.id,
            "root_kind": "batch" if root.is_batch else "job",
            "root_ended": root.ended.value,
            "root_error": root.error,
        },
    )


def skipped_because(origin: Origin | None) -> str:
    """Return why a job of this origin was skipped; None: it cannot be read."""
    return "it was not needed" if origin is None else _unneeded(origin.follows, origin.on)


def _unneeded(leader: str | None, on: str | None) -> str:
    if on == "failure":
        return f"it runs only if {leader}, which it follows, fails or is cancelled"
    return f"it follows {leader}, which was skipped"


def not_retried(job_id: str, leader: str, ended: JobState, cause: LeaderError | None) -> LeaderNotRetried:
    """Return the error for retrying a follower alone, which would run before its leader has succeeded."""
    root = root_of(leader, ended, cause)
    return LeaderNotRetried(
        f"job {job_id} follows {leader}, and runs only after that has succeeded: {root.named} {root.how}; "
        f"retry {root.remedy} first, which also brings back the jobs that were cancelled because of it",
        root.id,
    )


def may_run_after(on: str | None, ended: JobState) -> bool:
    """Whether a follower may run after its leader has ended so; `on` is the outcome that it needs (None: success)."""
    return on == "final" or (ended.is_failure if on == "failure" else ended is JobState.SUCCEEDED)


def unrun_state(ended: JobState) -> JobState:
    """Return the final state of a follower that may not run after its leader has ended so.

    It is cancelled if something went wrong, so that somebody has to act: the leader failed or was cancelled. Otherwise
    it is skipped, because it is not needed.
    """
    return JobState.CANCELLED if ended.is_failure else JobState.SKIPPED
