"""Reads ended jobs for users: the jobs that became final, those that failed last, and their errors."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.clock import SECOND
from headgate.jobs.identity import LOWEST
from headgate.jobs.job import JobState
from headgate.storage.driver import Transaction
from headgate.storage.records import EndedAttempt, EndsRead, StoredEnd, StoredError
from headgate.storage.stored_rows import UNREADABLE_BUCKETS, RowDecoder

_ATTEMPTS = RowDecoder(EndedAttempt, "attempt")
_ERRORS = RowDecoder(StoredError, "job", state=JobState.WAITING)
_ENDS = RowDecoder(StoredEnd, "job", state=JobState.SUCCEEDED, buckets=UNREADABLE_BUCKETS)

_END_OF_TIME = (1 << 63) - 1


async def newest_failed(tx: Transaction, since: int, count: int) -> Sequence[str]:
    """Return the ids of the jobs that failed since then, the last ones first; it reads an index of failed jobs."""
    return await tx.ids("newest_failed", since=since, count=count)


async def newest_attempts(tx: Transaction, count: int) -> Sequence[EndedAttempt]:
    """Return the attempts that did not succeed, the last ones first, of jobs whose audit level keeps them."""
    return await tx.fetch(_ATTEMPTS, "newest_attempts", count=count)


async def job_errors(tx: Transaction, job_ids: Sequence[str]) -> Sequence[StoredError]:
    """Return those of these jobs that are stored, with their last errors."""
    return await tx.fetch(_ERRORS, "job_errors", ids=list(job_ids))


async def ended(tx: Transaction, at: int, number: int, count: int) -> EndsRead:
    """Return the first `count` jobs that became final after this place, which is an instant and the number of an id.

    They are read in one span of time after another, each four times as long as the one before: PostgreSQL sorts what it
    finds in a span, and a reader that was away for a month must not make it sort the ends of a month.
    """
    found: list[StoredEnd] = []
    span = SECOND
    while True:
        until = _END_OF_TIME if at + span > tx.now else at + span
        found += await tx.fetch(_ENDS, "ended", at=at, id=number, until=until, count=count - len(found))
        if len(found) == count or until == _END_OF_TIME:
            return EndsRead(found, tx.now, len(found) == count)
        at, number, span = until, LOWEST, 4 * span
