"""The running job, as its handler and the functions around the attempt see it; what it logs, and tasks it starts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from headgate.clock import SECOND, to_datetime
from headgate.errors import HeadgateError
from headgate.foreign_words import RefusesForeignWords
from headgate.jobs.annotation import Annotation, annotated, applied, plain
from headgate.jobs.job import ClaimedJob, summarize_error
from headgate.jobs.report import kept_level
from headgate.tasks.job_log import JobLog, Reports, format_record

T = TypeVar("T")

Listener = Callable[[logging.LogRecord], None]

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_call_handlers = logging.Logger.callHandlers
_is_installed = False


def add_listener(listener: Listener) -> None:
    """Call `listener` with every record that ordinary logging passes, after its handlers, until `remove_listener`.

    A handler at the root would be simpler, but with it logging counts as configured: `basicConfig()` does nothing, and
    records without another handler are no longer printed. Instead, one of Logger's methods is replaced while there are
    listeners.
    """
    global _listeners, _call_handlers, _is_installed
    with _lock:
        if not _is_installed:
            _is_installed = True
            _call_handlers = logging.Logger.callHandlers
            logging.Logger.callHandlers = _call_handlers_and_listeners  # type: ignore[assignment,method-assign]
        _listeners = (*_listeners, listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling `listener`; without effect if it was not added."""
    global _listeners, _is_installed
    with _lock:
        _listeners = tuple(each for each in _listeners if each != listener)
        # If another program has replaced the method since, its method calls ours, which must stay.
        if not _listeners and logging.Logger.callHandlers is _call_handlers_and_listeners:
            _is_installed = False
            logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign]


def _call_handlers_and_listeners(logger: logging.Logger, record: logging.LogRecord) -> None:
    _call_handlers(logger, record)
    for listener in _listeners:
        listener(record)


MAX_SETTLED_COST = 1_000_000_000
"""The highest cost that one start can be settled at."""


class CostSettler(Protocol):
    """Settles the cost of a start; the charge of an attempt does it."""

    def settle(self, limit: str, actual: int) -> None: ...


class Completion(Protocol):
    """Completes running jobs in transactions; an engine does it."""

    async def complete(self, job: ClaimedJob, connection: Any) -> None: ...
    def complete_blocking(self, job: ClaimedJob, connection: Any) -> None: ...
    def transaction(self, job: ClaimedJob) -> AbstractAsyncContextManager[Any]: ...


class JobContext(RefusesForeignWords):
    """The running job, for its handler.

    `id` is the same in all attempts, so it can serve as an idempotency key for outside systems.
    """

    __slots__ = (
        "__weakref__",
        "_annotations",
        "_cancelled",
        "_charge",
        "_completion",
        "_job",
        "_limits",
        "_reports",
        "may_be_complete",
    )

    def __init__(
        self,
        job: ClaimedJob,
        limits: Sequence[str] = (),
        charge: CostSettler | None = None,
        reports: Reports | None = None,
        completion: Completion | None = None,
    ) -> None:
        # Nothing here refers back to the attempt: the asyncio task refers to this context, and a cycle of the two would
        # wait for the garbage collector, for every job.
        self._job = job
        self._limits = limits
        self._charge = charge
        self._reports = reports
        self._completion = completion
        self._annotations: Mapping[str, Annotation] | None = None
        self._cancelled = False
        self.may_be_complete: bool = False
        """Whether the handler has called `complete` or `transaction`."""

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
        """The number of this attempt, counted from 1; it survives restarts."""
        return self._job.attempt

    @property
    def fencing_token(self) -> int:
        """A number that grows with each start of this job, and with each job that holds the same `Mutex` in turn.

        Store it with what the job changes outside, and refuse a change with a lower one: its sender has lost its lease
        without noticing yet. It is the start's limit time (microseconds) from the store. So jobs that start in one
        claim share it, and a PostgreSQL server whose clock is put back can lower it by up to a second.
        """
        return self._job.charged_at

    @property
    def headers(self) -> Mapping[str, str]:
        return self._job.headers or {}

    @property
    def tags(self) -> Sequence[str]:
        """The tags from its task and its call, sorted."""
        return () if self._job.options is None else self._job.options.tags

    @property
    def limit_keys(self) -> Mapping[str, str]:
        """The job's limits, each with the key that it uses."""
        return {ref.limit: ref.key for ref in (*self._job.buckets, *self._job.uncharged)}

    @property
    def batch(self) -> str | None:
        """The id of the batch that the job belongs to."""
        return None if self._job.origin is None else self._job.origin.batch

    @property
    def follows(self) -> str | None:
        """The id of the job or batch that it followed; `await app.job(id).result()` is what that job returned."""
        return None if self._job.origin is None else self._job.origin.follows

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that enqueued the job."""
        return None if self._job.origin is None else self._job.origin.schedule

    @property
    def occurs_at(self) -> datetime | None:
        """The instant of the schedule that the job is for. It is the same when the job starts late or runs again."""
        origin = self._job.origin
        return None if origin is None or origin.occurs_at is None else to_datetime(origin.occurs_at)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self._job.enqueued_at)

    @property
    def waited_for(self) -> float:
        """Seconds from when the job could run, by its own `run_at`, until it started."""
        return max(0, self._job.started_at - self._job.run_at) / SECOND

    @property
    def throttled_for(self) -> float:
        """Seconds of `waited_for` until the limit that held it back opened; after that it waited for a free slot.

        If the limit opened and closed again while no slot was free, until it last opened.
        """
        return self._job.throttled_for / SECOND

    def settle(self, limit: str, actual: int) -> None:
        """Set what this start cost, if the charge was an estimate: the difference is charged or refunded.

        `current_job().settle("openai", 812)`. Without effect on a retry that was not charged for the limit. Raises
        HeadgateError for a limit that the task does not have, ValueError for less than 0 or more than 1,000,000,000.
        """
        if isinstance(actual, bool) or not isinstance(actual, int) or not 0 <= actual <= MAX_SETTLED_COST:
            raise ValueError(f"a settled cost of {actual!r:.80} must be a whole number from 0 to {MAX_SETTLED_COST:,}")
        if limit not in self._limits:
            raise HeadgateError(
                f"task {self.task!r} has no limit {limit!r} to settle; it has: {', '.join(self._limits) or 'none'}"
            )
        if self._charge is not None:
            self._charge.settle(limit, plain(actual))

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Complete the job together with what is written in the block: both are committed, or neither is.

        `async with current_job().transaction() as connection:` opens a connection to the store, an asyncpg or a sqlite3
        one, with a transaction that commits at the end of the block. From then on the job has succeeded: it does not
        run again, whatever happens to this attempt or its node. An error in the block rolls both back. Raises
        AttemptLost if another node has taken the job over, UnfitConnection if jobs are kept in memory,
        StorageUnavailable, HeadgateError in a child process. On SQLite, handlers of a process open theirs in turn, and
        a write in the block without `connection=` raises HeadgateError.

        If the store opens no transaction, as a server that has too many clients, let the StorageUnavailable leave the
        handler: the job runs again after 5 s, and the attempt is not spent.
        """
        return self._to_complete().transaction(self._job)

    async def complete(self, connection: Any) -> None:
        """Complete the job in the open transaction of your own connection: it has succeeded if that commits.

        As `transaction`, for any connection that `using(connection=…)` accepts. Call it last, and let the error of a
        commit that fails leave the handler. Raises AttemptLost, UnfitConnection; HeadgateError in a child process.
        """
        await self._to_complete().complete(self._job, connection)

    @property
    def sync(self) -> SyncJobContext:
        """The same for handlers that cannot await."""
        return SyncJobContext(self)

    def _to_complete(self) -> Completion:
        if self._completion is None:
            raise HeadgateError(
                f"task {self.task!r} runs in a child process, which has no connection to the store: a job is completed "
                "in a transaction by an `async def` handler, or by one in a thread"
            )
        self.may_be_complete = True
        return self._completion

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far the job is, from 0 to 1, with a message of up to 500 characters (a longer one is cut).

        It appears in `job.status().progress` within about a second, and as the event `JobProgressed`; of more frequent
        reports only the latest is kept. It returns at once, and may be called from any thread. Raises ValueError.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise ValueError(f"progress of {fraction!r} must be a number from 0 to 1")
        if message is not None and not isinstance(message, str):
            raise ValueError(f"the progress message must be text, not {message!r:.80}")
        if self._reports is not None:
            self._reports.progress(self._job, float(fraction), message)

    def annotate(self, **annotations: Annotation | None) -> None:
        """Note something about the job: `current_job().annotate(invoice=42)`. None removes an annotation.

        Values are text, numbers, True and False: up to 32 per job, up to 4096 bytes as JSON. They are stored within
        about a second, and before the end of the attempt, however that ends; the next attempt reads them. A node that
        dies before loses them. It returns at once, and may be called from any thread. Raises ValueError.
        """
        annotations = {name: plain(value) for name, value in annotations.items()}
        self._annotations = annotated(self.annotations, annotations)
        if self._reports is not None:
            self._reports.annotate(self._job, annotations)

    @property
    def annotations(self) -> Mapping[str, Annotation]:
        """The annotations of the job, including those from earlier attempts."""
        return self._annotations if self._annotations is not None else self._job.annotations or {}

    @property
    def log(self) -> JobLog:
        """A logger whose lines are kept with the job, and also go to the logger `headgate.job`."""
        return JobLog(self._job, self._reports)

    @property
    def cancelled(self) -> bool:
        """Whether the job should end: a user cancelled it, it timed out, or the node shuts down or lost its lease.

        For code in threads, which cannot be interrupted; asyncio cancels an `async def` handler.
        """
        return self._cancelled


class SyncJobContext:
    """The running job, for handlers that cannot await."""

    __slots__ = ("_context",)

    def __init__(self, context: JobContext) -> None:
        self._context = context

    def complete(self, connection: Any) -> None:
        """Same as `JobContext.complete`, for a connection that blocks: sqlite3, psycopg, or SQLAlchemy over them."""
        self._context._to_complete().complete_blocking(self._context._job, connection)


_current: ContextVar[JobContext] = ContextVar("headgate_current_job")
_chunk: ContextVar[Sequence[JobContext]] = ContextVar("headgate_current_jobs", default=())


def current_job() -> JobContext:
    """Return the job that this code runs in. Raises HeadgateError outside of a job, and in a chunked task."""
    try:
        return _current.get()
    except LookupError:
        if _chunk.get():
            raise HeadgateError("a chunked task handles several jobs at once; current_jobs() returns them") from None
        raise HeadgateError("current_job() is only known inside a handler") from None


def current_jobs() -> Sequence[JobContext]:
    """Return the jobs that this code handles: in a chunked task the whole chunk, in the order of its argument.

    In other tasks it returns the one job. Raises HeadgateError outside of a job.
    """
    return _chunk.get() or (current_job(),)


def is_in_job() -> bool:
    """Return whether this code runs in a handler or a callback, or in a task that one of them started."""
    return bool(_chunk.get()) or _current.get(None) is not None


def enter_chunk(contexts: Sequence[JobContext]) -> None:
    """Make `contexts` the current jobs of this asyncio task."""
    _chunk.set(tuple(contexts))


def enter(context: JobContext) -> None:
    """Make `context` the current job of this asyncio task."""
    _current.set(context)


def set_cancelled(context: JobContext) -> None:
    """Let the code of a job read that it should end."""
    context._cancelled = True


def note_annotations(context: JobContext, changes: Mapping[str, Annotation | None]) -> None:
    """Take over annotations that a child process has made and checked."""
    context._annotations = applied(context.annotations, changes)
    if context._reports is not None:
        context._reports.annotate(context._job, changes)


class JobLogCapture:
    """Keeps what handlers log through ordinary logging, with the job that the code runs in.

    It captures only jobs that report to `reports`, so several nodes in one process do not mix.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def start(self) -> None:
        add_listener(self._capture)

    def stop(self) -> None:
        remove_listener(self._capture)

    def _capture(self, record: logging.LogRecord) -> None:
        context = _current.get(None)
        if context is None or context._reports is not self._reports:
            return
        lowest = self._reports.lowest
        # Records made by hand or by a custom factory may hold anything.
        level, name = kept_level(record.levelno), str(record.name)
        if lowest is not None and level >= lowest and name.partition(".")[0] != "headgate":
            self._reports.log(context._job, level, name, format_record(record)[0])


class AttemptContext(JobContext):
    """The running job, for functions of `@app.around_attempt`: that of the handler, with the arguments.

    `arguments` (by name, as they are stored, without defaults) and `headers` may be changed until `run()` is called.
    The changes are for this attempt: a retry begins with what is stored.
    """

    __slots__ = ("_are_arguments_read", "_arguments", "_headers")

    def __init__(
        self,
        job: ClaimedJob,
        limits: Sequence[str],
        charge: CostSettler | None,
        reports: Reports | None,
        completion: Completion | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(job, limits, charge, reports, completion)
        self._arguments = dict(arguments)
        self._are_arguments_read = False
        self._headers = dict(job.headers or {})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the handler by name."""
        self._are_arguments_read = True
        return self._arguments

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the job."""
        return self._headers


def read_arguments(context: AttemptContext) -> dict[str, Any] | None:
    """Return the arguments if a function has read, and so may have changed them; else None."""
    return context._arguments if context._are_arguments_read else None


_guarded_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Any, Any]] = WeakKeyDictionary()
# How many nodes run on a loop, its task factory while they do, and the one that it had before.


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make tasks created inside a job raise RuntimeError instead of SystemExit and KeyboardInterrupt.

    asyncio raises these two out of the running loop. Each call needs one call of `unguard_tasks`.
    """
    count, factory, before = _guarded_loops.get(loop, (0, None, loop.get_task_factory()))
    if not count:
        factory = partial(_create_task, before)
        loop.set_task_factory(factory)
    _guarded_loops[loop] = count + 1, factory, before


def unguard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Undo one `guard_tasks`; the last call restores the task factory of the loop, unless it was replaced since."""
    count, factory, before = _guarded_loops.pop(loop)
    if count > 1:
        _guarded_loops[loop] = count - 1, factory, before
    elif loop.get_task_factory() is factory:
        loop.set_task_factory(before)


def _create_task(before: Any, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    if is_in_job() and asyncio.iscoroutine(coroutine):
        coroutine = Guarded(
            coroutine, lambda error: RuntimeError(f"a task of the handler raised {summarize_error(error)}")
        )
    return asyncio.Task(coroutine, loop=loop, **options) if before is None else before(loop, coroutine, **options)


class Guarded(Coroutine[Any, Any, T]):
    """Wraps a coroutine: SystemExit and KeyboardInterrupt become ordinary errors, as which a task may raise them.

    It is an object: a wrapping coroutine, cancelled before its start, would leave the other one unawaited.
    """

    __slots__ = ("_as_ordinary", "_inner")

    def __init__(self, inner: Coroutine[Any, Any, T], as_ordinary: Callable[[BaseException], Exception]) -> None:
        self._inner = inner
        self._as_ordinary = as_ordinary

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._as_ordinary(error) from error

    def throw(self, *raised: Any) -> Any:
        try:
            return self._inner.throw(*raised)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._as_ordinary(error) from error

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # Debuggers that inspect the task show the user's own coroutine.
        return getattr(self._inner, name)


class Exited(Exception):
    """A guarded coroutine raised SystemExit or KeyboardInterrupt, the argument of this."""


def guarded_result(done: Future[T]) -> T:
    """Return what a coroutine has returned that is guarded by Exited in another thread, or raise what it has raised."""
    try:
        return done.result()
    except Exited as exited:
        raise exited.args[0] from None
