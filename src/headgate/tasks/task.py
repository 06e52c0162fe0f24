"""Tasks: named functions whose calls can be stored and run later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from headgate.clock import FARTHEST, Duration, from_datetime, microseconds
from headgate.errors import DeclarationError
from headgate.jobs.job import MAX_PRIORITY, JobOptions
from headgate.jobs.retry import RetryPolicy
from headgate.tasks.gate import Gate
from headgate.tasks.handle import Job, Jobs
from headgate.tasks.payload import PayloadType
from headgate.tasks.sync_task import Portal, SyncTask

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """The arguments of one job to be, checked by the type checker; made by `task.call(…)`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """How jobs are enqueued, where that differs from their task."""

    queue: str | None = None
    delay: int | None = None
    at: int | None = None
    priority: int | None = None
    expires_at: int | None = None
    headers: Mapping[str, str] | None = None
    options: JobOptions | None = None
    promise: bool = False


AS_DECLARED = EnqueueOptions()


class Enqueuer(Jobs, Protocol):
    """What a task asks of its app."""

    @property
    def portal(self) -> Portal: ...

    async def enqueue_calls(
        self, task: Task[Any, Any], options: EnqueueOptions, calls: Sequence[Call[Any]]
    ) -> list[Job[Any]]: ...

    def require_queue(self, queue: str, where: str) -> None: ...


class Task(Generic[P, R]):
    """A function whose calls can be enqueued; made by `@app.task`."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        function: Callable[P, Any],
        *,
        name: str,
        queue: str,
        payload: PayloadType,
        gate: Gate,
        retry: RetryPolicy,
        timeout: float | None,
        priority: int,
    ) -> None:
        self._enqueuer = enqueuer
        self._options = AS_DECLARED
        self.function = function
        self.name = name
        self.queue = queue
        self.payload = payload
        self.gate = gate
        self.retry = retry
        self.timeout = timeout
        self.priority = priority
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store one job with these arguments and return when it is durable.

        Raises TypeError or PayloadError for arguments that cannot be stored, CostExceedsLimit for a job that could
        never start, NotOpen, StorageUnavailable.
        """
        jobs = await self._enqueuer.enqueue_calls(self, self._options, (Call(args, kwargs),))
        return jobs[0]

    async def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[Job[R]]:
        """Store many jobs in one commit, all or none: tuples of positional arguments, or `task.call(…)`."""
        return await self._enqueuer.enqueue_calls(self, self._options, as_calls(calls))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The arguments of one job for `enqueue_many`."""
        return Call(args, kwargs)

    def using(
        self,
        *,
        queue: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        expires_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        promise: bool | None = None,
    ) -> Task[P, R]:
        """This task with other options for what is enqueued through it.

        `delay` (seconds or timedelta) or `at` (an aware datetime; one that has passed means now), not both.
        `priority` 0 to 9: higher goes first inside its lane. `expires_at`: not started by then, it fails with
        JobExpired. `headers` travel with the job as text. `retries` and `timeout` replace the task's own.
        `promise=True` asks, with one more read for each job, when its limits will let it start: `job.promise`.
        """
        where = f"task {self.name!r}"
        if delay is not None and at is not None:
            raise DeclarationError(f"{where}: pass delay or at, not both")
        if delay is not None and microseconds(delay) < 0:
            raise DeclarationError(f"{where}: delay={delay!r} is negative")
        if delay is not None and microseconds(delay) > FARTHEST:
            raise DeclarationError(f"{where}: delay={delay!r} is more than a hundred years")
        if queue is not None:
            self._enqueuer.require_queue(queue, where)
        if priority is not None:
            require_priority(priority, where)
        if retries is not None and (isinstance(retries, bool) or retries < 0):
            raise DeclarationError(f"{where}: retries={retries!r} must be 0 or more")
        if headers is not None:
            for key, value in headers.items():
                if not isinstance(key, str) or not isinstance(value, str):
                    raise DeclarationError(f"{where}: header {key!r}={value!r} is not text")
                try:
                    f"{key}{value}".encode()
                except UnicodeEncodeError:
                    raise DeclarationError(f"{where}: header {key!r}={value!r} has no UTF-8 form") from None
        before = self._options
        options = before.options
        if retries is not None or timeout is not None:
            known = options or JobOptions()
            options = JobOptions(
                timeout=known.timeout if timeout is None else checked_timeout(timeout, where),
                retries=known.retries if retries is None else retries,
            )
        copy: Task[P, R] = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._options = EnqueueOptions(
            queue=before.queue if queue is None else queue,
            delay=before.delay if delay is None else microseconds(delay),
            at=before.at if at is None else from_datetime(at),
            priority=before.priority if priority is None else priority,
            expires_at=before.expires_at if expires_at is None else from_datetime(expires_at),
            headers=before.headers if headers is None else {**(before.headers or {}), **headers},
            options=options,
            promise=before.promise if promise is None else promise,
        )
        return copy

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same verbs for code that cannot await; opens the app on first use, and is safe from many threads."""
        return SyncTask(self, self._enqueuer.portal)

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


def as_calls(calls: Iterable[tuple[Any, ...] | Call[Any]]) -> list[Call[Any]]:
    """Tuples and calls, all as calls. Raises TypeError for anything else."""
    made: list[Call[Any]] = []
    for call in calls:
        if isinstance(call, Call):
            made.append(call)
        elif isinstance(call, tuple):
            made.append(Call(call, {}))
        else:
            raise TypeError(f"enqueue_many takes tuples of arguments or task.call(…), not {call!r:.80}")
    return made


def require_priority(priority: int, where: str) -> None:
    """Raise DeclarationError unless it is a priority."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
        raise DeclarationError(f"{where}: priority={priority!r} must be a whole number from 0 to {MAX_PRIORITY}")


def checked_timeout(timeout: Duration, where: str) -> float:
    """A timeout in seconds. Raises DeclarationError unless it is above 0."""
    if microseconds(timeout) <= 0:
        raise DeclarationError(f"{where}: timeout={timeout!r} must be above 0")
    return microseconds(timeout) / 1_000_000
