"""What users read of failures: the jobs that failed last, and their errors."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.job import JobState
from headgate.storage.driver import Transaction
from headgate.storage.records import EndedAttempt, StoredError
from headgate.storage.stored_rows import RowDecoder

_ATTEMPTS = RowDecoder(EndedAttempt, "attempt")
_ERRORS = RowDecoder(StoredError, "job", state=JobState.WAITING)


async def newest_failed(tx: Transaction, since: int, count: int) -> Sequence[str]:
    """Return the ids of the jobs that failed since then, the last ones first; it reads an index of failed jobs."""
    return await tx.ids("newest_failed", since=since, count=count)


async def newest_attempts(tx: Transaction, count: int) -> Sequence[EndedAttempt]:
    """Return the attempts that did not succeed, the last ones first, of jobs whose audit level keeps them."""
    return await tx.fetch(_ATTEMPTS, "newest_attempts", count=count)


async def job_errors(tx: Transaction, job_ids: Sequence[str]) -> Sequence[StoredError]:
    """Return those of these jobs that are stored, with their last errors."""
    return await tx.fetch(_ERRORS, "job_errors", ids=list(job_ids))
