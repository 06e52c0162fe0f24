"""Giving back permits in PostgreSQL; the buckets of them are locked already."""

from __future__ import annotations

from collections.abc import Iterable, Set

from headgate.jobs.job import Draw
from headgate.limits.concurrency import dump_permits
from headgate.limits.rule import NEVER
from headgate.storage.permits import Given, leaving_holders, permits_left
from headgate.storage.postgres.bucket_views import lock_buckets
from headgate.storage.postgres.database import Session


async def give_permits(session: Session, jobs: Iterable[Given], limit_now: int) -> Set[Draw]:
    """Take permits from their holders; whoever waits for one is looked at by the next claim. The buckets of it."""
    jobs = list(jobs)
    leaving = leaving_holders(jobs)
    if jobs:
        await session.execute("keep_permits", ids=[str(job.seq) for job in jobs], held=[job.kept for job in jobs])
    if not leaving:
        return leaving.keys()
    locked = await lock_buckets(session, leaving)
    left = [(row.id, permits_left(row.state, leaving[Draw(row.limit, row.key)])) for row in locked.rows]
    await session.execute(
        "give_permits",
        ids=[id for id, _ in left],
        states=[dump_permits(permits) for _, permits in left],
        idle_at=[NEVER if permits.holders else limit_now for _, permits in left],
        limit_now=limit_now,
    )
    return leaving.keys()
