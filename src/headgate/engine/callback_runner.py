"""The teller: tells a task's callbacks of its jobs, after the fact and beside the work."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.engine.bus import EventBus
from headgate.engine.cause import cause_of
from headgate.engine.described import said
from headgate.engine.threads import in_thread
from headgate.errors import JobFailed, StorageUnavailable
from headgate.jobs.event import CallbackFailed, StorageTroubled
from headgate.jobs.job import JobState
from headgate.storage.store import Store
from headgate.tasks.callbacks import AnyCallback, CallbackKind
from headgate.tasks.context import JobContext, enter
from headgate.tasks.registry import Registry
from headgate.tasks.task import Task
from headgate.tasks.tracing import Tracing

AT_ONCE = 100
"""How many jobs are told of at the same time; others wait their turn."""

ROOM = 10_000
"""How many may wait to be told of. What comes on top is not told, and an event says so."""

PATIENCE = 60
"""Seconds that the callbacks of one moment may take."""

THREADS = 8
"""How many plain functions are called at the same time."""


class CallbackRunner:
    """Calls callbacks, those of one job in order. What one raises becomes an event and changes nothing."""

    def __init__(self, storage: Store, registry: Registry, clock: Clock, bus: EventBus) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self.tracing: Tracing | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._pool: ThreadPoolExecutor | None = None
        self._is_empty = asyncio.Event()

    def tell(
        self, task: Task[Any, Any], moment: CallbackKind, job: JobContext, *details: Any, handler: Any = None
    ) -> None:
        """Tell all callbacks of this moment; returns at once. `handler` is the attempt's own instance, if any."""
        if len(self._telling) >= ROOM:
            self._failed(task, moment, job, f"not called: {ROOM} others wait for slow callbacks")
            return
        if handler is None and task.handler is not None:
            try:
                handler = task.handler()
            except Exception as error:
                self._failed(task, moment, job, said(error))
                return
        callbacks = task.callbacks.callbacks_for(moment, handler)
        telling = asyncio.get_running_loop().create_task(
            self._tell_in_turn(task, moment, callbacks, job, details, self._last.get(job.id)),
            name=f"headgate-{moment}",
        )
        self._telling.add(telling)
        self._last[job.id] = telling
        telling.add_done_callback(partial(self._told, job.id))

    def tell_unrun(self, job_ids: Sequence[str]) -> None:
        """Tell `on_error` of jobs that failed without an attempt here: they expired, were rejected or are poisonous."""
        if job_ids and any(task.callbacks.wants(CallbackKind.ERROR) for task in self._registry.tasks.values()):
            reading = asyncio.get_running_loop().create_task(self._tell_unrun(job_ids), name="headgate-on_error")
            self._telling.add(reading)
            reading.add_done_callback(partial(self._told, ""))

    async def _tell_unrun(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            try:
                record = await self._storage.job(job_id)
            except StorageUnavailable as error:
                doing = f"reading job {job_id} for its on_error"
                self._bus.publish(StorageTroubled(at=self._clock.now(), doing=doing, error=str(error)))
                continue
            task = None if record is None else self._registry.find(record.task)
            if record is None or task is None or record.state is not JobState.FAILED or record.error is None:
                continue
            if task.callbacks.wants(CallbackKind.ERROR):
                stored = record.error
                cause = cause_of(stored) or JobFailed(job_id, stored.type, stored.message, stored.traceback)
                self.tell(task, CallbackKind.ERROR, JobContext(record.as_claimed()), cause)

    def _told(self, job_id: str, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        if self._last.get(job_id) is telling:
            del self._last[job_id]
        if not self._telling:
            self._is_empty.set()

    async def _tell_in_turn(
        self,
        task: Task[Any, Any],
        moment: CallbackKind,
        callbacks: list[AnyCallback],
        job: JobContext,
        details: tuple[Any, ...],
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        following = (
            nullcontext() if self.tracing is None or not callbacks else self.tracing.calling_back(job, moment.value)
        )
        async with self._room:
            enter(job)
            with following:
                await self._call_each(task, moment, callbacks, job, details)

    async def _call_each(
        self,
        task: Task[Any, Any],
        moment: CallbackKind,
        callbacks: list[AnyCallback],
        job: JobContext,
        details: tuple[Any, ...],
    ) -> None:
        for callback in callbacks:
            calling = asyncio.ensure_future(self._call(callback, job, *details))
            when = self._clock.monotonic() + PATIENCE * SECOND
            timer = self._clock.call_at(when, partial(_cancel, calling))
            try:
                await asyncio.wait([calling])
            finally:
                timer.cancel()
                calling.cancel()
            if calling.cancelled():
                self._failed(task, moment, job, f"cancelled: it took more than {PATIENCE} s, or cancelled itself")
            elif (raised := calling.exception()) is not None:
                self._failed(task, moment, job, said(raised))

    async def _call(self, callback: AnyCallback, job: JobContext, *details: Any) -> None:
        try:
            if inspect.iscoroutinefunction(callback):
                await callback(job, *details)
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-callback")
            call = partial(contextvars.copy_context().run, callback, job, *details)
            answer = await in_thread(self._pool, call)
            if inspect.isawaitable(answer):
                await answer
        except (SystemExit, KeyboardInterrupt) as error:
            # Out of a task of its own, these would end the program.
            raise RuntimeError(f"the callback raised {said(error)}") from error

    def _failed(self, task: Task[Any, Any], moment: CallbackKind, job: JobContext, error: str) -> None:
        self._bus.publish(
            CallbackFailed(at=self._clock.now(), job_id=job.id, task=task.name, callback=moment.value, error=error)
        )

    async def close(self, seconds: float) -> None:
        """Wait so long for what is being told, then cancel the rest."""
        if self._telling:
            self._is_empty.clear()
            await wait_for_event(self._clock, self._is_empty, seconds)
        left = list(self._telling)
        for telling in left:
            telling.cancel()
        if left:
            await asyncio.wait(left, timeout=None)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _cancel(calling: asyncio.Future[None]) -> None:
    calling.cancel()
