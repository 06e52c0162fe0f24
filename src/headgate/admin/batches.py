"""Cancelling a batch with everything in it, and what then waits for nothing else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from headgate.admin.bulk import AT_ONCE, CHUNK, BulkResult, change_at_once
from headgate.jobs.audit import AuditRecord
from headgate.jobs.state import JobState
from headgate.storage.store import Store

Cancel = Callable[[str], Awaitable[JobState | None]]
"""Cancels one job, and returns the state that it was in. Raises JobHeld."""


async def cancel_batch(
    storage: Store,
    batch_id: str,
    cancel: Cancel,
    audit_record: Callable[[str], AuditRecord],
    *,
    most: int = sys.maxsize,
    dry_run: bool = False,
    on_progress: Callable[[BulkResult], None] | None = None,
) -> BulkResult:
    """Cancel up to `most` jobs: those that the end of others would release first, blocked ones last.

    Jobs that are added meanwhile are cancelled, too. A job that another transaction has locked is counted as refused.
    """
    seen: set[str] = set()
    refused: Counter[str] = Counter()
    changed = 0

    def result(*, is_cut: bool = False) -> BulkResult:
        return BulkResult(changed + refused.total(), changed, dict(refused), dry_run, is_cut)

    while True:
        found = await storage.downstream_of(batch_id)
        released, others, requested = (
            [id for id in ids if id not in seen] for ids in (found.released, found.others, found.requested)
        )
        if not (released or others or requested):
            return result()
        if requested:
            refused["its cancellation was already requested"] += len(requested)
        seen.update(released, others, requested)
        left = most - changed
        is_cut = left < len(released) + len(others)
        released, others = released[:left], others[: max(0, left - len(released))]
        if dry_run:
            changed += len(released) + len(others)
            return result(is_cut=is_cut)
        # A chunk releases no job of a later one, because it holds none that is deeper.
        for ids in (released, others):
            for start in range(0, len(ids), CHUNK):
                chunk = ids[start : start + CHUNK]
                cancelled: set[str] = set()
                if ids is released:
                    cancelled.update(await storage.cancel_blocked(chunk, audit_records=[*map(audit_record, chunk)]))
                changed += len(cancelled)
                for reason in await _cancel_each([id for id in chunk if id not in cancelled], cancel):
                    if reason is None:
                        changed += 1
                    else:
                        refused[reason] += 1
                if on_progress is not None:
                    on_progress(result())
        if is_cut:
            return result(is_cut=True)


async def _cancel_each(ids: Sequence[str], cancel: Cancel) -> list[str | None]:
    """Cancel jobs one by one. Returns for each why it was neither cancelled nor asked to end; None if it was."""

    async def change(job_id: str) -> bool:
        # One that is cancelled by now followed another one of these.
        return await cancel(job_id) in (JobState.WAITING, JobState.RUNNING, JobState.CANCELLED)

    reasons: list[str | None] = []
    for start in range(0, len(ids), AT_ONCE):
        reasons += await change_at_once(change, ids[start : start + AT_ONCE])
    return reasons
