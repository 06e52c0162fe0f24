"""Jobs that come to lanes and leave them: told by arrivals, which whoever claims next merges into the lanes.

Nobody but a claim writes a lane. So adding, giving back and cancelling jobs never wait for each other, and a
transaction that a user holds open keeps no lane from anybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.job import Draw
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.procedures.buckets import lock_buckets
from headgate.storage.row_ids import bucket_id

MERGED_AT_ONCE = 10_000


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


async def _empty(session: Session, lanes: Sequence[str]) -> None:
    # Buckets before lanes, and a look into the lanes only when they are held: a job that comes now arrives anew.
    behind = {Draw(*row) for row in await session.fetch("lanes_behind", lanes=lanes)}
    await lock_buckets(PostgresTransaction(session, 0, 0), behind)
    locked = {bucket_id(draw) for draw in behind} | {None}
    held = [row[0] for row in await session.fetch("lock_empty", lanes=lanes) if row[1] in locked]
    if held:
        await session.execute("empty_lanes", lanes=held)
        await session.execute("clear_timers", ids=[bucket_id(draw) for draw in behind])
