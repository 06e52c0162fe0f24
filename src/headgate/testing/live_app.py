"""The app while a real engine runs its jobs in a test: it stays open until the test ends.

If the engine has its own thread, the program may be on another event loop, as behind a test client: what it awaits of
the app runs on the loop of the engine.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headgate.client.client import Client
from headgate.client.handles import Job, Schedule
from headgate.client.portal import Portal
from headgate.clock import Duration
from headgate.engine.app_lifecycle import AppLifecycle, Step
from headgate.engine.drain import Drain
from headgate.errors import HeadgateError
from headgate.storage.store import Store
from headgate.tasks.call import Call, FlowBatch, FlowCall
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.schedule import ScheduleSpec
from headgate.tasks.status import BatchStatus
from headgate.testing.in_test import InTest


class LiveHeadgate(InTest):
    """An app whose jobs run already: an `async with app:` of the program starts and ends nothing more."""

    _nested = 0

    async def __aenter__(self) -> Self:
        if self._own_node is None:
            return await super().__aenter__()
        self._nested += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nested:
            self._nested -= 1
        else:
            await super().__aexit__(kind, error, traceback)


class EngineLoopClient(Client):
    """Runs its verbs on the loop of the engine, whichever event loop awaits them."""

    async def enqueue(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[Job[Any]]:
        enqueued = super().enqueue(task, calls)
        # A caller's connection belongs to the caller's loop.
        return await (self.portal.reach(enqueued) if task.options.get("connection") is None else enqueued)

    async def enqueue_flow(self, calls: Sequence[FlowCall], batches: Sequence[FlowBatch]) -> None:
        await self.portal.reach(super().enqueue_flow(calls, batches))

    async def put_schedule(self, task: TaskDefinition, spec: ScheduleSpec, call: Call[Any]) -> Schedule[Any]:
        return await self.portal.reach(super().put_schedule(task, spec, call))

    async def wait_for_batch(self, batch_id: str, timeout: float | None) -> BatchStatus:
        return await self.portal.reach(super().wait_for_batch(batch_id, timeout))

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        return await self.portal.reach(super().job_result(job_id, timeout))

    async def cancel_job(self, job_id: str) -> bool:
        return await self.portal.reach(super().cancel_job(job_id))


class HeadgateInThread(LiveHeadgate):
    """A `LiveHeadgate` with the engine in its own thread: verbs run there, whichever event loop awaits them."""

    _client_kind = EngineLoopClient

    def prepare_thread(self) -> EnginePortal:
        """Connect all that uses the app to the engine's thread; the returned portal begins and ends it."""
        client = self._client
        client.lifecycle = opening = _OpenInThread(
            open=client._open, before_close=client._end_callbacks, close=client._close
        )
        # Sync verbs run on the loop of the engine.
        client.portal = portal = EnginePortal(lambda: self, lambda: opening.loop)
        # Admin verbs and limiters use the store directly.
        _run_verbs_on_loop(self._storage, portal)
        return portal

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
        raise HeadgateError(
            "the engine of this test already runs jobs in another thread, and app.run() would add a second worker; "
            "`async with app:` opens the app here and leaves the jobs to the engine"
        )


class EnginePortal(Portal):
    """The portal that keeps the engine of a test: the program under test cannot end it."""

    def close(self) -> None:
        """Do nothing: a program calls it when it moves to its own loop; the engine stays on this one."""

    def end(self) -> None:
        """Stop the engine, and end its thread."""
        super().close()


class _OpenInThread(AppLifecycle):
    """The lifecycle of the app: entering on another loop than the engine's finds it open and does nothing."""

    async def enter(self, open: Step | None = None) -> None:
        if self.loop is None or self._is_here():
            await super().enter(open)

    async def leave(self) -> None:
        if self._is_here():
            await super().leave()

    def _is_here(self) -> bool:
        return self.loop is asyncio.get_running_loop()


def _run_verbs_on_loop(storage: Store, portal: Portal) -> None:
    """Run each verb of the store on the loop of the app, except those on a caller's connection."""
    for name in dir(storage):
        verb = getattr(storage, name)
        if not name.startswith("_") and name not in ("add_in", "complete_in") and inspect.iscoroutinefunction(verb):
            setattr(storage, name, _on_engine_loop(verb, portal))


def _on_engine_loop(verb: Callable[..., Coroutine[Any, Any, Any]], portal: Portal) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def on_engine_loop(*args: Any, **kwargs: Any) -> Any:
        return await portal.reach(verb(*args, **kwargs))

    return on_engine_loop
