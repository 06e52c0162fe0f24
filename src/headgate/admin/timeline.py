"""The timeline of a job, from its row, its attempts and its audit entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.clock import to_datetime
from headgate.jobs.audit import AuditEntry
from headgate.jobs.job import AttemptRecord, JobError, JobRecord, JobState


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An event of a job: what, at which attempt, on which node, by which actor, and the error if there was one."""

    at: datetime
    what: str
    attempt: int | None = None
    node: str | None = None
    actor: str | None = None
    detail: str | None = None


def timeline(
    record: JobRecord, attempts: Sequence[AttemptRecord], entries: Sequence[AuditEntry]
) -> list[TimelineEntry]:
    """Return what is stored about a job's life, in order."""
    moments = [
        TimelineEntry(to_datetime(record.enqueued_at), "enqueued"),
        *(TimelineEntry(to_datetime(each.at), each.action, actor=each.actor, detail=each.detail) for each in entries),
    ]
    for attempt in attempts:
        number, node, error = attempt.number, attempt.node, _said(attempt.error)
        moments.append(TimelineEntry(to_datetime(attempt.started_at), "started", number, node))
        moments.append(TimelineEntry(to_datetime(attempt.ended_at), attempt.outcome, number, node, detail=error))
    known = {attempt.started_at for attempt in attempts}
    has_run = record.state in (JobState.RUNNING, JobState.SUCCEEDED)
    if record.started_at is not None and record.started_at not in known and (has_run or record.state.is_final):
        moments.append(TimelineEntry(to_datetime(record.started_at), "started", record.attempt, record.node))
    moments.sort(key=lambda moment: moment.at)
    # Last, even if another machine's clock was ahead.
    if record.finished_at is not None:
        moments.append(
            TimelineEntry(to_datetime(record.finished_at), f"final: {record.state}", detail=_said(record.error))
        )
    elif record.state is JobState.RUNNING:
        what = "is running, and its cancellation was requested" if record.cancel_requested else "is running"
        moments.append(TimelineEntry(to_datetime(record.started_at or 0), what, record.attempt, record.node))
    return moments


def _said(error: JobError | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"
