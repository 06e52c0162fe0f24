"""What a claim looks at before it locks anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from headgate.jobs.job import Draw
from headgate.storage.admission import TURN, RowId
from headgate.storage.claiming import LaneRow
from headgate.storage.driver import Transaction
from headgate.storage.procedures.buckets import BUCKETS, BucketRow
from headgate.storage.records import Claim
from headgate.storage.row_ids import lane_id
from headgate.storage.stored_rows import UNREADABLE_DRAWS, RowDecoder, note_unreadable

LANES = RowDecoder(LaneRow, "lane", draws=UNREADABLE_DRAWS)


class ClaimSnapshotRow(msgspec.Struct):
    """What the statement `look` returns: lists are JSON text."""

    now: int
    limit_now: int
    has_joined: bool
    paused: str
    revision: int
    opened: str
    due: str
    woken: str
    next_bucket: int | None
    next_wake: int | None


class SingleWriterSnapshotRow(ClaimSnapshotRow):
    """Where there is one writer: the lanes without draws, whose jobs are read next."""

    open: str


class MultiWriterSnapshotRow(ClaimSnapshotRow):
    """Where many write: how many jobs the lanes without draws have, and what others have left to do."""

    ungated: str
    ahead: int
    has_arrivals: bool
    has_notes: bool
    has_expired: bool
    took: int
    """Microseconds, in the server alone."""


AnyLook = TypeVar("AnyLook", SingleWriterSnapshotRow, MultiWriterSnapshotRow)

LOOK_ALONE = RowDecoder(SingleWriterSnapshotRow, "look")
LOOK_AMONG_OTHERS = RowDecoder(MultiWriterSnapshotRow, "look")


class UngatedLane(msgspec.Struct, array_like=True):
    """What the look saw in a lane without draws: jobs that are ready, those that were delayed and are due, …"""

    ready: int
    ripe: int
    next_wake: int | None
    unknown: list[tuple[str, str]]
    """The ids and tasks of those that the node must not start."""
    ripe_unknown: list[list[tuple[str, str]]]
    """Of those that were delayed and are due, by priority."""
    first: int | None
    """The `run_at` of a ready job that asked for no time; no other committed one is older. None if that is unknown."""
    front: int
    """Where the jobs that asked for no time were read from."""
    version: int | None
    """The lane's version, if it has a row."""

    @property
    def is_mixed(self) -> bool:
        """Whether it has others than jobs that are known and asked for no time."""
        return bool(self.ripe or self.unknown or any(self.ripe_unknown))

    @property
    def has_any(self) -> bool:
        """Whether there may be a job to take. Unknown ones may stand in front of it."""
        return bool(self.ready or self.ripe or self.unknown)


class _StoredLane(msgspec.Struct, array_like=True):
    """A lane with its draws as the text that is stored: the same ones come again and again."""

    id: str
    queue: str
    draws: str
    waiting: int
    since: int | None
    behind: str | None
    wakes_at: int | None
    variant: str
    opened_at: int | None
    version: int = 0


_decode_stored = RowDecoder(_StoredLane, "lane").decode
_decode_ungated = msgspec.json.Decoder(list[UngatedLane]).decode
_decode_paused = msgspec.json.Decoder(frozenset[str]).decode
_decode_draws = msgspec.json.Decoder(tuple[Draw, ...]).decode


class ClaimSnapshot:
    """What a claim starts from, read without locks."""

    def __init__(self, row: SingleWriterSnapshotRow | MultiWriterSnapshotRow, queues: Sequence[str]) -> None:
        self.now = row.now
        self.is_fresh = True
        """Whether no claim has gone by it before."""
        self.limit_now = row.limit_now
        self.has_joined = row.has_joined
        self.revision = row.revision
        self.paused = _decode_paused(row.paused)
        self.opened: list[BucketRow] = BUCKETS.decode(row.opened)
        self.due = _lanes(row.due)
        self.woken = _lanes(row.woken)
        self.behind: list[LaneRow] = []
        self.next_bucket = row.next_bucket
        self.next_wake = row.next_wake
        # One of the two is known.
        self.open: list[LaneRow] = []
        self.ungated: Mapping[str, UngatedLane] = {}
        if isinstance(row, SingleWriterSnapshotRow):
            self.open = _lanes(row.open)
        else:
            self.ungated = dict(zip(queues, _decode_ungated(row.ungated), strict=True))

    def later(self, microseconds: int) -> ClaimSnapshot:
        """The same so much later, if nothing has changed."""
        look = copy(self)
        look.now += microseconds
        look.limit_now += microseconds
        look.is_fresh = False
        return look

    def leaves_work(self, visited: Collection[RowId], slots: int) -> bool:
        """Whether there is as much work for another claim, after one that has `visited` these lanes.

        There must be nothing but lanes in line, enough for one turn each to fill the slots, or else no lane at all: few
        lanes would get more than their shares, and so would jobs without limits.
        """
        if self.opened or self.woken or self.paused or any(lane.is_mixed for lane in self.ungated.values()):
            return False
        if not self.due:
            return any(lane.ready for lane in self.ungated.values())
        self.due = [row for row in self.due if row.id not in visited]
        return len(self.due) * TURN >= slots


async def read_snapshot(
    tx: Transaction,
    decoder: RowDecoder[AnyLook],
    claim: Claim,
    newest: Mapping[str, str],
    *,
    known_only: bool,
    **values: Any,
) -> AnyLook:
    """Look, where these are the newest gates; `known_only` leaves out lanes that the node could do nothing with."""
    queues = list(claim.rooms)
    known = claim.known(newest)
    return await tx.row(
        decoder,
        "look",
        node=claim.node,
        queues=queues,
        count=max([1, *(room.slots for room in claim.rooms.values())]),
        limits=list(claim.rules),
        known=known.as_lines,
        known_json=known.as_json,
        known_only=known_only,
        **values,
    )


def open_lane(queue: str) -> str:
    """The lane of a queue's jobs without limits."""
    return lane_id(queue, (), "")


def _lanes(text: str) -> list[LaneRow]:
    return [
        LaneRow(
            row.id,
            row.queue,
            _drawn(row.draws),
            row.waiting,
            row.since,
            row.behind,
            row.wakes_at,
            row.variant,
            row.opened_at,
            row.version,
        )
        for row in _decode_stored(text)
    ]


@lru_cache(10_000)
def _drawn(text: str) -> tuple[Draw, ...]:
    try:
        return _decode_draws(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("lane", text[:100], f"draws: {error}")
        return UNREADABLE_DRAWS
