"""The outcomes of an attempt. The executor returns one of these; it never writes."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import JobError


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is its value as JSON, or None if it is not kept."""

    result: str | None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised or timed out; its retry policy decides whether the job is tried again."""

    error: JobError


class FailedFinally(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed, and another one would not help."""

    error: JobError


class RetryRequested(msgspec.Struct, frozen=True, gc=False):
    """The handler requested a retry after `delay` microseconds; None: after that of the retry policy."""

    error: JobError
    delay: int | None


class Unreadable(msgspec.Struct, frozen=True):
    """The stored payload does not fit the task's signature; the handler was not called."""

    error: JobError


class Snoozed(msgspec.Struct, frozen=True):
    """The handler requested to run again after `delay` microseconds."""

    delay: int


class CalleeRateLimited(msgspec.Struct, frozen=True):
    """The callee reported that its own limit is reached; nothing may start on these buckets for `retry_after` µs."""

    retry_after: int


class Cancelled(msgspec.Struct, frozen=True):
    """A user cancelled the job while it ran, or its handler did; `error` is the reason of the handler."""

    error: JobError | None = None


class Interrupted(msgspec.Struct, frozen=True):
    """The node is shutting down, or never started the job; the job is returned unchanged."""


Outcome = (
    Succeeded
    | Failed
    | FailedFinally
    | RetryRequested
    | Unreadable
    | Snoozed
    | CalleeRateLimited
    | Cancelled
    | Interrupted
)
