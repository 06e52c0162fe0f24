"""Permits that are returned when their jobs leave the states in which they hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from headgate.jobs.job import Draw
from headgate.limits.concurrency import (
    OF_BATCH,
    HeldPermits,
    Semaphore,
    dump_permits,
    load_permits,
    without_unused,
)
from headgate.limits.rule import NEVER
from headgate.storage.driver import Transaction
from headgate.storage.permits import PermitRelease, leaving_holders, permits_left
from headgate.storage.procedures.buckets import BucketRow, lock_buckets


async def return_permits(tx: Transaction, jobs: Iterable[PermitRelease]) -> Set[Draw]:
    """Take permits from their holders. Returns their buckets; the next claim visits the lanes behind them."""
    given = list(jobs)
    leaving = leaving_holders(given)
    if given:
        await tx.execute("keep_permits", given=given)
    await remove_holders(tx, leaving)
    return leaving.keys()


async def remove_holders(tx: Transaction, leaving: Mapping[Draw, Sequence[str]]) -> None:
    """Take one use of a permit from each of these holders of these buckets."""
    rows = await lock_buckets(tx, leaving)
    await _write(tx, [(row, permits_left(row.state, leaving[row.draw])) for row in rows])


async def release_batch_permits(tx: Transaction, batch: str, draws: Iterable[Draw]) -> None:
    """Take the permits of a batch that is final."""
    holder = OF_BATCH + batch
    held = [(row, load_permits(row.state)) for row in await lock_buckets(tx, draws)]
    await _write(tx, [(row, Semaphore.release(permits, holder)) for row, permits in held if holder in permits.holders])


async def release_unused_batches(tx: Transaction, draw: Draw) -> int:
    """Take permits from batches of which no job is running. Returns how many permits others hold."""
    (row,) = await lock_buckets(tx, [draw])
    held = load_permits(row.state)
    left = without_unused(held)
    if left != held:
        await _write(tx, [(row, left)])
    return left.held


async def _write(tx: Transaction, left: Sequence[tuple[BucketRow, HeldPermits]]) -> None:
    if left:
        rows = [(row.id, dump_permits(held), NEVER if held.holders else tx.limit_now) for row, held in left]
        await tx.execute("write_permits", wanted=rows, limit_now=tx.limit_now)
