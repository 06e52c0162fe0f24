"""The outcomes of an attempt. The executor returns one of these; it never writes."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import JobError


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is its value as JSON."""

    result: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised or timed out. `retryable`: whether the retry policy accepts this kind of error."""

    error: JobError
    retryable: bool = True


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
    """A user cancelled the job while it ran."""


class Interrupted(msgspec.Struct, frozen=True):
    """The node is shutting down, or never started the job; the job is returned unchanged."""


Outcome = Succeeded | Failed | Unreadable | Snoozed | CalleeRateLimited | Cancelled | Interrupted
