"""Live mode: a real engine runs inside the test, on its own store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType

from headgate.app import Headgate
from headgate.clock import SECOND, Clock, SystemClock, wait_for_event
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.in_test import in_test
from headgate.testing.live_app import HeadgateInThread, LiveHeadgate
from headgate.testing.virtual_time import PATIENCE, VirtualClock, VirtualTimeLoop

POLL_INTERVAL = 1.0


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
                await wait_for_event(self._clock, changed, min(left, POLL_INTERVAL))
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._held_async.__aexit__(kind, error, traceback)

    def __enter__(self) -> LiveApp:
        clock = SystemClock()
        return self._held.enter_context(_in_a_thread(self._app, self._storage(clock), clock))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, traceback)

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
