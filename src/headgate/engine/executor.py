"""The executor: runs one attempt of a job and returns what it came to. It never writes."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import traceback
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from functools import partial
from typing import Any

from headgate.clock import FARTHEST, SECOND, Clock
from headgate.engine.charge import AttemptCharge
from headgate.errors import PayloadError
from headgate.jobs.job import ClaimedJob, JobError, truncated_error
from headgate.jobs.outcome import (
    Cancelled,
    Failed,
    Interrupted,
    Outcome,
    Refused,
    Snoozed,
    Succeeded,
    Unreadable,
)
from headgate.jobs.retry import RetryPolicy
from headgate.tasks.context import JobContext, enter, tell_cancelled
from headgate.tasks.signals import RateLimited, Snooze
from headgate.tasks.task import Task


class Cause(enum.Enum):
    """Who cancelled an attempt. Without a cause, a CancelledError is the handler's own, an ordinary failure."""

    USER = "user"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    DISOWNED = "disowned"


class Attempt:
    """One attempt of a claimed job, running on this node."""

    __slots__ = (
        "_asyncio_task",
        "_clock",
        "_context",
        "_may_start",
        "_pool",
        "_thread",
        "cause",
        "charge",
        "has_begun",
        "job",
        "task",
    )

    def __init__(
        self,
        job: ClaimedJob,
        task: Task[Any, Any],
        charge: AttemptCharge | None,
        clock: Clock,
        pool: Pool,
        may_start: Callable[[Attempt], bool],
    ) -> None:
        self.job = job
        self.task = task
        self.charge = charge
        self.cause: Cause | None = None
        # Whether the handler was called: before that, nothing has cost the callee anything.
        self.has_begun = False
        self._clock = clock
        self._pool = pool
        self._may_start = may_start
        self._asyncio_task: asyncio.Task[Outcome] | None = None
        self._context: JobContext | None = None
        self._thread: asyncio.Future[Any] | None = None

    @property
    def thread(self) -> asyncio.Future[Any] | None:
        """The thread that still runs the handler, even after the attempt has ended; a thread cannot be stopped."""
        return self._thread

    @property
    def timeout(self) -> float | None:
        options = self.job.options
        return self.task.timeout if options is None or options.timeout is None else options.timeout

    @property
    def retry(self) -> RetryPolicy:
        options = self.job.options
        if options is None or options.retries is None:
            return self.task.retry
        if self.task.retry.delays is not None:
            return RetryPolicy(retries=options.retries)
        return _with_retries(self.task.retry, options.retries)

    def start(self) -> asyncio.Task[Outcome]:
        self._asyncio_task = asyncio.get_running_loop().create_task(self._run())
        return self._asyncio_task

    def cancel(self, cause: Cause) -> None:
        """End the attempt for this cause; the first cause is the one that counts."""
        if self._asyncio_task is None or self._asyncio_task.done():
            return
        if self.cause is None:
            self.cause = cause
        if self._context is not None:
            tell_cancelled(self._context)
        self._asyncio_task.cancel()

    def outcome_when_cancelled(self) -> Outcome:
        """What a cancelled attempt came to, by its cause."""
        match self.cause:
            case Cause.USER:
                return Cancelled()
            case Cause.TIMEOUT:
                return self._failed(TimeoutError(f"the attempt took longer than its timeout of {self.timeout:g} s"))
            case Cause.SHUTDOWN | Cause.DISOWNED:
                return Interrupted()
            case None:
                return self._failed(asyncio.CancelledError("the handler's own code raised CancelledError"))

    async def _run(self) -> Outcome:
        try:
            arguments, named = self.task.payload.decode(self.job.payload)
        except PayloadError as error:
            return Unreadable(truncated_error(error))
        self._context = JobContext(self.job, self.task.gate.names, self.charge)
        enter(self._context, with_thread=not self.task.is_async)
        timer = None
        if self.timeout is not None:
            when = self._clock.monotonic() + round(self.timeout * SECOND)
            timer = self._clock.call_at(when, partial(self.cancel, Cause.TIMEOUT))
        try:
            if self.job.draws and not self._may_start(self):
                return Interrupted()
            self.has_begun = True
            if self.task.is_async:
                result = await self.task.function(*arguments, **named)
            else:
                result = await self._in_thread(arguments, named)
            return Succeeded(self.task.payload.encode_result(result))
        except Snooze as snooze:
            return Snoozed(min(snooze.delay, FARTHEST))
        except RateLimited as refusal:
            return Refused(min(refusal.retry_after, FARTHEST))
        except asyncio.CancelledError:
            return self.outcome_when_cancelled()
        except PayloadError as error:
            # The work is done and only its result cannot be stored: doing it again would not help.
            return Failed(truncated_error(error), retryable=False)
        except BaseException as error:
            # Even SystemExit: what one handler raises must not end the node.
            if self.cause in (Cause.USER, Cause.SHUTDOWN, Cause.DISOWNED):
                return self.outcome_when_cancelled()
            return self._failed(error)
        finally:
            if timer is not None:
                timer.cancel()

    async def _in_thread(self, arguments: list[Any], named: dict[str, Any]) -> Any:
        call = partial(contextvars.copy_context().run, self.task.function, *arguments, **named)
        self._thread = asyncio.get_running_loop().run_in_executor(self._pool, call)
        # Shielded: a cancelled attempt ends at once, but its thread goes on and keeps the slot.
        return await asyncio.shield(self._thread)

    def _failed(self, error: BaseException) -> Failed:
        return Failed(_described(error), retryable=self.retry.accepts(error))


def _described(error: BaseException) -> JobError:
    try:
        trace = "".join(traceback.format_exception(error, limit=-20))
    except Exception as unprintable:
        # An exception may raise from its own __str__; the job still fails with what can be told.
        trace = f"<no traceback: {type(unprintable).__name__} while formatting it>"
    return truncated_error(error, trace)


def _with_retries(policy: RetryPolicy, retries: int) -> RetryPolicy:
    return RetryPolicy(
        retries=retries,
        base=policy.base,
        cap=policy.cap,
        jitter=policy.jitter,
        backoff=policy.backoff,
        retry_on=policy.retry_on,
        give_up_on=policy.give_up_on,
    )
