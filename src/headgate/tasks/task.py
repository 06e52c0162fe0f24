"""Tasks: named functions whose calls can be stored and run later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, get_args

from headgate.arguments import parse_duration, parse_instant, parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditLevel, AuditWord, audit_level
from headgate.jobs.job import MAX_PRIORITY, JobOptions
from headgate.jobs.retry import RetryPolicy, require_policy
from headgate.limits.key import named_arguments
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.tasks.callbacks import Callbacks, Moment
from headgate.tasks.context import JobContext
from headgate.tasks.foreign_verbs import raise_no_attribute, raise_not_callable
from headgate.tasks.gate import Gate
from headgate.tasks.handle import Job
from headgate.tasks.handler import Handler
from headgate.tasks.payload import PayloadType
from headgate.tasks.place import Place, place_of
from headgate.tasks.resource import Resource
from headgate.tasks.schedule import First, TaskSchedule, schedule_spec
from headgate.tasks.sync_task import SyncTask

if TYPE_CHECKING:
    from headgate.client import Client

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

OnConflict = Literal["keep", "replace", "raise"]

MAX_UNIQUE_KEY = 200
"""Characters of a unique key."""

MAX_HEADERS = 16 * 1024
"""Bytes of all headers of a job, names and values."""


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """The arguments of one job to be, checked by the type checker; made by `task.call(…)`.

    It knows the `task` that it calls, with the options of `task.using(…)`; None only of arguments without a task.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task: Task[Any, R] | None = None


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
    audit: AuditLevel | None = None
    unique_key: str | None = None
    on_conflict: OnConflict = "keep"
    connection: Any = None

    def over(self, others: EnqueueOptions) -> EnqueueOptions:
        """These, and the others where these say nothing."""
        if others is self or others == AS_DECLARED:
            return self
        has_time = self.delay is not None or self.at is not None
        has_key = self.unique_key is not None
        return EnqueueOptions(
            queue=others.queue if self.queue is None else self.queue,
            delay=self.delay if has_time else others.delay,
            at=self.at if has_time else others.at,
            priority=others.priority if self.priority is None else self.priority,
            expires_at=others.expires_at if self.expires_at is None else self.expires_at,
            headers={**(others.headers or {}), **(self.headers or {})} or None,
            options=_over(self.options, others.options),
            promise=self.promise or others.promise,
            audit=others.audit if self.audit is None else self.audit,
            unique_key=self.unique_key if has_key else others.unique_key,
            on_conflict=self.on_conflict if has_key else others.on_conflict,
            connection=others.connection,
        )


def _over(own: JobOptions | None, others: JobOptions | None) -> JobOptions | None:
    if own is None or others is None:
        return others if own is None else own
    return JobOptions(
        timeout=others.timeout if own.timeout is None else own.timeout,
        retry=others.retry if own.retry is None else own.retry,
    )


AS_DECLARED = EnqueueOptions()


class Task(Generic[P, R]):
    """A function whose calls can be enqueued; made by `@app.task`."""

    def __init__(
        self,
        client: Client,
        function: Callable[P, Any],
        *,
        name: str,
        queue: str,
        payload: PayloadType,
        gate: Gate,
        retry: RetryPolicy | None,
        timeout: float | None,
        priority: int,
        audit: AuditLevel = AuditLevel.FULL,
        aliases: Sequence[str] = (),
        place: Place | None = None,
        needs: Mapping[str, Resource] | None = None,
        handler: type[Any] | None = None,
    ) -> None:
        self._client = client
        self._options = AS_DECLARED
        self.function = function
        self.name = name
        self.queue = queue
        self.payload = payload
        self.gate = gate
        self.aliases: tuple[str, ...] = tuple(aliases)
        self.priority = priority
        self.audit = audit
        self._retry = retry
        self._timeout = timeout
        self.place: Place = place or place_of(function, process=False)
        self.is_async: bool = self.place is Place.LOOP
        self.needs: Mapping[str, Resource] = needs or {}
        self.handler = handler
        self.callbacks: Callbacks = Callbacks(handler, Handler)
        self._is_bare = self.is_async and handler is None and not self.needs
        self.__doc__ = function.__doc__

    @property
    def retry(self) -> RetryPolicy:
        """How failed attempts are tried again: its own policy, else that of its queue, else the app's."""
        return self._client.registry.retry(self.queue) if self._retry is None else self._retry

    @property
    def timeout(self) -> float | None:
        """Seconds that an attempt may take: its own, else those of its queue, else the app's."""
        return self._client.registry.timeout(self.queue) if self._timeout is None else self._timeout

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store one job with these arguments and return when it is durable.

        Raises TypeError or PayloadError for arguments that cannot be stored, CostExceedsLimit for a job that could
        never start, DuplicateJob, QueueFull, NotOpen, StorageUnavailable.
        """
        jobs = await self._client.enqueue(self, (Call(args, kwargs),))
        return jobs[0]

    async def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call[R]]) -> list[Job[R]]:
        """Store many jobs in one commit, all or none: tuples of positional arguments, or `task.call(…)`.

        A call made by `task.using(…).call(…)` has its own options, and where it says nothing those of this task.
        Raises as `enqueue`; TypeError for a call of another task.
        """
        return await self._client.enqueue(self, self._calls(calls))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """One job to be, for `enqueue_many`, `chain` and `batch`; with `using(…)` before it, under other options."""
        return Call(args, kwargs, self)

    @property
    def options(self) -> EnqueueOptions:
        """How it is enqueued, where `using(…)` says otherwise than its declaration."""
        return self._options

    def using(
        self,
        *,
        queue: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        expires_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        promise: bool | None = None,
        audit: AuditWord | None = None,
        unique_key: str | None = None,
        on_conflict: OnConflict | None = None,
        connection: Any = None,
    ) -> Task[P, R]:
        """This task with other options for what is enqueued through it.

        `delay` (seconds, a timedelta, or text like "5m") or `at` (an aware datetime; one that has passed means now),
        not both. `priority` 0 to 9: higher goes first inside its lane. `expires_at`: not started by then, it fails with
        JobExpired. `headers` travel with the job as text, up to 16 KiB. `retry` and `timeout` replace the task's own;
        the policy is stored with the job, so it cannot have a function or filters: those of the task still hold.
        `promise=True` asks, with one more read for each job, when its limits will let it start: `job.promise`.
        `audit` is how much is kept of its life: "none", "errors", "minimal" or "full".

        `unique_key`: at most one job of the task waits under it; up to 200 characters. `on_conflict` says what becomes
        of the next: "keep" (default) returns the one that waits or runs; "replace" gives the waiting one the new
        arguments, time and options, or lets one more run follow a running one; "raise" raises DuplicateJob.
        `connection` is your own, with a transaction open, on the database of the jobs: the job is there if and only if
        that commits. A sqlite3, asyncpg, psycopg or SQLAlchemy connection, or a SQLAlchemy session.
        """
        where = f"task {self.name!r}"
        if delay is not None and at is not None:
            raise DeclarationError(f"{where}: pass delay or at, not both")
        if queue is not None:
            self._client.registry.require_queue(queue, where)
        if priority is not None:
            require_priority(priority, where)
        if retry is not None:
            require_policy(retry, where)
        if headers is not None:
            headers = {**(self._options.headers or {}), **headers}
            _require_headers(headers, where)
        if unique_key is not None:
            _require_unique_key(unique_key, where)
            fields = self.payload.fields
            named = named_arguments(unique_key, self.payload.parameters, fields) if "{" in unique_key else []
            if named:
                raise DeclarationError(
                    f"{where}: unique_key={unique_key!r:.80} is text, not a template, so all jobs would have this key; "
                    f'write the value of {named[0]} into it: unique_key=f"…{{{named[0]}}}"'
                )
        if on_conflict is not None and on_conflict not in get_args(OnConflict):
            raise DeclarationError(f'{where}: on_conflict={on_conflict!r} must be "keep", "replace" or "raise"')
        before = self._options
        if (promise or before.promise) and (connection is not None or before.connection is not None):
            raise DeclarationError(f"{where}: nothing is promised of a job before your own transaction commits")
        if on_conflict is not None and unique_key is None and before.unique_key is None:
            raise DeclarationError(f"{where}: on_conflict={on_conflict!r} says nothing without a unique_key")
        options = before.options
        if retry is not None or timeout is not None:
            known = options or JobOptions()
            options = JobOptions(
                timeout=known.timeout if timeout is None else checked_timeout(timeout, where),
                retry=known.retry if retry is None else retry.terms(where),
            )
        copy: Task[P, R] = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._options = EnqueueOptions(
            queue=before.queue if queue is None else queue,
            delay=before.delay if delay is None else parse_duration(delay, "delay", where),
            at=before.at if at is None else parse_instant(at, "at", where),
            priority=before.priority if priority is None else priority,
            expires_at=before.expires_at if expires_at is None else parse_instant(expires_at, "expires_at", where),
            headers=before.headers if headers is None else headers,
            options=options,
            promise=before.promise if promise is None else promise,
            audit=before.audit if audit is None else audit_level(audit, where),
            unique_key=before.unique_key if unique_key is None else unique_key,
            on_conflict=before.on_conflict if on_conflict is None else on_conflict,
            connection=before.connection if connection is None else connection,
        )
        return copy

    def on_started(self, callback: Callable[[JobContext], C]) -> Callable[[JobContext], C]:
        """Call `callback(job)`, plain or async, when an attempt begins; it runs beside the handler.

        Plain functions are called in a thread, here and below. What a callback raises is logged and changes nothing.
        """
        self.callbacks.add(Moment.STARTED, callback, f"task {self.name!r}")
        return callback

    def on_completed(self, callback: Callable[[JobContext, R], C]) -> Callable[[JobContext, R], C]:
        """Call `callback(job, result)` when the job has succeeded and that is stored."""
        self.callbacks.add(Moment.COMPLETED, callback, f"task {self.name!r}")
        return callback

    def on_error(self, callback: Callable[[JobContext, BaseException], C]) -> Callable[[JobContext, BaseException], C]:
        """Call `callback(job, error)` once, when the job has failed for good and that is stored."""
        self.callbacks.add(Moment.ERROR, callback, f"task {self.name!r}")
        return callback

    def on_retry(
        self, callback: Callable[[JobContext, BaseException, int, float], C]
    ) -> Callable[[JobContext, BaseException, int, float], C]:
        """Call `callback(job, error, attempt, delay)` when that attempt failed and the next is stored.

        It comes after `delay` seconds, or when its limits let it.
        """
        self.callbacks.add(Moment.RETRY, callback, f"task {self.name!r}")
        return callback

    @property
    def is_plain(self) -> bool:
        """Whether an attempt is the call of a coroutine function and nothing else."""
        return self._is_bare and not self.callbacks.exist

    def schedule(
        self,
        name: str,
        trigger: Trigger,
        *,
        first: First = "after",
        until: datetime | None = None,
        max_runs: int | None = None,
        misfire: Misfire = "run_once",
        overlap: Overlap | None = None,
    ) -> TaskSchedule[P, R]:
        """A schedule of this task, made at run time: `await task.schedule("acme", Every(minutes=5)).enqueue("acme")`.

        Its first occurrence is the first instant of the trigger after now (`first` "now" or an aware datetime: that
        one, and then those of the trigger). It ends before `until`, or once `max_runs` of its jobs have really run to
        their end. What was missed by more than a minute because nobody was there runs once (`misfire` "skip": not at
        all; "run_all": each of it). An occurrence is skipped while the one before waits or runs (`overlap` "queue": it
        waits for it; "allow": it does not care). Raises DeclarationError for what can never work.
        """
        spec = schedule_spec(
            name, trigger, first=first, until=until, max_runs=max_runs, misfire=misfire, overlap=overlap
        )
        return TaskSchedule(self, spec)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same verbs for code that cannot await; opens the app on first use, and is safe from many threads."""
        return SyncTask(self, self._client)

    if not TYPE_CHECKING:  # To a type checker these stay unknown attributes and calls.

        def __getattr__(self, name: str) -> NoReturn:
            raise_no_attribute("Task", self._spelled, name)

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            raise_not_callable(self._spelled, self.name)

    @property
    def _spelled(self) -> str:
        """The name by which the code that declares it knows it, as far as that can be told."""
        declared = self.__dict__.get("handler") or self.__dict__.get("function")
        return str(getattr(declared, "__name__", "task"))

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def _calls(self, calls: Iterable[tuple[Any, ...] | Call[Any]]) -> list[Call[Any]]:
        """Return tuples and calls of this task, all as calls. Raises TypeError for anything else."""
        made: list[Call[Any]] = []
        for call in calls:
            if isinstance(call, Call):
                self._require_own(call)
                made.append(call)
            elif isinstance(call, tuple):
                made.append(Call(call, {}))
            else:
                raise TypeError(f"enqueue_many takes tuples of arguments or task.call(…), not {call!r:.80}")
        return made

    def _require_own(self, call: Call[Any]) -> None:
        called = call.task
        if called is None or called is self:
            return
        if called.name != self.name or called._client is not self._client:
            of_another_app = " of another app" if called.name == self.name else ""
            raise TypeError(
                f"task {self.name!r} cannot enqueue a call of task {called.name!r}{of_another_app}; enqueue each with "
                "its own task, or both together with chain(…) or batch(…)"
            )
        own = called.options.connection
        if own is not None and own is not self.options.connection:
            raise TypeError(
                f"task {self.name!r}: connection= is said of a call, but all calls are stored in one commit; write "
                "task.using(connection=…).enqueue_many([…])"
            )


def require_priority(priority: int, where: str) -> None:
    """Raise DeclarationError unless it is a priority."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
        raise DeclarationError(f"{where}: priority={priority!r} must be a whole number from 0 to {MAX_PRIORITY}")


def _require_headers(headers: Mapping[str, str], where: str) -> None:
    size = 0
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise DeclarationError(f"{where}: header {key!r:.80}={value!r:.80} is not text")
        try:
            size += len(f"{key}{value}".encode())
        except UnicodeEncodeError:
            raise DeclarationError(f"{where}: header {key!r:.80}={value!r:.80} has no UTF-8 form") from None
    if size > MAX_HEADERS:
        raise DeclarationError(
            f"{where}: headers of {size} bytes are more than {MAX_HEADERS}; they are read with every list of jobs, so "
            "put what is large into the arguments"
        )


def _require_unique_key(key: str, where: str) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_UNIQUE_KEY or "\x00" in key:
        raise DeclarationError(
            f"{where}: unique_key={key!r:.80} must be 1 to {MAX_UNIQUE_KEY} characters of text without NUL; "
            "hash what is longer"
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise DeclarationError(f"{where}: unique_key={key!r} has no UTF-8 form") from None


def checked_timeout(timeout: Duration, where: str) -> float:
    """A timeout in seconds. Raises DeclarationError unless it is above 0."""
    return parse_seconds(timeout, "timeout", where, allow_zero=False)
