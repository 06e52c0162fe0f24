"""Causes: turns stored errors into the exceptions that callers catch."""

from __future__ import annotations

from headgate.clock import to_datetime
from headgate.errors import JobExpired, LeaderNotSucceeded, LimitRejected
from headgate.jobs.job import JobError
from headgate.storage.endings import EXPIRED_ERROR, REJECTED
from headgate.storage.following import LEADER_NOT_SUCCEEDED
from headgate.tasks.signals import Cancel

CANCELLED_BY_HANDLER = "headgate.Cancel"
"""The error type of a job that its handler has cancelled, also by a subclass of `Cancel`."""


def cause_of(error: JobError) -> Exception | None:
    """Return the exception of a job that was not run, or cancelled by its handler; None for the error of an attempt."""
    if error == EXPIRED_ERROR:
        return JobExpired(error.message)
    if error.type == LEADER_NOT_SUCCEEDED:
        return LeaderNotSucceeded(error.message)
    if error.type == CANCELLED_BY_HANDLER:
        return Cancel(error.message)
    if error.type != REJECTED or error.data is None:
        return None
    opens_at = error.data.get("opens_at")
    return LimitRejected(
        error.message,
        limit=_text(error.data.get("limit")),
        key=_text(error.data.get("key")),
        opens_at=to_datetime(opens_at) if isinstance(opens_at, int) else None,
        option=_text(error.data.get("option")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
