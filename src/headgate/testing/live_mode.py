"""Live mode: a real engine runs inside the test, on its own store. The app stays open until the test ends.

If the engine has its own thread, the program may be on another event loop, as behind a test client: what it awaits of
the app runs on the loop of the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from headgate.app import Headgate
from headgate.client.client import Client
from headgate.client.portal import Portal
from headgate.clock import SECOND, Clock, SystemClock, wait_for_event
from headgate.engine.app_lifecycle import AppLifecycle, Step
from headgate.engine.enqueuer import StoredCall
from headgate.errors import HeadgateError, NotOpen
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.tasks.call import Call
from headgate.tasks.definition import TaskDefinition
from headgate.testing.in_test import InTest, in_test
from headgate.testing.virtual_time import PATIENCE, VirtualClock, VirtualTimeLoop

VERBS = ("enqueue_flow", "put_schedule", "wait_for_batch", "job_result", "cancel_job", "cancel_batch")
"""The verbs of the client that run on the loop of the engine, whichever event loop awaits them, besides `enqueue`."""


class LiveApp:
    """A running app in a test; `.sync` has the same verbs for tests that cannot await."""

    def __init__(self, app: Headgate, storage: Store, clock: Clock) -> None:
        self.app: Headgate = app
        self.sync: SyncLiveApp = SyncLiveApp(self)
        self._storage = storage
        self._clock = clock

    async def wait_until_idle(self, timeout: float = PATIENCE) -> None:
        """Wait until no job waits or runs, delayed ones included. Raises TimeoutError with the number of jobs left."""
        await self.app._client.portal.reach(self._wait_until_idle(timeout))

    async def _wait_until_idle(self, timeout: float) -> None:
        changed = asyncio.Event()
        unwatch = self._storage.watch(changed.set)
        until = self._clock.monotonic() + round(timeout * SECOND)
        try:
            while True:
                changed.clear()
                counts = await self._storage.counts()
                waiting, running = sum(each.waiting for each in counts), sum(each.running for each in counts)
                if not waiting and not running:
                    return
                left = (until - self._clock.monotonic()) / SECOND
                if left <= 0:
                    raise TimeoutError(f"after {timeout:g} s {waiting} jobs wait and {running} run")
                await wait_for_event(self._clock, changed, min(left, 1.0))
        finally:
            unwatch()


class SyncLiveApp:
    """The verbs of a `LiveApp` for tests that cannot await."""

    def __init__(self, running: LiveApp) -> None:
        self._running = running

    def wait_until_idle(self, timeout: float = PATIENCE) -> None:
        """Same as `LiveApp.wait_until_idle`."""
        self._running.app.sync.run(self._running.wait_until_idle(timeout))


class Live:
    """The result of `live`: enter it once, with or without `async`."""

    def __init__(self, app: Headgate, file: Path | str | None) -> None:
        self._app = app
        self._file = file
        self._held = contextlib.ExitStack()
        self._held_async = contextlib.AsyncExitStack()

    async def __aenter__(self) -> LiveApp:
        loop = asyncio.get_running_loop()
        clock: Clock = VirtualClock(loop) if isinstance(loop, VirtualTimeLoop) else SystemClock()
        return await self._held_async.enter_async_context(_on_test_loop(self._app, self._storage(clock), clock))

    async def __aexit__(self, *details: Any) -> None:
        await self._held_async.__aexit__(*details)

    def __enter__(self) -> LiveApp:
        clock = SystemClock()
        return self._held.enter_context(_in_a_thread(self._app, self._storage(clock), clock))

    def __exit__(self, *details: Any) -> None:
        self._held.__exit__(*details)

    def _storage(self, clock: Clock) -> Store:
        return MemoryStorage(clock) if self._file is None else SqliteStorage(str(self._file), clock)


def live(app: Headgate, *, file: Path | str | None = None) -> Live:
    """Run the app's jobs in this test, as `async with app:` does, on a store in memory, or in a SQLite `file`.

    `async with live(app) as running:` runs them on the loop of the test. On a loop of `run_virtual` time is virtual,
    and an hour passes in less than a second; otherwise time is real. `with live(app) as running:` is for tests that
    cannot await: the engine has its own thread. The program under test may open, run and close the app itself, also on
    the loop of a test client; the engine stays until the block ends. The configured store and limit stores are never
    connected to. Process tasks run in threads. Raises HeadgateError for an app that is open.
    """
    return Live(app, file)


@contextlib.asynccontextmanager
async def _on_test_loop(app: Headgate, storage: Store, clock: Clock) -> AsyncIterator[LiveApp]:
    with in_test(app, LiveHeadgate, storage, clock) as app_in_test:
        async with app_in_test:
            yield LiveApp(app_in_test, storage, clock)


@contextlib.contextmanager
def _in_a_thread(app: Headgate, storage: Store, clock: Clock) -> Iterator[LiveApp]:
    with in_test(app, HeadgateInThread, storage, clock) as app_in_test:
        portal = app_in_test.prepare_thread()
        portal.open()
        try:
            yield LiveApp(app_in_test, storage, clock)
        finally:
            portal.end()


class LiveHeadgate(InTest):
    """An app whose jobs run already: an `async with app:` of the program starts and ends nothing more."""

    _nested = 0

    async def __aenter__(self) -> Self:
        if self._own_block is None:
            return await super().__aenter__()
        self._nested += 1
        return self

    async def __aexit__(self, *details: Any) -> None:
        if self._nested:
            self._nested -= 1
        else:
            await super().__aexit__(*details)


class EngineLoopClient(Client):
    """Enqueues on the loop of the engine, whichever event loop awaits it."""

    async def enqueue(self, task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[StoredCall]:
        enqueued = super().enqueue(task, calls)
        # A caller's connection belongs to the caller's loop.
        return await (self.portal.reach(enqueued) if task.options.get("connection") is None else enqueued)


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
        _run_on_loop(client, VERBS, portal)
        # Admin verbs and limiters use the store directly; a verb on a caller's connection stays on the caller's loop.
        _run_on_loop(self._storage, set(dir(self._storage)) - {"add_in", "complete_in"}, portal)
        return portal

    async def run(self, *_: Any, **options: Any) -> None:
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

    def require_open_here(self) -> None:
        """Raise NotOpen unless it is open; the verbs find the loop of the engine themselves."""
        if not self.is_open:
            raise NotOpen

    def _is_here(self) -> bool:
        return self.loop is asyncio.get_running_loop()


def _run_on_loop(subject: object, verbs: Iterable[str], portal: Portal) -> None:
    """Run those of the public verbs that are coroutine functions on the loop of the app."""
    for name in verbs:
        verb = getattr(subject, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(verb):
            setattr(subject, name, _on_engine_loop(verb, portal))


def _on_engine_loop(verb: Callable[..., Coroutine[Any, Any, Any]], portal: Portal) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def on_engine_loop(*args: Any, **kwargs: Any) -> Any:
        return await portal.reach(verb(*args, **kwargs))

    return on_engine_loop
