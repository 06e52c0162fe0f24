"""What a handler knows about the job that it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from headgate.clock import SECOND, to_datetime
from headgate.errors import HeadgateError
from headgate.jobs.job import ClaimedJob


class Settles(Protocol):
    """What settles the cost of a start: its charge."""

    def settle(self, limit: str, actual: int) -> None: ...


class JobContext:
    """The running job, seen from its handler.

    `id` is the same over all attempts, so it serves as an idempotency key towards the outside.
    """

    __slots__ = ("_cancelled", "_charge", "_job", "_limits")

    def __init__(self, job: ClaimedJob, limits: Sequence[str] = (), charge: Settles | None = None) -> None:
        # Nothing here leads back to the attempt: the asyncio task knows this context, and a cycle of the two would be
        # left to the garbage collector, job by job.
        self._job = job
        self._limits = limits
        self._charge = charge
        self._cancelled: threading.Event | None = None

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def task(self) -> str:
        return self._job.task

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def attempt(self) -> int:
        """Which try this is, counted from 1 and durable."""
        return self._job.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        return self._job.headers or {}

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self._job.enqueued_at)

    @property
    def waited_for(self) -> float:
        """Seconds from when the job could run, by its own `run_at`, until it was started."""
        return max(0, self._job.started_at - self._job.run_at) / SECOND

    def settle(self, limit: str, actual: int) -> None:
        """Say what this start cost, when that was only estimated: the difference is charged or refunded.

        `current_job().settle("openai", 812)`. Without effect on a retry that was not charged for the limit. Raises
        HeadgateError for a limit that the task does not have, ValueError for less than 0.
        """
        if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
            raise ValueError(f"a settled cost of {actual!r} must be a whole number of at least 0")
        if limit not in self._limits:
            raise HeadgateError(
                f"task {self.task!r} has no limit {limit!r} to settle; it has: {', '.join(self._limits) or 'none'}"
            )
        if self._charge is not None:
            self._charge.settle(limit, actual)

    @property
    def cancelled(self) -> bool:
        """Whether the job should end: a user cancelled it, its time is up, or the node is shutting down.

        For handlers in threads, which cannot be interrupted; an `async def` handler is cancelled by asyncio.
        """
        return self._cancelled is not None and self._cancelled.is_set()


_current: ContextVar[JobContext] = ContextVar("headgate_current_job")


def current_job() -> JobContext:
    """The job that this code runs in. Raises HeadgateError outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise HeadgateError("current_job() is only known inside a handler") from None


def enter(context: JobContext, *, with_thread: bool = False) -> None:
    """Make `context` the current job of this asyncio task; a thread also gets a flag that tells it to end."""
    if with_thread:
        context._cancelled = threading.Event()
    _current.set(context)


def tell_cancelled(context: JobContext) -> None:
    """Let a handler in a thread see that it should end."""
    if context._cancelled is not None:
        context._cancelled.set()
