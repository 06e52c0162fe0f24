"""The timeline of a job, from its row, its attempts and its audit entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from headgate.clock import to_datetime
from headgate.jobs.audit import AuditEntry
from headgate.jobs.job import AttemptRecord, JobError, JobRecord, JobState

UNSPENT = frozenset({"snoozed", "refused", "interrupted"})
"""The outcomes of attempts that do not count: the next attempt has the same number."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An event of a job: what, at which attempt, on which node, by which actor, and the error if there was one.

    A job that an operator retries counts its attempts from 1 again: `restart` is how many times it had done so before
    this attempt, as far as its attempts are stored.
    """

    at: datetime
    what: str
    attempt: int | None = None
    node: str | None = None
    actor: str | None = None
    detail: str | None = None
    restart: int = 0


def restarts(attempts: Sequence[AttemptRecord]) -> list[int]:
    """Return for each attempt how many times the job had counted its attempts from 1 again before it."""
    found = [0] if attempts else []
    for before, attempt in pairwise(attempts):
        found.append(found[-1] + _is_restart(before, attempt.number))
    return found


def timeline(
    record: JobRecord, attempts: Sequence[AttemptRecord], entries: Sequence[AuditEntry]
) -> list[TimelineEntry]:
    """Return what is stored about a job's life, in order."""
    moments = [
        TimelineEntry(to_datetime(record.enqueued_at), "enqueued"),
        *(TimelineEntry(to_datetime(each.at), each.action, actor=each.actor, detail=each.detail) for each in entries),
    ]
    restart = 0
    for attempt, restart in zip(attempts, restarts(attempts), strict=True):
        number, node, error = attempt.number, attempt.node, _said(attempt.error)
        started_at, ended_at = to_datetime(attempt.started_at), to_datetime(attempt.ended_at)
        moments.append(TimelineEntry(started_at, "started", number, node, restart=restart))
        moments.append(TimelineEntry(ended_at, attempt.outcome, number, node, detail=error, restart=restart))
    known = {attempt.started_at for attempt in attempts}
    if attempts and record.started_at not in known and record.attempt:
        # Of its last attempt, which is running or succeeded, only the row knows.
        restart += _is_restart(attempts[-1], record.attempt)
    has_run = record.state in (JobState.RUNNING, JobState.SUCCEEDED)
    if record.started_at is not None and record.started_at not in known and (has_run or record.state.is_final):
        started_at = to_datetime(record.started_at)
        moments.append(TimelineEntry(started_at, "started", record.attempt, record.node, restart=restart))
    moments.sort(key=lambda moment: moment.at)
    # Last, even if another machine's clock was ahead.
    if record.finished_at is not None:
        moments.append(
            TimelineEntry(to_datetime(record.finished_at), f"final: {record.state}", detail=_said(record.error))
        )
    elif record.state is JobState.RUNNING:
        what = "is running, and its cancellation was requested" if record.cancel_requested else "is running"
        started_at = to_datetime(record.started_at or 0)
        moments.append(TimelineEntry(started_at, what, record.attempt, record.node, restart=restart))
    return moments


def _is_restart(before: AttemptRecord, number: int) -> bool:
    """Whether an attempt of this number began a new count: a number grows, unless the attempt before was not spent."""
    return number < before.number or (number == before.number and before.outcome not in UNSPENT)


def _said(error: JobError | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"
