"""Deleting final jobs before their retention does it: chunk by chunk, so that it can be watched and stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headgate.admin.bulk import BulkResult, pages_of, pages_that_match
from headgate.arguments import parse_count
from headgate.clock import to_datetime
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditRecord
from headgate.jobs.query import JobQuery
from headgate.jobs.state import JobState
from headgate.plural import counted
from headgate.storage.store import Store

FINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.SKIPPED)

ALL_QUEUES = "*"
NEEDED = "an unfinished job follows it"
"""Why a job is kept: that job, or one that follows its batch, may read its result."""


async def purge(
    storage: Store,
    query: JobQuery | Sequence[str],
    *,
    actor: str,
    before: int,
    most: int = 1_000_000,
    dry_run: bool = False,
    on_progress: Callable[[BulkResult], None] | None = None,
) -> BulkResult:
    """Delete the jobs that the query matches, or that have these ids, and that were final before then, up to `most`.

    Refused are those that an unfinished job needs; a dry run does not look for them. Raises DeclarationError for a
    query of jobs that are not final, and for one id in place of several.
    """
    parse_count(most, "most", least=0, most=most)
    queries = _final_queries(query, before) if isinstance(query, JobQuery) else ()
    pages = pages_of(storage, query) if not isinstance(query, JobQuery) else pages_that_match(storage, queries)
    if dry_run:
        found = 0
        for each in queries:
            found += await storage.count_jobs(each.filter(), most + 1 - found)
        if not queries:
            async for page in pages:
                found += sum(record.finished_at is not None and record.finished_at < before for record in page)
        return BulkResult(min(found, most), min(found, most), is_dry_run=True, is_cut=found > most)
    queue, selected = query.queue if isinstance(query, JobQuery) else None, _described(query, before)
    deleted = kept = 0
    entry: int | None = None

    def audit(more: int) -> AuditRecord:
        # In each commit, as a purge that is killed has deleted what it has committed; one entry, so that it hides none.
        return AuditRecord(
            actor, "purge", "queue", queue or ALL_QUEUES, f"{counted(deleted + more, 'job')}, {selected}"
        )

    def result(*, is_cut: bool = False) -> BulkResult:
        return BulkResult(deleted + kept, deleted, {NEEDED: kept} if kept else {}, is_cut=is_cut)

    async for page in pages:
        needed: frozenset[str] = frozenset()
        left = [record.id for record in page]
        # Jobs that are needed, or that another transaction has locked, are left; the search goes on after them.
        while left:
            ids = left[: most - deleted]
            if not ids:
                return result(is_cut=True)
            deletion = await storage.delete(ids, finished_before=before, audit=audit, entry=entry)
            entry = deletion.entry
            deleted += len(deletion.deleted)
            needed |= deletion.needed
            if on_progress is not None and deletion.deleted:
                on_progress(BulkResult(deleted, deleted))
            # Fewer are deleted at once if they have logged much.
            handled = deletion.deleted | deletion.needed if deletion.deleted else frozenset(ids)
            left = [id for id in left if id not in handled]
        kept += len(needed)
    return result()


def _final_queries(query: JobQuery, before: int) -> Sequence[JobQuery]:
    if query.view is not None or query.state not in (None, *FINAL):
        raise DeclarationError(
            f"only final jobs can be purged, and these are {query.state or 'waiting'}: cancel them first, for "
            "example with `headgate jobs cancel`"
        )
    until = to_datetime(before)
    until = min(until, query.finished_before or until)
    return [
        msgspec.structs.replace(query, state=state, finished_before=until)
        for state in FINAL
        if query.state in (None, state)
    ]


def _described(query: JobQuery | Sequence[str], before: int) -> str:
    """Return the query in words. Texts of payloads and values of headers are left out, as they may be secret."""
    if not isinstance(query, JobQuery):
        return "selected by their ids"
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
