"""The app while a real engine runs its jobs in a test: what the program opens and closes is open until the test ends.

Where the engine has a thread of its own, the program may be on another event loop, as behind a test client: what it
awaits of the app runs on the loop of the engine.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headgate.client import Client
from headgate.clock import Duration
from headgate.engine.app_lifecycle import AppLifecycle
from headgate.engine.drain import Drain
from headgate.errors import HeadgateError
from headgate.storage.store import Store
from headgate.tasks.flow import FlowCall
from headgate.tasks.handle import Job
from headgate.tasks.portal import Portal
from headgate.tasks.schedule import Schedule, ScheduleSpec
from headgate.tasks.task import Call, Task
from headgate.tasks.ties import BatchStatus
from headgate.testing.stand_in import InTest


class LiveHeadgate(InTest):
    """An app whose jobs run already: an `async with app:` of the program starts nothing more, and ends nothing."""

    _inner = 0

    async def __aenter__(self) -> Self:
        if self._own_node is None:
            return await super().__aenter__()
        self._inner += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inner:
            self._inner -= 1
        else:
            await super().__aexit__(kind, error, traceback)


class ReachingClient(Client):
    """Runs its verbs on the loop of the engine, on whichever event loop they are awaited."""

    async def enqueue(self, task: Task[Any, Any], calls: Sequence[Call[Any]]) -> list[Job[Any]]:
        enqueued = super().enqueue(task, calls)
        # A connection of the caller's belongs to the loop of the caller.
        return await (self.portal.reach(enqueued) if task.options.get("connection") is None else enqueued)

    async def enqueue_flow(self, calls: Sequence[FlowCall], batches: Sequence[tuple[str, int]]) -> None:
        await self.portal.reach(super().enqueue_flow(calls, batches))

    async def put_schedule(self, task: Task[Any, Any], spec: ScheduleSpec, call: Call[Any]) -> Schedule[Any]:
        return await self.portal.reach(super().put_schedule(task, spec, call))

    async def wait_for_batch(self, batch_id: str, timeout: float | None) -> BatchStatus:
        return await self.portal.reach(super().wait_for_batch(batch_id, timeout))

    async def job_result(self, job_id: str, timeout: float | None) -> Any:
        return await self.portal.reach(super().job_result(job_id, timeout))

    async def cancel_job(self, job_id: str) -> bool:
        return await self.portal.reach(super().cancel_job(job_id))


class HeadgateInThread(LiveHeadgate):
    """The same with the engine in a thread of its own: verbs run there, on whichever event loop they are awaited."""

    _client_kind = ReachingClient

    def prepare_thread(self) -> EnginePortal:
        """Let all that uses the app meet in the thread which this portal begins and ends."""
        client = self._client
        client.opening = opening = _OpenInThread(
            open=client._open, last_words=client._end_callbacks, close=client._close
        )
        # Whoever uses a sync verb meets the loop on which the engine runs.
        client.portal = portal = EnginePortal(lambda: self, lambda: opening.loop)
        # What operators see and steer, and limiters, have the store in hand.
        _let_reach(self._storage, portal)
        return portal

    async def run(
        self,
        *,
        queues: Mapping[str, int | None] | None = None,
        grace: Duration | None = None,
        drain: Drain | None = None,
        handle_signals: bool = True,
    ) -> None:
        raise HeadgateError(
            "the engine of this test runs jobs already, in a thread of its own, and app.run() would be a worker beside "
            "it; `async with app:` opens the app here and leaves the jobs to the engine"
        )


class EnginePortal(Portal):
    """The portal that keeps the engine of a test: the program under test does not end it."""

    def close(self) -> None:
        """What the program says that moves to a loop of its own; the engine stays where it is."""

    def end(self) -> None:
        """Stop the engine, and end its thread."""
        super().close()


class _OpenInThread(AppLifecycle):
    """Its opening: whoever enters on another loop than that of the engine finds it open, and adds nothing to it."""

    async def enter(self) -> None:
        if self.loop is None or self._is_here():
            await super().enter()

    async def leave(self) -> None:
        if self._is_here():
            await super().leave()

    def _is_here(self) -> bool:
        return self.loop is asyncio.get_running_loop()


def _let_reach(storage: Store, portal: Portal) -> None:
    """Let each verb of the store run on the loop of the app, but for what runs on a connection of the caller's."""
    for name in dir(storage):
        verb = getattr(storage, name)
        if not name.startswith("_") and name != "add_in" and inspect.iscoroutinefunction(verb):
            setattr(storage, name, _reaching(verb, portal))


def _reaching(verb: Callable[..., Coroutine[Any, Any, Any]], portal: Portal) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def reaching(*args: Any, **kwargs: Any) -> Any:
        return await portal.reach(verb(*args, **kwargs))

    return reaching
