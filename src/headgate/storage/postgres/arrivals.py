"""Jobs that come to lanes and leave them: told by arrivals, which whoever claims next merges into the lanes.

Nobody but a claim writes a lane. So adding, giving back and cancelling jobs never wait for each other, and a
transaction that a user holds open keeps no lane from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms, without
from headgate.storage.postgres.bucket_views import lock_buckets
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.rows import as_json, bucket_id, lane_id

MERGED_AT_ONCE = 10_000


class Lane(NamedTuple):
    """A lane by what it is."""

    queue: str
    draws: tuple[Draw, ...]
    variant: str

    @property
    def id(self) -> bytes:
        return lane_id(self.queue, self.draws, self.variant)


class Arrival(NamedTuple):
    """So many jobs came to a lane, or left it; `wakes_at` is when the earliest delayed one is due."""

    lane: Lane
    jobs: int
    is_ready: bool = False
    wakes_at: int | None = None


def lane_of(queue: str, draws: Sequence[Draw], terms: GateTerms | None, passes: int = 0) -> Lane:
    """The lane of a job that passes some of its draws."""
    asked = without(draws, passes)
    return Lane(queue, asked, terms.variant(passes) if terms is not None and asked else "")


async def arrive(session: Session, arrivals: Iterable[Arrival], limit_now: int) -> None:
    """Write down what came and what left at that limit time."""
    rows = [
        (
            each.lane.id,
            each.lane.queue,
            as_json(each.lane.draws),
            each.lane.variant,
            each.jobs,
            each.is_ready,
            each.wakes_at,
        )
        for each in arrivals
    ]
    if rows:
        lanes, queues, draws, variants, jobs, are_ready, wakes_at = zip(*rows, strict=True)
        await session.execute(
            "arrive",
            lanes=lanes,
            queues=queues,
            draws=draws,
            variants=variants,
            jobs=jobs,
            are_ready=are_ready,
            wakes_at=wakes_at,
            limit_now=limit_now,
        )


async def merge(session: Session, after: int) -> tuple[int, bool]:
    """Count in their lanes what has arrived. Lanes that have become empty wait for nothing any more.

    `after` is the last place in line that was given away, and so is the first thing that comes back; the second is
    whether there may be more than was merged at once.
    """
    rows = await session.fetch("merge", after=after, count=MERGED_AT_ONCE)
    empty = [row[0] for row in rows if row[0] is not None]
    if empty:
        async with session.transaction():
            await _empty(session, empty)
    place = max((row[1] for row in rows if row[1] is not None), default=after)
    return place, bool(rows) and rows[0][2] >= MERGED_AT_ONCE


async def _empty(session: Session, lanes: Sequence[bytes]) -> None:
    # Buckets before lanes, and a look into the lanes only when they are held: a job that comes now arrives anew.
    behind = {Draw(*row) for row in await session.fetch("lanes_behind", lanes=lanes)}
    await lock_buckets(session, behind)
    locked = {bucket_id(draw) for draw in behind} | {None}
    held = [row[0] for row in await session.fetch("lock_empty", lanes=lanes) if row[1] in locked]
    if held:
        await session.execute("empty_lanes", lanes=held)
        await session.execute("clear_timers", ids=[bucket_id(draw) for draw in behind])
