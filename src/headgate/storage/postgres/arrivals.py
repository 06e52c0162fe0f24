"""Jobs that come to lanes and leave them: recorded as arrivals, which the next claim merges into the lanes.

Only claims write lanes. So adding, returning and cancelling jobs never wait for each other, and a transaction that a
user keeps open locks no lane.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from headgate.clock import FARTHEST
from headgate.storage.admission import RowId
from headgate.storage.driver import Transaction
from headgate.storage.postgres.low_watermarks import LowWatermarks
from headgate.storage.stored_rows import RowDecoder

MERGED_AT_ONCE = 10_000
"""How many of the oldest arrivals one merge takes at most."""

MERGED_OF_A_LANE = 50
"""How many arrivals of each of their lanes it takes besides: a lane with many is written once."""

RECENT = 1_000
"""The number of last arrivals among which those of some queues are searched, while many are left."""


class Merge(NamedTuple):
    """The result of a merge: the last place in line that is taken now, and the queues of the lanes.

    `has_more`: there may be more arrivals.
    """

    place: int
    queues: Collection[str] = ()
    has_more: bool = False


class _Merged(msgspec.Struct):
    """The result of a merge: the lanes that seem empty now, the last place in line that it assigned, and arrivals."""

    seems_empty: list[RowId]
    queues: list[str]
    since: int | None
    merged: int
    last: int
    first_left: int | None
    merger: int
    oldest_writer: int


class _Empty(msgspec.Struct):
    id: str
    version: int
    behind: str | None


class _FairFloor(msgspec.Struct):
    """The virtual time at which to begin among the due lanes of a fair queue."""

    queue: str
    floor: int


_MERGED = RowDecoder(_Merged, "merge")
_EMPTY = RowDecoder(_Empty, "lane")


class ProvenFront(msgspec.Struct):
    """A version of a lane that a snapshot read, and a rank below which no job waited that asked for no time."""

    lane_id: RowId
    version: int
    front: int


async def merge(
    tx: Transaction,
    after: int,
    low_watermarks: LowWatermarks,
    proven: Sequence[ProvenFront] = (),
    *,
    oldest: int = MERGED_AT_ONCE,
    newest: int = 0,
    queues: Sequence[str] | None = None,
) -> Merge:
    """Count arrivals in their lanes. Lanes that have become empty no longer wait for anything.

    `after` is the last place in line that was taken. At most so many of the `oldest` and of the `newest` arrivals are
    merged; with `queues`, the newest ones are only those of these queues among the last `RECENT`.
    """
    rows = await tx.fetch(
        _MERGED,
        "merge",
        after=after,
        limit_now=tx.limit_now,
        fair=[_FairFloor(queue, floor) for queue, floor in low_watermarks.virtual_times.items()],
        floor=low_watermarks.arrivals,
        oldest=oldest,
        newest=newest,
        queues=queues,
        among=FARTHEST if queues is None else RECENT,
        of_lane=MERGED_OF_A_LANE,
        proven=proven,
    )
    if not rows:
        return Merge(after)
    (done,) = rows
    low_watermarks.record_merge(done.last, done.first_left, merger=done.merger, oldest_writer=done.oldest_writer)
    if done.seems_empty:
        async with tx.atomic():
            await _empty(tx, done.seems_empty)
    return Merge(after if done.since is None else done.since, done.queues, done.merged >= oldest > 0)


async def _empty(tx: Transaction, lanes: Sequence[str]) -> None:
    # Buckets before lanes, and a read of the lanes only when they are locked: a job that comes now is a new arrival.
    behind = sorted(await tx.values("behind_of_lanes", lanes=lanes))
    locked = {*(await tx.values("buckets_for_update", ids=behind) if behind else ()), None}
    held = [row for row in await tx.fetch(_EMPTY, "lock_empty", lanes=lanes) if row.behind in locked]
    if held:
        await tx.execute("empty_lanes", empty=held)
        await tx.execute("clear_timers", ids=behind)
