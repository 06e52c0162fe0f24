"""The log of what people did."""

from __future__ import annotations

from msgspec.structs import asdict

from headgate.jobs.audit import AuditEntry, AuditFilter, AuditRecord
from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder

_ENTRIES = RowDecoder(AuditEntry, "audit entry", kind="job")


async def add_audit_record(tx: Transaction, deed: AuditRecord | None) -> None:
    """Record what somebody did, in the transaction that does it; None is recorded nowhere."""
    if deed is not None:
        await tx.execute("keep_deed", now=tx.now, **asdict(deed.cut()))


async def audit_log(tx: Transaction, filter: AuditFilter) -> list[AuditEntry]:
    """A page of what people did, newest first."""
    statement = "audit_log" if filter.subject is None else "audit_log_of"
    return await tx.fetch(_ENTRIES, statement, **asdict(filter))


async def prune_audit(tx: Transaction, before: int, count: int) -> int:
    """Forget up to so many entries of before then that are not about a job; how many."""
    return await tx.execute("prune_audit", before=before, count=count)
