"""The audit log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict

from headgate.clock import SECOND
from headgate.jobs.audit import SIGN_OUTS_KEPT, AuditEntry, AuditFilter, AuditRecord
from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder

_ENTRIES = RowDecoder(AuditEntry, "audit entry", kind="job")


async def add_audit_record(tx: Transaction, audit_record: AuditRecord | None, entry: int | None = None) -> int | None:
    """Store an audit record in the transaction of its action, in that entry if it is there; None stores nothing."""
    if audit_record is not None:
        record = audit_record.cut()
        job = record.subject if record.kind == "job" else None
        if entry is None or not await tx.execute("change_audit_entry", number=entry, detail=record.detail):
            entry = await tx.value("add_audit_entry", now=tx.now, job=job, **asdict(record))
    return entry


async def add_job_audit_records(tx: Transaction, audit_records: Iterable[AuditRecord]) -> None:
    """Store audit records about several jobs, as `add_audit_record`."""
    added = [
        (record.subject, record.actor, record.action, record.subject, record.detail)
        for record in (each.cut() for each in audit_records)
    ]
    if added:
        await tx.execute("add_audit_entries", now=tx.now, added=added)


async def audit_log(tx: Transaction, filter: AuditFilter) -> Sequence[AuditEntry]:
    """Return a page of audit entries, newest first."""
    statement = "audit_log" if filter.subject is None else "audit_log_of"
    return await tx.fetch(_ENTRIES, statement, **asdict(filter))


async def sign_outs(tx: Transaction, since: int) -> Sequence[AuditEntry]:
    """Return the sign-outs of users since then (wall time), oldest first."""
    return await tx.fetch(_ENTRIES, "sign_outs", since=since)


async def prune_audit(tx: Transaction, before: int, count: int = 1000) -> int:
    """Delete up to `count` audit entries from before then that are not about a job. Returns how many."""
    sign_outs_before = tx.now - SIGN_OUTS_KEPT * SECOND
    return await tx.execute("prune_audit", before=before, sign_outs_before=sign_outs_before, count=count)
