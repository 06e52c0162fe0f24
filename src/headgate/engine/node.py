"""A node: one engine process that claims jobs, runs them, records their endings, and recovers those of dead nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from headgate.arguments import MOST_SLOTS
from headgate.clock import SECOND, Clock, microseconds, sleep, wait_for_event, wait_until_done
from headgate.engine.alert_sender import AlertSender
from headgate.engine.alerter import Alerter
from headgate.engine.attempt import RunningAttempt
from headgate.engine.backlog_migrator import BacklogMigrator
from headgate.engine.bus import EventBus
from headgate.engine.charge import ChargeRouter
from headgate.engine.children import UNBOUNDED, ChildBounds
from headgate.engine.claim_loop import ClaimLoop, ClaimNotices, ClaimWakeup
from headgate.engine.claim_tracker import ClaimTracker
from headgate.engine.fetcher import Fetcher
from headgate.engine.housekeeper import Housekeeper
from headgate.engine.large_payloads import LargePayloads, sweep_regularly
from headgate.engine.lease_keeper import LeaseKeeper, Membership, OwnLease, PeerLeases
from headgate.engine.recorder import Recorder
from headgate.engine.recurring import Recurring
from headgate.engine.remote_limits import RemoteLimit
from headgate.engine.reporter import Reporter
from headgate.engine.running_attempts import MakeAttempt, RunningAttempts, Slots
from headgate.engine.services import Services, WithServices
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.jobs.event import (
    LoopBlocked,
    NodeChanged,
    NodeCrashed,
    NodeLost,
    NodeMeasured,
    NodeStarted,
    NodeStopped,
    NodeStopping,
    ShutdownFailed,
)
from headgate.jobs.identity import process_name
from headgate.jobs.job import describe_error, summarize_error
from headgate.jobs.retention import DEFAULT_RETENTION, Retention
from headgate.shielding import call_any, in_thread, is_cancellation, shield_until_done
from headgate.storage.records import NodeControls, Peer
from headgate.tasks.alert import DeclaredAlert
from headgate.tasks.callbacks import name_of
from headgate.tasks.context import JobLogCapture, guard_tasks, unguard_tasks
from headgate.tasks.executor_kind import Executor
from headgate.tasks.hooks import HookScope, LifecycleFunction, LifecycleHook, Moment
from headgate.tasks.modules import is_session
from headgate.tasks.registry import Registry
from headgate.tasks.tracing import Tracing
from headgate.version import __version__

Drain = Literal["ready", "all"]
"""`ready`: until no job runs and none can start now. `all`: until no job waits for a limit or its time either."""

SWEEP_EVERY = 30
"""Seconds between two claims without a cause."""

DRAIN_INTERVAL = 0.1
"""Seconds between two checks of a draining node that has nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How a node behaves, mostly as `headgate.settings.Settings` describes it; all durations in seconds.

    `queues` maps the queues to serve to their slots; all of them together have `slots` (None: any number), which they
    share by their `weights`. The node runs the tasks that require none but its `labels` (None: all tasks, as in tests).
    `children` says when child processes are replaced. With `drain` the node stops by itself. With `ends_when_lost`, as
    a worker, it ends with StorageLost when its store is lost; without, the program around it continues and gets that
    error itself.
    """

    queues: Mapping[str, int]
    slots: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    name: str | None = None
    labels: frozenset[str] | None = frozenset()
    children: ChildBounds = UNBOUNDED
    heartbeat: float = 5.0
    lease: float = 30.0
    grace: float = 30.0
    retention: Retention = DEFAULT_RETENTION
    log_lines: int = 1000
    log_level: int = logging.INFO
    release: str | None = None
    drain: Drain | None = None
    throttle_events: bool = True
    ends_when_lost: bool = False


class Node(WithServices):
    """Runs jobs of one app until it is stopped.

    It creates its parts and ends them in order; each has its own state and module. Every second it checks the store,
    which recovers dead nodes, and its own event loop and clocks. `pool` runs the functions of thread tasks (default:
    one thread per slot).
    """

    def __init__(
        self,
        services: Services,
        config: NodeConfig,
        *,
        remote_limits: Mapping[str, RemoteLimit] | None = None,
        tracing: Tracing | None = None,
        large_payloads: LargePayloads | None = None,
        pool: Pool | None = None,
        make_attempt: MakeAttempt = RunningAttempt,
        on_concluded: Callable[[RunningAttempt], None] | None = None,
    ) -> None:
        super().__init__(services)
        remote_limits = remote_limits or {}
        lease, interval = round(config.lease * SECOND), round(config.heartbeat * SECOND)
        self._config = config
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._is_stopped_by_operator = False
        self._grace_ends_at: int | None = None
        self.hooks = NodeHooks(
            self._hooks_to_call(services.registry), clock=services.clock, bus=services.bus, pool=pool
        )
        self._wakeup = ClaimWakeup(config.queues)
        self._membership = Membership(
            services,
            name=config.name or process_name(),
            controls=NodeControls(config.queues, config.slots),
            labels=config.labels or frozenset(),
            tasks=lambda: self.attempts.left.declared(),
            release=config.release,
        )
        self._slots = Slots(config.queues, config.slots, config.weights)
        own_lease, self._peers = OwnLease(lease, services.clock), PeerLeases(lease, interval)
        # The parts that write for attempts.
        self._reporter = Reporter(services, self.id, most_lines=config.log_lines, lowest=config.log_level)
        self._capture = JobLogCapture(self._reporter)
        self.recorder = Recorder(services, self.id, self._reporter)
        self._fetcher = Fetcher(services, remote_limits, lambda limits: self._claims.use_kept_slots(limits))
        charges = ChargeRouter(services, self.recorder, self._fetcher, remote_limits)
        if pool is None:
            # It starts a thread only if none is idle. Each runs an attempt, so the slots bound them, whatever they are.
            pool = ThreadPoolExecutor(MOST_SLOTS, thread_name_prefix="headgate-job")
        # The attempts.
        self.attempts = RunningAttempts(
            services,
            self._slots,
            own_lease.holds,
            charges,
            self.recorder,
            self._reporter,
            wake=self._wakeup.wake,
            pool=pool,
            child_bounds=config.children,
            tracing=tracing,
            large_payloads=large_payloads,
            make_attempt=make_attempt,
            on_concluded=on_concluded,
        )
        # The parts for the jobs that the node owns.
        self.claim_tracker = ClaimTracker(
            services,
            self._slots,
            own_lease.holds,
            self.attempts,
            self.recorder,
            remote_limits=remote_limits,
            stopping=self._stopping,
        )
        self.lease = LeaseKeeper(
            services,
            self._membership,
            own_lease,
            self._peers,
            self.attempts,
            self.claim_tracker,
            self.recorder,
            self._reporter,
            wake=self._wakeup.wake,
            interval=interval,
            ends_when_lost=config.ends_when_lost,
            stopping=self._stopping,
        )
        # The parts that start jobs, or make jobs ready to start.
        self._backlog_migrator = BacklogMigrator(services, wake=self._wakeup.wake, large_payloads=large_payloads)
        self._notices = ClaimNotices(services, self._backlog_migrator, throttle_events=config.throttle_events)
        self._claims = ClaimLoop(
            services,
            self._membership,
            self._slots,
            self.lease,
            self.attempts,
            self.claim_tracker,
            self._fetcher,
            self._notices,
            self._wakeup,
            remote_limits=remote_limits,
            labels=config.labels,
            stopping=self._stopping,
        )
        self._housekeeper = Housekeeper(services, retention=config.retention)
        self.recurring = Recurring(services, self._membership, self._stopping)
        # Parts that not every node has, by the names of their tasks.
        self._others: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        if alerts := self._alerts_to_watch(services.registry):
            sender = AlertSender(pool, services.clock)
            self._others["alerter"] = Alerter(services, alerts, sender, lambda: self._fetcher.limits_away).run
        if large_payloads is not None:
            self._others["folder-sweeper"] = partial(sweep_regularly, large_payloads, services)
        if config.drain is not None:
            self._others["drain"] = partial(self._stop_when_drained, config.drain)

    def _hooks_to_call(self, registry: Registry) -> list[LifecycleHook]:
        """Return the functions for the start and the end of this node."""
        return [hook for hook in registry.hooks.lifecycle if hook.scope is HookScope.NODE]

    def _alerts_to_watch(self, registry: Registry) -> Mapping[str, DeclaredAlert]:
        """Return the alerts that this node watches."""
        return registry.alerts

    @property
    def id(self) -> str:
        """The id of the node in the store; a new one after the node was declared dead."""
        return self._membership.id

    # ------------------------------------------------------------------------------------------------ life

    def stop(self) -> None:
        """Claim no more jobs, let running ones finish within the grace, then return the rest and end."""
        if not self._stopping.is_set():
            self._grace_ends_at = self._clock.monotonic() + microseconds(self._config.grace)
            # Those that were returned before run again here.
            self.attempts.handed_back = 0
        self._stopping.set()
        self._wakeup.wake()

    def _stop_by_operator(self) -> None:
        self._is_stopped_by_operator = self._is_stopped_by_operator or not self._stopping.is_set()
        self.stop()

    def abort(self) -> None:
        """End immediately: running jobs are cancelled and returned."""
        self.stop()
        self._aborting.set()

    def end_now(self) -> None:
        """Abort, and cancel callbacks, those after the end of the node included; a locked store is not waited for."""
        self.abort()
        self._storage.is_hurried = True
        self._callback_runner.cancel()

    async def run(self) -> None:
        """Work until stopped. A crash of any part ends the node: it is published and raised.

        Raises HeadgateError if a startup function raises.
        """
        try:
            await self._run()
        finally:
            if self.hooks.to_shut_down:
                # The callbacks of the last jobs may use what a shutdown function closes.
                await self._callback_runner.drain(self._timeout(5.0))
            left = 0 if self._grace_ends_at is None else self._grace_ends_at - self._clock.monotonic()
            await self.hooks.end(self._timeout(max(5.0, left / SECOND)), self._aborting)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        unwatch = self._storage.watch_queues(self._wakeup.wake)
        guard_tasks(loop)
        if self._config.log_lines:
            self._capture.start()
        try:
            if not await self.hooks.start(self._stopping):
                return
            self.lease.guard()
            await self.lease.join()
            self._bus.publish(
                NodeStarted(
                    at=self._clock.now(),
                    node=self.id,
                    storage=str(self._storage),
                    version=__version__,
                    queues=self._config.queues,
                    tasks=tuple(self._registry.tasks),
                    limits={name: limit.rule.describe() for name, limit in self._registry.limits.items()},
                    grace=self._config.grace,
                    in_session=is_session(),
                )
            )
            self.lease.compare_clocks()
            await self._serve()
        except Exception as error:
            # Published at once: a program that does other work may not await this task.
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            self._bus.publish(NodeCrashed(at=self._clock.now(), node=self.id, error=describe_error(first)))
            raise
        finally:
            unwatch()
            unguard_tasks(loop)
            self._capture.stop()
            self._claims.close()
            self._notices.close()
            self.lease.close()
            await self.attempts.close(self._timeout(5.0))
        try:
            recovered = await self._storage.leave(self.id)
        except StorageUnavailable as error:
            # Another node recovers the jobs when the lease has ended.
            self._publish_failure("leaving", error)
        else:
            returned = self.attempts.handed_back + len(recovered.returned)
            self._bus.publish(NodeStopped(at=self._clock.now(), node=self.id, returned=returned))

    async def _serve(self) -> None:
        """Run the parts; after `stop`, end them in the order of their dependencies."""
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._claims.run(self._backlog_migrator.has_noted), name="headgate-claims"),
                group.create_task(self.lease.run(), name="headgate-heartbeats"),
                group.create_task(self._watch(), name="headgate-watch"),
                group.create_task(self._housekeeper.run(), name="headgate-housekeeper"),
                group.create_task(self._housekeeper.run_pruning(), name="headgate-pruning"),
                group.create_task(self.recurring.run(), name="headgate-recurring"),
                *(group.create_task(run(), name=f"headgate-{name}") for name, run in self._others.items()),
            ]
            backlog_migrator = group.create_task(self._backlog_migrator.run(), name="headgate-backlog-migrator")
            fetcher = group.create_task(self._fetcher.run(), name="headgate-fetcher")
            recorder = group.create_task(self.recorder.run(), name="headgate-recorder")
            reporter = group.create_task(self._reporter.run(), name="headgate-reporter")
            await self._stopping.wait()
            self._bus.publish(
                NodeStopping(
                    at=self._clock.now(),
                    node=self.id,
                    running=len(self.attempts),
                    by_operator=self._is_stopped_by_operator,
                    grace=self._config.grace,
                    in_threads=sum(attempt.task.executor is Executor.THREAD for attempt in self.attempts),
                )
            )
            # The node claims no more, so other releases need not wait for its jobs to end.
            backlog_migrator.cancel()
            await self.attempts.finish(self._config.grace, self._aborting)
            # The claims: a reply that is dropped keeps the budget of jobs that never start.
            await wait_until_done(self._clock, background[0], 1.0)
            for service in background:
                service.cancel()
            # Stores that are down are waited for briefly only: some budget is lost, and other nodes recover the jobs.
            await self._fetcher.flush(self._timeout(5.0))
            fetcher.cancel()
            await self.recorder.flush(self._timeout(10.0))
            recorder.cancel()
            reporter.cancel()

    def _timeout(self, seconds: float) -> float:
        """Return the timeout of a step of the shutdown: `seconds`, or 1 after `abort`."""
        return 1.0 if self._aborting.is_set() else seconds

    # ------------------------------------------------------------------------------------------------ watch

    async def _watch(self) -> None:
        """Check every second: the store, the event loop, and whether a clock was stepped."""
        turns = 0
        ahead = self._storage.now() - self._clock.monotonic()
        while True:
            try:
                await self._check_store()
            except StorageUnavailable as error:
                self._publish_failure("checking the nodes", error)
            # Measured from here: a slow store does not mean that the event loop is blocked.
            expected = self._clock.monotonic() + SECOND
            await sleep(self._clock, 1.0)
            late = (self._clock.monotonic() - expected) / SECOND
            stepped = self._storage.now() - self._clock.monotonic() - ahead
            if late > 1.0:
                self.lease.check()
            if abs(stepped) > SECOND // 2 or late > 1.0:
                # Timers were set by the store's old wall time, or do not count the time for which the machine slept.
                ahead += stepped
                self._wakeup.wake()
                self.recurring.wake()
            turns += 1
            if turns % SWEEP_EVERY == 0:
                self._wakeup.sweep()
                self.recurring.wake()
            self._measure(late)

    async def _check_store(self) -> None:
        """Recover dead nodes, and read cancellations, what operators set, and what the housekeeper has to do.

        One statement reads the other nodes, what this one is set to do, and what is due.
        """
        update = await self._storage.node_update(self.id)
        self._housekeeper.note(update)
        if update.name is not None:
            self._membership.name = update.name
        if update.controls is not None:
            self._apply(update.controls)
        if update.has_arrived:
            # The enqueueing process may have been killed before its notification, or the notification was lost.
            self._wakeup.wake()
        await self.recover_dead(update.peers)
        if self.claim_tracker.take_check():
            await self.lease.beat()
        if self.attempts:
            for job_id in await self._storage.cancels(self.id, self.attempts.jobs):
                self.attempts.cancel(job_id)

    async def recover_dead(self, nodes: Sequence[Peer]) -> None:
        """Recover the jobs of the dead among these nodes. Every node does, so no leader is needed."""
        for dead in self._peers.dead(nodes, self.id, self._clock.monotonic()):
            recovered = await self._storage.recover(dead.id, dead.beat)
            if recovered is None:
                continue
            ended = [*recovered.poisonous, *recovered.completed, *recovered.cancelled]
            if recovered.known is None or recovered.returned or ended:
                self._bus.publish(
                    NodeLost(
                        at=self._clock.now(),
                        node=dead.id,
                        returned=len(recovered.returned),
                        poisonous=len(recovered.poisonous),
                        completed=len(recovered.completed),
                        cancelled=len(recovered.cancelled),
                        poisonous_jobs=tuple(recovered.poisonous),
                        known=recovered.known,
                    )
                )
            self._publish_dropped(await self._storage.final(ended) if ended else ())

    def _apply(self, controls: NodeControls) -> None:
        """Apply what the store says that this node is set to do; no effect if it does that already."""
        before, self._membership.controls = self._membership.controls, controls
        if controls.is_stopping:
            self._stop_by_operator()
        elif controls != before:
            self._slots.change(controls.queues, controls.slots, is_quiet=controls.is_quiet)
            self._bus.publish(
                NodeChanged(
                    at=self._clock.now(),
                    node=self.id,
                    queues=controls.queues,
                    slots=controls.most,
                    is_quiet=controls.is_quiet,
                )
            )
            self._wakeup.wake()

    def _measure(self, late: float) -> None:
        """Publish how busy the node is; `late` is the delay in seconds with which the event loop woke this task."""
        if self._bus.has_listener(NodeMeasured):
            own = self._clock.now()
            self._bus.publish(
                NodeMeasured(
                    at=own,
                    node=self.id,
                    slots={queue: busy + self._slots.free_in(queue) for queue, busy in self._slots.busy.items()},
                    busy=self._slots.busy,
                    lingering=len(self.attempts.lingering),
                    unrecorded=len(self.recorder.pending),
                    loop_lag=max(0.0, late),
                    clock_skew=(own - self._storage.now()) / SECOND,
                )
            )
        if late > 1.0:
            self._bus.publish(LoopBlocked(at=self._clock.now(), seconds=late))

    async def _stop_when_drained(self, until: Drain) -> None:
        """Stop when the queues are drained; return when the node stops."""
        queues, labels = self._config.queues.keys(), self._config.labels
        while not self._stopping.is_set():
            before, names = (self.attempts.started, self._fetcher.requests), self._registry.runnable(labels).names
            # The claim that requests starts from another store closes the key until they are there.
            is_busy = self.attempts or self._fetcher.is_fetching
            try:
                is_drained = not is_busy and not await self._storage.is_work_left(
                    queues, names, ready_only=until == "ready"
                )
            except StorageUnavailable as error:
                self._publish_failure("checking for remaining work", error)
            else:
                # A job that arrived after the check and was claimed at once is still run.
                has_started_none = before == (self.attempts.started, self._fetcher.requests)
                if is_drained and has_started_none and not self.claim_tracker.is_claiming:
                    self.stop()
            await sleep(self._clock, DRAIN_INTERVAL)


class NodeHooks:
    """Calls startup functions in the order of their declaration, and shutdown functions in reverse order.

    A startup function that raises ends this: then only the shutdown functions declared before it are called. Plain
    functions run in a thread of `pool` (default: one of its own).
    """

    def __init__(self, hooks: Sequence[LifecycleHook], *, clock: Clock, bus: EventBus, pool: Pool | None) -> None:
        self._hooks = hooks
        self.exist: bool = bool(hooks)
        self._clock = clock
        self._bus = bus
        self._pool = pool
        self._own_pool: ThreadPoolExecutor | None = None
        self.to_shut_down: list[LifecycleHook] = []
        self.has_started = asyncio.Event()

    async def start(self, stopping: asyncio.Event) -> bool:
        """Call the startup functions; return False if `stopping` has cancelled them. Raises HeadgateError."""
        if self._hooks:
            starting = asyncio.ensure_future(self._start())
            await self._finish(starting, None, stopping)
            if starting.cancelled() or not starting.done():
                return False
            starting.result()
        self.has_started.set()
        return True

    async def _start(self) -> None:
        for hook in self._hooks:
            if hook.moment is Moment.SHUTDOWN:
                self.to_shut_down.append(hook)
                continue
            try:
                await self._call(hook.function)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if is_cancellation(error):
                    # The node was stopped meanwhile.
                    raise
                raise HeadgateError(
                    f"startup function {name_of(hook.function)!r} raised {summarize_error(error)}; no job was claimed"
                ) from error

    async def end(self, seconds: float, aborting: asyncio.Event) -> None:
        """Call the shutdown functions, together within `seconds`; then, or at `aborting`, the rest has a second.

        One that raises or takes longer is published.
        """
        until, extra = self._clock.monotonic() + microseconds(seconds), SECOND
        while self.to_shut_down:
            call = asyncio.ensure_future(self._call_safely(self.to_shut_down.pop()))
            left = max(0, until - self._clock.monotonic()) / SECOND
            cut = asyncio.Event() if aborting.is_set() else aborting
            await self._finish(call, left, cut)
            if cut.is_set() or self._clock.monotonic() >= until:
                until, extra = self._clock.monotonic() + extra, 0
        self._leave_pool()

    async def _finish(self, call: asyncio.Future[None], seconds: float | None, cut: asyncio.Event) -> None:
        """Wait for a call, at most `seconds` or until `cut`; then cancel it, and wait a second more."""
        is_over, cutting = asyncio.Event(), asyncio.ensure_future(cut.wait())
        for each in (call, cutting):
            each.add_done_callback(lambda _: is_over.set())
        try:
            await wait_for_event(self._clock, is_over, seconds)
        finally:
            cutting.cancel()
            if not call.done():
                call.cancel()
                await wait_until_done(self._clock, call, 1.0)
                # Its thread may go on; the next function gets another.
                self._leave_pool()

    def _leave_pool(self) -> None:
        if self._own_pool is not None:
            self._own_pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._own_pool = None

    async def _call_safely(self, hook: LifecycleHook) -> None:
        error: str | None = None
        try:
            await self._call(hook.function)
        except asyncio.CancelledError:
            error = "cancelled: it took too long or cancelled itself"
        except BaseException as raised:
            # Raised out of a task, SystemExit would end the program before the other functions are called.
            error = summarize_error(raised)
        if error is not None:
            self._bus.publish(ShutdownFailed(at=self._clock.now(), function=name_of(hook.function), error=error))

    async def _call(self, function: LifecycleFunction) -> None:
        if self._pool is None:
            self._pool = self._own_pool = ThreadPoolExecutor(1, thread_name_prefix="headgate-hook")
        await call_any(function, run=partial(in_thread, self._pool))


async def until_ended(node: Node, running: asyncio.Task[None], *others: asyncio.Future[Any]) -> None:
    """Return when `running`, the run of the node, or one of the others is done; raise what the node raises.

    A caller that is cancelled aborts the node and waits for it. Otherwise its jobs would be lost until its lease ends.
    """
    try:
        await asyncio.wait([running, *others], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        node.abort()
        await shield_until_done(running)
        raise
    if running.done():
        running.result()


class EmbeddedNode:
    """Runs a node for as long as an `async with` block lasts.

    When the node crashes, the block is cancelled and raises the error of the node, as the block of a TaskGroup does: a
    program that continued without its worker would collect jobs that no node runs. The block begins after the startup
    functions.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._block: asyncio.Task[object] | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_left = False
        self._has_cancelled = False

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        self._running = asyncio.get_running_loop().create_task(self._node.run(), name="headgate-node")
        if self._node.hooks.exist:
            started = asyncio.ensure_future(self._node.hooks.has_started.wait())
            try:
                await until_ended(self._node, self._running, started)
            finally:
                started.cancel()
        self._running.add_done_callback(self._note_end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._is_left = True
        self._node.stop()
        block = asyncio.current_task()
        if self._has_cancelled and block is not None and block is self._block:
            block.uncancel()
        try:
            await until_ended(self._node, self._running)
        except Exception:
            # The crash has been logged; an error that ends the program goes first.
            if not isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise

    def _note_end(self, running: asyncio.Task[None]) -> None:
        has_crashed = not running.cancelled() and running.exception() is not None
        if has_crashed and not self._is_left and self._block is not None:
            # No effect if the task that entered the block has ended, as the setup task of a test may have.
            self._has_cancelled = self._block.cancel()
