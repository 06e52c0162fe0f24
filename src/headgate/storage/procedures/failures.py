"""What users read of failures: the jobs that failed last, and their errors."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.job import JobState
from headgate.storage.driver import Transaction
from headgate.storage.records import EndedAttempt, StoredError
from headgate.storage.stored_rows import RowDecoder

_ATTEMPTS = RowDecoder(EndedAttempt, "attempt")
_ERRORS = RowDecoder(StoredError, "job", state=JobState.WAITING)


async def newest_failed(tx: Transaction, since: int, count: int) -> list[str]:
    """As `Store.newest_failed`."""
    return await tx.ids("newest_failed", since=since, count=count)


async def newest_attempts(tx: Transaction, count: int) -> list[EndedAttempt]:
    """As `Store.newest_attempts`."""
    return await tx.fetch(_ATTEMPTS, "newest_attempts", count=count)


async def job_errors(tx: Transaction, job_ids: Sequence[str]) -> list[StoredError]:
    """As `Store.job_errors`."""
    return await tx.fetch(_ERRORS, "job_errors", ids=list(job_ids))
