"""Deleting final jobs before their retention does it: chunk by chunk, so that it can be watched and stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headgate.admin.query import JobQuery
from headgate.clock import to_datetime
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditRecord
from headgate.jobs.state import JobState
from headgate.storage.store import Store

CHUNK = 200
"""How many jobs are deleted in one commit at most, so that other writes do not wait long for it."""

FINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

ALL_QUEUES = "*"


@dataclass(frozen=True, slots=True)
class Purged:
    """How many jobs were deleted, or would be with `is_dry_run`. `is_cut`: there are more than the maximum."""

    deleted: int = 0
    is_dry_run: bool = False
    is_cut: bool = False


async def purge(
    storage: Store,
    query: JobQuery,
    *,
    actor: str,
    before: int,
    most: int,
    dry_run: bool,
    on_progress: Callable[[Purged], None] | None,
) -> Purged:
    """Delete the jobs that the query matches and that were final before that wall time, up to `most`."""
    queries = _final_queries(query, before)
    if dry_run:
        found = 0
        for each in queries:
            found += await storage.count_jobs(each.filter(), most + 1 - found)
        return Purged(min(found, most), is_dry_run=True, is_cut=found > most)
    work = _Purge(storage, before, most, on_progress)
    try:
        is_cut = not all([await work.delete(each) for each in queries])
    finally:
        if work.deleted:
            # If it is stopped, these jobs are deleted all the same.
            jobs = "1 job" if work.deleted == 1 else f"{work.deleted} jobs"
            detail = f"{jobs}, {_described(query, before)}"
            await storage.add_audit_record(AuditRecord(actor, "purge", "queue", query.queue or ALL_QUEUES, detail))
    return Purged(work.deleted, is_cut=is_cut)


class _Purge:
    """Counts the deleted jobs, and stops at the maximum."""

    def __init__(self, storage: Store, before: int, most: int, on_progress: Callable[[Purged], None] | None) -> None:
        self.deleted = 0
        self._storage = storage
        self._before = before
        self._most = most
        self._on_progress = on_progress

    async def delete(self, query: JobQuery) -> bool:
        """Delete the jobs that a query of one final state matches; False if there are more than may be deleted."""
        assert query.state is not None
        cursor: str | None = None
        while page := await self._storage.jobs(query.filter(cursor=cursor, count=CHUNK, oldest_first=True)):
            ids = [record.id for record in page][: self._most - self.deleted]
            if not ids:
                return False
            gone = await self._storage.prune(self._before, len(ids), frozenset({query.state}), ids=ids)
            self.deleted += gone
            if not gone:
                # Jobs that another transaction has locked are left; the search goes on after them.
                cursor = page[-1].id
            if self._on_progress is not None:
                self._on_progress(Purged(self.deleted))
        return True


def _final_queries(query: JobQuery, before: int) -> Sequence[JobQuery]:
    if query.view is not None or query.state not in (None, *FINAL):
        raise DeclarationError(
            f"only final jobs can be purged, and these are {query.state or 'waiting'}: cancel them first, for "
            "example with `headgate jobs cancel`"
        )
    until = to_datetime(before)
    if query.finished_before is not None:
        until = min(until, query.finished_before)
    return [
        msgspec.structs.replace(query, state=state, finished_before=until)
        for state in FINAL
        if query.state in (None, state)
    ]


def _described(query: JobQuery, before: int) -> str:
    """Return the query in words. Texts of payloads and values of headers are left out, as they may be secret."""
    said = {name: getattr(query, name) for name in JobQuery.__struct_fields__}
    words = [_worded(name, value) for name, value in said.items() if value is not None]
    return ", ".join([*words, f"final before {to_datetime(before):%Y-%m-%d %H:%M:%S} UTC"])


def _worded(name: str, value: object) -> str:
    match name:
        case "text":
            return "a text in the payload"
        case "header" | "annotation":
            return f"a value of {name} {str(value).partition('=')[0]}"
        case _:
            return f"{name} {value}"
