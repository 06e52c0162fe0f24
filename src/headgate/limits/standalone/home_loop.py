"""One event loop for a store that belongs to one, for callers on any loop or thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from headgate.errors import GateClosed, HeadgateError

T = TypeVar("T")


class HomeLoop:
    """The loop of the first caller; if that was a thread without a loop, the loop of a daemon thread.

    Calls from other loops and from threads run there, so that connections and lines belong to one loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine on the home loop."""
        running = asyncio.get_running_loop()
        with self._lock:
            if self._loop is None:
                self._loop = running
        if self._loop is running:
            return await coroutine
        return await asyncio.wrap_future(self._submit(coroutine))

    def run_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the home loop and block this thread. Raises HeadgateError when this thread runs the home loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-limiter", daemon=True)
                self._thread.start()
        if asyncio._get_running_loop() is self._loop:
            coroutine.close()
            raise HeadgateError("a sync verb was called on the event loop that would have to run it; await instead")
        future = self._submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise GateClosed from None
        finally:
            # Interrupted: no caller is left to use what may still be granted.
            future.cancel()

    def close(self) -> None:
        """End the thread, if there is one; callers that still wait in it get GateClosed."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None or self._loop is None or threading.current_thread() is thread:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()
        self._loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise HeadgateError("the event loop that this limiter was first used on has ended; make another") from None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
