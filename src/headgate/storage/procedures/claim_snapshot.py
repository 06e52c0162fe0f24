"""The rows that a claim reads: the snapshot, which it reads before it locks anything, and the first jobs of lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from headgate.jobs.annotation import Annotation
from headgate.jobs.bucket_mask import BucketMask, size, union
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobOptions, Origin
from headgate.jobs.terms import LimitTerms
from headgate.storage.admission import FAIR_LANES, RowId
from headgate.storage.driver import Transaction
from headgate.storage.procedures.buckets import BUCKETS, BucketRow
from headgate.storage.records import Claim
from headgate.storage.stored_rows import UNREADABLE_BUCKETS, RowDecoder, lane_id, note_unreadable

LOWEST_RANK = -9_000_000_000_000_000_000
"""Below the ranks of all jobs."""


class LaneRow(msgspec.Struct):
    """A lane as it is stored. The lane of jobs without limits has no buckets.

    `opened_at` (limit time) is when the bucket opened that the lane last waited behind. Its jobs that were ready before
    have waited for that limit until then, and for a slot since then. `virtual_time` is that of its key in a fair queue,
    None in other queues. If keys have two levels, it is in the group `group_id`, of which at most `group_most` lanes
    were read. With several writers, each update raises `version`, and no merged job that requested no start time has
    a `rank` below `front`. Of a lane behind a bucket, `highest` is the highest virtual time of its queue so far, and
    `last_behind` the highest place behind that bucket.
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
    group_id: RowId | None = None
    group_most: int = 0
    front: int = LOWEST_RANK
    highest: int | None = None
    last_behind: int | None = None

    @property
    def place(self) -> int:
        """Its place in line."""
        return self.virtual_time if self.virtual_time is not None else self.since or 0


class TurnGroupRow(msgspec.Struct):
    """A group of lanes as it is stored: its virtual time, the lowest of its lanes in line, and the highest of all."""

    id: RowId
    virtual_time: int
    first: int | None
    last: int | None


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
    """All buckets of the job, if its lane does not have all of them."""
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
        """Make it unreadable if its costs or holders differ in number from its buckets, or if its call cannot be.

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
        if terms is not None and (calls := terms.calls) is not None and (calls.size < 1 or calls.buckets >> expected):
            self._refuse(f"terms: calls of {calls.size} jobs, counted by limits {calls.buckets:b} of {expected}")
            self.terms = None

    def _refuse(self, fault: str) -> None:
        note_unreadable("job", self.id, fault)
        self.unreadable = fault if self.unreadable is None else f"{self.unreadable}; {fault}"


LANES = RowDecoder(LaneRow, "lane", buckets=UNREADABLE_BUCKETS)


class ClaimSnapshotRow(msgspec.Struct):
    """The row of the statement `claim_snapshot`; lists are JSON text."""

    now: int
    limit_now: int
    has_joined: bool
    paused: str
    revision: int
    opened: str
    due: str
    grouped: str
    woken: str
    next_bucket: int | None
    next_wake: int | None


class SingleWriterSnapshotRow(ClaimSnapshotRow):
    """The row with one writer. `open` has the lanes without buckets; their jobs are read next."""

    open: str


class MultiWriterSnapshotRow(ClaimSnapshotRow):
    """The row with several writers: also the jobs of lanes without buckets, and work that other processes left."""

    ungated: str
    ahead: int
    has_arrivals: bool
    has_notes: bool
    has_expired: bool
    took: int
    """Duration in the server, in microseconds."""


AnySnapshotRow = TypeVar("AnySnapshotRow", SingleWriterSnapshotRow, MultiWriterSnapshotRow)

SINGLE_WRITER_SNAPSHOT = RowDecoder(SingleWriterSnapshotRow, "claim snapshot")
MULTI_WRITER_SNAPSHOT = RowDecoder(MultiWriterSnapshotRow, "claim snapshot")


class UngatedLane(msgspec.Struct, array_like=True):
    """A lane without buckets in a snapshot: how many known jobs are ready, and how many known delayed ones are due.

    The next delayed one is due at `next_wake`.
    """

    ready: int
    due: int
    next_wake: int | None
    unknown: list[tuple[int, str]]
    """The numbers of the ids, and tasks, of jobs that the node must not start."""
    due_unknown: list[list[tuple[int, str]]]
    """The same of delayed jobs that are due, a list for each priority."""
    first: int | None
    """The lowest rank of committed waiting jobs that requested no start time. None if there is none."""
    front: int
    """The rank from which jobs that requested no start time were read: no such job has a lower one."""
    version: int | None
    """The lane's version, if it has a row."""


class _StoredLane(LaneRow, array_like=True):
    """A lane as a snapshot has it, with its buckets as text at first: the decoded buckets of each text are cached."""

    buckets: str  # type: ignore[assignment]  # until `_lanes` decodes it


_decode_stored = RowDecoder(_StoredLane, "lane").decode
_decode_ungated = msgspec.json.Decoder(list[UngatedLane]).decode
_decode_paused = msgspec.json.Decoder(frozenset[str]).decode
_decode_buckets = msgspec.json.Decoder(tuple[BucketRef, ...]).decode


class ClaimSnapshot:
    """The state that a claim starts from, read without locks."""

    def __init__(self, row: SingleWriterSnapshotRow | MultiWriterSnapshotRow, queues: Sequence[str]) -> None:
        self.now = row.now
        self.is_fresh = True
        """Whether no claim has used it before."""
        self.limit_now = row.limit_now
        self.has_joined = row.has_joined
        self.revision = row.revision
        self.paused = _decode_paused(row.paused)
        self.opened: list[BucketRow] = BUCKETS.decode(row.opened)
        self.due = [*_lanes(row.due), *_lanes(row.grouped)]
        self.woken = _lanes(row.woken)
        self.behind: list[LaneRow] = []
        self.passed: Mapping[str, int] = {}
        """The virtual time of each fair queue below which lanes in line were not read."""
        self.next_bucket = row.next_bucket
        self.next_wake = row.next_wake
        # One of these two is set.
        self.open: list[LaneRow] = []
        self.ungated: Mapping[str, UngatedLane] = {}
        if isinstance(row, SingleWriterSnapshotRow):
            self.open = _lanes(row.open)
        else:
            self.ungated = dict(zip(queues, _decode_ungated(row.ungated), strict=True))

    def later(self, microseconds: int) -> ClaimSnapshot:
        """Return the same snapshot with a later time, for a claim that reuses it."""
        later = copy(self)
        later.now += microseconds
        later.limit_now += microseconds
        later.is_fresh = False
        return later


async def read_snapshot(
    tx: Transaction,
    decoder: RowDecoder[AnySnapshotRow],
    claim: Claim,
    newest: Mapping[str, str],
    *,
    known_only: bool,
    **values: Any,
) -> AnySnapshotRow:
    """Read the row of a snapshot. `known_only` leaves out lanes that the node cannot claim from.

    `newest` has the newest limit set of each subject.
    """
    queues = list(claim.free_slots)
    known = claim.known(newest)
    count, lanes = claim.page, claim.lanes
    return await tx.row(
        decoder,
        "claim_snapshot",
        node=claim.node,
        queues=queues,
        count=count,
        lanes=lanes,
        # Enough by this quantum is enough for any share of these slots by its own.
        quantum=-(-count // FAIR_LANES),
        enough=lanes + FAIR_LANES - 1,
        limits=list(claim.rules),
        known=known.as_lines,
        known_json=known.as_json,
        known_only=known_only,
        **values,
    )


def open_lane(queue: str) -> str:
    """Return the id of the lane of a queue's jobs without limits."""
    return lane_id(queue, (), "")


def _lanes(text: str) -> list[LaneRow]:
    lanes: list[LaneRow] = []
    for lane in _decode_stored(text):
        lane.buckets = _buckets_of(lane.buckets)  # type: ignore[assignment]
        lanes.append(lane)
    return lanes


@lru_cache(10_000)
def _buckets_of(text: str) -> tuple[BucketRef, ...]:
    try:
        return _decode_buckets(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("lane", text[:100], f"buckets: {error}")
        return UNREADABLE_BUCKETS
