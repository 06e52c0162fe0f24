"""Results: turns a final job into the return value or the exception for its waiter."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.engine.cause import cause_of
from headgate.errors import AttemptFailed, JobCancelled, JobFailed, JobSkipped
from headgate.jobs.job import JobRecord, JobState
from headgate.storage.following import skipped_because
from headgate.tasks.codec import NO_CODECS, Codecs
from headgate.tasks.definition import TaskDefinition


def result_of(record: JobRecord, task: TaskDefinition | None, codecs: Codecs = NO_CODECS) -> Any:
    """Return the result of the handler, of its annotated type if the task is known.

    Raises JobFailed, JobCancelled, JobSkipped, and PayloadError if it cannot be decoded.
    """
    match record.state:
        case JobState.CANCELLED:
            # A job that was cancelled between two attempts has the error of the first; that is not the reason.
            reason = None if record.error is None else cause_of(record.error)
            raise JobCancelled(record.id, None if reason is None else str(reason)) from reason
        case JobState.SKIPPED:
            raise JobSkipped(record.id, skipped_because(record.origin))
        case JobState.FAILED:
            error = record.error
            assert error is not None
            cause = cause_of(error) or AttemptFailed(error.traceback or f"{error.type}: {error.message}")
            raise JobFailed(record.id, error.type, error.message, error.traceback) from cause
        case _:
            if record.result is None:
                # It is not kept.
                return None
            if task is None:
                return msgspec.json.decode(codecs.decode(record.result, f"the result of job {record.id}"))
            return task.payload.decode_result(record.result)
