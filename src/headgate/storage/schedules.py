"""Schedules as they are stored, and what is written when their occurrences are enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.schedule import ScheduleProgress, ScheduleRules, Skipped

_encode = msgspec.json.Encoder().encode


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is stored; instants are wall microseconds.

    `last_job` is the id of the last job that it enqueued, or of the last batch around a graph. It is paused since
    `paused_at`. `revision` grows with each write; a write compares it with the one that it has read. `is_declared`:
    code has declared it with `@app.schedule`; `formerly` is its earlier name if that code has renamed it. `skipped` is
    why its last occurrence that did not run was skipped, at `skipped_at`; `skips` of them were counted. `unreadable`
    names the fields of the row that could not be read, and why; they are blank, and such a record is never written
    back.
    """

    name: str
    call: ScheduledCall
    rules: ScheduleRules
    course: ScheduleProgress
    last_job: str | None = None
    paused_at: int | None = None
    revision: int = 0
    is_declared: bool = False
    formerly: str | None = None
    skipped: Skipped | None = None
    skipped_at: int | None = None
    skips: int = 0
    unreadable: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return the columns of its row except the revision; values that are not scalar are JSON text."""
        return {
            "name": self.name,
            "task": self.call.task,
            "call": _encode(self.call).decode(),
            "rules": _encode(self.rules).decode(),
            "started_at": self.course.started_at,
            "next_at": self.course.next_at,
            "last_at": self.course.last_at,
            "runs": self.course.runs,
            "last_job": self.last_job,
            "paused_at": self.paused_at,
            "is_declared": self.is_declared,
            "formerly": self.formerly,
            "skipped": self.skipped,
            "skipped_at": self.skipped_at,
            "skips": self.skips,
        }


def blank_call(stored: Any) -> ScheduledCall:
    """Return a blank call in place of one that cannot be read, with its task if that can be read."""
    try:
        known = msgspec.json.decode(stored) if isinstance(stored, str) else stored
    except (msgspec.DecodeError, UnicodeError):
        known = None
    task = known.get("task") if isinstance(known, dict) else None
    return ScheduledCall(task=task if isinstance(task, str) else "", queue="", payload="")


class Fired(msgspec.Struct, frozen=True):
    """The jobs of one schedule, and its progress after them; written only if the schedule's revision is unchanged."""

    name: str
    revision: int
    next_at: int | None
    last_at: int | None
    jobs: Sequence[NewJob] = ()
    skipped: Skipped | None = None
    skipped_at: int | None = None
    skips: int = 0
    batches: Sequence[NewBatch] = ()

    @property
    def runs(self) -> Sequence[str]:
        """The ids of the batches that are occurrences: those of a graph."""
        return [batch.id for batch in self.batches if batch.schedule is not None]

    @property
    def last_job(self) -> str | None:
        """The id of the last job; for a graph, the id of its batch."""
        return self.runs[-1] if self.batches else self.jobs[-1].id if self.jobs else None

    @property
    def opened(self) -> int:
        """How many of the jobs are not final at once; of graphs, how many there are."""
        return len(self.runs) if self.batches else sum(job.rejection is None for job in self.jobs)


class DueSchedules(msgspec.Struct, frozen=True):
    """The due schedules, the longest overdue first, and when the next one is due (None: never)."""

    due: Sequence[ScheduleRecord]
    next_at: int | None
