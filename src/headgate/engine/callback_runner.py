"""The callback runner: calls the callbacks of tasks after events of their jobs, concurrently with the work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from headgate.clock import Clock, wait_for_event, wait_until_done
from headgate.engine.bus import EventBus, publish_storage_failure
from headgate.engine.results import cause_of
from headgate.errors import USER_CODE_ERRORS, JobFailed, StorageUnavailable
from headgate.jobs.event import CallbackFailed
from headgate.jobs.job import JobState, summarize_error
from headgate.storage.store import Store
from headgate.tasks.callbacks import AnyCallback, CallbackKind
from headgate.tasks.context import JobContext, enter
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.registry import Registry
from headgate.tasks.tracing import Tracing

MAX_RUNNING = 100
"""The most jobs whose callbacks run at the same time; others wait."""

MAX_PENDING = 10_000
"""The most callback runs that may be pending. Further ones are dropped, and an event is published for each."""

CALLBACK_TIMEOUT = 60
"""Seconds that one callback may take."""

MAX_THREADS = 8
"""The most plain functions that run at the same time."""


class CallbackRunner:
    """Calls callbacks, those of one job in order. What a callback raises is published as CallbackFailed."""

    def __init__(self, storage: Store, registry: Registry, clock: Clock, bus: EventBus) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self.tracing: Tracing | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.open()

    def open(self) -> None:
        """Prepare it for this event loop."""
        self._semaphore = asyncio.Semaphore(MAX_RUNNING)
        self._is_empty = asyncio.Event()

    def submit(
        self, task: TaskDefinition, kind: CallbackKind, job: JobContext, *details: Any, handler: Any = None
    ) -> None:
        """Schedule the callbacks of this kind and return immediately. `handler`: the attempt's instance, if any."""
        if len(self._runs) >= MAX_PENDING:
            self._failed(task, kind, job, f"not called: {MAX_PENDING} callback runs are already pending")
            return
        if handler is None and task.handler is not None:
            try:
                handler = task.handler()
            except USER_CODE_ERRORS as error:
                self._failed(task, kind, job, summarize_error(error))
                return
        callbacks = task.callbacks.callbacks_for(kind, handler)
        run = asyncio.get_running_loop().create_task(
            self._run_in_turn(task, kind, callbacks, job, details, self._last.get(job.id)),
            name=f"headgate-{kind}",
        )
        self._runs.add(run)
        self._last[job.id] = run
        run.add_done_callback(partial(self._run_ended, job.id))

    def submit_on_error(self, job_ids: Sequence[str]) -> None:
        """Schedule `on_error` for jobs that failed by no attempt: expired, rejected, poisonous or unstorable ones."""
        if job_ids and any(task.callbacks.wants(CallbackKind.ERROR) for task in self._registry.tasks.values()):
            run = asyncio.get_running_loop().create_task(self._submit_on_error(job_ids), name="headgate-on_error")
            self._runs.add(run)
            run.add_done_callback(partial(self._run_ended, ""))

    async def _submit_on_error(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            try:
                record = await self._storage.job(job_id)
            except StorageUnavailable as error:
                publish_storage_failure(self._bus, self._clock, f"run job {job_id} for its on_error", error)
                continue
            task = None if record is None else self._registry.find(record.task)
            if record is None or task is None or record.state is not JobState.FAILED or record.error is None:
                continue
            if task.callbacks.wants(CallbackKind.ERROR):
                stored = record.error
                cause = cause_of(stored) or JobFailed(job_id, stored.type, stored.message, stored.traceback)
                self.submit(task, CallbackKind.ERROR, JobContext(record.as_claimed()), cause)

    def _run_ended(self, job_id: str, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if self._last.get(job_id) is run:
            del self._last[job_id]
        if not self._runs:
            self._is_empty.set()

    async def _run_in_turn(
        self,
        task: TaskDefinition,
        kind: CallbackKind,
        callbacks: list[AnyCallback],
        job: JobContext,
        details: tuple[Any, ...],
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        span = nullcontext() if self.tracing is None or not callbacks else self.tracing.calling_back(job, kind.value)
        async with self._semaphore:
            enter(job)
            with self._registry.hooks.call_context(), span:
                for callback in callbacks:
                    error = await self._error_of(self._call(callback, job, *details))
                    if error is not None:
                        self._failed(task, kind, job, error)

    async def _error_of(self, calling: Coroutine[Any, Any, None]) -> str | None:
        """Await the call of a callback for at most 60 s; return why it failed, None if it did not."""
        call = asyncio.ensure_future(calling)
        try:
            await wait_until_done(self._clock, call, CALLBACK_TIMEOUT)
        finally:
            call.cancel()
        await asyncio.wait([call])
        if call.cancelled():
            return f"cancelled: it took longer than {CALLBACK_TIMEOUT} s or cancelled itself"
        raised = call.exception()
        return None if raised is None else summarize_error(raised)

    async def _call(self, callback: AnyCallback, job: JobContext, *details: Any) -> None:
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="headgate-callback")
            await self._registry.hooks.call(self._pool, callback, job, *details)
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised out of a task, these would end the program.
            raise RuntimeError(f"the callback raised {summarize_error(error)}") from error

    def _failed(self, task: TaskDefinition, kind: CallbackKind, job: JobContext, error: str) -> None:
        self._bus.publish(
            CallbackFailed(at=self._clock.now(), job_id=job.id, task=task.name, callback=kind.value, error=error)
        )

    async def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for running callbacks."""
        if self._runs:
            self._is_empty.clear()
            await wait_for_event(self._clock, self._is_empty, seconds)

    def cancel(self) -> None:
        """Cancel running callbacks."""
        for run in self._runs:
            run.cancel()

    async def close(self, seconds: float) -> None:
        """Wait at most `seconds` for running callbacks, then cancel the rest."""
        await self.drain(seconds)
        self.cancel()
        if self._runs:
            await asyncio.wait(self._runs)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
