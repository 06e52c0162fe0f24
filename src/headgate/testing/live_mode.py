"""Live mode: a real engine runs inside the test, on a store of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from headgate.app import Headgate
from headgate.clock import SECOND, Clock, SystemClock, wait_for_event
from headgate.storage.memory import MemoryStorage
from headgate.storage.protocol import Storage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.stand_in import InTest, in_test
from headgate.testing.virtual_time import VirtualClock, VirtualTimeLoop

LOOK_EVERY = 1.0


class LiveApp:
    """What a test has in hand of an app that runs."""

    def __init__(self, app: Headgate, storage: Storage, clock: Clock) -> None:
        self.app: Headgate = app
        self._storage = storage
        self._clock = clock

    async def wait_until_idle(self, timeout: float = 10.0) -> None:
        """Return when no job waits or runs, delayed ones included. Raises TimeoutError that tells what is left."""
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
                await wait_for_event(self._clock, changed, min(left, LOOK_EVERY))
        finally:
            unwatch()


@contextlib.asynccontextmanager
async def live(app: Headgate, *, file: Path | str | None = None) -> AsyncIterator[LiveApp]:
    """Run the app's jobs in this test, as `async with app:` does, on a store in memory, or in a SQLite `file`.

    Its own store, and what keeps its limits, is never connected to. On a loop of `run_virtual` its time is virtual, and
    an hour passes in less than a second; otherwise it is the machine's. Process tasks run in threads. Raises
    HeadgateError for an app that is open.
    """
    loop = asyncio.get_running_loop()
    clock: Clock = VirtualClock(loop) if isinstance(loop, VirtualTimeLoop) else SystemClock()
    storage: Storage = MemoryStorage(clock) if file is None else SqliteStorage(str(file), clock)
    with in_test(app, InTest, storage, clock) as in_hand:
        async with in_hand:
            yield LiveApp(in_hand, storage, clock)
