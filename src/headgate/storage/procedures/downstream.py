"""Cancels what belongs to a batch: its jobs, those in its inner batches, and what then waits for nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from headgate.jobs.audit import AuditRecord
from headgate.jobs.identity import JobId
from headgate.jobs.state import JobState
from headgate.storage.driver import Transaction
from headgate.storage.following import depths
from headgate.storage.procedures import following
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.records import Downstream
from headgate.storage.stored_rows import RowDecoder


class _Found(msgspec.Struct):
    id: JobId
    state: JobState
    cancel_requested: bool
    is_blocked: bool
    needs: str | None
    follows: JobId | None

    @property
    def is_released(self) -> bool:
        """Whether the cancellation of others releases it, and so it has to be cancelled before them."""
        return self.is_blocked and self.needs not in (None, "success")


class _Member(msgspec.Struct):
    """A job or a batch, and a batch or a join that counts it."""

    id: JobId
    counted_by: JobId


class _Pending(msgspec.Struct):
    id: JobId
    pending: int


_JOBS = RowDecoder(_Found, "job", state=JobState.WAITING)
_MEMBERS = RowDecoder(_Member, "member of batch")
_PENDING = RowDecoder(_Pending, "batch")


async def downstream_of(tx: Transaction, batch_id: str) -> Downstream:
    """Return the jobs to cancel with a batch, as far as they are not final.

    Its jobs, those of the batches in it, and each job after them that then would wait for nothing else.

    From each batch in it and each job that is found, go on to what follows it. A batch or join outside is reached when
    all of its members that are not final are: what follows it waits for nothing else.
    """
    jobs: dict[str, _Found] = {}
    order: list[tuple[str, str]] = []
    reached = {batch_id}
    counted: Counter[str] = Counter()
    inside = leaders = [batch_id]
    while leaders:
        found = await tx.fetch(_JOBS, "downstream_jobs", batches=inside, leaders=leaders)
        new = [job for job in found if job.id not in jobs]
        jobs.update((job.id, job) for job in new)
        members = [*(job.id for job in new), *leaders]
        inside = [id for id in await tx.ids("pending_batches_in", batches=inside) if id not in reached]
        counting = await tx.fetch(_MEMBERS, "counting_batches", members=members)
        counted.update(each.counted_by for each in counting)
        order += [(each.id, each.counted_by) for each in counting]
        touched = sorted({each.counted_by for each in counting} - reached - set(inside))
        pending = await tx.fetch(_PENDING, "pending_of_batches", ids=touched) if touched else []
        leaders = [*inside, *(each.id for each in pending if counted[each.id] >= each.pending)]
        reached.update(leaders)
    order += [(job.follows, job.id) for job in jobs.values() if job.follows is not None]
    left = [job for job in jobs.values() if not job.cancel_requested]
    released = [job for job in left if job.is_released]
    # It takes 2 s for a million jobs, and matters only if the end of one releases another.
    depth = depths(order) if released else {}
    released.sort(key=lambda job: (-depth.get(job.id, 0), job.id))
    others = sorted((job for job in left if not job.is_released), key=lambda job: (job.is_blocked, job.id))
    requested = [job.id for job in jobs.values() if job.cancel_requested]
    return Downstream([job.id for job in released], [job.id for job in others], requested)


async def cancel_blocked(tx: Transaction, job_ids: Sequence[str], audit_records: Sequence[AuditRecord]) -> list[str]:
    """As `Store.cancel_blocked`."""
    found = await tx.fetch(following.ENDED_JOBS, "lock_blocked", ids=list(job_ids))
    ids = {job.id for job in found}
    for record in audit_records:
        if record.subject in ids:
            await add_audit_record(tx, record)
    await following.end_blocked(tx, [(job.id, JobState.CANCELLED, None) for job in found])
    await following.resolve_followers(tx, found)
    return sorted(ids)
