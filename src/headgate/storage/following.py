"""Followers of a job or batch: where they are placed, and what happens when the leader is final. For every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.errors import LeaderNotFound, LeaderNotRetried
from headgate.jobs.batch import NewBatch, ended_as
from headgate.jobs.job import JobError, JobState, NewJob

LEADER_NOT_SUCCEEDED = "LeaderNotSucceeded"


FOLLOWERS_AT_ONCE = 1000
"""How many followers are released or cancelled in one commit; later commits do the rest of the same leaders."""

LEVEL_COST = 50
"""How many followers a level costs beside its own. The followers of one job are a level, their followers the next."""


class FollowerPlacement(NamedTuple):
    """Where a new job goes: `blocked` until its leader is final, or final at once with an `error`, or waiting."""

    state: JobState
    is_blocked: bool = False
    error: JobError | None = None

    @property
    def enters_lane(self) -> bool:
        return self.state is JobState.WAITING and not self.is_blocked


class EndedJob(NamedTuple):
    """A job that has just become final."""

    id: str
    state: JobState
    is_followed: bool
    batch: str | None


class EndedLeader(NamedTuple):
    """A final job or batch whose followers with ids above `after` still have to be released or cancelled."""

    id: str
    state: JobState
    after: str = ""


class FollowerBudget:
    """How many more followers one commit may release or cancel."""

    def __init__(self, most: int = FOLLOWERS_AT_ONCE) -> None:
        self.left = most
        self.rest: list[EndedLeader] = []

    def take(self, leaders: Sequence[EndedLeader], followers: Sequence[tuple[str, str]]) -> None:
        """Count a level: the leaders' followers, as (leader, id) in this order, of which at most `left` were read."""
        if len(followers) >= self.left:
            # The last leader, and the leaders after it, may have more followers.
            leader, id = followers[-1]
            more = [each for each in leaders if each.id >= leader]
            self.rest += [each._replace(after=id) if each.id == leader else each for each in more]
        self.left -= len(followers) + LEVEL_COST


class LeaderError(NamedTuple):
    """The error of a leader that did not succeed.

    The error of a batch is that of one of its jobs; of a job that was cancelled for its own leader only if all were.
    """

    leader: str
    error: JobError | None
    is_batch: bool = False


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
        """What the user has to retry."""
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


def not_succeeded(ends: Mapping[str, JobState | None]) -> list[str]:
    """Return those of these leaders that are final and did not succeed, in the order of their ids."""
    return sorted(id for id, end in ends.items() if end is not None and end is not JobState.SUCCEEDED)


def not_retried(job_id: str, leader: str, ended: JobState, cause: LeaderError | None) -> LeaderNotRetried:
    """Return the error for retrying a follower alone, which would run before its leader has succeeded."""
    root = root_of(leader, ended, cause)
    return LeaderNotRetried(
        f"job {job_id} follows {leader}, and runs only after that has succeeded: {root.named} {root.how}; "
        f"retry {root.remedy} first, which also brings back the jobs that were cancelled because of it",
        root.id,
    )


def may_run_after(on: str, ended: JobState) -> bool:
    """Whether a follower may run after its leader has ended so; `on` is the outcome that it needs."""
    return on == "any" or ended is JobState.SUCCEEDED


def leaders_of(jobs: Sequence[NewJob]) -> set[str]:
    """Return the ids of the leaders of new jobs."""
    return {job.origin.follows for job in jobs if job.origin is not None and job.origin.follows is not None}


def placements(
    jobs: Sequence[NewJob],
    batches: Sequence[NewBatch],
    ends: Mapping[str, JobState | None],
    causes: Mapping[str, LeaderError],
) -> dict[str, FollowerPlacement]:
    """Return where new jobs go, by id. A leader among them comes before its followers.

    `ends` has the final states of stored leaders (None: not final), and `causes` the errors of those that did not
    succeed. Raises LeaderNotFound for a leader that is neither stored nor among the jobs.
    """
    known = dict(ends)
    why = dict(causes)
    placed: dict[str, FollowerPlacement] = {}
    finals: dict[str, list[JobState]] = {batch.id: [] for batch in batches}
    totals = {batch.id: batch.total for batch in batches}
    for job in jobs:
        origin = job.origin
        place = _place(job, finals, totals, known, why)
        placed[job.id] = place
        known[job.id] = place.state if place.state.is_final else None
        why[job.id] = LeaderError(job.id, place.error)
        if origin is not None and origin.batch in finals and place.state.is_final:
            finals[origin.batch].append(place.state)
            why[origin.batch] = _cause_of_batch(origin.batch, place.error, why.get(origin.batch))
    return placed


def rejected(job: NewJob) -> FollowerPlacement:
    """Return where a rejected job goes."""
    state = JobState.FAILED if job.terms is None else job.terms.rejected_as
    return FollowerPlacement(state, error=job.rejection)


def _cause_of_batch(batch: str, error: JobError | None, before: LeaderError | None) -> LeaderError:
    if before is not None and (before.error is None or before.error.type != LEADER_NOT_SUCCEEDED):
        return before
    return LeaderError(batch, error, is_batch=True)


def _place(
    job: NewJob,
    finals: Mapping[str, list[JobState]],
    totals: Mapping[str, int],
    known: Mapping[str, JobState | None],
    causes: Mapping[str, LeaderError],
) -> FollowerPlacement:
    leader = None if job.origin is None else job.origin.follows
    if job.rejection is not None:
        return rejected(job)
    if leader is None or job.origin is None:
        return FollowerPlacement(JobState.WAITING)
    if leader in totals:
        ended = _batch_end(finals[leader]) if len(finals[leader]) == totals[leader] else None
    elif leader in known:
        ended = known[leader]
    else:
        raise LeaderNotFound(job.id, leader)
    if ended is None:
        return FollowerPlacement(JobState.WAITING, is_blocked=True)
    if may_run_after(job.origin.on, ended):
        return FollowerPlacement(JobState.WAITING)
    return FollowerPlacement(JobState.CANCELLED, error=leader_error(leader, ended, causes.get(leader)))


def _batch_end(states: Sequence[JobState]) -> JobState:
    return ended_as(states.count(JobState.FAILED), states.count(JobState.CANCELLED))


class BatchCount(NamedTuple):
    """How many jobs of a batch have become final, by state; negative if they are no longer final."""

    id: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.succeeded + self.failed + self.cancelled


def batch_counts(ended: Sequence[EndedJob]) -> list[BatchCount]:
    """Return what these jobs add to the counts of their batches, in the order of the batches' ids."""
    found: dict[str, list[JobState]] = {}
    for job in ended:
        if job.batch is not None:
            found.setdefault(job.batch, []).append(job.state)
    return [
        BatchCount(
            id,
            states.count(JobState.SUCCEEDED),
            states.count(JobState.FAILED),
            states.count(JobState.CANCELLED),
        )
        for id, states in sorted(found.items())
    ]


def new_batch_counts(
    batches: Sequence[NewBatch], jobs: Sequence[NewJob], placed: Mapping[str, FollowerPlacement]
) -> list[BatchCount]:
    """Return the counts of new batches: their jobs that are final from the start."""
    ended = [
        EndedJob(job.id, placed[job.id].state, is_followed=False, batch=job.origin.batch)
        for job in jobs
        if job.origin is not None and placed[job.id].state.is_final
    ]
    counts = {count.id: count for count in batch_counts(ended)}
    return [counts.get(batch.id, BatchCount(batch.id)) for batch in batches]
