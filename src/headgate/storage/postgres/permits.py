"""Giving back permits in PostgreSQL; the buckets of them are locked already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from headgate.jobs.job import Draw
from headgate.limits.concurrency import OF_BATCH, Permits, Semaphore, dump_permits, load_permits, without_unused
from headgate.limits.rule import NEVER
from headgate.storage.permits import Given, leaving_holders, permits_left
from headgate.storage.postgres.bucket_views import lock_buckets
from headgate.storage.postgres.database import Session


async def give_up(session: Session, batch: str, draws: Sequence[Draw], limit_now: int) -> None:
    """A batch is final, and holds permits of these buckets no more."""
    locked = await lock_buckets(session, set(draws))
    holder = OF_BATCH + batch
    held = [(row.id, load_permits(row.state)) for row in locked.rows]
    left = [(id, Semaphore.release(permits, holder)) for id, permits in held if holder in permits.holders]
    await _write(session, left, limit_now)


async def give_up_unused(session: Session, draw: Draw, limit_now: int) -> int:
    """Take permits from batches of which no job runs; how many are held by others."""
    (row,) = (await lock_buckets(session, [draw])).rows
    held = load_permits(row.state)
    left = without_unused(held)
    if left != held:
        await _write(session, [(row.id, left)], limit_now)
    return left.held


async def give_permits(session: Session, jobs: Iterable[Given], limit_now: int) -> Set[Draw]:
    """Take permits from their holders; whoever waits for one is looked at by the next claim. The buckets of it."""
    jobs = list(jobs)
    leaving = leaving_holders(jobs)
    if jobs:
        await session.execute("keep_permits", ids=[str(job.seq) for job in jobs], held=[job.kept for job in jobs])
    await take_from(session, leaving, limit_now)
    return leaving.keys()


async def take_from(session: Session, leaving: Mapping[Draw, Sequence[str]], limit_now: int) -> None:
    """Take one use of a permit from each of these holders of these buckets."""
    locked = await lock_buckets(session, leaving)
    left = [(row.id, permits_left(row.state, leaving[Draw(row.limit, row.key)])) for row in locked.rows]
    await _write(session, left, limit_now)


async def _write(session: Session, left: Sequence[tuple[bytes, Permits]], limit_now: int) -> None:
    if left:
        await session.execute(
            "give_permits",
            ids=[id for id, _ in left],
            states=[dump_permits(permits) for _, permits in left],
            idle_at=[NEVER if permits.holders else limit_now for _, permits in left],
            limit_now=limit_now,
        )
