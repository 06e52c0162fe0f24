"""The app, `Headgate`: declare tasks and limits, enqueue jobs, read them, run them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from headgate.arguments import MOST_SLOTS, parse_count, require_storable
from headgate.client.client import Client
from headgate.client.declaration import (
    ChunkDecorator,
    ScheduleDecorator,
    TaskBody,
    TaskDecorator,
    body_of_function,
    body_of_handler,
    declare_task,
)
from headgate.client.flow import BatchPlan, ChainPlan, require_plan
from headgate.client.handler import Handler, mark_declared
from headgate.client.handles import Batch, Job, Schedule, SyncBatch, SyncJob, SyncSchedule
from headgate.client.portal import AppContext, Leave, require_no_loop
from headgate.client.task import Task
from headgate.clock import Clock, CurrentClock, Duration, SystemClock
from headgate.engine.bus import Callback, EventBus
from headgate.engine.children import ChildBounds
from headgate.engine.node import Drain, EmbeddedNode, Node, NodeConfig, until_ended
from headgate.engine.stop_signals import on_stop_signals
from headgate.errors import DeclarationError, PayloadError, UnknownLimit
from headgate.foreign_words import RefusesForeignWords
from headgate.jobs.audit import AuditLevel, AuditWord
from headgate.jobs.event import Event
from headgate.jobs.identity import IdSource
from headgate.jobs.retention import Retention
from headgate.jobs.retry import RetryPolicy
from headgate.keywords import names_keywords
from headgate.limits.limit import Limit, OnLimit, WaitTerms, changed, wait_terms
from headgate.limits.standalone.app_limiter import CurrentBuckets, ReportingLimiter
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.observe.instrument import Instrument, Observed
from headgate.schedules.trigger import Trigger
from headgate.settings import SETTINGS, load_settings, overridden, require_store_url, storage_url
from headgate.shielding import LoopLock
from headgate.storage.choice import StoreAddress, address_of, choose_storage
from headgate.storage.store import Store
from headgate.storage.stored_buckets import StoredBuckets
from headgate.suggestion import did_you_mean
from headgate.tasks.alert import AlertFunction, declared_alert, require_known_tasks
from headgate.tasks.call import Call
from headgate.tasks.chunk import Chunk, chunk_of
from headgate.tasks.codec import Codec, Codecs
from headgate.tasks.executor_kind import IN_CHILD
from headgate.tasks.hooks import AroundAttempt, AroundEnqueue, Moment
from headgate.tasks.modules import import_modules, require_module_names, require_one_app
from headgate.tasks.options import HandlerOptions, TaskOptions
from headgate.tasks.payload_folder import PayloadFolder
from headgate.tasks.queue import QueueLimits, QueueOptions, declared_queue
from headgate.tasks.registry import Registry
from headgate.tasks.resource import declare_resource
from headgate.tasks.schedule import DeclaredSchedule, ScheduleOptions, require_trigger, schedule_spec
from headgate.version import __version__

if TYPE_CHECKING:
    from headgate.admin import Admin
    from headgate.client.sync_admin import SyncAdmin

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
H = TypeVar("H", bound=type[Handler[Any]])
EnqueueHook = TypeVar("EnqueueHook", bound=AroundEnqueue)
AttemptHook = TypeVar("AttemptHook", bound=AroundAttempt)
LifecycleHookFunction = TypeVar("LifecycleHookFunction", bound=Callable[[], object])
ResourceFunction = TypeVar("ResourceFunction", bound=Callable[..., AsyncIterator[Any] | Iterator[Any]])


@names_keywords
class Headgate(RefusesForeignWords):
    """Durable background jobs with a budget per key.

    `url` is the store of the jobs: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user@host/database`
    or `memory://` (default: `$HEADGATE_URL`; without either, DeclarationError). From `concurrency` to `listen_url` the
    arguments are settings: `headgate.settings.Settings` describes each, and they are also read from `HEADGATE_*`.

    `pool` is your own asyncpg pool for the database of `url`, or an async function that makes one when the app is
    opened; `connections` then has no effect. A pool that you pass stays open; one that the function makes is closed
    with the app. It needs 3 connections at least, and none with codecs of its own.

    `imports` names the modules that declare tasks on this app, besides its own: `imports=["tasks", "billing.tasks"]`.
    They are imported when jobs are run, and by the `headgate` command.

    `codec` encodes payloads and results before they are stored: `AesGcm`, `Zlib` or your own `Codec`, or several, the
    first one first. `old_codecs` only decode what was stored with them. `large_payloads` is the folder for those that
    are too large for the database: `PayloadFolder("s3://bucket/jobs")`.

    `clock` and `random` are for tests: with both, a run is reproducible. Raises DeclarationError for invalid settings.

    Declaring needs no connection. To enqueue and read: `async with app.open():`. To also run jobs in this process:
    `async with app:`, or `await app.start()` in a notebook. A worker process: `await app.run()`, or
    `headgate worker module:app`.
    """

    # What differs in a test: `headgate.testing.in_test.InTest`.
    _client_kind = Client
    _node_kind = Node
    _has_all_labels = False
    _uses_payload_folder = True
    _environment: Mapping[str, str] = os.environ

    def __init__(
        self,
        url: str | None = None,
        *,
        imports: Sequence[str] = (),
        concurrency: int | None = None,
        slots: int | None = None,
        name: str | None = None,
        labels: Collection[str] | None = None,
        release: str | None = None,
        max_tasks_per_child: int | None = None,
        max_memory_per_child: int | str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        retention: Retention | Duration | Mapping[str, Duration] | None = None,
        on_limit: OnLimit | None = None,
        max_wait: Duration | None = None,
        audit: AuditLevel | AuditWord | None = None,
        log_lines: int | None = None,
        log_level: str | None = None,
        log_jobs: bool | None = None,
        history: bool | None = None,
        throttle_events: bool | None = None,
        max_payload: int | None = None,
        synchronous: Literal["FULL", "NORMAL", "EXTRA", "OFF"] | None = None,
        limits_url: str | None = None,
        migrate: bool | None = None,
        schema: str | None = None,
        connections: int | None = None,
        listen_url: str | None = None,
        codec: Codec | Sequence[Codec] | None = None,
        old_codecs: Sequence[Codec] = (),
        large_payloads: PayloadFolder | None = None,
        pool: object | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        given = locals()  # Each setting is an argument of the same name.
        self._imports = require_module_names(imports)
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._settings = load_settings({name: given[name] for name in SETTINGS}, self._environment)
        self._payload_folder = _checked_folder(large_payloads, self._settings.max_payload)
        url = require_store_url(storage_url() if url is None else url)
        storage = choose_storage(
            url,
            self._clock,
            synchronous=self._settings.synchronous,
            schema=self._settings.schema,
            listen_url=self._settings.listen_url,
            connections=self._settings.connections,
            pool=pool,
        )
        self._registry = Registry(
            retry=self._settings.retry,
            timeout=self._settings.timeout,
            retention=self._settings.retention,
            lease=self._settings.lease,
            codecs=Codecs(codec, old_codecs),
            waits=wait_terms(self._settings.on_limit, self._settings.max_wait, "the app", "app") or WaitTerms(),
        )
        self._ids = IdSource(random)
        self._wire(storage, address_of(url, storage), self._clock, EventBus(), history=self._settings.history)
        self._client.require_usable = getattr(url, "require_usable", None)

    @classmethod
    def _on_store(cls, storage: Store, **settings: Any) -> Self:
        """Return an app on this store, for measurements and the tests of Headgate."""
        app = cls("memory://", **settings)
        app._wire(storage, address_of(None, storage), app._clock, app._bus, history=app._settings.history)
        return app

    def _wire(self, storage: Store, address: StoreAddress, clock: Clock, bus: EventBus, *, history: bool) -> None:
        """Connect the declarations to this store, clock and bus."""
        self._storage = storage
        self._clock = clock
        self._bus = bus
        self._node: Node | None = None
        # What `async with app:` has entered, its node included; and the same for `start`.
        self._own_block: contextlib.AsyncExitStack | None = None
        self._leave_thread: Leave | None = None
        self._started_block: contextlib.AsyncExitStack | None = None
        self._has_started_worker = False
        self._starting = LoopLock()
        self._instruments: list[Instrument] = []
        self._client = self._client_kind(
            storage,
            self._registry,
            address=address,
            clock=clock,
            bus=bus,
            random=self._random,
            ids=self._ids,
            local_node=lambda: self._node,
            history=history,
            log_jobs=bool(self._settings.log_jobs),
            limits_url=self._settings.limits_url,
            grace=self._settings.grace,
            migrate=storage.migrates_when_opened if self._settings.migrate is None else self._settings.migrate,
            payload_folder=self._payload_folder if self._uses_payload_folder else None,
        )

    # ------------------------------------------------------------------------------------------- declaring

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R | Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(limits=[StrictRate("15/m", key="{tenant_id}")])`.

        An `async def` runs on the event loop, a plain `def` in a thread, or with `process=True` in a child process.
        `headgate.tasks.options.TaskOptions` describes each option. Raises DeclarationError for an invalid declaration,
        UnknownQueue for a queue that is not declared.
        """

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            return self._declare(body_of_function(function, options), options)

        return declare if function is None else declare(function)

    @overload
    def handler(self, handler: H, /) -> H: ...
    @overload
    def handler(self, handler: None = None, /, **options: Unpack[HandlerOptions]) -> Callable[[H], H]: ...
    def handler(self, handler: type[Any] | None = None, /, **options: Unpack[HandlerOptions]) -> Any:
        """Make a class a task: `@app.handler class Sync(Handler[SyncPayload])`, then `await Sync.enqueue(payload)`.

        The class stays a class; `Sync.task` is the task. Its `run(self, payload)` is called on a new instance for each
        attempt, on the event loop if it is `async def`, else in a thread. Options are those of `@app.task`; templates
        may name the payload's fields: `"{tenant_id}"`.
        """

        def declare(handler: type[Any]) -> type[Any]:
            mark_declared(handler, self._declare(body_of_handler(handler, options), options))
            return handler

        return declare if handler is None else declare(handler)

    def chunked(self, size: int, wait: Duration = 0.5, **options: Unpack[TaskOptions]) -> ChunkDecorator:
        """Make a function a task that handles several jobs in one call: `async def index(docs: list[Doc])`.

        A job is enqueued with one element: `await index.enqueue(doc)`. A call gets up to `size` jobs (1 to 1,000) that
        this worker has claimed; the first waits at most `wait` seconds (default: 0.5) for the others. The function
        returns None, or a list with a result or an exception for each job. Options are those of `@app.task`; limits,
        retries and timeouts are those of each job. Raises DeclarationError for a function that does not take one list.
        """
        if callable(size):
            raise DeclarationError("@app.chunked needs the size of a chunk; write @app.chunked(100) above the function")

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            body = body_of_function(function, options)
            return self._declare(body, options, chunk_of(size, wait, f"task {body.name!r}"))

        return cast(ChunkDecorator, declare)

    def _declare(self, body: TaskBody, options: HandlerOptions, chunk: Chunk | None = None) -> Task[Any, Any]:
        task = declare_task(
            body,
            options,
            self._client,
            self._registry,
            max_payload=self._settings.max_payload,
            audit=self._settings.audit,
            chunk=chunk,
        )
        for bound in task.limit_set.limits:
            self._check_limit_store(bound.name, bound.limit)
        self._registry.add_task(task)
        return task

    def _check_limit_store(self, name: str, limit: Limit) -> None:
        """Raise DeclarationError here, and not in a worker, for a limit that its store cannot hold."""
        self._client.remote_limits.check(name, limit)
        is_late = self._own_block is not None and name not in self._registry.limits
        if is_late and self._client.remote_limits.store_of(limit) is not None:
            raise DeclarationError(
                f"limit {name!r} is kept in another store, which the running worker does not use yet: declare "
                "it before you start the app; or stop the app, declare the limit, and start again"
            )

    @overload
    def resource(self, function: ResourceFunction, /) -> ResourceFunction: ...
    @overload
    def resource(
        self, function: None = None, /, *, scope: Literal["node", "attempt"] = "node"
    ) -> Callable[[ResourceFunction], ResourceFunction]: ...
    def resource(
        self, function: Callable[..., Any] | None = None, /, *, scope: Literal["node", "attempt"] = "node"
    ) -> Any:
        """Pass the value that this generator yields to handlers with a parameter of its type.

        `async def session() -> AsyncIterator[Session]: … yield session …`. It is opened once per node, when it is first
        needed, or with `scope="attempt"` for each attempt, whose errors are thrown into it. It is closed at the end of
        the node or the attempt, however that ends. A resource may use resources that were declared before it; so may
        tasks. A plain generator runs on the event loop, so it should not block.
        """

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            resource = declare_resource(function, scope, self._registry.resources)
            self._registry.add_resource(resource)
            return function

        return declare if function is None else declare(function)

    def around_enqueue(self, function: EnqueueHook, /) -> EnqueueHook:
        """Call this `async def function(jobs, enqueue)` around each enqueue; `await enqueue()` stores the jobs.

        `jobs` is a sequence of `JobDraft`: one, or all of an `enqueue_many`, a chain or a batch. Headers and arguments
        may be changed before `enqueue()`, which checks them. The function declared first is the outermost. The
        caller gets what it raises. It is not called for the jobs that a schedule enqueues. Raises DeclarationError.
        """
        self._registry.hooks.add_around_enqueue(function)
        return function

    def around_attempt(self, function: AttemptHook, /) -> AttemptHook:
        """Call this `async def function(job, run)` around each attempt; `await run()` calls the handler.

        `job` is an `AttemptContext`. The function returns the result of `run()`, or another one; if it raises, that is
        the attempt's error. It runs on the node's event loop, whatever kind the task is. The function
        declared first is the outermost. Raises DeclarationError.
        """
        self._registry.hooks.add_around_attempt(function)
        return function

    @overload
    def on_startup(self, function: LifecycleHookFunction, /) -> LifecycleHookFunction: ...
    @overload
    def on_startup(
        self, function: None = None, /, *, scope: Literal["node", "child"] = "node"
    ) -> Callable[[LifecycleHookFunction], LifecycleHookFunction]: ...
    def on_startup(
        self, function: Callable[[], object] | None = None, /, *, scope: Literal["node", "child"] = "node"
    ) -> Any:
        """Call this function, async or plain, when a node starts, before it claims a job; plain ones in a thread.

        They are called in the order of their declaration. One that raises ends the node with HeadgateError. With
        `scope="child"` a plain function is called in each child process of `process=True` tasks, before its first job.
        Raises DeclarationError.
        """
        return self._lifecycle_decorator(Moment.STARTUP, function, scope)

    @overload
    def on_shutdown(self, function: LifecycleHookFunction, /) -> LifecycleHookFunction: ...
    @overload
    def on_shutdown(
        self, function: None = None, /, *, scope: Literal["node", "child"] = "node"
    ) -> Callable[[LifecycleHookFunction], LifecycleHookFunction]: ...
    def on_shutdown(
        self, function: Callable[[], object] | None = None, /, *, scope: Literal["node", "child"] = "node"
    ) -> Any:
        """Call this function, async or plain, when a node has ended, after its last job; plain ones in a thread.

        They are called in reverse order, within the rest of the grace, at least 5 s in total; in a child process within
        2 s. If a startup function raises, those declared before it are called. One that raises is logged. A child
        process that is killed, as by a timeout, calls none. Raises DeclarationError.
        """
        return self._lifecycle_decorator(Moment.SHUTDOWN, function, scope)

    def _lifecycle_decorator(self, moment: Moment, function: Callable[[], object] | None, scope: str) -> Any:
        def declare(function: Callable[[], object]) -> Callable[[], object]:
            self._registry.hooks.add_lifecycle(moment, function, scope)
            return function

        return declare if function is None else declare(function)

    @overload
    def schedule(
        self,
        trigger: Trigger,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator: ...
    @overload
    def schedule(
        self, trigger: Trigger, plan: ChainPlan[Any] | BatchPlan, /, *, name: str, **options: Unpack[ScheduleOptions]
    ) -> None: ...
    def schedule(
        self,
        trigger: Trigger,
        plan: ChainPlan[Any] | BatchPlan | None = None,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator | None:
        """Enqueue a task on a schedule: `@app.schedule(Cron("0 6 * * *", tz="Europe/Rome"))` on a function or a task.

        `name` (default: the task's) identifies the schedule across restarts; a schedule named after its task replaces
        one that was named after an alias of the task. `args` and `kwargs` are those of its jobs.
        `headgate.tasks.schedule.ScheduleOptions` describes the other options. It is stored when a node starts: a stored
        schedule of the same name is updated and keeps its count, its rhythm and its pause. Options of `task.using(…)`
        apply to its jobs. Raises DeclarationError for an invalid declaration.

        With a chain or a batch, it is no decorator, and needs a name: each occurrence enqueues all of the `plan`, as
        `app.schedule(Every(hours=1), chain(fetch.call(), report.call()), name="hourly")`.
        """
        if plan is not None:
            self._schedule_plan(plan, name, trigger, options, has_arguments=bool(args or kwargs))
            return None
        # Here, because a decorator without parentheses is not called a second time.
        require_trigger(trigger, "@app.schedule")

        def declare(declared: Any) -> Any:
            task = declared if isinstance(declared, Task) else self.task(declared)
            spec = schedule_spec(task.name if name is None else name, trigger, options)
            try:
                call = self._client.enqueuer.scheduled_call(task, spec, Call(tuple(args), dict(kwargs or {})))
            except (TypeError, PayloadError) as error:
                raise DeclarationError(f"schedule {spec.name!r}: {error}; pass them as args= and kwargs=") from error
            self._registry.add_schedule(DeclaredSchedule(spec, call, task.aliases if name is None else None))
            return declared if isinstance(declared, Task) else task

        return cast(ScheduleDecorator, declare)

    def _schedule_plan(
        self,
        plan: ChainPlan[Any] | BatchPlan,
        name: str | None,
        trigger: Trigger,
        options: ScheduleOptions,
        *,
        has_arguments: bool,
    ) -> None:
        if name is None:
            raise DeclarationError("a chain or a batch under a schedule has no name of its own; add name=")
        spec = schedule_spec(name, trigger, options)
        require_plan(plan, self._client, f"schedule {name!r}")
        if has_arguments:
            raise DeclarationError(
                f"schedule {name!r}: the calls of a plan have their arguments; leave out args, kwargs"
            )
        try:
            call = self._client.scheduled_plan(spec, plan)
        except (TypeError, PayloadError) as error:
            raise DeclarationError(f"schedule {name!r}: {error}") from error
        self._registry.add_schedule(DeclaredSchedule(spec, call))

    def limit(self, name: str, limit: Limit) -> None:
        """Declare a limit that several tasks share, each with `limits=["name"]`."""
        self._registry.add_shared(name, limit)

    def limiter(self, name: str) -> Limiter:
        """Return a limiter for plain code that uses the same buckets as the jobs of this limit.

        `async with app.limiter("openai").hold(key, cost=3): …`. The app must be open; a `.sync` call opens it. It
        publishes `LimiterGranted` and `LimiterRefused` for its decisions, and `LimiterBypassed` when a middleware lets
        requests pass because its store is away. Raises UnknownLimit.
        """
        if (limit := self._registry.limits.get(name)) is None:
            known = ", ".join(sorted(self._registry.limits)) or "none"
            hint = did_you_mean(name, self._registry.limits)
            raise UnknownLimit(f"this app declares no limit {name!r}{hint} It declares: {known}")
        if limit.rule.holds_permits:
            raise DeclarationError(
                f"limit {name!r} grants permits, which belong to jobs; for a lock of plain code that machines share, "
                "write Limiter(Mutex('…'), store='redis://…'), or 'postgresql://…'"
            )
        store = self._client.remote_limits.store_of(limit)
        if not isinstance(store, MemoryBuckets):
            store = CurrentBuckets(lambda: self._client.remote_limits.store_of(limit) or StoredBuckets(self._storage))

        def report(key: str, decision: Decision) -> None:
            counts = self._client.limiter_grants if decision.allowed else self._client.limiter_refusals
            counts.note(name, key)

        return ReportingLimiter(
            changed(limit, name=name),
            store,
            clock=CurrentClock(lambda: self._clock),
            report=report,
            report_bypass=partial(self._client.limiter_bypasses.note, name),
            loop=lambda: self._client.lifecycle.loop,
            open_app=self._client.portal.open,
        )

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Declare a queue: `app.queue("mail", concurrency=10, global_concurrency=20)`.

        `headgate.tasks.queue.QueueOptions` describes each option. Raises DeclarationError for an invalid declaration.
        """
        queue = declared_queue(name, options)
        for limit_name, limit, _ in QueueLimits(queue, self._registry.shared).named:
            self._check_limit_store(limit_name, limit)
        self._registry.add_queue(queue)

    @names_keywords
    def alert(
        self,
        target: str | AlertFunction,
        *,
        on: str | Sequence[str],
        name: str | None = None,
        repeat: Duration | None = 3600,
        secret: str | None = None,
    ) -> None:
        """Notify `target` when a condition begins and when it has ended: `app.alert(url, on="queue_lag > 60")`.

        `target` is the URL of a webhook, which gets each `AlertMessage` as JSON by POST, or a function (async, or plain
        in a thread) that gets it. Each message is sent by one node, at least once; one that is not accepted is tried
        again. While the condition holds, the message is repeated every `repeat` seconds (default: an hour; None:
        never). `name` (default: the URL's host, or the function's name) identifies the alert across restarts.
        `secret` signs the requests as Standard Webhooks describes.

        The conditions: `queue_lag > 60` (seconds that ready jobs wait for a slot), `waiting > 10000` (due jobs),
        `failures > 10/m`, `node_lost`, `schedule_overdue`, `limit_unavailable`. One queue or task is named in
        parentheses: `queue_lag(mail) > 60`. Raises DeclarationError, and UnknownQueue for a queue that is not declared.
        """
        alert = declared_alert(target, on, name, repeat, secret)
        if not self._settings.history and any(condition.kind == "failures" for condition in alert.conditions):
            raise DeclarationError(
                f"alert {alert.name!r} counts failures in the history, which is switched off; remove history=False"
            )
        self._registry.add_alert(alert)

    def subscribe(self, callback: Callable[[E], Awaitable[None] | None], *kinds: type[E]) -> Callable[[], None]:
        """Call `callback` (plain or async) with each event of these kinds (default: all) of this process.

        A subscriber that is 10,000 events behind loses further ones. Returns the function that unsubscribes it.
        """
        return self._bus.subscribe(cast(Callback, callback), *kinds)

    def instrument(self, instrument: Instrument) -> None:
        """Attach metrics or tracing to this app in this process: `app.instrument(PrometheusMetrics())`.

        Call it before the app is opened. Raises DeclarationError for a second tracer.
        """
        observed = Observed(
            self._clock, lambda: self._storage, self._registry, self._bus.tap, self._client.trace_by,
            lambda: self._bus.lost, lambda: self._client.lifecycle.loop, __version__,
        )  # fmt: skip
        instrument.attach(observed)
        self._instruments.append(instrument)

    def import_tasks(self, *modules: str) -> None:
        """Import the modules of `imports=`, then these, which declare tasks on this app; a worker does it at its start.

        Raises DeclarationError for a module that does not exist, and what a module raises when it is imported.
        """
        import_modules(self, [*self._imports, *require_module_names(modules)])

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The declared tasks by name."""
        # All are declared by `task`, `chunked` and `handler`, which make a Task.
        return cast(Mapping[str, Task[Any, Any]], self._registry.tasks)

    # ---------------------------------------------------------------------------------------- open and run

    def open(self, *, migrate: bool | None = None) -> AppContext[Self]:
        """Connect, for enqueueing and reading; runs no jobs. May be entered again while open, on the same loop.

        `async with app.open():`, or `with app.open():` in a thread that runs no event loop.

        `migrate` (default: the setting) says whether missing tables are made. Without it, StorageUnusable is raised for
        a store that has no tables, or those of an older release; nothing is made or changed.
        """
        return AppContext(self, self._client.portal, lambda: self._opened(migrate))

    # A generator: a loop that ends closes those that were not left, as of a dashboard without a lifespan.
    @contextlib.asynccontextmanager
    async def _opened(self, migrate: bool | None) -> AsyncIterator[Self]:
        require_one_app(self)
        await self._client.enter(migrate=migrate)
        try:
            yield self
        finally:
            await self._client.lifecycle.leave()

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Make the tables of the store, or apply what they lack; return the names of the applied migrations.

        With `dry_run` nothing is written: return the names of the missing ones. Raises StorageUnusable for tables that
        are newer than this program, or that this user may not change.
        """
        return [str(migration) for migration in await self._storage.migrate(dry_run=dry_run)]

    def __repr__(self) -> str:
        return f"<Headgate on {self._client.address.shown}>"

    async def __aenter__(self) -> Self:
        """Open, and run jobs in this process until the block ends: `async with app:`, or `with app:` in plain code.

        If the node crashes, that is logged at once, and the block is cancelled and raises the error of the node.
        """
        self._require_no_own_block()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.open())
            node = self._make_node()
            await stack.enter_async_context(EmbeddedNode(node))
            # Another task may have entered it meanwhile.
            self._require_no_own_block()
            self._node = node
            self._own_block = stack.pop_all()
        return self

    def _require_no_own_block(self) -> None:
        if self._own_block is not None:
            raise DeclarationError(
                "this app already runs jobs in this process; enter `async with app:` once, or `await app.start()`"
            )

    def __enter__(self) -> Self:
        """As `async with app:`, for a thread that runs no event loop: jobs run in the background until the block ends.

        If the node crashes, that is logged at once, and raised at the end of the block.
        """
        require_no_loop("async with app:")
        self._leave_thread = self._client.portal.enter(self)
        return self

    def __exit__(self, *details: object) -> None:
        leave, self._leave_thread = self._leave_thread, None
        if leave is not None:
            leave()

    async def __aexit__(self, *details: Any) -> None:
        stack, self._own_block, self._node = self._own_block, None, None
        if stack is not None:
            await stack.__aexit__(*details)

    async def start(self, *, worker: bool = True) -> Self:
        """Open, and run jobs in this process until `stop`: `async with app:` for notebooks, where no block lasts.

        With `worker=False` it only enqueues and reads, as `app.open()`. If the app is started already, it stays so, and
        a worker can be added. If the node crashes, that is logged at once, and raised by `stop`. Raises
        DeclarationError in a block of `async with app:`, and on another event loop.
        """
        async with self._starting.here():
            if self._client.lifecycle.loop is None:
                # A loop that ended without `stop` has closed the app.
                self._started_block, self._has_started_worker = None, False
                self._own_block = self._node = None
            elif self._started_block is not None and self._client.lifecycle.loop is not asyncio.get_running_loop():
                raise DeclarationError("this app was started on another event loop; stop it there: `await app.stop()`")
            if self._started_block is None or (worker and not self._has_started_worker):
                block = self if worker else self.open()
                # In a task of its own, because a node that crashes cancels the task that has entered it.
                await asyncio.create_task(block.__aenter__())
                self._started_block = self._started_block or contextlib.AsyncExitStack()
                self._started_block.push_async_exit(block)
                self._has_started_worker = worker
        return self

    async def stop(self) -> None:
        """End what `start` began: running jobs have `grace` to finish. Without effect if nothing is started."""
        async with self._starting.here():
            started, self._started_block, self._has_started_worker = self._started_block, None, False
            if started is not None and self._client.lifecycle.loop is not None:
                await started.aclose()

    async def run(
        self,
        *,
        queues: Mapping[str, int | None] | None = None,
        slots: int | None = None,
        name: str | None = None,
        labels: Collection[str] | None = None,
        max_tasks_per_child: int | None = None,
        max_memory_per_child: int | str | None = None,
        grace: Duration | None = None,
        drain: Drain | None = None,
        log_jobs: bool | None = None,
        handle_signals: bool = True,
    ) -> None:
        """Run as a worker process until SIGTERM, SIGINT or SIGHUP; a second signal ends it at once.

        `queues` maps the queues to serve to their slots (None: as declared); default: all declared queues. `slots` is
        how many jobs of all queues together run at once, `name` the worker's name in lists (default: the app's
        own). It runs tasks that require none but its `labels` (default: the app's own), and by default serves no queue
        whose tasks all require others. `max_tasks_per_child` and `max_memory_per_child` replace the app's own bounds of
        child processes. `grace` is how long running jobs may continue after the first signal (default:
        the app's own). With `drain="ready"` it also ends when no job of its queues runs on any node and none could
        start now. With "all", none may wait for a limit, its time or another job either. Paused queues do not count.
        `log_jobs` is whether each job that ends gets a line in the log (default: the app's setting, and without one
        True). In a thread other than the main one no signal ends it; cancel it, which returns its running jobs, or
        `drain`. Operators can stop it as well (`headgate nodes stop`).
        """
        if self._storage.is_in_process:
            raise DeclarationError(
                "a worker process on memory:// never gets a job: other processes enqueue into their own memory; "
                "use sqlite:///path, or `async with app:` inside the process that enqueues"
            )
        given = {
            "slots": slots,
            "name": name,
            "labels": labels,
            "max_tasks_per_child": max_tasks_per_child,
            "max_memory_per_child": max_memory_per_child,
            "grace": grace,
        }
        node = self._make_node(lambda: self._node_config(queues, drain=drain, ends_when_lost=True, **given))
        # Also during opening and closing, so that a signal does not interrupt them.
        is_main = threading.current_thread() is threading.main_thread()
        with on_stop_signals(node.stop, node.end_now) if handle_signals and is_main else contextlib.nullcontext():
            async with self.open():
                if log_jobs is None:
                    log_jobs = self._settings.log_jobs is not False
                self._client.log_jobs(log_jobs)
                self._node = node
                try:
                    await until_ended(node, asyncio.create_task(node.run(), name="headgate-node"))
                finally:
                    self._node = None

    def _make_node(self, configure: Callable[[], NodeConfig] | None = None) -> Node:
        """Return a node; `configure` (default: `_node_config`) returns how it behaves, once all tasks are imported."""
        if IN_CHILD.is_set():
            raise DeclarationError(
                "this child process runs process tasks for a node and must not start a node itself; put the code of "
                'the main program under `if __name__ == "__main__":`, because child processes import it'
            )
        self.import_tasks()
        require_known_tasks(self._registry.alerts.values(), self._registry.tasks)
        return self._node_kind(
            self._client.services,
            (configure or self._node_config)(),
            remote_limits=self._client.remote_limits.limits,
            tracing=self._client.enqueuer.tracing,
            large_payloads=self._client.large_payloads,
        )

    def _node_config(
        self,
        queues: Mapping[str, int | None] | None = None,
        *,
        drain: Drain | None = None,
        ends_when_lost: bool = False,
        **overrides: object,
    ) -> NodeConfig:
        settings = overridden(self._settings, overrides)
        held = None if self._has_all_labels else settings.labels
        if self._registry.tasks and not self._registry.runnable(held).names:
            raise DeclarationError(_missing_labels(self._registry, settings.labels))
        chosen = dict.fromkeys(self._registry.served_with(held)) if queues is None else queues
        capacity: dict[str, int] = {}
        for queue, given in chosen.items():
            self._registry.require_queue(queue, "this worker")
            if given is None:
                capacity[queue] = self._registry.concurrency(queue, settings.concurrency)
            else:
                capacity[queue] = parse_count(given, "slots", f"queue {queue!r}", most=MOST_SLOTS)
        return NodeConfig(
            queues=capacity,
            slots=settings.slots,
            name=settings.name,
            labels=held,
            children=ChildBounds(settings.max_tasks_per_child, settings.max_memory_per_child),
            weights={queue: self._registry.queues[queue].weight for queue in capacity},
            heartbeat=settings.heartbeat,
            lease=settings.lease,
            grace=settings.grace,
            retention=settings.retention,
            log_lines=settings.log_lines,
            log_level=logging.getLevelNamesMapping()[settings.log_level],
            release=settings.release,
            drain=drain,
            throttle_events=settings.throttle_events,
            ends_when_lost=ends_when_lost,
        )

    # ------------------------------------------------------------------------------------------- following

    def job(self, job_id: str) -> Job[Any]:
        """Return the handle of a job by its id; it reads nothing."""
        if callable(job_id):
            raise TypeError("app.job(id) returns the handle of a job; write @app.task above the function")
        require_storable(job_id, "job id")
        return Job(job_id, self._client)

    def batch(self, batch_id: str) -> Batch:
        """Return the handle of a batch by its id, without its `jobs` and `then`; it reads nothing."""
        require_storable(batch_id, "batch id")
        return Batch(batch_id, (), self._client)

    def find_schedule(self, name: str) -> Schedule[Any]:
        """Return the handle of a schedule by its name; it reads nothing."""
        require_storable(name, "schedule")
        return Schedule(name, self._client)

    @property
    def admin(self) -> Admin:
        """The operations for operators."""
        return self._client.admin

    @property
    def sync(self) -> SyncApp:
        """The same methods for synchronous code; opens the app on first use, and is thread-safe."""
        return SyncApp(self)


class SyncApp:
    """The methods of the app for synchronous code; tasks, chains, batches and limiters have their own `sync`.

    Each opens the app on first use; `with app.sync:` opens it at once, and closes it at the end.
    """

    def __init__(self, app: Headgate) -> None:
        self._app = app
        self._portal = app._client.portal

    @property
    def admin(self) -> SyncAdmin:
        """The operations for operators, as `Headgate.admin`: `app.sync.admin.cancel(job_id)`."""
        from headgate.client.sync_admin import SyncAdmin  # It imports all of the Admin.

        return SyncAdmin(lambda: self._app.admin, self._portal)

    def job(self, job_id: str) -> SyncJob[Any]:
        """As `Headgate.job`."""
        return SyncJob(self._app.job(job_id), self._portal)

    def batch(self, batch_id: str) -> SyncBatch:
        """As `Headgate.batch`."""
        return SyncBatch(self._app.batch(batch_id), self._portal)

    def find_schedule(self, name: str) -> SyncSchedule[Any]:
        """As `Headgate.find_schedule`."""
        return SyncSchedule(self._app.find_schedule(name), self._portal)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's event loop and return its result; blocks this thread."""
        return self._portal.run(coroutine)

    def close(self) -> None:
        """End the background thread, if any; the next call starts it again."""
        self._portal.close()

    def __enter__(self) -> Self:
        self._portal.open()
        return self

    def __exit__(self, *details: object) -> None:
        self._portal.close()


def _missing_labels(registry: Registry, labels: frozenset[str]) -> str:
    task = next(iter(registry.tasks.values()))
    missing = sorted(task.requires - labels)
    return (
        f"this worker can run no task: all require labels that it does not have, as task {task.name!r} requires "
        f"{', '.join(missing)}; start it with `headgate worker {' '.join(f'--label {label}' for label in missing)}`"
    )


def _checked_folder(folder: object, max_payload: int) -> PayloadFolder | None:
    if folder is None:
        return None
    if not isinstance(folder, PayloadFolder):
        raise DeclarationError(
            f'large_payloads={folder!r:.80} is not a PayloadFolder; write PayloadFolder("s3://bucket/path")'
        )
    if folder.above > max_payload:
        raise DeclarationError(
            f"large_payloads: above={folder.above} is more than max_payload={max_payload}, so nothing would be in the "
            "folder; raise max_payload to the largest payload that you allow"
        )
    return folder
