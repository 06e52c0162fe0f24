"""Jobs, batches and audit entries in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from headgate.admin.columns import Column
from headgate.jobs.audit import SubjectKind
from headgate.storage.records import Page, T
from headgate.tasks.status import BatchStatus, JobStatus


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list: its status, its headers, and its payload as it is stored: JSON, or encoded."""

    status: JobStatus
    payload: str
    headers: Mapping[str, str] | None = None


JOB_COLUMNS = (
    Column("id", "Job", "id"),
    Column("task", "Task", only="cli"),
    Column("state", "State", "state"),
    Column("attempt", "Attempt", "count", only="cli"),
    Column("payload", "Payload", only="dashboard"),
    Column("queue", "Queue"),
    Column("enqueued_at", "Enqueued", "time"),
    Column("run_at", "Timing", "time", only="dashboard"),
    Column("note", "Note", only="cli"),
)


@dataclass(frozen=True, slots=True)
class BatchDetails(BatchStatus):
    """A batch: its status, and the tasks of up to 100 of its jobs, by name; not of the jobs of batches in it."""

    tasks: Sequence[str] = ()


BATCH_COLUMNS = (
    Column("id", "Batch", "id"),
    Column("name", "Name", is_rare=True),
    Column("tasks", "Tasks", "names"),
    Column("schedule", "Schedule", is_rare=True),
    Column("state", "State", "state"),
    Column("pending", "Progress", only="dashboard"),
    Column("total", "Jobs", "count"),
    Column("pending", "Pending", "count", only="cli"),
    Column("succeeded", "Succeeded", "count", only="cli"),
    Column("failed", "Failed", "count"),
    Column("cancelled", "Cancelled", "count", only="cli"),
    Column("skipped", "Skipped", "count", only="cli"),
    Column("enqueued_at", "Enqueued", "time"),
    Column("finished_at", "Finished", "time"),
)


@dataclass(frozen=True, slots=True)
class ListedAction:
    """An action of a user, from the audit log; numbers grow."""

    number: int
    at: datetime
    actor: str
    action: str
    kind: SubjectKind
    subject: str
    detail: str | None


AUDIT_COLUMNS = (
    Column("number", "Number", only="cli"),
    Column("at", "Time", "time"),
    Column("actor", "Actor"),
    Column("action", "Action"),
    Column("kind", "Kind"),
    Column("subject", "Subject"),
    Column("detail", "Details"),
)


class ListedPage(Page[T], Generic[T], frozen=True):
    """A page of jobs; `next` is the `before` of the next page, null at the end.

    `read` is how many jobs were read if the page ended with them, before it was full; else it is null. The last of them
    was enqueued at `reached`, null if it is deleted meanwhile.
    """

    read: int | None = None
    reached: datetime | None = None
