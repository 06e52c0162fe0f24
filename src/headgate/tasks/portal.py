"""The portal to an app's event loop: code that cannot await runs coroutines through it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from headgate.errors import HeadgateError

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads without an event loop.

    If the app is open on an event loop, they run there; otherwise a daemon thread opens the app and keeps it open until
    `close()`. Safe from many threads. After a fork the child gets its own portal.
    """

    def __init__(
        self,
        open_app: Callable[[], AbstractAsyncContextManager[Any]],
        loop_of_app: Callable[[], asyncio.AbstractEventLoop | None],
        require_usable: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_app = open_app
        self._loop_of_app = loop_of_app
        self._require_usable = require_usable
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing: asyncio.Event | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it and return its result; blocks this thread. Raises HeadgateError when called on the loop itself.

        An interrupt (Ctrl-C) cancels the coroutine; its requests to the store may have been executed.
        """
        self.require_other_loop(coroutine)
        try:
            loop = self._loop_of_app() or self._own_loop()
        except BaseException:
            coroutine.close()
            raise
        running = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def require_other_loop(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Raise HeadgateError on the loop of the app, which this would block; it also closes the coroutine."""
        if any(_is_running_here(loop) for loop in (self._loop_of_app(), self._loop) if loop is not None):
            coroutine.close()
            raise HeadgateError(
                "a sync verb was called on the event loop that would have to run it; await the verb itself instead"
            )

    async def reach(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop on which the app is open, and await it on this one; here if the app is not open."""
        loop = self._loop_of_app()
        if loop is None or _is_running_here(loop):
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))

    def open(self) -> None:
        """Open the app now instead of on the first call."""
        if self._loop_of_app() is None:
            self._own_loop()

    def close(self) -> None:
        """End the background thread, if there is one; the next call opens it again."""
        with self._lock:
            loop, thread, closing = self._loop, self._thread, self._closing
            self._loop = self._thread = self._closing = None
        if loop is not None and thread is not None and closing is not None and self._pid == os.getpid():
            loop.call_soon_threadsafe(closing.set)
            thread.join()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            # The parent's thread does not exist here, and its lock may have been held at the fork.
            self._lock = threading.Lock()
            self._loop = self._thread = self._closing = None
            self._pid = os.getpid()
        with self._lock:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def _start(self) -> None:
        # In the caller's context: the thread has its own.
        self._require_usable()
        started = threading.Event()
        failure: list[BaseException] = []

        async def serve() -> None:
            closing = asyncio.Event()
            try:
                async with self._open_app():
                    self._loop, self._closing = asyncio.get_running_loop(), closing
                    started.set()
                    await closing.wait()
            except BaseException as error:
                failure.append(error)
                started.set()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="headgate-sync", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            self._loop = self._thread = self._closing = None
            raise failure[0]


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
