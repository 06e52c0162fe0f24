"""Headgate, the app: declare tasks and limits, enqueue, look, run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from importlib import metadata
from random import Random
from types import TracebackType
from typing import Any, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload
from urllib.parse import unquote, urlsplit

import msgspec

from headgate.admin import Admin
from headgate.admin.actor import this_process
from headgate.admin.schedules import SchedulesAdmin
from headgate.clock import SECOND, Clock, Duration, SystemClock, microseconds
from headgate.engine.batch_watch import wait_for_batch
from headgate.engine.beside import NodeBeside
from headgate.engine.bus import Callback, EventBus
from headgate.engine.cause import cause_of
from headgate.engine.declaration import declare, warn_if_too_fast
from headgate.engine.fetcher import Elsewhere
from headgate.engine.historian import Historian
from headgate.engine.intake import Intake, standing_ids
from headgate.engine.node import Node, NodeSettings
from headgate.engine.parts import parts_of
from headgate.engine.result_watch import ResultWatch
from headgate.engine.teller import Teller
from headgate.errors import (
    AttemptFailed,
    DeclarationError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotOpen,
    PayloadError,
    UnknownLimit,
)
from headgate.jobs.audit import AuditWord, Deed, audit_level
from headgate.jobs.event import Event
from headgate.jobs.identity import IdSource
from headgate.jobs.job import JobRecord, JobState, NewJob
from headgate.jobs.retry import RetryPolicy, require_policy
from headgate.limits.bucket_store import BucketStore
from headgate.limits.concurrency import Concurrency
from headgate.limits.limit import Limit
from headgate.limits.standalone.current_buckets import CurrentBuckets
from headgate.limits.standalone.limiter import Limiter, open_store
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.observe.instrument import Instrument, Observed
from headgate.observe.log import log_event, logged_kinds
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.settings import load_settings
from headgate.storage.address import Address, address_of_file, address_of_url
from headgate.storage.enlisting import require_blocking, run_at_once
from headgate.storage.memory import MemoryStorage
from headgate.storage.migrations import Migrates
from headgate.storage.protocol import Storage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.sync import LoopPortal, SyncApp
from headgate.tasks.child_mark import IN_CHILD
from headgate.tasks.flow import TiedCall
from headgate.tasks.gate import bind_limits
from headgate.tasks.handle import Job, JobStatus, Promise
from headgate.tasks.handler import Handler, handler_function, mark_declared
from headgate.tasks.payload import PayloadType, Upgrade
from headgate.tasks.place import Place, place_of
from headgate.tasks.process_body import require_importable
from headgate.tasks.registry import DEFAULT_QUEUE, Queue, Registry, WhenFull, require_name
from headgate.tasks.resource import declare_resource, needs_of
from headgate.tasks.schedule import DeclaredSchedule, First, Schedule, ScheduleSpec, ScheduleStatus, schedule_spec
from headgate.tasks.task import Call, EnqueueOptions, Task, checked_timeout, require_priority
from headgate.tasks.ties import Batch, BatchStatus, batch_status
from headgate.tasks.tracing import Tracing

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=type[Handler[Any]])
ResourceFunction = TypeVar("ResourceFunction", bound=Callable[..., AsyncIterator[Any] | Iterator[Any]])

DEFAULT_URL = "sqlite:///headgate.db"

LAST_WORDS = 5.0
"""Seconds that callbacks, and then subscribers, get to end when the app is closed, at most."""


LAST_CHART = 2.0
"""Seconds in which the end of the charts is written then, at most."""


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

    _node_kind = Node

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
        self._retry = RetryPolicy() if retry is None else retry
        require_policy(self._retry, "Headgate(…)")
        url = url if url is not None else os.environ.get("HEADGATE_URL", DEFAULT_URL)
        storage = self._choose_storage(url)
        self._registry = Registry()
        self._ids = IdSource(random)
        self._wire(storage, _address_of(url, storage), self._clock, EventBus(), history=self._settings.history)

    def _wire(self, storage: Storage, address: Address, clock: Clock, bus: EventBus, *, history: bool) -> None:
        """Let all that is declared work on this store, by this clock."""
        self._storage = storage
        self._address = address
        self._clock = clock
        self._bus = bus
        self._teller = Teller(storage, self._registry, clock, bus)
        self._historian = Historian(storage, clock=clock, bus=bus, is_on=history)
        self._intake = Intake(
            storage,
            self._registry,
            clock=clock,
            bus=bus,
            ids=self._ids,
            teller=self._teller,
            historian=self._historian,
        )
        self._instruments: list[Instrument] = []
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
        aliases: Sequence[str] = (),
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        audit: AuditWord | None = None,
        upgrade: Upgrade | None = None,
        process: bool = False,
    ) -> _TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        audit: AuditWord | None = None,
        upgrade: Upgrade | None = None,
        process: bool = False,
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(limits=[StrictRate("15/m", key="{tenant_id}")])`.

        An `async def` runs on the event loop, a plain `def` in a thread, or with `process=True` in a child process:
        for what computes, and for what has to be stopped for sure when its time is up. `name` (default: the function's)
        is what is stored with each job; jobs stored under one of `aliases`, the task's names of old, run with it as
        well. `upgrade` makes the arguments that an older release has stored those of today: it is asked, with a dict of
        plain JSON values, only where they do not fit the signature, and returns such a dict. `limits` must all open for
        a job to start, and none is charged unless all are. `timeout` is for each attempt. `priority` 0 to 9, higher
        first inside a lane. `audit` is how much is kept of the life of its jobs: "none", "errors", "minimal" or "full"
        (default: the app's). Raises DeclarationError for what can never work, UnknownQueue for a queue that is not
        declared.
        """

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(function):
                raise DeclarationError(f"@app.task needs a function, not {function!r}")
            task_name = name if name is not None else str(getattr(function, "__name__", ""))
            if process:
                require_importable(function, f"task {task_name!r}")
            return self._declare(
                function,
                task_name,
                place=place_of(function, process=process),
                queue=queue,
                limits=limits,
                retry=retry,
                timeout=timeout,
                priority=priority,
                audit=audit,
                aliases=aliases,
                upgrade=upgrade,
            )

        return declare if function is None else declare(function)

    @overload
    def handler(self, handler: H, /) -> H: ...
    @overload
    def handler(
        self,
        handler: None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        audit: AuditWord | None = None,
        upgrade: Upgrade | None = None,
    ) -> Callable[[H], H]: ...
    def handler(
        self,
        handler: type[Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = DEFAULT_QUEUE,
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        audit: AuditWord | None = None,
        upgrade: Upgrade | None = None,
    ) -> Any:
        """Make a class a task: `@app.handler class Sync(Handler[SyncPayload])`, then `await Sync.enqueue(payload)`.

        The class stays a class; `Sync.task` is the task. Its `run(self, payload)` is called on a new instance for each
        attempt, on the event loop if it is `async def`, else in a thread. Options are those of `@app.task`; templates
        may name the payload's fields: `"{tenant_id}"`.
        """

        def declare(handler: type[Any]) -> type[Any]:
            task_name = name if name is not None else str(getattr(handler, "__name__", ""))
            function = handler_function(handler, f"handler {task_name!r}")
            task = self._declare(
                function,
                task_name,
                place=place_of(function, process=False),
                handler=handler,
                queue=queue,
                limits=limits,
                retry=retry,
                timeout=timeout,
                priority=priority,
                audit=audit,
                aliases=aliases,
                upgrade=upgrade,
            )
            mark_declared(handler, task)
            return handler

        return declare if handler is None else declare(handler)

    def _declare(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        place: Place,
        queue: str,
        limits: Sequence[Limit | str],
        retry: RetryPolicy | None,
        timeout: Duration | None,
        priority: int,
        audit: AuditWord | None,
        aliases: Sequence[str],
        upgrade: Upgrade | None,
        handler: type[Any] | None = None,
    ) -> Task[Any, Any]:
        where = f"task {name!r}"
        require_name(name, "task")
        needs = needs_of(function, self._registry.resources, where)
        if needs and place is Place.PROCESS:
            raise DeclarationError(
                f"{where} runs in a child process, where resource {next(iter(needs))!r} is not open; "
                "open what it needs in the function itself"
            )
        payload = PayloadType(function, where, self._settings.max_payload, upgrade, injected=needs)
        if retry is not None:
            require_policy(retry, where)
        require_priority(priority, where)
        task: Task[Any, Any] = Task(
            self,
            function,
            name=name,
            queue=queue,
            payload=payload,
            gate=bind_limits(limits, self._registry.shared, name, payload.parameters, payload.fields),
            retry=retry,
            timeout=None if timeout is None else checked_timeout(timeout, where),
            priority=priority,
            audit=self._settings.audit if audit is None else audit_level(audit, where),
            aliases=_checked_aliases(aliases, where),
            place=place,
            needs=needs,
            handler=handler,
        )
        for bound in task.gate.limits:
            # A URL that cannot be read is told here, not by a worker.
            self._bucket_store(bound.limit)
        self._registry.add_task(task)
        return task

    @overload
    def resource(self, function: ResourceFunction, /) -> ResourceFunction: ...
    @overload
    def resource(
        self, function: None = None, /, *, scope: Literal["node", "attempt"] = "node"
    ) -> Callable[[ResourceFunction], ResourceFunction]: ...
    def resource(
        self, function: Callable[..., Any] | None = None, /, *, scope: Literal["node", "attempt"] = "node"
    ) -> Any:
        """Give handlers what this generator yields, wherever they have a parameter of that type.

        `async def session() -> AsyncIterator[Session]: … yield session …`. It is opened once for each node, when it is
        first needed, or with `scope="attempt"` for each attempt, which also throws its errors into it. It is closed
        however the attempt, or the node, ends. A resource may take resources that were declared before it; so may
        tasks. A plain generator runs on the event loop, so it should not block.
        """

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            made = declare_resource(function, scope, self._registry.resources)
            self._registry.resources[made.kind] = made
            return function

        return declare if function is None else declare(function)

    def schedule(
        self,
        trigger: Trigger,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        first: First = "after",
        until: datetime | None = None,
        max_runs: int | None = None,
        misfire: Misfire = "run_once",
        overlap: Overlap | None = None,
    ) -> _ScheduleDecorator:
        """Enqueue a task again and again: `@app.schedule(Cron("0 6 * * *", tz="Europe/Rome"))` on a function or a task.

        `name` (default: the task's) is what the schedule is known by from one start to the next; one that has its name
        from the task takes over the schedule that was named after an alias of it. `args` and `kwargs` are those of its
        jobs. The other options are as in `task.schedule`. It is stored when a node starts: one of the same name is
        brought up to date and keeps its count, its rhythm and its pause. What `task.using(…)` says holds for its jobs.
        Raises DeclarationError for what can never work.
        """

        def declare(declared: Any) -> Any:
            task = declared if isinstance(declared, Task) else self.task(declared)
            spec = schedule_spec(
                task.name if name is None else name,
                trigger,
                first=first,
                until=until,
                max_runs=max_runs,
                misfire=misfire,
                overlap=overlap,
            )
            try:
                call = self._intake.scheduled_call(task, task.options, spec, Call(tuple(args), dict(kwargs or {})))
            except (TypeError, PayloadError) as error:
                raise DeclarationError(f"schedule {spec.name!r}: {error}; pass them as args= and kwargs=") from error
            self._registry.add_schedule(DeclaredSchedule(spec, call, task.aliases if name is None else None))
            return declared if isinstance(declared, Task) else task

        return cast(_ScheduleDecorator, declare)

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
        if not isinstance(store, MemoryBuckets):
            store = CurrentBuckets(lambda: self._bucket_store(limit) or StoredBuckets(self._storage))
        return Limiter(_named(limit, name), store=store, clock=self._clock)

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        global_concurrency: int | None = None,
        max_backlog: int | None = None,
        when_full: WhenFull = "wait",
        limits: Sequence[Limit | str] = (),
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Declare a queue, with its slots per node (default: 100, or max(4, 2 × cores) for plain functions).

        `global_concurrency`: never more than so many of its jobs run at once over all nodes (default: no such bound).
        It is the limit `queue:<name>`, which all its jobs draw on: listed, set and paused like any other.

        `max_backlog`: how many of its jobs may wait (default: any number), counted when one is enqueued; retries and
        what other processes add in the same tenth of a second may exceed it. `when_full`: "wait" until there is room,
        "raise" QueueFull, or "fallback" to the queue `default`.

        `limits`: all its jobs draw on these as well, whatever their task; keys are over the arguments of each task.

        `retry` and `timeout` are for tasks declared for this queue that have none of their own (default: the app's);
        a job that is enqueued to another queue keeps those of its task.
        """
        where = f"queue {name!r}"
        if retry is not None:
            require_policy(retry, where)
        seconds = None if timeout is None else checked_timeout(timeout, where)
        self._registry.add_queue(
            Queue(name, concurrency, global_concurrency, max_backlog, when_full, tuple(limits), retry, seconds)
        )
        for limit in self._registry.limits.values():
            # A URL that cannot be read is told here, not by a worker.
            self._bucket_store(limit)

    def require_queue(self, queue: str, where: str) -> None:
        """Raise UnknownQueue unless the queue is declared."""
        self._registry.require_queue(queue, where)

    def default_retry(self, queue: str) -> RetryPolicy:
        """How tasks of a queue are tried again that do not say it themselves."""
        return self._registry.queues[queue].retry or self._retry

    def default_timeout(self, queue: str) -> float | None:
        """Seconds that attempts may take of a queue's tasks that do not say it themselves."""
        timeout = self._registry.queues[queue].timeout
        return self._settings.timeout if timeout is None else timeout

    def subscribe(self, callback: Callback, *kinds: type[Event]) -> Callable[[], None]:
        """Call `callback` (plain or async) with each event of these kinds (default: all) of this process.

        A subscriber that falls 10,000 events behind loses what comes then. Returns the function that ends it.
        """
        return self._bus.subscribe(callback, *kinds)

    def instrument(self, instrument: Instrument) -> None:
        """Let metrics or traces be taken of this app in this process: `app.instrument(PrometheusMetrics())`.

        To be called before the app is opened. Raises DeclarationError for a second one that makes traces.
        """
        observed = Observed(
            self._clock, self._storage, self._registry, self._bus.tap, self._trace_by, self._events_lost,
            self._loop_here, _version(),
        )  # fmt: skip
        instrument.attach(observed)
        self._instruments.append(instrument)

    @property
    def instruments(self) -> Sequence[Instrument]:
        """What takes metrics or traces of this app."""
        return tuple(self._instruments)

    def _trace_by(self, tracing: Tracing) -> None:
        if self._intake.tracing is not None:
            raise DeclarationError("this app makes traces already; call app.instrument(…) once with what makes them")
        self._intake.tracing = self._teller.tracing = tracing

    def _events_lost(self) -> int:
        return int(self._bus.statistics()["lost"])

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The declared tasks by name."""
        return self._registry.tasks

    # ---------------------------------------------------------------------------------------- open and run

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Connect, for enqueueing and looking; runs no jobs. May be entered again while open, on the same loop."""
        self._require_shared()
        self._require_one_loop()
        while self._openings == 0 and self._opening is not None:
            # Somebody else is at it; where that fails, one of those who wait is the next to try.
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
            try:
                if self._openings == 1:
                    # The callbacks that are told of the last ends may still enqueue and look.
                    await self._teller.close(min(self._settings.grace, LAST_WORDS))
            finally:
                self._openings -= 1
                if self._openings == 0:
                    # Who opens it meanwhile waits, as for somebody else's opening.
                    self._opening = asyncio.ensure_future(self._close())
                    try:
                        await self._opening
                    finally:
                        self._opening = None

    async def _close(self) -> None:
        assert self._results is not None
        self._intake.close()
        await self._results.close()
        await self._historian.close(LAST_CHART)
        await self._bus.close(self._clock, LAST_WORDS)
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
        """Open, and run jobs in this process until the block ends.

        Should the node crash, it is logged at once, and the block is cancelled and raises what it died of.
        """
        if self._own_node is not None:
            raise DeclarationError("this app already runs jobs in this process; enter `async with app:` once")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.open())
            node = self._make_node()
            await stack.enter_async_context(NodeBeside(node))
            self._node = node
            self._own_node = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack, self._own_node, self._node = self._own_node, None, None
        if stack is not None:
            await stack.__aexit__(kind, error, traceback)

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
        if IN_CHILD.get():
            raise DeclarationError(
                "this process runs process tasks for a node, and would now run jobs itself; what starts a program has "
                'to stand under `if __name__ == "__main__":`, because child processes import it'
            )
        return self._node_kind(
            self._storage,
            self._registry,
            self._node_settings(queues, grace),
            clock=self._clock,
            bus=self._bus,
            random=self._random,
            ids=self._ids,
            teller=self._teller,
            historian=self._historian,
            elsewhere=self._elsewhere(),
            tracing=self._intake.tracing,
        )

    def _node_settings(
        self, queues: Mapping[str, int | None] | None = None, grace: Duration | None = None
    ) -> NodeSettings:
        settings = self._settings
        chosen = dict.fromkeys(self._registry.queues) if queues is None else queues
        slots: dict[str, int] = {}
        for queue, given in chosen.items():
            self._registry.require_queue(queue, "this worker")
            slots[queue] = given or self._registry.concurrency(queue, settings.concurrency)
        return NodeSettings(
            queues=slots,
            heartbeat=settings.heartbeat,
            lease=settings.lease,
            grace=settings.grace if grace is None else microseconds(grace) / SECOND,
            retention=settings.retention,
            log_lines=settings.log_lines,
            log_level=logging.getLevelNamesMapping()[settings.log_level],
            version=_version(),
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
        parts = parts_of(task, options, calls)
        if options.connection is not None:
            jobs = await self._intake.jobs_to_enlist(task, parts)
            return self._handles(jobs, await self._intake.enlist(options.connection, jobs))
        ids = await self._intake.take(task, parts)
        asked = self._intake.must_promise(task, parts)
        return [Job(id, self, await self._promise(id) if asks else None) for id, asks in zip(ids, asked, strict=True)]

    def enqueue_calls_sync(
        self, task: Task[Any, Any], options: EnqueueOptions, calls: Sequence[Call[Any]]
    ) -> list[Job[Any]]:
        """The same for code that cannot await: on a connection of the caller's, in the caller's thread."""
        if options.connection is None:
            return self._portal.run(self.enqueue_calls(task, options, calls))
        require_blocking(options.connection)
        jobs = self._portal.run(self._intake.jobs_to_enlist(task, parts_of(task, options, calls)))
        return self._handles(jobs, run_at_once(self._intake.enlist(options.connection, jobs)))

    def _handles(self, jobs: Sequence[NewJob], others: Mapping[str, str]) -> list[Job[Any]]:
        return [Job(id, self) for id in standing_ids(jobs, others)]

    async def _promise(self, job_id: str) -> Promise:
        status = await self.admin.status(job_id)
        return Promise(status.place, status.predicted_start, status.waits_for)

    def new_id(self) -> str:
        """The id of a job or a batch that is about to be enqueued."""
        self._require_open()
        return self._ids.next(self._storage.now())

    async def enqueue_flow(self, calls: Sequence[TiedCall], batches: Sequence[tuple[str, int]]) -> None:
        """Store the calls of a chain or a batch in one commit; what their own `enqueue` does."""
        self._require_open()
        await self._intake.take_tied(calls, batches)

    async def put_schedule(
        self, task: Task[Any, Any], options: EnqueueOptions, spec: ScheduleSpec, call: Call[Any]
    ) -> Schedule[Any]:
        """As `task.schedule(…).enqueue(…)`."""
        self._require_open()
        if not isinstance(spec.trigger, Cron | Every | Calendar):
            raise DeclarationError(
                f"schedule {spec.name!r}: a trigger of your own cannot be stored, so nodes would not know it; declare "
                "the schedule in the code with @app.schedule"
            )
        scheduled = self._intake.scheduled_call(task, options, spec, call)
        record, _ = await declare(self._storage, spec, scheduled, again=True)
        assert record is not None
        warn_if_too_fast(record, spec.trigger, self._registry, self._bus, self._clock)
        return Schedule(spec.name, self)

    # ------------------------------------------------------------------------------------------- following

    def job(self, job_id: str) -> Job[Any]:
        """The handle of a job whose id was kept."""
        return Job(job_id, self)

    def batch(self, batch_id: str) -> Batch:
        """The handle of a batch whose id was kept; it knows no jobs."""
        return Batch(batch_id, (), self)

    async def batch_status(self, batch_id: str) -> BatchStatus:
        """As `Batch.status`."""
        self._require_open()
        record = await self._storage.batch(batch_id)
        if record is None:
            raise JobNotFound(batch_id)
        return batch_status(record)

    async def wait_for_batch(self, batch_id: str, timeout: float | None) -> BatchStatus:
        """As `Batch.wait`."""
        self._require_open()
        return batch_status(
            await wait_for_batch(self._storage, self._clock, batch_id, timeout, lambda: self._openings > 0)
        )

    async def job_status(self, job_id: str) -> JobStatus:
        """As `Job.status`."""
        self._require_open()
        return await self.admin.status(job_id)

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        """As `Job.result`."""
        self._require_open()
        assert self._results is not None
        return self._result_of(await self._results.wait(job_id, timeout))

    def _result_of(self, record: JobRecord) -> Any:
        """What a final job came to."""
        job_id = record.id
        match record.state:
            case JobState.CANCELLED:
                raise JobCancelled(job_id) from None if record.error is None else cause_of(record.error)
            case JobState.FAILED:
                error = record.error
                assert error is not None
                cause = cause_of(error) or AttemptFailed(error.traceback or f"{error.type}: {error.message}")
                raise JobFailed(job_id, error.type, error.message, error.traceback) from cause
            case _:
                task = self._registry.find(record.task)
                assert record.result is not None
                return msgspec.json.decode(record.result) if task is None else task.payload.decode_result(record.result)

    async def cancel_job(self, job_id: str) -> bool:
        """As `Job.cancel`."""
        self._require_open()
        state = await self._storage.cancel(job_id, deed=Deed(this_process(), "cancel", "job", job_id))
        if state is None:
            raise JobNotFound(job_id)
        if state is JobState.RUNNING and self._node is not None:
            self._node.cancel(job_id)
        return not state.is_final

    async def schedule_status(self, name: str) -> ScheduleStatus:
        """As `Schedule.status`."""
        return await self.admin.schedules.status(name)

    async def schedule_next_runs(self, name: str, count: int) -> Sequence[datetime]:
        """As `Schedule.next_runs`."""
        return await self.admin.schedules.next_runs(name, count)

    async def pause_schedule(self, name: str) -> bool:
        """As `Schedule.pause`."""
        return await self.admin.schedules.pause(name)

    async def resume_schedule(self, name: str) -> bool:
        """As `Schedule.resume`."""
        return await self.admin.schedules.resume(name)

    async def trigger_schedule(self, name: str) -> Job[Any]:
        """As `Schedule.trigger`."""
        return Job(await self.admin.schedules.trigger(name), self)

    async def remove_schedule(self, name: str) -> bool:
        """As `Schedule.remove`."""
        return await self.admin.schedules.remove(name)

    def find_schedule(self, name: str) -> Schedule[Any]:
        """The handle of a schedule whose name is known."""
        return Schedule(name, self)

    @property
    def admin(self) -> Admin:
        """What operators see and steer."""
        self._require_open()
        elsewhere = {name: limit.store for name, limit in self._elsewhere().items()}
        tasks = {name: task.queue for name, task in self._registry.named()}
        queues = frozenset(self._registry.queues)
        schedules = SchedulesAdmin(self._storage, self._registry, self._ids)
        return Admin(
            self._storage, self._registry.rules, elsewhere, tasks, queues, schedules, address=self._address.shown
        )

    @property
    def address(self) -> Address:
        """Where its jobs live: a file, or the URL of a server without its password."""
        return self._address

    @property
    def portal(self) -> LoopPortal:
        """Runs coroutines for threads that cannot await."""
        self._require_shared()
        return self._portal

    @property
    def sync(self) -> SyncApp[Admin]:
        """The same verbs for code that cannot await; opens the app on first use, and is safe from many threads."""
        return SyncApp(self, self._portal)

    def _require_shared(self) -> None:
        if IN_CHILD.get() and isinstance(self._storage, MemoryStorage):
            raise DeclarationError(
                "jobs on memory:// are in the memory of another process: a process task cannot enqueue there; "
                "use sqlite:///path or postgresql://…"
            )

    def _require_one_loop(self) -> None:
        if self._openings and self._opened_by == os.getpid() and self._loop is not asyncio.get_running_loop():
            raise DeclarationError(
                "this app is open on another event loop; where code that cannot await has opened it (`app.sync`, "
                "`task.sync`), end that first: `app.sync.close()`"
            )

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


def _version() -> str:
    """The version of Headgate that is installed; empty where it is run from its source alone."""
    try:
        return metadata.version("headgate")
    except metadata.PackageNotFoundError:
        return ""


class _ScheduleDecorator(Protocol):
    """What `@app.schedule(…)` does to a task, or to a function, which it makes a task."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


def _checked_aliases(aliases: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(aliases, str) or not all(isinstance(alias, str) for alias in aliases):
        raise DeclarationError(f'{where}: aliases={aliases!r} is not a list of names; write aliases=["old_name"]')
    return tuple(aliases)


def _named(limit: Limit, name: str) -> Limit:
    copied = copy(limit)
    object.__setattr__(copied, "name", name)
    return copied


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


def _address_of(url: str | Storage, storage: Storage) -> Address:
    if isinstance(storage, SqliteStorage):
        return address_of_file(storage.path)
    return address_of_url(url) if isinstance(url, str) else Address(type(url).__name__)
