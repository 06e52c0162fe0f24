"""What a claim looks at before it locks anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from headgate.jobs.job import Draw
from headgate.storage.claiming import LaneRow
from headgate.storage.postgres.rows import decode_draws
from headgate.storage.procedures.buckets import BUCKETS, BucketRow
from headgate.storage.stored_rows import UNREADABLE_DRAWS, note_unreadable


class Ungated(msgspec.Struct, array_like=True):
    """What the look saw in a lane without draws: jobs that are ready, those that were delayed and are due, …"""

    ready: int
    ripe: int
    next_wake: int | None
    unknown: list[tuple[str, str]]
    """The ids and tasks of those that the node must not start."""
    ripe_unknown: list[list[tuple[str, str]]]
    """Of those that were delayed and are due, by priority."""

    @property
    def has_any(self) -> bool:
        """Whether there may be a job to take. Unknown ones may stand in front of it."""
        return bool(self.ready or self.ripe or self.unknown)


class _StoredLane(msgspec.Struct, array_like=True):
    """A lane with its draws as the text that is stored."""

    id: str
    queue: str
    draws: str
    waiting: int
    since: int | None
    behind: str | None
    wakes_at: int | None
    variant: str
    opened_at: int | None


def _decode_buckets(text: str) -> list[BucketRow]:
    return [BUCKETS.of(row) for row in _decode_rows(text)]


_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode
_decode_stored = msgspec.json.Decoder(list[_StoredLane]).decode
_decode_ungated = msgspec.json.Decoder(list[Ungated]).decode


def decode_lanes(text: str) -> list[LaneRow]:
    """Lanes as a claim reads them."""
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
        )
        for row in _decode_stored(text)
    ]


@lru_cache(10_000)
def _drawn(text: str) -> tuple[Draw, ...]:
    try:
        return decode_draws(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("lane", text[:100], f"draws: {error}")
        return UNREADABLE_DRAWS


class Look:
    """What a claim starts from, read without locks."""

    def __init__(self, row: Any, queues: Sequence[str]) -> None:
        self.now: int = row["now"]
        self.limit_now: int = row["limit_now"]
        self.ahead: int = row["ahead"]
        self.has_joined: bool = row["has_joined"]
        self.paused = frozenset(row["paused"])
        self.revision: int = row["revision"]
        self.has_arrivals: bool = row["has_arrivals"]
        self.has_notes: bool = row["has_notes"]
        self.has_expired: bool = row["has_expired"]
        self.opened = _decode_buckets(row["opened"])
        self.due = decode_lanes(row["due"])
        self.woken = decode_lanes(row["woken"])
        self.behind: list[LaneRow] = []
        self.ungated = dict(zip(queues, _decode_ungated(row["ungated"]), strict=True))
        self.next_bucket: int | None = row["next_bucket"]
        self.next_wake: int | None = row["next_wake"]
