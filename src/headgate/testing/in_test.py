"""The app in a test: the same declarations on another store, and nothing runs by itself.

During the test, the app object and its client have classes of this module, so all code that has imported the app or a
task enqueues into the test. At the end they are restored.

Code that cannot await is tested in one thread: plain functions run in the thread that waits, and the event loop in a
helper thread meanwhile. Frameworks that keep their database connection in a thread, and those that refuse to run in a
thread with an event loop, then behave as without Headgate.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Self, TypeVar, cast

from headgate.app import Headgate
from headgate.client.client import Client
from headgate.client.portal import Leave, Portal, WaitingThread
from headgate.clock import Clock, SystemClock
from headgate.engine.app_lifecycle import AppLifecycle, Step
from headgate.engine.backlog import Backlogs, ReservedRoom
from headgate.engine.bus import EventBus
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.enqueuer import CallGroup, StoredCall, resolved_ids
from headgate.engine.remote_limits import RemoteLimits
from headgate.engine.results import result_of
from headgate.errors import HeadgateError, JobNotFound
from headgate.jobs.batch import NewBatch
from headgate.limits.bucket_store import BucketStore
from headgate.limits.limit import Limit
from headgate.observe.log import log_event, logged_kinds
from headgate.storage.choice import StoreAddress
from headgate.storage.enlisting import require_blocking
from headgate.storage.store import Store
from headgate.tasks.call import Call, FlowCall
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.status import BatchStatus
from headgate.testing.stepped_node import NodeInTest, RunAttempt, SteppedNode

S = TypeVar("S", bound="InTest")
T = TypeVar("T")


class InTest(Headgate):
    """An app on the store of a test, limits included: limits of Redis are kept with the jobs.

    Its nodes run all tasks, whatever labels they require. Large payloads stay in the store.
    """

    _node_kind = NodeInTest
    _has_all_labels = True
    _uses_payload_folder = False


class ManualClient(Client):
    """Keeps what is enqueued until the test runs it; waiting for a job that nothing would run is an error."""

    app: TestApp

    connections: dict[str, Any]
    """The connection in whose transaction a job was enqueued, by the job's id."""

    async def enqueue(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[StoredCall]:
        stored = await super().enqueue(task, calls)
        await self.app.after_enqueueing(stored)
        return stored

    async def _store(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> list[StoredCall]:
        connection = task.options.get("connection")
        if connection is None:
            return await super()._store(task, groups)
        new = await self.enqueuer.jobs_for_transaction(task, groups)
        stored = resolved_ids(new, await self.storage.add(new))
        self.connections |= dict.fromkeys([each.id for each in stored], connection)
        return stored

    def enqueue_blocking(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[StoredCall]:
        if task.options.get("connection") is not None:
            require_blocking(task.options.get("connection"))
        return self.portal.run(self.enqueue(task, calls))

    async def enqueue_flow(self, calls: Sequence[FlowCall], batches: Sequence[NewBatch]) -> None:
        await super().enqueue_flow(calls, batches)
        await self.app.after_enqueueing([StoredCall(call.id) for call in calls])

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        record = await self.storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id)
        if not record.state.is_final:
            raise HeadgateError(
                f"job {job_id} of task {record.task!r} is {record.state}, and nothing runs by itself in this test: its "
                "result would be waited for without end; drain() first, or use headgate.testing.live(app)"
            )
        return result_of(record, self.registry.find(record.task), self.registry.codecs)

    async def wait_for_batch(self, batch_id: str, timeout: float | None) -> BatchStatus:
        status = await self.admin.batch(batch_id)
        if status.pending:
            raise HeadgateError(
                f"{status.pending} jobs of batch {batch_id} are not final, and nothing runs by itself in this test: "
                "drain() first, or use headgate.testing.live(app)"
            )
        return status


class TestApp(InTest):
    """An app that is open wherever a test uses it, and runs nothing by itself."""

    __test__ = False  # pytest collects classes by this prefix

    _client: ManualClient
    _client_kind = ManualClient

    performed: dict[str, RunAttempt]
    """The latest attempt of each job that was run, by its id."""

    at_work: list[SteppedNode]
    """The nodes that run jobs right now: nested if a handler enqueues, in parallel if several tasks enqueue."""

    async def __aenter__(self) -> Self:
        self._own_block = contextlib.AsyncExitStack()
        await self._own_block.enter_async_context(self.open())
        return self

    async def run(self, *_: Any, **options: Any) -> None:
        raise HeadgateError(
            "app.run() would never end in a test where nothing runs by itself; drain() runs what waits, and "
            "headgate.testing.live(app) runs a real engine"
        )

    async def after_enqueueing(self, stored: Sequence[StoredCall]) -> None:
        """Called after jobs were stored; does nothing, because they wait for `drain`."""

    @contextlib.asynccontextmanager
    async def node(self, storage: Store | None = None) -> AsyncIterator[SteppedNode]:
        """Run a node on this event loop, on the app's store or on another one."""
        storage = storage or self._storage
        # One of its own: what it waits with belongs to one event loop, and callbacks take real time.
        callback_runner = CallbackRunner(storage, self._registry, SystemClock(), self._bus)
        callback_runner.tracing = self._client.enqueuer.tracing
        new = SteppedNode(
            replace(self._client.services, storage=storage, callback_runner=callback_runner),
            self._node_config(),
            tracing=self._client.enqueuer.tracing,
            pool=_waiting.get(),
            latest=self.performed,
        )
        before, self._node = self._node, new
        # A node inside of another finds what the startup functions have made.
        is_outermost = not self.at_work
        self.at_work.append(new)
        try:
            async with new.at_work(with_hooks=is_outermost):
                yield new
        finally:
            self.at_work.remove(new)
            self._node = before


class _LimitsWithJobs(RemoteLimits):
    """Remote limits for a test: all limits are kept with the jobs."""

    def store_of(self, limit: Limit) -> BucketStore | None:
        return None


class _OpenAnywhere(AppLifecycle):
    """The lifecycle of an app that counts as open; entering it sets the event loop on which it is used."""

    def __init__(self) -> None:
        super().__init__(open=_nothing, before_close=_nothing, close=_nothing)
        self.open_count = 1

    async def enter(self, open: Step | None = None) -> None:
        self.open_count += 1
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()

    def require_open_here(self) -> None:
        """Do nothing: it is open on every loop."""

    async def leave(self) -> None:
        self.open_count -= 1
        if self.open_count == 1:
            self._loop = None


async def _nothing() -> None:
    """Open or close nothing."""


class _ImpatientBacklogs(Backlogs):
    """Backlogs for a test: nothing makes room by itself, so a full queue is reported at once."""

    async def reserve(self, counts: Mapping[str, int], *, may_wait: bool = True) -> ReservedRoom:
        return await super().reserve(counts, may_wait=False)


@contextlib.contextmanager
def in_test(app: Headgate, kind: type[S], storage: Store, clock: Clock) -> Iterator[S]:
    """Replace the class and store of the app until the block ends. Raises HeadgateError for one that is open."""
    if isinstance(app, InTest):
        raise HeadgateError("this app is in a test already: inline, manual and live do not go into one another")
    client = app._client
    if client.lifecycle.is_open:
        raise HeadgateError(
            f"this app is open on {client.address.shown}: use it in the test before it is opened; if "
            "code that cannot await has opened it, app.sync.close() closes it"
        )
    before, own_kind = dict(vars(app)), type(app)
    client_before, client_kind = vars(client), type(client)
    bus = EventBus()
    for subscription in app._bus._subscriptions:
        bus.subscribe(subscription.callback, *subscription.kinds)
    bus._taps = {**app._bus._taps}
    # The app's own class stays a base: it may be a subclass by the user.
    app.__class__ = type(kind.__name__, (kind, own_kind), {"__module__": kind.__module__})
    test_app = cast(S, app)
    try:
        test_app._wire(storage, StoreAddress(f"{type(storage).__name__} of a test"), clock, bus, history=False)
        # Tasks and handles hold the app's client, so that client becomes the client of the test.
        new = test_app._client
        new.enqueuer.tracing = new.callback_runner.tracing = client.enqueuer.tracing
        client.__class__, client.__dict__ = type(new), vars(new)
        test_app._client = client
        client._migrate = True  # The store of the test is new.
        client.remote_limits = _LimitsWithJobs(test_app._registry.limits, storage, clock, None)
        if isinstance(test_app, TestApp):
            test_app.performed = {}
            test_app.at_work = []
            test_app._client.app = test_app
            test_app._client.connections = {}
            client.lifecycle = _OpenAnywhere()
            client.portal = CallingPortal(lambda: client, lambda: client.lifecycle.loop)
            client.enqueuer._backlogs = _ImpatientBacklogs(storage, clock, test_app._registry.queues.__getitem__)
            bus.subscribe(log_event, *logged_kinds())
        yield test_app
    finally:
        app.__class__ = own_kind
        client.__class__, client.__dict__ = client_kind, client_before
        for name in vars(app).keys() - before.keys():
            delattr(app, name)
        vars(app).update(before)


_waiting: contextvars.ContextVar[CallerThread | None] = contextvars.ContextVar("headgate_caller_thread", default=None)
"""The thread that waits for this event loop to end, if any."""


class CallerThread(WaitingThread):
    """Runs a coroutine on its own event loop, and submitted functions in the thread that called `run`."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; blocks this thread."""
        outcome: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(_waiting.set, self)

        def run() -> None:
            try:
                result = context.run(asyncio.run, coroutine)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        thread = threading.Thread(target=run, name="headgate-testing", daemon=True)
        thread.start()
        try:
            return self.serve(outcome)
        finally:
            if outcome.done():
                thread.join()


class CallingPortal(Portal):
    """The portal of an app under test: each call has its own event loop, which ends with it."""

    def run(self, coroutine: Coroutine[Any, Any, T], caller: WaitingThread | None = None) -> T:
        self.require_other_loop(coroutine)
        return CallerThread().run(coroutine)

    def enter(self, context: AbstractAsyncContextManager[Any]) -> Leave:
        """Do nothing: the app is open during the whole test, and runs nothing by itself."""
        return lambda: None

    def open(self) -> None:
        """Do nothing: the app is open during the whole test."""

    def close(self) -> None:
        """Do nothing: no loop stays open between calls."""
