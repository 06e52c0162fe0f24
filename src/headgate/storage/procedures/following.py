"""Followers of jobs, and batches.

Locks are taken in this order: a leader before its followers, a job before its batch, a batch before its followers. A
transaction that adds a follower locks the leader first: the follower is blocked only if the leader's end will find it.

A user's transaction that replaces a follower may have locked it. The leader's end does not wait for it: the leader is
finished later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from headgate.errors import BatchClosed, BatchNotFound, LeaderNotFound
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch, ended_as
from headgate.jobs.identity import IdTaken, JobId, process_name
from headgate.jobs.job import JobError, JobState, NewJob
from headgate.storage.driver import Transaction
from headgate.storage.endings import (
    LEADER_NOT_SUCCEEDED,
    EndedJob,
    LeaderError,
    leader_error,
    may_run_after,
    not_retried,
    unrun_state,
)
from headgate.storage.procedures.audit import add_job_audit_records
from headgate.storage.procedures.buckets import Holder, buckets_of_batch, release_batch_permits
from headgate.storage.procedures.history import note_unrun
from headgate.storage.procedures.lanes import Lane, LaneMember, add_arrivals, arrival_of, lane_of
from headgate.storage.records import FINAL_STATES
from headgate.storage.stored_rows import RowDecoder

LEADERS_AT_ONCE = 100
"""The number of leaders whose followers are read in one commit."""

FOLLOWERS_AT_ONCE = 1000
"""How many followers are released or cancelled in one commit; later commits do the rest of the same leaders."""

LEVEL_COST = 50
"""How many followers a level costs beside its own. The followers of one job are a level, their followers the next."""

R = TypeVar("R")


class FollowersHeld(Exception):
    """Another transaction has locked followers of these jobs, so their ends cannot be written now; other ends can."""

    def __init__(self, leaders: Collection[str]) -> None:
        super().__init__(*leaders)
        self.leaders = frozenset(leaders)


async def without_held(work: Callable[[frozenset[str]], Awaitable[R]]) -> R:
    """Run `work`, a transaction, again without the jobs whose followers were found locked, until none is."""
    held: frozenset[str] = frozenset()
    while True:
        try:
            return await work(held)
        except FollowersHeld as met:
            if met.leaders <= held:
                raise AssertionError(f"{sorted(met.leaders)} were to be left out") from met
            held |= met.leaders


class FollowerPlacement(NamedTuple):
    """The place of a new job: `blocked` until its leader is final, or final at once with an `error`, or waiting."""

    state: JobState
    is_blocked: bool = False
    error: JobError | None = None


class Placements(NamedTuple):
    """The places of new jobs by id, and what is counted of new batches from the start."""

    jobs: Mapping[str, FollowerPlacement]
    counts: Mapping[str, _BatchCount]
    ends: Mapping[str, JobState | None]
    """The final states of all jobs and batches that were looked at; None or absent: not final."""


class EndedLeader(NamedTuple):
    """A final job or batch whose followers, and joins, with ids above `after` still have to be handled."""

    id: JobId
    state: JobState
    after: JobId = ""


class FollowerBudget:
    """How many more followers one commit may release or end, and the leaders of those that later commits do."""

    def __init__(self) -> None:
        self.left = FOLLOWERS_AT_ONCE
        self.rest: list[EndedLeader] = []

    def take(self, leaders: Sequence[EndedLeader], followers: Sequence[tuple[str, str]]) -> None:
        """Count a level: the leaders' followers, as (leader, id) in this order, of which at most `left` were read."""
        if len(followers) >= self.left:
            # The last leader, and the leaders after it, may have more followers.
            leader, id = followers[-1]
            more = [each for each in leaders if each.id >= leader]
            self.rest += [each._replace(after=id) if each.id == leader else each for each in more]
        self.left -= len(followers) + LEVEL_COST


class _BatchCount(NamedTuple):
    """How many jobs of a batch have become final, by state; negative if they are no longer final."""

    id: str
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0


class _LeaderState(msgspec.Struct):
    id: JobId
    state: str


class _BatchState(msgspec.Struct):
    id: JobId
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    batch: JobId | None
    is_join: bool

    @property
    def ended(self) -> EndedJob | None:
        """Return it as a member of its own batch; None while it is not final."""
        if self.pending:
            return None
        end = ended_as(self.succeeded, self.failed, self.cancelled, self.skipped)
        return EndedJob(self.id, end, True, self.batch)


class _Follower(LaneMember):
    """A follower of a leader that is final, or a join that counts the leader."""

    leader: JobId
    outcome: str | None
    """The end of its leader that it needs; None: success."""
    is_locked: bool
    is_join: bool

    @property
    def lane(self) -> Lane:
        return lane_of(self.queue, self.buckets, self.terms)


class _EndedMember(msgspec.Struct):
    """A batch, or a leader, that did not succeed and that the batch counts."""

    batch: JobId
    member: JobId
    state: JobState
    is_join: bool


class StoredEnqueue(msgspec.Struct):
    """The enqueue that has stored a job or a batch. A batch has an empty `task` and no `own_id`."""

    id: JobId
    own_id: str | None
    task: str
    enqueued_at: int
    enqueued_by: str | None


class _Uncounted(msgspec.Struct):
    leader: JobId
    batch: JobId


_LEADERS = RowDecoder(_LeaderState, "job")
_BATCHES = RowDecoder(_BatchState, "batch")
_CAUSES = RowDecoder(LeaderError, "job")
_FOLLOWERS = RowDecoder(_Follower, "job")
ENDED_JOBS = RowDecoder(EndedJob, "job", state=JobState.FAILED)
_ENDED_LEADERS = RowDecoder(EndedLeader, "job", state=JobState.FAILED)
_MEMBERS = RowDecoder(Holder, "job of batch")
_ENDED_MEMBERS = RowDecoder(_EndedMember, "batch", state=JobState.FAILED)
_STORED_BATCHES = RowDecoder(StoredEnqueue, "batch")
_UNCOUNTED = RowDecoder(_Uncounted, "leader of batch")


async def placements_of(tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> Placements:
    """Return where new jobs go that have leaders or batches. Their leaders are locked until the jobs are stored.

    A leader among the jobs comes before its followers, also through a batch. Raises LeaderNotFound for one that is
    neither stored nor among the jobs and batches.
    """
    own = {job.id for job in jobs} | {batch.id for batch in batches}
    leaders = sorted(leaders_of(jobs, batches) - own)
    ends = await locked_ends(tx, leaders) if leaders else {}
    not_succeeded = sorted(id for id, end in ends.items() if end is not None and end.is_failure)
    ended = _Ends(batches, ends, await _causes(tx, not_succeeded))
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
    counts = [_batch_count(id, states) for id, states in ended.counted.items()]
    return Placements(placed, {count.id: count for count in counts}, ended.known)


def leaders_of(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> set[str]:
    """Return the ids of the leaders that new jobs follow and new joins count."""
    leaders = {job.origin.follows for job in jobs if job.origin is not None and job.origin.follows is not None}
    return leaders.union(*(batch.leaders for batch in batches))


class _Ends:
    """The ends that are final while new jobs are placed: stored leaders, new jobs, batches with only final members.

    `ends` has the final states of stored leaders (None: not final), and `causes` the errors of those that did not
    succeed.
    """

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
                self.add(id, state, None)
        for batch in batches:
            if not batch.total and not batch.grows:
                self.add(batch.id, JobState.SUCCEEDED, batch.batch)

    def add(self, id: str, state: JobState, batch: str | None, error: JobError | None = None) -> None:
        """Note an end: it is counted by its batch and by joins, which may be final then."""
        self.causes.setdefault(id, LeaderError(id, error))
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
                    end = ended_as(*_batch_count(counting, counted)[1:])
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


async def grow_batches(
    tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch], placed: Placements
) -> None:
    """Count the new jobs of stored batches, which are locked. Raises BatchNotFound, BatchClosed."""
    growing = sorted({batch.id for batch in batches if batch.grows})
    if not growing:
        return
    members = {job.id: job.origin.batch for job in jobs if job.origin is not None and job.origin.batch in growing}
    before = {batch.id: batch for batch in await tx.fetch(_BATCHES, "counts_of_leaders", ids=growing)}
    # A repeat after a lost reply: they have been counted. Read under the locks, as the first addition may just commit.
    stored = set(await tx.ids("stored_ids", ids=list(members)))
    for id in growing:
        new = [job for job, batch in members.items() if batch == id and job not in stored]
        if not new:
            continue
        if id not in before:
            raise BatchNotFound(id)
        await _require_open(tx, before[id])
        states = [placed.jobs[job].state for job in new if placed.jobs[job].state.is_final]
        await tx.execute("grow_batch", count=len(new), **_batch_count(id, states)._asdict())


async def _require_open(tx: Transaction, batch: _BatchState) -> None:
    if batch.is_join:
        raise BatchClosed(f"{batch.id} is no batch but counts what a job with several leaders follows")
    if batch.ended is not None:
        raise BatchClosed(f"batch {batch.id} is final ({batch.ended.state}), and what follows it may have run")
    for member in await tx.fetch(_MEMBERS, "member_of_batch", batch=batch.id):
        if buckets_of_batch(member.buckets, member.terms):
            raise BatchClosed(f"batch {batch.id} holds limits for all its jobs, so it takes no jobs later")


async def store_dependencies(
    tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch], placed: Placements
) -> None:
    """Mark the leaders of new jobs as followed, and store the batches, and which further results the jobs will read."""
    followed = leaders_of(jobs, batches)
    if followed:
        await tx.execute("mark_followed", ids=sorted(followed))
    origins = [(job.id, job.origin) for job in jobs if job.origin is not None]
    joins = {batch.id: {batch.id, *batch.leaders} for batch in batches}
    read = [
        (id, leader) for id, own in origins for leader in {*own.read_ids} - joins.get(own.follows or "", {own.follows})
    ]
    if read:
        await tx.execute("add_awaited_results", new=sorted(read))
    batches = [batch for batch in batches if not batch.grows]
    if not batches:
        return
    rows = [
        (
            batch.id,
            batch.total,
            batch.enqueued_at,
            batch.batch,
            bool(batch.leaders),
            batch.schedule,
            batch.name,
            *placed.counts[batch.id][1:],
        )
        for batch in batches
    ]
    if await tx.execute("add_batches", new=rows, now=tx.now, enqueued_by=process_name()) < len(rows):
        # A repeat after a lost reply, or batches of another producer.
        stored = await tx.fetch(_STORED_BATCHES, "stored_batches", ids=[batch.id for batch in batches])
        given = {batch.id: batch.enqueued_at for batch in batches}
        taken = {row.id for row in stored if (row.enqueued_at, row.enqueued_by) != (given[row.id], process_name())}
        if taken:
            raise IdTaken(taken)
    joined = [(batch.id, leader, placed.ends.get(leader)) for batch in batches for leader in batch.leaders]
    if joined:
        await tx.execute("add_awaited_leaders", new=joined)


async def resolve_followers(
    tx: Transaction, ended: Sequence[EndedJob], *, counted_by_node: Sequence[EndedJob] = ()
) -> None:
    """Release, cancel or skip the followers of jobs that have just become final, and of those that do not run.

    If there are many, only the first ones; the rest is noted for `release_followers`. Jobs that became final without an
    attempt are counted for the charts; those in `counted_by_node` are not, because their nodes count them. Raises
    FollowersHeld with those of the jobs whose followers another transaction has locked.
    """
    ended_jobs = [*counted_by_node, *ended]
    # Maps each leader to the jobs of this call because of which it is handled.
    roots = {job.id: {job.id} for job in ended_jobs}
    leaders = await _leaders(tx, ended_jobs, roots)
    unrun = await _release(tx, leaders, roots, FollowerBudget())
    await note_unrun(tx, [job.id for job in ended] + unrun)


async def release_followers(tx: Transaction, held: frozenset[str]) -> int:
    """Release or cancel about `FOLLOWERS_AT_ONCE` more followers of final jobs and batches, in one commit.

    The commit that makes a job or batch final handles as many, and notes that others are left. Returns for how many
    leaders followers were read; 0 if none are left or other nodes work on all of them. Leaders that are `held` stay
    noted. Raises FollowersHeld.
    """
    # Their notes are locked until the commit, and changed in place: a retry of a leader waits, and deletes its note.
    noted = sorted(await tx.fetch(_ENDED_LEADERS, "lock_ended_leaders", count=LEADERS_AT_ONCE))
    leaders = [each for each in noted if each.id not in held]
    if leaders:
        roots = {each.id: {each.id} for each in leaders}
        budget = FollowerBudget()
        await note_unrun(tx, await _release(tx, leaders, roots, budget))
        left = {each.id for each in budget.rest}
        await _forget_ended(tx, [each.id for each in leaders if each.id not in left])
    return len(leaders)


async def _leaders(tx: Transaction, ended: Sequence[EndedJob], roots: dict[str, set[str]]) -> list[EndedLeader]:
    """Return those that have followers, and their batches that are final now, in the order of their ids."""
    states = {each.id: each.state for each in ended if each.is_followed}
    while ended:
        final = await _count(tx, ((each.batch, each.state) for each in ended))
        batches = {batch.id for batch in final}
        for each in ended:
            if each.batch in batches:
                roots.setdefault(each.batch, set()).update(roots[each.id])
        states |= {batch.id: batch.state for batch in final}
        ended = final
    return [EndedLeader(id, state) for id, state in sorted(states.items())]


async def _release(
    tx: Transaction, leaders: Sequence[EndedLeader], roots: dict[str, set[str]], budget: FollowerBudget
) -> list[str]:
    """Release or end followers within the budget, and note what is left. Returns the ids of those that do not run."""
    unrun: list[str] = []
    while leaders and budget.left > 0:
        found = await _lock_followers(tx, leaders, roots, budget.left)
        budget.take(leaders, [(each.leader, each.id) for each in found])
        states = {each.id: each.state for each in leaders}
        ended = await _release_or_end(tx, [each for each in found if not each.is_join], states)
        joined = [(each.id, each.leader, states[each.leader]) for each in found if each.is_join]
        if joined:
            await tx.execute("count_awaited_leaders", ended=joined)
        joins = await _count(tx, ((join, state) for join, _, state in joined))
        unrun += [job.id for job in ended]
        leaders = await _leaders(tx, [*ended, *joins], roots)
    left = [*budget.rest, *leaders]
    if left:
        await tx.execute("keep_ended_leaders", ended=left)
    return unrun


async def _forget_ended(tx: Transaction, ids: Sequence[str]) -> None:
    if ids:
        await tx.execute("forget_ended_leaders", ids=ids)


async def _lock_followers(
    tx: Transaction, leaders: Sequence[EndedLeader], roots: dict[str, set[str]], most: int
) -> list[_Follower]:
    followers = await tx.fetch(_FOLLOWERS, "followers", leaders=leaders, count=most)
    held = [job for job in followers if job.is_locked]
    if held:
        raise FollowersHeld({root for job in held for root in roots[job.leader]})
    for job in followers:
        roots.setdefault(job.id, set()).update(roots[job.leader])
    return followers


async def _release_or_end(
    tx: Transaction, followers: Sequence[_Follower], leaders: Mapping[str, JobState]
) -> list[EndedJob]:
    released = [job for job in followers if may_run_after(job.outcome, leaders[job.leader])]
    unrun = [(job, leaders[job.leader]) for job in followers if not may_run_after(job.outcome, leaders[job.leader])]
    if released:
        rows = [(job.id, job.lane.id, job.waits_until(max(job.run_at, tx.now))) for job in released]
        await tx.execute("release", released=rows, now=tx.now)
        # A follower whose run_at has passed meanwhile is ready; its rank was lower, if anything.
        await add_arrivals(
            tx,
            [
                arrival_of(job.lane, job.run_at, job.rank, delayed=job.delayed and job.run_at > tx.now)
                for job in released
            ],
        )
    causes = await _causes(tx, sorted({job.leader for job, end in unrun if end.is_failure}))
    ended = [
        (job.id, unrun_state(end), leader_error(job.leader, end, causes.get(job.leader)) if end.is_failure else None)
        for job, end in unrun
    ]
    await end_blocked(tx, ended)
    return [job.ended(unrun_state(end)) for job, end in unrun]


async def end_blocked(tx: Transaction, jobs: Sequence[tuple[str, JobState, JobError | None]]) -> None:
    """Cancel or skip blocked jobs, which are locked."""
    if jobs:
        await tx.execute("end_blocked", ended=jobs, now=tx.now)


async def cancel_blocked(
    tx: Transaction, held: frozenset[str], job_ids: Sequence[str], *, audit_records: Sequence[AuditRecord] = ()
) -> list[str]:
    """Cancel those of the jobs that are blocked, in one commit, so that none releases another; return their ids.

    A job that another transaction has locked, or that is `held`, is left as it is.
    """
    found = await tx.fetch(ENDED_JOBS, "lock_blocked", ids=[id for id in job_ids if id not in held])
    ids = {job.id for job in found}
    await add_job_audit_records(tx, [record for record in audit_records if record.subject in ids])
    await end_blocked(tx, [(job.id, JobState.CANCELLED, None) for job in found])
    await resolve_followers(tx, found)
    return sorted(ids)


async def placement_of_retried(tx: Transaction, job_id: str, leader: str | None, on: str | None) -> FollowerPlacement:
    """Return where a job goes that is retried; its leader gets locked. Raises LeaderNotRetried.

    It is blocked if its leader is not final, and skipped if it is not needed after the end of its leader.
    """
    ends = {} if leader is None else await locked_ends(tx, [leader])
    if leader is None or leader not in ends:
        return FollowerPlacement(JobState.WAITING)
    ended = ends[leader]
    if ended is None or may_run_after(on, ended):
        return FollowerPlacement(JobState.WAITING, is_blocked=ended is None)
    if ended.is_failure:
        raise not_retried(job_id, leader, ended, (await _causes(tx, [leader])).get(leader))
    return FollowerPlacement(JobState.SKIPPED)


async def undo_end(tx: Transaction, job: EndedJob) -> None:
    """Undo the end of a job that is retried: what counts it is pending, and followers cancelled for it are blocked."""
    back = [job]
    while back:
        leaders: set[str] = set()
        while back:
            followed = sorted(each.id for each in back if each.is_followed)
            leaders.update(followed)
            # First: this waits for a commit that releases more of their followers, and counts more of them in joins.
            await _forget_ended(tx, followed)
            back = await _uncount(tx, back, followed)
        if leaders:
            back = await tx.fetch(ENDED_JOBS, "cancelled_followers", leaders=sorted(leaders))
        if back:
            await tx.execute("block", ids=[each.id for each in back], now=tx.now, is_retry=False)


async def _uncount(tx: Transaction, back: Sequence[EndedJob], followed: Sequence[str]) -> list[EndedJob]:
    """Take jobs and batches that are no longer final out of the counts. Returns the batches that were final before."""
    states = {each.id: each.state for each in back}
    joined = await tx.fetch(_UNCOUNTED, "uncount_awaited_leaders", leaders=followed) if followed else []
    counts = [
        _BatchCount(count.id, *(-number for number in count[1:]))
        for count in _batch_counts(
            [*((each.batch, each.state) for each in back), *((each.batch, states[each.leader]) for each in joined)]
        )
    ]
    if not counts:
        return []
    before = await tx.fetch(_BATCHES, "counts_of_leaders", ids=[count.id for count in counts])
    await tx.fetch(_BATCHES, "count_batches", counts=counts, now=tx.now)
    return [batch.ended for batch in before if batch.ended is not None]


async def locked_ends(tx: Transaction, leaders: Sequence[str]) -> dict[str, JobState | None]:
    """Return the final states of leaders, locked so that they stay so; leaders that are not stored are left out."""
    ends: dict[str, JobState | None] = {}
    for job in await tx.fetch(_LEADERS, "states_of_leaders", ids=leaders):
        ends[job.id] = JobState(job.state) if job.state in FINAL_STATES else None
    missing = [leader for leader in leaders if leader not in ends]
    if missing:
        for batch in await tx.fetch(_BATCHES, "counts_of_leaders", ids=missing):
            ends[batch.id] = None if batch.ended is None else batch.ended.state
    return ends


async def _causes(tx: Transaction, leaders: Sequence[str]) -> dict[str, LeaderError]:
    """Return the errors of leaders that did not succeed, by leader."""
    if not leaders:
        return {}
    causes = {cause.leader: cause for cause in await tx.fetch(_CAUSES, "causes", leaders=leaders)}
    # Of a batch without an own job that failed, a batch in it is named, of a join one of its leaders.
    outer = [
        cause.leader
        for cause in causes.values()
        if cause.is_batch and (cause.error is None or cause.error.type == LEADER_NOT_SUCCEEDED)
    ]
    members = await tx.fetch(_ENDED_MEMBERS, "ended_members", batches=outer) if outer else []
    inner = await _causes(tx, sorted({each.member for each in members}))
    for each in members:
        error = leader_error(each.member, each.state, inner.get(each.member))
        causes[each.batch] = LeaderError(each.batch, error, True, each.is_join)
    return causes


async def _count(tx: Transaction, ended: Iterable[tuple[str | None, JobState]]) -> list[EndedJob]:
    """Count members of batches that have become final, as (batch, state). Returns the batches that are final now."""
    counts = _batch_counts(ended)
    if not counts:
        return []
    if len(counts) > 1 and not tx.has_one_writer:
        # In the order of their ids.
        await tx.fetch(_BATCHES, "counts_of_leaders", ids=[count.id for count in counts])
    final: list[EndedJob] = []
    for batch in await tx.fetch(_BATCHES, "count_batches", counts=counts, now=tx.now):
        if batch.ended is None:
            continue
        final.append(batch.ended)
        for member in () if batch.is_join else await tx.fetch(_MEMBERS, "member_of_batch", batch=batch.id):
            await release_batch_permits(tx, batch.id, buckets_of_batch(member.buckets, member.terms))
    return final


def _batch_count(id: str, states: Sequence[JobState]) -> _BatchCount:
    """Return what members that ended in these states add to the counts of a batch."""
    ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.SKIPPED)
    return _BatchCount(id, *(states.count(state) for state in ends))


def _batch_counts(ended: Iterable[tuple[str | None, JobState]]) -> list[_BatchCount]:
    """Return what ended members, as (batch, state), add to the counts of batches, in the order of the batches' ids."""
    found: dict[str, list[JobState]] = {}
    for batch, state in ended:
        if batch is not None:
            found.setdefault(batch, []).append(state)
    return [_batch_count(id, states) for id, states in sorted(found.items())]
