"""The rows that a claim reads and writes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headgate.jobs.annotation import Annotation
from headgate.jobs.bucket_mask import BucketMask, size, union
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobOptions, Origin
from headgate.jobs.terms import LimitTerms
from headgate.storage.admission import RowId
from headgate.storage.stored_rows import note_unreadable

StartRow = tuple[str, RowId, int, BucketMask, BucketMask, bool]
"""A job that starts: its id, lane and fence as they were read, the permits that it holds now, its buckets that were not
charged, and whether it waited for a limit."""

LOWEST_RANK = -9_000_000_000_000_000_000
"""Below the ranks of all jobs."""


class LaneRow(msgspec.Struct):
    """A lane as it is stored. The lane of jobs without limits has no buckets.

    `opened_at` (limit time) is when the bucket opened that the lane last waited behind. Its jobs that were ready before
    have waited for that limit until then, and for a slot since then. `virtual_time` is that of its key in a fair queue,
    None in other queues. If keys have two levels, it is in the group `group_id`, of which at most `group_most` lanes
    were read. With several writers, each update raises `version`, and no merged job that requested no start time has
    a `rank` below `front`.
    """

    id: RowId
    queue: str
    buckets: tuple[BucketRef, ...]
    waiting: int
    since: int | None
    behind: RowId | None
    wakes_at: int | None
    wait_mode: str
    opened_at: int | None = None
    virtual_time: int | None = None
    version: int = 0
    front: int = LOWEST_RANK
    group_id: RowId | None = None
    group_most: int = 0

    @property
    def place(self) -> int:
        """Its place in line."""
        return self.virtual_time if self.virtual_time is not None else self.since or 0


class TurnGroupRow(msgspec.Struct):
    """A group of lanes as it is stored: its virtual time, and the lowest one of its lanes in line, if any is."""

    id: RowId
    virtual_time: int
    first: int | None


class WrittenVirtualTime(NamedTuple):
    """The virtual time of a group after a claim."""

    id: RowId
    virtual_time: int


class LaneHead(msgspec.Struct):
    """A job near the front of its lane: those of lower ranks start first. The id of a later job is greater."""

    id: JobId
    lane: RowId
    task: str
    queue: str
    payload: str
    rank: int
    run_at: int
    attempt: int
    fence: int
    lost: int
    enqueued_at: int
    expires_at: int | None
    costs: tuple[int, ...] | None
    headers: dict[str, str] | None
    options: JobOptions | None
    origin: Origin | None
    terms: LimitTerms | None
    held: BucketMask
    passed: BucketMask
    give_up_at: int | None
    annotations: dict[str, Annotation] | None
    buckets: tuple[BucketRef, ...] | None
    """All buckets of the job, if it holds permits of some."""
    limit_set: str
    unreadable: str | None = None
    """The field that could not be read in its row, and why."""

    @property
    def exempt(self) -> BucketMask:
        """The buckets of the job that its lane does not have."""
        return union(self.held, self.passed)

    def is_late(self, now: int) -> bool:
        """Whether the time by which it had to start has passed."""
        expires_at, give_up_at = self.expires_at, self.give_up_at
        return (expires_at is not None and expires_at <= now) or (give_up_at is not None and give_up_at <= now)

    def check_bucket_count(self, buckets: int) -> None:
        """Make it unreadable if its costs or holders differ in number from its buckets.

        Its cost or its permits are then unknown, so it is charged as a job that costs 1 or holds nothing.
        """
        expected = buckets + size(self.exempt)
        costs, terms = self.costs, self.terms
        if costs is not None and (len(costs) != expected or min(costs, default=0) < 0):
            self._refuse(f"costs: {list(costs)[:10]} for {expected} limits")
            self.costs = None
        if terms is not None and terms.holds and len(terms.holds) != expected:
            self._refuse(f"terms: those of {len(terms.holds)} limits for {expected} limits")
            self.terms = None

    def _refuse(self, fault: str) -> None:
        note_unreadable("job", self.id, fault)
        self.unreadable = fault if self.unreadable is None else f"{self.unreadable}; {fault}"


class LaneMove(msgspec.Struct):
    """The new place of a lane after the claim, and how many jobs have left it."""

    id: RowId
    removed: int
    since: int | None
    behind: RowId | None
    wakes_at: int | None
    opened_at: int | None
    virtual_time: int | None
    version: int
    front: int


class BatchLanes(NamedTuple):
    """The lanes of one batch that wait behind a bucket."""

    bucket: RowId
    batch: str
