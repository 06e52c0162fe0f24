"""Jobs as Django's task results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from traceback import format_exception
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from headgate import JobContext, JobState
from headgate.admin import JobDetails
from headgate.clock import to_datetime
from headgate.contrib.django.arguments import Arguments
from headgate.contrib.django.standard import base
from headgate.jobs.job import AttemptRecord, JobError, JobRecord

PRIORITY = "django.priority"
"""The header with Django's priority, which is finer than that of a job."""

_STATUS = {
    JobState.WAITING: "READY",
    JobState.RUNNING: "RUNNING",
    JobState.SUCCEEDED: "SUCCESSFUL",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "FAILED",
    JobState.SKIPPED: "SUCCESSFUL",
}


def enqueued_result(task: Any, alias: str, id: str, call: Arguments) -> Any:
    """Return the result of a job that was just enqueued."""
    return base.TaskResult(
        task=task,
        id=id,
        status=base.TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(call.args),
        kwargs=dict(call.kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def started_result(task: Any, alias: str, job: JobContext, call: Arguments, worker: str) -> Any:
    """Return the result of a job in its first attempt, without reading the store."""
    result = enqueued_result(task, alias, job.id, call)
    now = timezone.now()
    _set(result, status=base.TaskResultStatus.RUNNING, enqueued_at=in_zone(job.enqueued_at))
    _set(result, started_at=now, last_attempted_at=now, worker_ids=[worker])
    return result


def succeed(result: Any, value: Any) -> None:
    """Set the result of a running job to that of one that returned `value`."""
    _set(result, status=base.TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)


def fail(result: Any, error: BaseException) -> None:
    """Set the result of a running job to that of one that failed for good with `error`."""
    kind = type(error)
    traceback = "".join(format_exception(error))
    path = f"{kind.__module__}.{kind.__qualname__}"
    result.errors.append(base.TaskError(exception_class_path=path, traceback=traceback))
    _set(result, status=base.TaskResultStatus.FAILED, finished_at=timezone.now())


def stored_result(task: Any, alias: str, details: JobDetails, call: Arguments) -> Any:
    """Return the result of a job as it is now."""
    record, attempts = details.record, details.attempts
    first = attempts[0].started_at if attempts else record.started_at
    result = enqueued_result(_as_enqueued(task, alias, record), alias, record.id, call)
    _set(
        result,
        status=base.TaskResultStatus[_STATUS[record.state]],
        enqueued_at=_instant(record.enqueued_at),
        started_at=_instant(first),
        last_attempted_at=_instant(record.started_at or first),
        finished_at=_instant(record.finished_at),
        errors=_errors(record, attempts),
        worker_ids=_workers(record, attempts),
        _return_value=None if record.result is None else msgspec.json.decode(record.result),
    )
    return result


def in_zone(instant: datetime) -> datetime:
    """Return an aware instant as this Django uses it: naive and local without time zones."""
    return instant if settings.USE_TZ else timezone.make_naive(instant)


def _as_enqueued(task: Any, alias: str, record: JobRecord) -> Any:
    headers: Mapping[str, str] = record.headers or {}
    enqueued = task.using(
        backend=alias,
        priority=int(headers.get(PRIORITY, base.DEFAULT_TASK_PRIORITY)),
        run_after=_instant(record.run_at) if record.delayed else None,
    )
    # Its queue may be none of QUEUES any more.
    _set(enqueued, queue_name=record.queue)
    return enqueued


def _errors(record: JobRecord, attempts: Sequence[AttemptRecord]) -> list[Any]:
    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    # The audit level decides which attempts are kept; the final error always is.
    if record.state in (JobState.FAILED, JobState.CANCELLED) and not (errors and errors[-1] == record.error):
        errors.append(record.error or JobError("headgate.errors.JobCancelled", "the job was cancelled"))
    return [_task_error(error) for error in errors]


def _task_error(error: JobError) -> Any:
    path = error.type if "." in error.type else f"builtins.{error.type}"
    return base.TaskError(exception_class_path=path, traceback=error.traceback or f"{error.type}: {error.message}\n")


def _workers(record: JobRecord, attempts: Sequence[AttemptRecord]) -> list[str]:
    """Return a node for each attempt that was spent; those of the others are in their errors."""
    nodes = {attempt.number: attempt.node for attempt in attempts}
    if record.node is not None:
        nodes[record.attempt] = record.node
    return [nodes.get(number) or "unknown" for number in range(1, record.attempt + 1)]


def _instant(at: int | None) -> datetime | None:
    return None if at is None else in_zone(to_datetime(at))


def _set(result: Any, **values: Any) -> None:
    # Results are frozen for users; Django's own backends set them like this as well.
    for name, value in values.items():
        object.__setattr__(result, name, value)
