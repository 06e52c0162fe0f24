"""Followers of a job or batch: where they are placed, and what happens when the leader is final. For every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headgate.errors import IllegalTransition, LeaderNotFound, LeaderNotRetried
from headgate.jobs.batch import NewBatch, ended_as
from headgate.jobs.identity import JobId
from headgate.jobs.job import JobError, JobState, NewJob, Origin

LEADER_NOT_SUCCEEDED = "LeaderNotSucceeded"


FOLLOWERS_AT_ONCE = 1000
"""How many followers are released or cancelled in one commit; later commits do the rest of the same leaders."""

LEVEL_COST = 50
"""How many followers a level costs beside its own. The followers of one job are a level, their followers the next."""


class FollowerPlacement(NamedTuple):
    """The place of a new job: `blocked` until its leader is final, or final at once with an `error`, or waiting."""

    state: JobState
    is_blocked: bool = False
    error: JobError | None = None

    @property
    def enters_lane(self) -> bool:
        return self.state is JobState.WAITING and not self.is_blocked


class EndedJob(NamedTuple):
    """A job or a batch that has just become final; what follows a batch is always read."""

    id: JobId
    state: JobState
    is_followed: bool
    batch: JobId | None


class EndedLeader(NamedTuple):
    """A final job or batch whose followers, and joins, with ids above `after` still have to be handled."""

    id: JobId
    state: JobState
    after: JobId = ""


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


def _unneeded(leader: str | None, on: str) -> str:
    if on == "failure":
        return f"it runs only if {leader}, which it follows, fails or is cancelled"
    return f"it follows {leader}, which was skipped"


def not_succeeded(ends: Mapping[str, JobState | None]) -> list[str]:
    """Return those of these leaders that failed or were cancelled, in the order of their ids."""
    return sorted(id for id, end in ends.items() if end is not None and end.is_failure)


def not_retried(job_id: str, leader: str, ended: JobState, cause: LeaderError | None) -> LeaderNotRetried:
    """Return the error for retrying a follower alone, which would run before its leader has succeeded."""
    root = root_of(leader, ended, cause)
    return LeaderNotRetried(
        f"job {job_id} follows {leader}, and runs only after that has succeeded: {root.named} {root.how}; "
        f"retry {root.remedy} first, which also brings back the jobs that were cancelled because of it",
        root.id,
    )


def not_needed(job_id: str, leader: str, on: str) -> IllegalTransition:
    """Return the error for retrying a job that is not needed after the end of its leader."""
    return IllegalTransition(f"job {job_id} is not needed: {_unneeded(leader, on)}")


def may_run_after(on: str, ended: JobState) -> bool:
    """Whether a follower may run after its leader has ended so; `on` is the outcome that it needs."""
    return on == "final" or (ended.is_failure if on == "failure" else ended is JobState.SUCCEEDED)


def unrun_state(ended: JobState) -> JobState:
    """Return the final state of a follower that may not run after its leader has ended so.

    It is cancelled if something went wrong, so that somebody has to act: the leader failed or was cancelled. Otherwise
    it is skipped, because it is not needed.
    """
    return JobState.CANCELLED if ended.is_failure else JobState.SKIPPED


def depths(order: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the depth of each job and batch, greater than those before it; pairs say which one ends first.

    The depth is 0 without anything before it.
    """
    after: dict[str, list[str]] = {}
    left: Counter[str] = Counter()
    for earlier, later in order:
        after.setdefault(earlier, []).append(later)
        left[later] += 1
    found = dict.fromkeys(after.keys() - left.keys(), 0)
    ready = list(found)
    while ready:
        earlier = ready.pop()
        for later in after.get(earlier, ()):
            found[later] = max(found.get(later, 0), found[earlier] + 1)
            left[later] -= 1
            if not left[later]:
                ready.append(later)
    return found


def leaders_of(jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> set[str]:
    """Return the ids of the leaders that new jobs follow and new joins count."""
    leaders = {job.origin.follows for job in jobs if job.origin is not None and job.origin.follows is not None}
    return leaders.union(*(batch.leaders for batch in batches))


class Placements(NamedTuple):
    """The places of new jobs by id, and what is counted of new batches from the start."""

    jobs: Mapping[str, FollowerPlacement]
    counts: Mapping[str, BatchCount]
    ends: Mapping[str, JobState | None]
    """The final states of all jobs and batches that were looked at; None or absent: not final."""


NO_PLACEMENTS = Placements({}, {}, {})


def placements(
    jobs: Sequence[NewJob],
    batches: Sequence[NewBatch],
    ends: Mapping[str, JobState | None],
    causes: Mapping[str, LeaderError],
) -> Placements:
    """Return where new jobs go. A leader among them comes before its followers, also through a batch.

    `ends` has the final states of stored leaders (None: not final), and `causes` the errors of those that did not
    succeed. Raises LeaderNotFound for a leader that is neither stored nor among the jobs and batches.
    """
    ended = _Ends(batches, ends, causes)
    joined = {leader: batch.id for batch in batches for leader in batch.leaders}
    for leader in joined.keys() - ended.known.keys() - {job.id for job in jobs}:
        raise LeaderNotFound(joined[leader], leader)
    placed: dict[str, FollowerPlacement] = {}
    for job in jobs:
        place = placed[job.id] = _place(job, ended)
        if place.state.is_final:
            ended.add(job.id, place.state, None if job.origin is None else job.origin.batch, place.error)
        else:
            ended.known[job.id] = None
    counts = [batch_count(id, states) for id, states in ended.counted.items()]
    return Placements(placed, {count.id: count for count in counts}, ended.known)


class _Ends:
    """The ends that are final while new jobs are placed: stored leaders, new jobs, batches with only final members."""

    def __init__(
        self,
        batches: Sequence[NewBatch],
        ends: Mapping[str, JobState | None],
        causes: Mapping[str, LeaderError],
    ) -> None:
        self.batches = {batch.id: batch for batch in batches}
        self.counted: dict[str, list[JobState]] = {batch.id: [] for batch in batches}
        self.causes = dict(causes)
        self.known: dict[str, JobState | None] = dict.fromkeys(self.batches)
        self._joins: dict[str, list[str]] = {}
        for batch in batches:
            for leader in batch.leaders:
                self._joins.setdefault(leader, []).append(batch.id)
        for id, state in ends.items():
            if state is None:
                self.known[id] = None
            else:
                cause = causes.get(id)
                self.add(
                    id, state, None, None if cause is None else cause.error, is_batch=bool(cause and cause.is_batch)
                )
        for batch in batches:
            if not batch.total and not batch.grows:
                self.add(batch.id, JobState.SUCCEEDED, batch.batch, None)

    def add(
        self, id: str, state: JobState, batch: str | None, error: JobError | None, *, is_batch: bool = False
    ) -> None:
        """Note an end: it is counted by its batch and by joins, which may be final then."""
        self.causes.setdefault(id, LeaderError(id, error, is_batch))
        left = [(id, state, batch)]
        while left:
            id, state, batch = left.pop()
            self.known[id] = state
            for counting in (batch, *self._joins.get(id, ())):
                if counting not in self.batches or counting is None:
                    continue
                counted = self.counted[counting]
                counted.append(state)
                if state.is_failure:
                    self._note_cause(self.batches[counting], id, state)
                if len(counted) == self.batches[counting].total and not self.batches[counting].grows:
                    end = ended_as(*batch_count(counting, counted)[1:])
                    left.append((counting, end, self.batches[counting].batch))

    def _note_cause(self, batch: NewBatch, member: str, state: JobState) -> None:
        cause = self.causes.get(member)
        is_join = bool(batch.leaders)
        if is_join or member in self.batches:
            new = LeaderError(batch.id, leader_error(member, state, cause), True, is_join)
        else:
            new = LeaderError(batch.id, None if cause is None else cause.error, True)
        before = self.causes.get(batch.id)
        if before is None or (before.error is not None and before.error.type == LEADER_NOT_SUCCEEDED):
            self.causes[batch.id] = new


def rejected(job: NewJob) -> FollowerPlacement:
    """Return where a rejected job goes."""
    state = JobState.FAILED if job.terms is None else job.terms.rejected_as()
    return FollowerPlacement(state, error=job.rejection)


def _place(job: NewJob, ended: _Ends) -> FollowerPlacement:
    if job.rejection is not None:
        return rejected(job)
    if job.origin is None or job.origin.follows is None:
        return FollowerPlacement(JobState.WAITING)
    leader, on = job.origin.follows, job.origin.on
    if leader not in ended.known:
        raise LeaderNotFound(job.id, leader)
    end = ended.known[leader]
    if end is None:
        return FollowerPlacement(JobState.WAITING, is_blocked=True)
    if may_run_after(on, end):
        return FollowerPlacement(JobState.WAITING)
    error = leader_error(leader, end, ended.causes.get(leader)) if end.is_failure else None
    return FollowerPlacement(unrun_state(end), error=error)


class BatchCount(NamedTuple):
    """How many jobs of a batch have become final, by state; negative if they are no longer final."""

    id: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0


def batch_count(id: str, states: Sequence[JobState]) -> BatchCount:
    """Return what members that ended in these states add to the counts of a batch."""
    ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.SKIPPED)
    return BatchCount(id, *(states.count(state) for state in ends))


def batch_counts(ended: Iterable[tuple[str | None, JobState]]) -> list[BatchCount]:
    """Return what ended members, as (batch, state), add to the counts of batches, in the order of the batches' ids."""
    found: dict[str, list[JobState]] = {}
    for batch, state in ended:
        if batch is not None:
            found.setdefault(batch, []).append(state)
    return [batch_count(id, states) for id, states in sorted(found.items())]
