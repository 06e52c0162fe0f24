"""A job as a transaction reads it that changes its state: its place in line, its permits, its key and its leader."""

from __future__ import annotations

import msgspec

from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, difference, union
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobOptions, JobState
from headgate.jobs.terms import LimitTerms
from headgate.storage.procedures.buckets import PermitRelease, buckets_of_batch
from headgate.storage.procedures.following import EndedJob
from headgate.storage.procedures.lanes import Lane, lane_of
from headgate.storage.stored_rows import RowDecoder


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
    options: JobOptions | None

    @property
    def on(self) -> str:
        """The outcome of its leader that it needs."""
        return self.outcome or "success"

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

    def waits_until(self, ready_at: int) -> int | None:
        """Return the end of its max_wait if it is ready then; None without one."""
        return None if self.terms is None or not self.terms.patience else ready_at + self.terms.patience


LOCKED_JOBS = RowDecoder(LockedJob, "job", state=JobState.WAITING)
