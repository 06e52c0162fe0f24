"""Every error Headgate raises, in one tree under `HeadgateError`."""

from __future__ import annotations

from datetime import datetime


class HeadgateError(Exception):
    """The root of all errors that Headgate raises on purpose."""


class DeclarationError(HeadgateError, ValueError):
    """A task, limit or queue was declared in a way that can never work; raised where it is declared."""


class PayloadError(HeadgateError, ValueError):
    """A job's arguments cannot be stored, or stored arguments no longer fit the task's signature."""


class CostExceedsLimit(HeadgateError, ValueError):
    """A job costs more than its limit can ever grant, so it could never start; nothing was charged."""


class UnknownTask(HeadgateError, LookupError):
    """A job names a task that this app does not declare."""


class UnknownQueue(HeadgateError, LookupError):
    """A task or a call names a queue that this app does not declare."""


class UnknownLimit(HeadgateError, LookupError):
    """Somebody names a limit that this app does not declare."""


class NotOpen(HeadgateError, RuntimeError):
    """The app is not connected to its storage."""

    def __init__(self) -> None:
        super().__init__(
            "this app is not open: use `async with app.open():` to enqueue and look, "
            "or `async with app:` to also run jobs in this process"
        )


class StorageUnavailable(HeadgateError):
    """The storage did not confirm the write or read; whoever called knows that it may not have happened."""


class StorageUnusable(HeadgateError):
    """The storage cannot be opened as it is: a foreign, corrupt or too new database; nothing was changed."""


class ForkedConnection(HeadgateError, RuntimeError):
    """The storage was open when this process was forked; fork first and open afterwards, or start with "spawn"."""


class IllegalTransition(HeadgateError, RuntimeError):
    """A job was asked to go from a state to one that cannot follow it."""


class JobNotFound(HeadgateError, LookupError):
    """No job with this id is stored, or it has been pruned."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id} is stored; it may have been pruned after its retention")
        self.job_id = job_id


class JobFailed(HeadgateError):
    """`job.result()` of a job that failed; carries the stored error as text."""

    def __init__(self, job_id: str, error_type: str, message: str, traceback: str | None = None) -> None:
        super().__init__(f"job {job_id} failed with {error_type}: {message}")
        self.job_id = job_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class JobCancelled(HeadgateError):
    """`job.result()` of a job that was cancelled."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was cancelled")
        self.job_id = job_id


class JobExpired(HeadgateError):
    """A job was not started by its `expires_at`."""


class LimitRejected(HeadgateError):
    """A job's limits would have made it wait longer than it may: it ends without having run.

    `limit` and `key` say which bucket, `opens_at` (an aware datetime) when it would have opened, where that is known.
    """

    def __init__(
        self, message: str, *, limit: str | None = None, key: str | None = None, opens_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.key = key
        self.opens_at = opens_at


class LimitInUse(HeadgateError, RuntimeError):
    """A limit cannot be removed while jobs wait for it or hold its permits."""


class GateClosed(HeadgateError, RuntimeError):
    """The gate or limiter was closed, before the call or while it waited; nothing was consumed."""

    def __init__(self) -> None:
        super().__init__("this gate is closed; make a new one to go on")
