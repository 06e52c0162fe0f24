"""Lanes: how jobs are counted in them, and a job as a transaction reads it that takes it out or puts it back.

With several writers, only claims write lanes: other procedures insert arrivals, and the next claim merges them. So
adding, returning and cancelling jobs never wait for each other, and a transaction that a user keeps open locks no lane.
With one writer, lanes are written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, difference, union, without
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobOptions, JobState
from headgate.jobs.terms import LimitTerms
from headgate.limits.fair import PREFIX
from headgate.limits.key import BETWEEN_LEVELS
from headgate.storage.driver import Transaction
from headgate.storage.endings import EndedJob
from headgate.storage.procedures.buckets import PermitRelease, buckets_of_batch
from headgate.storage.stored_rows import RowDecoder, lane_id


class Lane(msgspec.Struct, frozen=True, gc=False):
    """The identity of a lane: its queue, buckets and wait mode."""

    queue: str
    buckets: tuple[BucketRef, ...]
    wait_mode: str

    @property
    def id(self) -> str:
        return lane_id(self.queue, self.buckets, self.wait_mode)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A number of jobs added to a lane, or removed from it if negative.

    `wakes_at` is when the earliest delayed job is due, `rank` the lowest rank of the others. If `rank` is None, it may
    be any.
    """

    to: Lane
    jobs: int
    is_ready: bool = False
    wakes_at: int | None = None
    rank: int | None = None


class LaneMember(msgspec.Struct):
    """A job with what decides about its lane and its permits."""

    id: JobId
    queue: str
    buckets: tuple[BucketRef, ...]
    terms: LimitTerms | None
    held: BucketMask
    passed: BucketMask
    delayed: bool
    run_at: int
    rank: int
    is_followed: bool
    batch: JobId | None

    def kept(self, state: JobState) -> BucketMask:
        """Return the permits that it keeps when it becomes `state`."""
        return NO_BUCKETS if self.terms is None else self.terms.kept(self.held, state)

    def waits_until(self, ready_at: int) -> int | None:
        """Return the end of its max_wait if it is ready then; None without one."""
        return None if self.terms is None or not self.terms.patience else ready_at + self.terms.patience

    def ended(self, state: JobState) -> EndedJob:
        """Return the job as one that has become final in this state."""
        return EndedJob(self.id, state, self.is_followed, self.batch)

    def gives(self, released: BucketMask) -> list[PermitRelease]:
        """Return what it releases when it loses the permits `released`."""
        if not released or self.terms is None:
            return []
        return [PermitRelease(self.id, self.buckets, self.terms, released, difference(self.held, released))]


class LockedJob(LaneMember):
    """A job in any state; a waiting one `is_blocked` while its leader is not final.

    For a unique key that stays taken, it is the final job for which it does, with the end of that time as `run_at`.
    """

    task: str
    unique_key: str | None
    state: JobState
    has_costs: bool
    is_blocked: bool
    follows: JobId | None
    attempt: int
    outcome: str | None
    """The end of its leader that it needs; None: success."""
    options: JobOptions | None

    @property
    def lane(self) -> Lane:
        """The lane of the job if it is waiting."""
        return lane_of(self.queue, self.buckets, self.terms, union(self.held, self.passed))

    @property
    def place(self) -> tuple[str, Lane, BucketMask, bool]:
        """Return what changes if it leaves its lane."""
        return self.id, self.lane, self.held, self.is_blocked

    @property
    def affected_buckets(self) -> list[BucketRef]:
        """The buckets to lock when it leaves its lane.

        These are the buckets of which it or its batch holds permits; for a job with costs all its buckets, because a
        claim may be about to close one for its cost.
        """
        if self.has_costs:
            return list(self.buckets)
        return [*chosen(self.buckets, self.held), *buckets_of_batch(self.buckets, self.terms)]


LOCKED_JOBS = RowDecoder(LockedJob, "job", state=JobState.WAITING)


def lane_of(
    queue: str, buckets: Sequence[BucketRef], terms: LimitTerms | None, exempt: BucketMask = NO_BUCKETS
) -> Lane:
    """Return the lane of a job. The buckets in `exempt` are exempt: the lane does not have them."""
    own = without(buckets, exempt)
    return Lane(queue, own, terms.wait_mode(exempt) if terms is not None and own else "")


def arrival_of(lane: Lane, run_at: int, rank: int, *, delayed: bool, jobs: int = 1) -> Arrival:
    """Return the arrival of a job in a lane. With `jobs` 0 the job was there already, and its time or rank changed."""
    if delayed:
        return Arrival(lane, jobs, wakes_at=run_at)
    return Arrival(lane, jobs, is_ready=True, rank=rank)


async def add_arrivals(tx: Transaction, arrivals: Iterable[Arrival]) -> None:
    """Count jobs that were added and removed. Call it after the jobs are written: low watermarks need that order."""
    added = list(arrivals)
    rows = [
        (to.id, to.queue, to.buckets, to.wait_mode, each.jobs, each.is_ready, each.wakes_at, each.rank)
        for each in added
        for to in (each.to,)
    ]
    if not rows:
        return
    if not tx.has_one_writer:
        await tx.execute("add_arrivals", arrivals=rows, since=tx.limit_now)
        return
    left = {each.to.id for each in added if each.jobs < 0}
    behind = await tx.values("behind_of_lanes", lanes=list(left)) if left else []
    since = tx.take_places(len(rows))
    if len(rows) == 1 and await _count_in_stored_lane(tx, added[0], since):
        return
    # Lanes of a fair queue whose keys have two levels are in groups.
    if any(BETWEEN_LEVELS in ref.key and ref.limit.startswith(PREFIX) for each in added for ref in each.to.buckets):
        await tx.execute("join_groups", arrivals=rows, since=since)
    await tx.execute("add_arrivals", arrivals=rows, since=since)
    if behind:
        await tx.execute("clear_timers", ids=behind)


async def _count_in_stored_lane(tx: Transaction, added: Arrival, since: int) -> bool:
    """Count jobs in their lane, if it is stored and takes no virtual time: a seventh of the work of add_arrivals."""
    if added.jobs <= 0 or any(bucket.limit.startswith(PREFIX) for bucket in added.to.buckets):
        return False
    place = since if added.is_ready else None
    values = {"lane": added.to.id, "jobs": added.jobs, "since": place, "wakes_at": added.wakes_at}
    return bool(await tx.execute("count_arrivals", **values))


async def reopen_behind(tx: Transaction, lanes: Iterable[str]) -> None:
    """Reopen the buckets that these lanes wait behind: the cost of a job that leaves may have closed them."""
    ids = list(lanes)
    behind = await tx.values("behind_of_lanes", lanes=ids) if ids else []
    if behind:
        await tx.execute("reopen_buckets", ids=behind, limit_now=tx.limit_now)


async def leave(tx: Transaction, job: LockedJob) -> None:
    """Remove a job that was not claimed from the count of its lane."""
    if job.has_costs:
        await reopen_behind(tx, [job.lane.id])
    await add_arrivals(tx, [Arrival(job.lane, -1)])
