"""Headgate, the app: declare tasks and limits, enqueue, look, run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Any, ParamSpec, Self, TypeVar, cast, overload
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from headgate.admin import Admin
from headgate.clock import SECOND, Clock, Duration, SystemClock, microseconds, to_datetime
from headgate.engine.bus import Callback, EventBus
from headgate.engine.fetcher import Elsewhere
from headgate.engine.node import Node, NodeSettings
from headgate.engine.result_watch import ResultWatch
from headgate.errors import (
    DeclarationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LimitRejected,
    NotOpen,
    UnknownLimit,
)
from headgate.jobs.event import Event, JobEnqueued, LimitSkipped
from headgate.jobs.identity import IdSource
from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.retry import RetryPolicy
from headgate.limits.bucket_store import BucketStore
from headgate.limits.concurrency import Concurrency
from headgate.limits.limit import Limit
from headgate.limits.standalone.limiter import Limiter, open_store
from headgate.observe.log import log_event, logged_kinds
from headgate.settings import load_settings
from headgate.storage.admission import ask_of
from headgate.storage.endings import EXPIRED_ERROR, REJECTED, rejection_error
from headgate.storage.live_rules import LiveRules
from headgate.storage.memory import MemoryStorage
from headgate.storage.migrations import Migrates
from headgate.storage.prediction import predict
from headgate.storage.protocol import Standing, Storage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.sync import LoopPortal
from headgate.tasks.gate import UNGATED, bind_limits
from headgate.tasks.handle import Job, JobStatus, Promise
from headgate.tasks.payload import PayloadType
from headgate.tasks.registry import DEFAULT_QUEUE, Queue, Registry, require_name
from headgate.tasks.task import Call, EnqueueOptions, Task, checked_timeout, require_priority

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL = "sqlite:///headgate.db"


class Headgate:
    """Durable background jobs with a budget per key.

    `url` says where jobs live: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user@host/database` or
    `memory://` (default: `$HEADGATE_URL`, then `sqlite:///headgate.db`); an object that satisfies
    `headgate.storage.protocol.Storage` may stand in its place. `retry` is for tasks that have none (default: 3 retries,
    1 s × 2ⁿ with full jitter, up to 1 h). All other settings are those of `headgate.settings.Settings`, also read from
    `HEADGATE_*`.

    `clock` and `random` are for tests: with both given, a run is reproducible.

    Declaring needs no connection. To enqueue and look: `async with app.open():`. To also run jobs in this process:
    `async with app:`. A worker process: `await app.run()`, or `headgate worker module:app`.
    """

    def __init__(
        self,
        url: str | Storage | None = None,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        **settings: Any,
    ) -> None:
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._settings = load_settings(settings)
        self._retry = retry or RetryPolicy()
        self._storage = self._choose_storage(url if url is not None else os.environ.get("HEADGATE_URL", DEFAULT_URL))
        self._registry = Registry()
        self._ids = IdSource(random)
        self._bus = EventBus()
        self._skipped: set[tuple[str, str]] = set()
        self._bucket_stores: dict[str, BucketStore] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened_by = 0
        self._openings = 0
        self._opening: asyncio.Future[None] | None = None
        self._results: ResultWatch | None = None
        self._node: Node | None = None
        self._own_node: contextlib.AsyncExitStack | None = None
        self._portal = LoopPortal(self.open, self._loop_here)

    def _loop_here(self) -> asyncio.AbstractEventLoop | None:
        # After a fork the loop belongs to the parent, and nothing would run there for this process.
        return self._loop if self._opened_by == os.getpid() else None

    def _choose_storage(self, url: str | Storage) -> Storage:
        if not isinstance(url, str):
            return url
        scheme, separator, path = url.partition("://")
        if separator and scheme == "memory":
            return MemoryStorage(self._clock)
        if separator and scheme == "sqlite":
            if urlsplit(url).netloc or not path.strip("/"):
                raise DeclarationError(
                    f"storage URL {url!r} names no file; write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db for an "
                    "absolute path"
                )
            if "?" in path:
                raise DeclarationError(f"storage URL {url!r} has options; pass them to Headgate(…), as synchronous=")
            return SqliteStorage(unquote(path[1:]), self._clock, synchronous=self._settings.synchronous)
        if separator and scheme in ("postgresql", "postgres"):
            return self._postgres(url)
        raise DeclarationError(
            f"storage URL of the scheme {scheme!r} is not known; use sqlite:///path, postgresql://host/database, or "
            "memory:// for tests and throw-away work"
        )

    def _postgres(self, url: str) -> Storage:
        try:
            from headgate.storage.postgres.storage import PostgresStorage
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise DeclarationError(
                "a postgresql:// URL needs the asyncpg package, which is missing; pip install 'headgate[postgres]'"
            ) from None
        settings = self._settings
        return PostgresStorage(
            url,
            self._clock,
            schema=settings.schema,
            listen_url=settings.listen_url,
            connections=settings.connections,
        )

    # ------------------------------------------------------------------------------------------- declaring

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
    ) -> _TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(limits=[StrictRate("15/m", key="{tenant_id}")])`.

        An `async def` runs on the event loop, a plain `def` in a thread. `name` (default: the function's) is what is
        stored with each job. `limits` must all open for a job to start, and none is charged unless all are. `timeout`
        is for each attempt. `priority` 0 to 9, higher first inside a lane. Raises DeclarationError for what can never
        work, UnknownQueue for a queue that is not declared.
        """

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(function):
                raise DeclarationError(f"@app.task needs a function, not {function!r}")
            task_name = name if name is not None else str(getattr(function, "__name__", ""))
            where = f"task {task_name!r}"
            require_name(task_name, "task")
            payload = PayloadType(function, where, self._settings.max_payload)
            require_priority(priority, where)
            task: Task[Any, Any] = Task(
                self,
                function,
                name=task_name,
                queue=queue,
                payload=payload,
                gate=bind_limits(limits, self._registry.shared, task_name, payload.parameters),
                retry=retry or self._retry,
                timeout=self._settings.timeout if timeout is None else checked_timeout(timeout, where),
                priority=priority,
            )
            for bound in task.gate.limits:
                # A URL that cannot be read is told here, not by a worker.
                self._bucket_store(bound.limit)
            self._registry.add_task(task)
            return task

        return declare if function is None else declare(function)

    def limit(self, name: str, limit: Limit) -> None:
        """Declare a limit that several tasks share as one budget, each with `limits=["name"]`."""
        self._registry.add_shared(name, limit)

    def limiter(self, name: str) -> Limiter:
        """A declared limit for plain code: what it takes comes out of the same buckets that jobs draw on.

        `async with app.limiter("openai").hold(key, cost=3): …`. The app must be open. Raises UnknownLimit.
        """
        limit = self._registry.limits.get(name)
        if limit is None:
            known = ", ".join(sorted(self._registry.limits)) or "none"
            raise UnknownLimit(f"this app declares no limit {name!r}; it declares: {known}")
        store = self._bucket_store(limit)
        buckets = StoredBuckets(self._storage) if store is None else store
        return Limiter(_named(limit, name), store=buckets, clock=self._clock)

    def queue(self, name: str, *, concurrency: int | None = None, global_concurrency: int | None = None) -> None:
        """Declare a queue, with its slots per node (default: 100, or max(4, 2 × cores) for plain functions).

        `global_concurrency`: never more than so many of its jobs run at once over all nodes (default: no such bound).
        It is the limit `queue:<name>`, which all its jobs draw on: listed, set and paused like any other.
        """
        self._registry.add_queue(Queue(name, concurrency, global_concurrency))

    def require_queue(self, queue: str, where: str) -> None:
        """Raise UnknownQueue unless the queue is declared."""
        self._registry.require_queue(queue, where)

    def subscribe(self, callback: Callback, *kinds: type[Event]) -> Callable[[], None]:
        """Call `callback` (plain or async) with each event of these kinds (default: all) of this process.

        A subscriber that falls 10,000 events behind loses what comes then. Returns the function that ends it.
        """
        return self._bus.subscribe(callback, *kinds)

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The declared tasks by name."""
        return self._registry.tasks

    # ---------------------------------------------------------------------------------------- open and run

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Connect, for enqueueing and looking; runs no jobs. May be entered again while it is open."""
        if self._openings == 0 and self._opening is not None:
            # Somebody else is at it.
            await asyncio.wait([self._opening])
        if self._openings == 0:
            self._opening = asyncio.ensure_future(self._storage.open())
            try:
                await self._opening
            finally:
                self._opening = None
            self._loop = asyncio.get_running_loop()
            self._opened_by = os.getpid()
            self._results = ResultWatch(self._storage, self._clock)
            self._end_log = self._bus.subscribe(log_event, *logged_kinds())
        self._openings += 1
        try:
            yield self
        finally:
            self._openings -= 1
            if self._openings == 0:
                assert self._results is not None
                await self._results.close()
                await self._bus.drain()
                self._end_log()
                self._loop = None
                for store in self._bucket_stores.values():
                    await store.close()
                await self._storage.close()

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring the storage's tables up to date, which opening does as well; the names of what was applied.

        With `dry_run` nothing is written: the names of what is missing. Raises StorageUnusable for what is newer than
        this program, or may not be changed by this user.
        """
        if not isinstance(self._storage, Migrates):
            return []
        return [str(migration) for migration in await self._storage.migrate(dry_run=dry_run)]

    async def __aenter__(self) -> Self:
        """Open, and run jobs in this process until the block ends."""
        if self._own_node is not None:
            raise DeclarationError("this app already runs jobs in this process; enter `async with app:` once")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.open())
            node = self._make_node()
            running = asyncio.get_running_loop().create_task(node.run(), name="headgate-node")
            stack.push_async_callback(_end, node, running)
            self._node = node
            self._own_node = stack.pop_all()
        return self

    async def __aexit__(self, *details: object) -> None:
        stack, self._own_node, self._node = self._own_node, None, None
        if stack is not None:
            await stack.aclose()

    async def run(
        self,
        *,
        queues: Mapping[str, int | None] | None = None,
        grace: Duration | None = None,
        handle_signals: bool = True,
    ) -> None:
        """Be a worker process until SIGTERM or SIGINT; a second signal ends it at once.

        `queues` chooses what to serve, with slots (None: as declared); default: all declared queues. `grace` is how
        long running jobs may go on after the first signal (default: the app's own).
        """
        if isinstance(self._storage, MemoryStorage):
            raise DeclarationError(
                "a worker process on memory:// would never see a job: what another process enqueues stays there; "
                "use sqlite:///path, or `async with app:` inside the process that enqueues"
            )
        node = self._make_node(queues, grace)
        # Around opening and closing too: a signal then must not cut either short.
        with _signals(node) if handle_signals else contextlib.nullcontext():
            async with self.open():
                self._node = node
                try:
                    await node.run()
                finally:
                    self._node = None

    def _make_node(self, queues: Mapping[str, int | None] | None = None, grace: Duration | None = None) -> Node:
        settings = self._settings
        chosen = dict.fromkeys(self._registry.queues) if queues is None else queues
        slots: dict[str, int] = {}
        for queue, given in chosen.items():
            self._registry.require_queue(queue, "this worker")
            slots[queue] = given or self._registry.concurrency(queue, settings.concurrency)
        return Node(
            self._storage,
            self._registry,
            NodeSettings(
                queues=slots,
                heartbeat=settings.heartbeat,
                lease=settings.lease,
                grace=settings.grace if grace is None else microseconds(grace) / SECOND,
                retention=settings.retention,
            ),
            clock=self._clock,
            bus=self._bus,
            random=self._random,
            ids=self._ids,
            elsewhere=self._elsewhere(),
        )

    def _elsewhere(self) -> dict[str, Elsewhere]:
        """The limits that are kept in another store: their own, or that of `limits_url`."""
        found: dict[str, Elsewhere] = {}
        for name, limit in self._registry.limits.items():
            store = self._bucket_store(limit)
            if store is not None:
                found[name] = Elsewhere(limit, store)
        return found

    def _bucket_store(self, limit: Limit) -> BucketStore | None:
        place = limit.store
        if place is None and not isinstance(limit, Concurrency):
            place = self._settings.limits_url
        if place is None or not isinstance(place, str):
            return cast(BucketStore | None, place)
        if place not in self._bucket_stores:
            self._bucket_stores[place] = open_store(place, self._clock)
        store = self._bucket_stores[place]
        # Where the jobs are is not elsewhere: there the bucket is charged in the commit that claims them.
        where = getattr(store, "place", None)
        return None if where is not None and where == getattr(self._storage, "place", None) else store

    # ------------------------------------------------------------------------------------------- enqueueing

    async def enqueue_calls(
        self, task: Task[Any, Any], options: EnqueueOptions, calls: Sequence[Call[Any]]
    ) -> list[Job[Any]]:
        """Store the calls as jobs in one commit; what `task.enqueue` and `task.enqueue_many` do."""
        self._require_open()
        jobs = self._new_jobs(task, options, calls)
        gate = self._registry.gate(task, options.queue or task.queue)
        if gate.patience:
            jobs = await self._reject_hopeless(jobs)
        await self._storage.add(jobs)
        if self._bus.wants(JobEnqueued):
            at = self._clock.now()
            for job in jobs:
                self._bus.publish(JobEnqueued(at=at, job_id=job.id, task=job.task, queue=job.queue, run_at=job.run_at))
        if options.promise and gate.limits:
            return [Job(job.id, self, await self._promise(job)) for job in jobs]
        return [Job(job.id, self) for job in jobs]

    async def _promise(self, job: NewJob) -> Promise:
        status = await self.admin.status(job.id)
        return Promise(status.place, status.predicted_start, status.waits_for)

    def _new_jobs(self, task: Task[Any, Any], options: EnqueueOptions, calls: Sequence[Call[Any]]) -> list[NewJob]:
        now = self._storage.now()
        asked_for = options.at if options.delay is None else now + options.delay
        delayed = asked_for is not None and asked_for > now
        run_at = asked_for if delayed and asked_for is not None else now
        headers = None if not options.headers else dict(options.headers)
        priority = task.priority if options.priority is None else options.priority
        queue = options.queue or task.queue
        gate = self._registry.gate(task, queue)
        encode, on_skip = task.payload.encode, partial(self._skip, task.name)
        new_id = self._ids.next
        jobs: list[NewJob] = []
        for call in calls:
            payload, arguments = encode(call.args, call.kwargs)
            draws, costs, terms = gate.ask(arguments, headers or {}, on_skip) if gate.limits else UNGATED
            jobs.append(
                NewJob(
                    id=new_id(now),
                    task=task.name,
                    queue=queue,
                    payload=payload,
                    priority=priority,
                    delayed=delayed,
                    run_at=run_at,
                    enqueued_at=now,
                    expires_at=options.expires_at,
                    draws=draws,
                    costs=costs,
                    headers=headers,
                    options=options.options,
                    terms=terms,
                    variant="" if terms is None else terms.variant(),
                    give_up_at=None if terms is None or not terms.patience else run_at + terms.patience,
                )
            )
        return jobs

    async def _reject_hopeless(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Those whose limits would keep them waiting longer than their `max_wait` are stored as final at once."""
        live = LiveRules(await self._storage.settings())
        now = self._storage.now()
        limit_now = self._storage.limit_now()
        lanes: dict[tuple[str, tuple[Draw, ...], str], Standing] = {}
        judged: list[NewJob] = []
        for job in jobs:
            if job.give_up_at is None or job.delayed:
                judged.append(job)
                continue
            lane = (job.queue, job.draws, job.variant)
            standing = lanes.get(lane) or await self._storage.outlook(*lane)
            standing = replace(standing, asks=ask_of(job.id, job.costs, job.terms))
            starts_at, waits_for = predict(standing, self._registry.rules, live, limit_now)
            if starts_at is not None and starts_at - limit_now > job.give_up_at - now:
                error = rejection_error(waits_for, now + starts_at - limit_now, job.give_up_at - now)
                judged.append(replace(job, rejection=error))
            else:
                judged.append(job)
                lanes[lane] = replace(standing, place=(standing.place or 0) + 1, waiting=standing.waiting + 1)
        return judged

    def _skip(self, task: str, limit: str, reason: str) -> None:
        # Once for each task and limit: a thousand jobs without a key are one mistake.
        if (task, limit) not in self._skipped:
            self._skipped.add((task, limit))
            self._bus.publish(LimitSkipped(at=self._clock.now(), task=task, limit=limit, reason=reason))

    # ------------------------------------------------------------------------------------------- following

    def job(self, job_id: str) -> Job[Any]:
        """The handle of a job whose id was kept."""
        return Job(job_id, self)

    async def job_status(self, job_id: str) -> JobStatus:
        """As `Job.status`."""
        self._require_open()
        return await self.admin.status(job_id)

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        """As `Job.result`."""
        self._require_open()
        assert self._results is not None
        record = await self._results.wait(job_id, timeout)
        match record.state:
            case JobState.CANCELLED:
                raise JobCancelled(job_id) from None if record.error is None else _cause(record.error)
            case JobState.FAILED:
                error = record.error
                assert error is not None
                raise JobFailed(job_id, error.type, error.message, error.traceback) from _cause(error)
            case _:
                task = self._registry.tasks.get(record.task)
                assert record.result is not None
                return msgspec.json.decode(record.result) if task is None else task.payload.decode_result(record.result)

    async def cancel_job(self, job_id: str) -> bool:
        """As `Job.cancel`."""
        self._require_open()
        state = await self._storage.cancel(job_id)
        if state is None:
            raise JobNotFound(job_id)
        if state is JobState.RUNNING and self._node is not None:
            self._node.cancel(job_id)
        return not state.is_final

    @property
    def admin(self) -> Admin:
        """What operators see and steer."""
        self._require_open()
        elsewhere = {name: limit.store for name, limit in self._elsewhere().items()}
        tasks = frozenset(self._registry.tasks)
        queues = frozenset(self._registry.queues)
        return Admin(self._storage, self._registry.rules, elsewhere, tasks, queues)

    @property
    def portal(self) -> LoopPortal:
        """Runs coroutines for threads that cannot await."""
        return self._portal

    @property
    def sync(self) -> LoopPortal:
        """For code that cannot await: `app.sync.run(coroutine)` and `app.sync.close()`; tasks have `task.sync`."""
        return self._portal

    def _require_open(self) -> None:
        if self._openings == 0:
            raise NotOpen


class _TaskDecorator:
    """Only for type checkers: what `@app.task(…)` with options does to a function."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        raise AssertionError("never called")


def _named(limit: Limit, name: str) -> Limit:
    copied = copy(limit)
    object.__setattr__(copied, "name", name)
    return copied


def _cause(error: JobError) -> Exception | None:
    """What a job ended with that never ran, as callers would catch it."""
    if error == EXPIRED_ERROR:
        return JobExpired(error.message)
    if error.type != REJECTED or error.data is None:
        return None
    opens_at = error.data.get("opens_at")
    return LimitRejected(
        error.message,
        limit=_text(error.data.get("limit")),
        key=_text(error.data.get("key")),
        opens_at=to_datetime(opens_at) if isinstance(opens_at, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


async def _end(node: Node, running: asyncio.Task[None]) -> None:
    node.stop()
    await running


@contextlib.contextmanager
def _signals(node: Node) -> Any:
    """SIGTERM and SIGINT stop the node; the second of them ends it at once."""
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            node.stop()
        else:
            node.abort()

    caught = (signal.SIGTERM, signal.SIGINT)
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
