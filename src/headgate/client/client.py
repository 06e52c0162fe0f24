"""The client of an app: its tasks, handles, schedules, chains and batches enqueue, read and wait through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from headgate.client.flow_builder import FlowBuilder, scheduled_graph
from headgate.client.plan import BatchSteps, ChainSteps, Step, calls_of, steps_to_add
from headgate.client.portal import Portal, WaitingThread, is_running_here
from headgate.clock import SECOND, Clock, microseconds, sleep, to_datetime, within
from headgate.engine.app_lifecycle import AppLifecycle
from headgate.engine.bus import EventBus
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.enqueuer import (
    CallGroup,
    Enqueuer,
    StoredCall,
    call_around_enqueue,
    changed_flow,
    changed_groups,
    drafts_of_flow,
    drafts_of_groups,
    group_calls,
)
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.limiter_counts import LimiterCounts
from headgate.engine.node import Node
from headgate.engine.remote_limits import RemoteLimits
from headgate.engine.results import EndWatch, result_of
from headgate.engine.services import Services
from headgate.errors import BatchNotFound, DeclarationError, JobNotFound, JobSkipped, NotOpen, StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.event import LimiterBypassed, LimiterGranted, LimiterRefused, QueueUnserved, unserved_text
from headgate.jobs.identity import IdSource, with_new_ids
from headgate.jobs.job import JobRecord, JobState
from headgate.jobs.lifecycle import Unchanged
from headgate.jobs.scheduled import ScheduledCall
from headgate.observe.log import log_event, logged_kinds
from headgate.shielding import in_thread
from headgate.storage.choice import StoreAddress
from headgate.storage.driver import run_to_end
from headgate.storage.enlisting import require_blocking
from headgate.storage.store import Store
from headgate.tasks.call import Call, FlowCall
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.executor_kind import IN_CHILD
from headgate.tasks.modules import require_not_imported
from headgate.tasks.payload_folder import PayloadFolder
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleSpec
from headgate.tasks.status import BatchStatus, EnqueuePrediction, batch_status
from headgate.tasks.tracing import Tracing

# Admin is imported where it is used: it is half of what an app would import, and a worker uses none of it.
if TYPE_CHECKING:
    from headgate.admin import Admin
    from headgate.admin.nodes import Unserved

P = TypeVar("P")

StoreGroups = Callable[[TaskDefinition, Sequence[CallGroup]], Awaitable[list[StoredCall]]]
"""Stores calls of a task."""

CALLBACK_DRAIN_TIMEOUT = 5.0
"""The most seconds that callbacks, and then subscribers, have to end when the app is closed."""

UNSERVED_AFTER = 10.0
"""Seconds for which a result is awaited before it is looked for a worker that serves the queue of the job."""

UNSERVED_EVERY = 60 * SECOND
"""Microseconds between two events of one queue that no worker serves."""

LAST_LOOK = 1.0
"""The most seconds for a look at what was not final in time."""

RESULTS_AT_ONCE = 100
"""How many jobs of a batch are read at once for its results."""

LAST_HISTORY_TIMEOUT = 2.0
"""The most seconds for the last write of history when the app is closed."""


class Client:
    """Enqueues, reads and waits for one app, while the app is open. It runs no jobs, and knows them by their ids.

    `async with client:` connects the store; nested blocks share the connection, and the last one closes it. Its methods
    raise NotOpen outside of a block. `local_node` returns the node that runs jobs in this process, if there is one.
    """

    rollbacks: dict[str, Callable[[], bool]] | None = None
    """In a test that keeps jobs apart: for jobs of transactions, functions that return whether these were rolled back.
    """

    require_usable: Callable[[], None] | None = None
    """Raises an error where the URL of the store must not be used. A test that keeps jobs apart has no such URL."""

    def __init__(
        self,
        storage: Store,
        registry: Registry,
        *,
        address: StoreAddress,
        clock: Clock,
        bus: EventBus,
        random: Random,
        ids: IdSource,
        local_node: Callable[[], Node | None],
        history: bool,
        log_jobs: bool,
        limits_url: str | None,
        grace: float,
        migrate: bool,
        payload_folder: PayloadFolder | None = None,
    ) -> None:
        self.storage = storage
        self.registry = registry
        self.address = address
        self.callback_runner: CallbackRunner = CallbackRunner(storage, registry, clock, bus)
        self.history_writer: HistoryWriter = HistoryWriter(storage, clock=clock, bus=bus, ids=ids, is_on=history)
        self.services: Services = Services(
            storage=storage,
            registry=registry,
            clock=clock,
            bus=bus,
            random=random,
            ids=ids,
            callback_runner=self.callback_runner,
            history_writer=self.history_writer,
        )
        self.large_payloads: LargePayloads | None = None
        if payload_folder is not None:
            self.large_payloads = LargePayloads(payload_folder, storage, clock)
        self.enqueuer: Enqueuer = Enqueuer(self.services, self.large_payloads)
        self.remote_limits: RemoteLimits = RemoteLimits(registry.limits, storage, clock, limits_url)
        self.lifecycle: AppLifecycle = AppLifecycle(
            open=self._open, before_close=self._end_callbacks, close=self._close
        )
        counts = partial(LimiterCounts, clock=clock, bus=bus, loop=lambda: self.lifecycle.loop)
        self.limiter_grants: LimiterCounts = counts(kind=LimiterGranted)
        self.limiter_refusals: LimiterCounts = counts(kind=LimiterRefused)
        self.limiter_bypasses: LimiterCounts = counts(kind=LimiterBypassed)
        self.portal: Portal = Portal(
            lambda: self, lambda: self.lifecycle.loop, self.require_openable, lambda: self.lifecycle.transition
        )
        self._clock = clock
        self._bus = bus
        self._ids = ids
        self._local_node = local_node
        self._log_jobs = log_jobs
        self._grace = grace
        self._migrate = migrate
        self._unserved_again_at: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------ connecting

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.lifecycle.leave()

    async def enter(self, *, migrate: bool | None = None) -> None:
        """Open it, as `async with` does, until `lifecycle.leave()`; `migrate` as in `Headgate.open`."""
        self.require_openable()
        await self.lifecycle.enter(partial(self._open, migrate))

    def require_openable(self) -> None:
        """Raise DeclarationError where the app must not be opened.

        That is while its program is imported for its declarations, and in a child process whose store would be separate
        from that of the app. Raises what its URL raises if its store may not be used.
        """
        require_not_imported()
        if self.require_usable is not None:
            self.require_usable()
        if IN_CHILD.is_set() and self.storage.is_in_process:
            raise DeclarationError(
                "jobs on memory:// are in the memory of another process, so a process task cannot enqueue; "
                "use sqlite:///path or postgresql://…"
            )

    async def _open(self, migrate: bool | None = None) -> None:
        await self.storage.open(migrate=self._migrate if migrate is None else migrate)
        store, clock = self.storage, self._clock
        self._job_ends = EndWatch(store, clock, JobNotFound, read=store.final, stored=store.stored_ids)
        self._batch_ends = EndWatch(store, clock, BatchNotFound, read=store.batches_by_id)
        self._looking = asyncio.Lock()
        self.history_writer.open()
        self.callback_runner.open()
        self._end_log = self._bus.subscribe(log_event, *logged_kinds(jobs=self._log_jobs))

    def _require_open(self) -> None:
        """Raise NotOpen unless the app is open, HeadgateError on another event loop than its own."""
        self.lifecycle.require_open_here()

    def log_jobs(self, on: bool) -> None:
        """Log each job that ends, or not, until the app is closed."""
        self._end_log()
        self._end_log = self._bus.subscribe(log_event, *logged_kinds(jobs=on))

    async def _end_callbacks(self) -> None:
        # Callbacks that handle the last events may still enqueue and read.
        await self.callback_runner.close(min(self._grace, CALLBACK_DRAIN_TIMEOUT))

    async def _close(self) -> None:
        self.enqueuer.close()
        await self._job_ends.close()
        await self._batch_ends.close()
        await self.history_writer.close(LAST_HISTORY_TIMEOUT)
        for counts in (self.limiter_grants, self.limiter_refusals, self.limiter_bypasses):
            counts.close()
        await self._bus.close(self._clock, CALLBACK_DRAIN_TIMEOUT)
        self._end_log()
        await self.remote_limits.close()
        if self.large_payloads is not None:
            self.large_payloads.close()
        await self.storage.close()

    def trace_by(self, tracing: Tracing) -> None:
        """Trace what is enqueued and run. Raises DeclarationError if tracing is set already."""
        if self.enqueuer.tracing is not None:
            raise DeclarationError("this app has a tracer already; call app.instrument(…) with a tracer only once")
        self.enqueuer.tracing = self.callback_runner.tracing = tracing

    # ------------------------------------------------------------------------------------------ enqueueing

    async def enqueue(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[StoredCall]:
        """Store the calls as jobs in one commit, under the options of the task. Raises as `Task.enqueue`."""
        self._require_open()
        return await self._enqueue(task, calls, self._store)

    async def _enqueue(self, task: TaskDefinition, calls: Sequence[Call[Any]], store: StoreGroups) -> list[StoredCall]:
        """Call the functions of `@app.around_enqueue`, if there are any, around `store`, which stores the calls."""
        groups = group_calls(task, calls)
        functions = self.registry.hooks.around_enqueue
        if not functions or not groups:
            return await store(task, groups)
        drafts = drafts_of_groups(task, groups)
        stored: list[StoredCall] = []

        async def store_drafts() -> list[str]:
            stored.extend(await store(task, changed_groups(task, groups, drafts)))
            return [each.id for each in stored]

        await call_around_enqueue(functions, drafts, store_drafts)
        return stored

    async def _store(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> list[StoredCall]:
        connection = task.options.get("connection")
        if connection is not None:
            jobs = await self.enqueuer.jobs_for_transaction(task, groups)
            return await self.enqueuer.add_in_transaction(connection, jobs)
        stored = await self.enqueuer.enqueue(task, groups)
        if any(group.options.get("predict") for group in groups):
            flags = self.enqueuer.prediction_flags(task, groups)
            return [await self._predicted(each) if flag else each for each, flag in zip(stored, flags, strict=True)]
        return stored

    async def _predicted(self, stored: StoredCall) -> StoredCall:
        try:
            status = await self.admin.status(stored.id)
        except JobNotFound:
            # A duplicate of a job that has been pruned, and whose unique key stays taken: there is nothing to predict.
            return stored
        return stored._replace(prediction=EnqueuePrediction(status.position, status.predicted_start, status.waits_for))

    def enqueue_blocking(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[StoredCall]:
        """As `enqueue`, for synchronous code; a connection of the caller is used in the caller's thread."""
        connection = task.options.get("connection")
        if connection is None:
            loop = self.lifecycle.loop
            if loop is not None and not is_running_here(loop):
                stored = self.enqueuer.enqueue_in_thread(task, group_calls(task, calls), loop)
                if stored is not None:
                    return stored
            return self.portal.run(self.enqueue(task, calls))
        require_blocking(connection)
        caller = WaitingThread()

        async def store(task: TaskDefinition, groups: Sequence[CallGroup]) -> list[StoredCall]:
            jobs = await self.enqueuer.jobs_for_transaction(task, groups)
            adding = self.enqueuer.add_in_transaction(connection, jobs)
            return await in_thread(caller, partial(copy_context().run, run_to_end, adding))

        return self.portal.run(self._enqueue(task, calls, store), caller)

    def check(self, task: TaskDefinition, call: Call[Any]) -> None:
        """Raise what `enqueue` would raise for the arguments, keys and costs of a call; stores nothing, open or not."""
        self.enqueuer.check(task, call)

    def new_id(self, *, is_batch: bool = False) -> str:
        """Return the id of a job or a batch that is about to be enqueued."""
        self._require_open()
        return self._ids.next(self.storage.now(), is_batch=is_batch)

    async def enqueue_flow(self, calls: Sequence[FlowCall], batches: Sequence[NewBatch]) -> None:
        """Store the calls of a chain, a batch or a graph in one commit, with the batches."""
        self._require_open()
        functions = self.registry.hooks.around_enqueue
        if not functions or not calls:
            await self.enqueuer.enqueue_flow(calls, batches)
            return
        drafts = drafts_of_flow(calls)

        async def store_drafts() -> list[str]:
            await self.enqueuer.enqueue_flow(changed_flow(calls, drafts), batches)
            return [call.id for call in calls]

        await call_around_enqueue(functions, drafts, store_drafts)

    async def add_to_batch(self, batch_id: str, steps: Iterable[Step]) -> list[str]:
        """Store more jobs of a batch, and return their ids. Raises as `Batch.add`."""
        self._require_open()
        checked = steps_to_add(steps)
        if not all(call.task and self.registry.declares(call.task) for step in checked for call in calls_of(step)):
            raise DeclarationError("the calls for batch.add() belong to another app than the batch")
        return await self.store_flow(lambda builder: builder.grow(batch_id, checked)) if checked else []

    async def store_flow(self, add: Callable[[FlowBuilder], P]) -> P:
        """Store in one commit what `add` adds to a flow, and return what it returns."""

        async def store() -> P:
            builder = FlowBuilder(self.new_id)
            placed = add(builder)
            await self.enqueue_flow(*builder.flow())
            return placed

        return await with_new_ids(store)

    def scheduled_plan(self, spec: ScheduleSpec, plan: ChainSteps | BatchSteps) -> ScheduledCall:
        """Return the graph that a schedule enqueues. Raises DeclarationError for what no occurrence can have."""

        def scheduled(each: FlowCall) -> ScheduledCall:
            return self.enqueuer.scheduled_call(each.task, spec, each.call)

        graph = scheduled_graph(plan, f"schedule {spec.name!r}", scheduled)
        first = graph.steps[0].call
        return ScheduledCall(first.task, first.queue, "", graph=graph)

    async def put_schedule(self, spec: ScheduleSpec, scheduled: ScheduledCall) -> None:
        """Store a schedule at run time. Raises DeclarationError for a custom trigger."""
        self._require_open()
        await self.enqueuer.put_schedule(spec, scheduled)
        if (node := self._local_node()) is not None:
            node.recurring.wake()

    # ---------------------------------------------------------------------------------- reading and waiting

    @property
    def admin(self) -> Admin:
        """The operations for operators. Raises NotOpen."""
        from headgate.admin.admin import Admin
        from headgate.admin.schedules import SchedulesAdmin

        if not self.lifecycle.is_open:
            raise NotOpen
        remote_stores = {name: limit.store for name, limit in self.remote_limits.limits.items()}
        return Admin(
            self.storage,
            remote_stores,
            self.registry,
            SchedulesAdmin(self.storage, self.registry, self._ids, self.enqueuer),
            enqueue=self.enqueue,
            address=self.address.shown,
            large_payloads=self.large_payloads,
        )

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        """As `Job.result`; `timeout` is in seconds."""
        self._require_open()
        return await self._result(await self._final_record(job_id, timeout))

    async def _result(self, record: JobRecord) -> Any:
        """Return the result of a job that is final."""
        if self.large_payloads is not None and record.result is not None:
            loaded = await self.large_payloads.load(record.result, f"the result of job {record.id}")
            record = replace(record, result=loaded)
        return result_of(record, self.registry.find(record.task), self.registry.codecs)

    async def _final_record(self, job_id: str, timeout: float | None) -> JobRecord:
        """Wait for the end of a job. If it takes long and no worker serves its queue, say so."""
        looking = asyncio.create_task(self._publish_unserved(job_id), name="headgate-unserved")
        try:
            return await self._job_ends.wait(job_id, timeout)
        except TimeoutError:
            found: JobRecord | str = "the store does not answer, so whether it continues to run is not known"
            with contextlib.suppress(StorageUnavailable, TimeoutError):
                found = await within(self._clock, LAST_LOOK, self._end_or_reason(job_id))
            if isinstance(found, JobRecord):
                # Its end was not read in time, as after an outage of the store.
                return found
            raise TimeoutError(f"job {job_id} was not final within {timeout:g} s; {found}") from None
        finally:
            looking.cancel()

    async def _end_or_reason(self, job_id: str) -> JobRecord | str:
        """Return a job if it is final, else why it is not. Raises JobNotFound."""
        record = await self.storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id) from None
        if record.finished_at is not None:
            return record
        return await self._why_it_waits(record) if record.state is JobState.WAITING else "it continues to run"

    async def _unserved_queue(self, queue: str) -> Unserved | None:
        from headgate.admin.nodes import unserved

        return unserved(queue, await self.storage.nodes(), to_datetime(self.storage.now()), self.registry.lease)

    async def _why_it_waits(self, record: JobRecord) -> str:
        """Return what a job waits for, as far as its row and the nodes show it."""
        found = await self._unserved_queue(record.queue)
        if found is not None:
            return unserved_text(*found, runs_here=self._local_node() is not None)
        limit = "" if record.waits_for is None else f" for limit {record.waits_for.limit!r}"
        return f"it waits{limit}; `headgate jobs explain` and app.admin.explain() say until when"

    async def _publish_unserved(self, job_id: str) -> None:
        """After a while, publish how long no worker has served the queue of a job that waits, if none is seen to."""
        await sleep(self._clock, UNSERVED_AFTER)
        with contextlib.suppress(StorageUnavailable):
            # One after the other: many may wait.
            async with self._looking:
                record = await self.storage.job(job_id)
                if record is None or record.state is not JobState.WAITING:
                    return
                found, now = await self._unserved_queue(record.queue), self._clock.monotonic()
            if found is not None and now >= self._unserved_again_at.get(found.queue, 0):
                self._unserved_again_at[found.queue] = now + UNSERVED_EVERY
                runs_here = self._local_node() is not None
                self._bus.publish(QueueUnserved(at=self._clock.now(), **found._asdict(), runs_here=runs_here))

    async def cancel_job(self, job_id: str) -> bool:
        """As `Job.cancel`; a node of this process cancels the job at once."""
        self._require_open()
        try:
            return not (await self._cancel_job(job_id)).is_final
        except Unchanged:
            return True

    async def _cancel_job(self, job_id: str) -> JobState:
        state = await self.storage.cancel(job_id, audit_record=_cancellation(job_id))
        if state is None:
            raise JobNotFound(job_id)
        node = self._local_node()
        if state is JobState.RUNNING and node is not None:
            node.attempts.cancel(job_id)
        return state

    async def cancel_batch(self, batch_id: str) -> int:
        """As `Batch.cancel`; a node of this process cancels its jobs at once."""
        from headgate.admin.bulk import cancel_batch

        self._require_open()
        return (await cancel_batch(self.storage, batch_id, self._cancel_job, _cancellation)).changed

    async def batch_results(self, batch_id: str, timeout: float | None) -> list[Any]:
        """As `Batch.result`; `timeout` is in seconds."""
        until = None if timeout is None else self._clock.monotonic() + microseconds(timeout)
        await self.wait_for_batch(batch_id, timeout)
        results: list[Any] = []
        ids: list[str] = []
        while more := await self.storage.jobs_of_batch(batch_id, after=ids[-1] if ids else ""):
            ids += more
        if await self.storage.pruned_members(batch_id):
            raise JobNotFound(batch_id, f"results of batch {batch_id} were pruned; give its tasks a longer retention")
        for start in range(0, len(ids), RESULTS_AT_ONCE):
            page = ids[start : start + RESULTS_AT_ONCE]
            final = {record.id: record for record in await self.storage.final(page)}
            for id in page:
                # Somebody may have retried the job since, so that it is not final any more.
                left = None if until is None else max(0, until - self._clock.monotonic()) / SECOND
                with contextlib.suppress(JobSkipped):
                    results.append(await (self._result(final[id]) if id in final else self.job_result(id, left)))
        return results

    async def wait_for_batch(self, batch_id: str, timeout: float | None) -> BatchStatus:
        """As `Batch.wait`; `timeout` is in seconds."""
        self._require_open()
        try:
            return batch_status(await self._batch_ends.wait(batch_id, timeout))
        except TimeoutError:
            with contextlib.suppress(StorageUnavailable, TimeoutError):
                found = await within(self._clock, LAST_LOOK, self.storage.batch(batch_id))
                if found is None:
                    raise BatchNotFound(batch_id) from None
                if found.finished_at is not None:
                    return batch_status(found)
            raise TimeoutError(f"batch {batch_id} was not final within {timeout:g} s; it continues to run") from None


def _cancellation(job_id: str) -> AuditRecord:
    from headgate.admin.actor import this_process

    return AuditRecord(this_process(), "cancel", "job", job_id)
