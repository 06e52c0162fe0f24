"""Cancelling a batch with everything in it, and what then waits for nothing else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby

from headgate.admin.bulk import AT_ONCE, CHUNK, BulkResult, change_together
from headgate.jobs.audit import AuditRecord
from headgate.jobs.state import JobState
from headgate.storage.records import DownstreamJob
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

    while new := [job for job in await storage.downstream_of(batch_id) if job.id not in seen]:
        cancellable = sorted((job for job in new if not job.cancel_requested), key=_order)
        now = cancellable[: most - changed]
        is_cut = len(now) < len(cancellable)
        if len(new) > len(cancellable):
            refused["its cancellation was already requested"] += len(new) - len(cancellable)
        seen.update(job.id for job in new)
        if dry_run:
            changed += len(now)
            return result(is_cut=is_cut)
        for chunk in _chunks(now):
            cancelled = await _cancel_unreleased(storage, chunk, audit_record)
            changed += len(cancelled)
            for reason in await _cancel_each([job for job in chunk if job.id not in cancelled], cancel):
                if reason is None:
                    changed += 1
                else:
                    refused[reason] += 1
            if on_progress is not None:
                on_progress(result())
        if is_cut:
            return result(is_cut=True)
    return result()


def _order(job: DownstreamJob) -> tuple[bool, int, bool, str]:
    """Sort a job that the end of others releases before those others, deepest first.

    Then blocked jobs last: those that a leader's end cancels come back when that leader is retried.
    """
    if job.runs_after_others_end:
        return False, -job.depth, True, job.id
    return True, 0, job.is_blocked, job.id


def _chunks(jobs: Sequence[DownstreamJob]) -> Iterator[Sequence[DownstreamJob]]:
    """Yield chunks of at most `CHUNK`: first those of jobs that the end of others releases, then those of others.

    A chunk releases no job of a later one, because it holds none that is deeper.
    """
    for _, group in groupby(jobs, key=lambda job: job.runs_after_others_end):
        alike = list(group)
        for start in range(0, len(alike), CHUNK):
            yield alike[start : start + CHUNK]


async def _cancel_unreleased(
    storage: Store, jobs: Sequence[DownstreamJob], audit_record: Callable[[str], AuditRecord]
) -> set[str]:
    """Cancel together those of the jobs that the end of others would release; return their ids."""
    ids = [job.id for job in jobs if job.runs_after_others_end]
    if not ids:
        return set()
    return set(await storage.cancel_blocked(ids, audit_records=[*map(audit_record, ids)]))


async def _cancel_each(jobs: Sequence[DownstreamJob], cancel: Cancel) -> list[str | None]:
    """Cancel jobs one by one. Returns for each why it was neither cancelled nor asked to end; None if it was."""

    async def change(job_id: str) -> bool:
        # One that is cancelled by now followed another one of these.
        return await cancel(job_id) in (JobState.WAITING, JobState.RUNNING, JobState.CANCELLED)

    reasons: list[str | None] = []
    for start in range(0, len(jobs), AT_ONCE):
        reasons += await change_together(change, [job.id for job in jobs[start : start + AT_ONCE]])
    return reasons
