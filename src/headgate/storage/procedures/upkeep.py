"""What nodes do about once a minute, what operators do to queues, and checks that rows agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from headgate.jobs.audit import AuditRecord
from headgate.jobs.draw_set import NO_DRAWS, DrawSet, chosen
from headgate.jobs.identity import JobId
from headgate.jobs.job import Draw, JobOptions, JobState
from headgate.jobs.terms import GateTerms
from headgate.limits.concurrency import dump_permits
from headgate.storage import permits
from headgate.storage.driver import Transaction
from headgate.storage.endings import prunable_at_once
from headgate.storage.live_rules import LiveRules
from headgate.storage.permits import Holder, PermitBucket, PermitRelease
from headgate.storage.procedures.alerts import evict_alerts
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.procedures.buckets import BUCKETS, lock_buckets
from headgate.storage.procedures.permits import return_permits
from headgate.storage.procedures.replacement_notes import holders_in, read_notes
from headgate.storage.procedures.schedules import evict_schedule_notes
from headgate.storage.procedures.settings import read_settings
from headgate.storage.procedures.tags import remove_tags
from headgate.storage.records import Deletion
from headgate.storage.stored_rows import RowDecoder


class _Prunable(msgspec.Struct, array_like=True):
    id: JobId
    held: DrawSet
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    lines: int
    batch: JobId | None
    options: JobOptions | None


class _LockedFinalJob(msgspec.Struct, array_like=True):
    id: JobId
    held: DrawSet


_PRUNABLE = RowDecoder(_Prunable, "job")
_LOCKED = RowDecoder(_LockedFinalJob, "job")
_HOLDERS = RowDecoder(Holder, "job")


async def prune(tx: Transaction, since: int, before: int, count: int, states: Collection[JobState]) -> int:
    """As `Store.prune`."""
    found = await tx.fetch(_PRUNABLE, "prunable", since=since, before=before, count=count, states=sorted(states))
    if not found:
        # Batches that had no job, joins, and batches whose last jobs were deleted by several nodes at once.
        joins = await tx.ids("prune_batches", before=before, count=count)
        if joins:
            await tx.execute("prune_awaited_leaders", ids=joins)
    return len(await _delete(tx, found, before))


async def prune_by_own_retention(tx: Transaction, count: int) -> int:
    """As `Store.prune_by_own_retention`."""
    found = await tx.fetch(_PRUNABLE, "prunable_by_own_retention", now=tx.now, count=count)
    return len(await _delete(tx, found, tx.now + 1))


async def delete(tx: Transaction, ids: Sequence[str], before: int, audit_record: AuditRecord | None) -> Deletion:
    """As `Store.delete`."""
    needed = frozenset(await tx.ids("needed", ids=list(ids)))
    found = await tx.fetch(_PRUNABLE, "deletable", ids=[id for id in ids if id not in needed], before=before)
    deleted = await _delete(tx, found, before)
    if deleted:
        await add_audit_record(tx, audit_record)
    return Deletion(frozenset(deleted), needed)


async def _delete(tx: Transaction, found: Sequence[_Prunable], before: int) -> list[str]:
    """Delete jobs that finished before then, as many as one commit may delete. Returns the ids of the deleted jobs."""
    found = found[: prunable_at_once([job.lines for job in found])]
    if not found:
        return []
    # A permit that was kept until a job succeeds is released with the job at the latest.
    holders = {job.id: job for job in found if job.held and job.terms is not None}
    if holders:
        await lock_buckets(tx, {draw for job in holders.values() for draw in chosen(job.draws, job.held)})
    locked = await tx.fetch(_LOCKED, "lock_prunable", ids=[job.id for job in found], before=before)
    if not locked:
        return []
    if holders:
        await return_permits(
            tx, [_given(holders[job.id], job.held) for job in locked if job.held and job.id in holders]
        )
    gone = [job.id for job in locked]
    await tx.execute("prune_attempts", ids=gone)
    if any(job.lines for job in found):
        await tx.execute("prune_lines", ids=gone)
    await tx.execute("prune_job_audit", subjects=gone)
    await remove_tags(tx, [job for job in found if job.id in set(gone)])
    await tx.execute("prune_jobs", ids=gone)
    batches = {job.batch for job in found if job.batch is not None}
    if batches:
        await tx.execute("prune_batches_of", ids=sorted(batches), before=before)
    return gone


def _given(job: _Prunable, held: DrawSet) -> PermitRelease:
    assert job.terms is not None
    return PermitRelease(job.id, job.draws, job.terms, held, NO_DRAWS)


async def evict(tx: Transaction, count: int) -> int:
    """As `Store.evict`; with several writers, its statements commit by themselves."""
    if not tx.has_one_writer:
        # If only plain code draws on buckets, no heartbeat does it.
        await tx.execute("use_limit_time", limit_now=tx.limit_now)
    evicted = await tx.execute("evict_buckets", limit_now=tx.limit_now, count=count)
    evicted += await tx.execute("evict_notes", limit_now=tx.limit_now, count=count)
    evicted += await tx.execute("evict_kept_keys", now=tx.now, count=count)
    evicted += await evict_alerts(tx, count)
    evicted += await tx.execute("evict_lanes", count=count)
    evicted += await tx.execute("evict_turn_groups", count=count)
    await tx.execute("leave_line", count=count)
    async with tx.atomic():
        return evicted + await evict_schedule_notes(tx, count)


async def identity(tx: Transaction) -> str:
    """As `Store.identity`."""
    return str(await tx.value("identity"))


async def is_folder_used(tx: Transaction, url: str) -> bool:
    """As `Store.is_folder_used`."""
    return bool(await tx.values("used_folder", url=url))


async def note_folder_used(tx: Transaction, url: str) -> None:
    """As `Store.note_folder_used`."""
    await tx.execute("note_used_folder", url=url)


async def stored_ids(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """As `Store.stored_ids`."""
    return await tx.ids("stored_ids", ids=list(ids))


async def pause_queue(tx: Transaction, queue: str, audit_record: AuditRecord | None, *, ends: bool = False) -> bool:
    """As `Store.pause_queue`, or as `Store.resume_queue` if the pause `ends`."""
    is_changed = await tx.execute("resume_queue" if ends else "pause_queue", queue=queue, now=tx.now) == 1
    if is_changed:
        await add_audit_record(tx, audit_record)
    return is_changed


async def check(tx: Transaction) -> list[str]:
    """As `Store.check`."""
    # Permits of replaced jobs count as given back; with several writers, the next claim writes it.
    leaving = {} if tx.has_one_writer else holders_in(await read_notes(tx))
    found = await tx.values("check", now=tx.now)
    holders = await tx.fetch(_HOLDERS, "holders")
    buckets: dict[Draw, PermitBucket] = {}
    for row in await tx.fetch(BUCKETS, "buckets_of_permits"):
        if row.draw in leaving:
            left = permits.permits_left(row.state, leaving[row.draw])
            buckets[row.draw] = PermitBucket(dump_permits(left), None)
        else:
            buckets[row.draw] = PermitBucket(row.state, row.opens_at)
    holding = permits.holding_batches(bucket.state for bucket in buckets.values())
    pending = set(await tx.ids("pending_batches", ids=sorted(holding)))
    rules = LiveRules(await read_settings(tx))
    return [*found, *permits.contradictions(holders, buckets, pending, rules)]
