"""The opening and closing of an app: the first `enter` opens it, the last `leave` closes it, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from headgate.errors import DeclarationError, NotOpen, StorageUnavailable, other_loop, own_error
from headgate.shielding import shield_until_done

Step = Callable[[], Coroutine[Any, Any, None]]


class AppLifecycle:
    """Counts how often an app is entered; calls `open` at the first time, `before_close` and `close` at the last.

    A caller that is cancelled while it opens the app leaves it closed; one that is cancelled while it closes the app
    waits until it is closed.
    """

    def __init__(self, *, open: Step, before_close: Step, close: Step) -> None:
        self._open = open
        self._before_close = before_close
        self._close = close
        # Two threads, each with its own loop, may enter at the same time.
        self._lock = threading.Lock()
        self.open_count: int = 0
        """How often it is entered; 0: it is closed."""
        # Done when the current opening or closing has ended; its result is the error if the store did not answer.
        self._transition: Future[StorageUnavailable | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        # A lock for each process that was forked from this one, or from one of its children.
        self._forgetting: dict[int, threading.Lock] = {}

    @property
    def is_open(self) -> bool:
        return self.open_count > 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop on which the app is open in this process; None if it is not."""
        # After a fork the loop belongs to the parent and runs nothing for this process.
        return self._loop if self.is_open and self._pid == os.getpid() else None

    @property
    def transition(self) -> tuple[Future[Any], asyncio.AbstractEventLoop | None] | None:
        """Return the opening or closing that this process is doing, and its event loop."""
        found = self._transition
        return None if found is None or self._pid != os.getpid() else (found, self._loop)

    def require_open_here(self) -> None:
        """Raise NotOpen unless the app is open, HeadgateError in a coroutine on another event loop."""
        if not self.open_count:
            raise NotOpen
        if self._loop is not asyncio.get_running_loop() and self.loop is not None:
            raise other_loop()

    # Two methods, no context manager: a loop that ends closes all generators at once, which fails for nested ones.

    async def enter(self, open: Step | None = None) -> None:
        """Open the app, or keep it open, until `leave`. Raises DeclarationError if it is open on another loop.

        `open` replaces the usual step for this opening.
        """
        while True:
            with self._own_lock():
                if self._loop not in (None, asyncio.get_running_loop()):
                    raise DeclarationError(
                        "this app is open on another event loop, or is being opened or closed there; if synchronous "
                        "code has opened it (`app.sync`, `task.sync`), close it there first: `app.sync.close()`"
                    )
                transition = self._transition
                if transition is None and self.open_count:
                    self.open_count += 1
                    return
                if transition is None:
                    self._begin_transition()
                    break
            # Another task opens or closes it. If that fails, one of the waiting tasks tries next, unless the store is
            # away: each in turn would wait for it as long as the one before.
            await asyncio.wait([asyncio.wrap_future(transition)])
            if (failure := transition.result()) is not None:
                raise own_error(failure)
        failure = None
        try:
            await self._open_or_undo(open or self._open)
            self.open_count = 1
        except StorageUnavailable as error:
            failure = error
            raise
        finally:
            self._end_transition(failure)

    async def leave(self) -> None:
        """Undo one `enter`; the last one closes the app."""
        try:
            if self.open_count == 1:
                # Callbacks that still run may enqueue and read.
                await self._before_close()
        finally:
            with self._own_lock():
                self.open_count -= 1
                is_last = self.open_count == 0
                if is_last:
                    # A task that opens the app now waits for the closing.
                    self._begin_transition()
            if is_last:
                try:
                    await shield_until_done(self._close())
                finally:
                    self._end_transition()

    async def _open_or_undo(self, open: Step) -> None:
        opening = asyncio.ensure_future(open())
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shield_until_done(opening)
            if not opening.cancelled():
                # The opening finished before the cancellation reached it.
                await shield_until_done(self._close())
            raise
        opening.result()

    def _begin_transition(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transition = Future()

    def _end_transition(self, failure: StorageUnavailable | None = None) -> None:
        with self._own_lock():
            transition, self._transition = self._transition, None
            if self.open_count == 0:
                self._loop = None
        if transition is not None:
            transition.set_result(failure)

    def _own_lock(self) -> threading.Lock:
        """Return the lock of this process. After a fork it is a new one: what the parent was doing never ends here."""
        pid = os.getpid()
        if self._pid != pid:
            # One of the threads that come here first does it: what it sets afterwards must not be dropped by another.
            with self._forgetting.setdefault(pid, threading.Lock()):
                if self._pid != pid:
                    self._lock, self._transition, self._loop = threading.Lock(), None, None
                    self._pid = pid
        return self._lock
