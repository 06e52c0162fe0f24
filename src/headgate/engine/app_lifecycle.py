"""The opening of an app: the first who enters opens it, the last who leaves closes it, all on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.errors import DeclarationError, NotOpen
from headgate.shielding import shield_until_done

Step = Callable[[], Coroutine[Any, Any, None]]


class AppLifecycle:
    """Knows who has an app open: it is opened by `open`, and closed by `close` after its `last_words`.

    Either is done whole: who is cancelled while opening leaves it closed, and while closing waits until it is closed.
    """

    def __init__(self, *, open: Step, last_words: Step, close: Step) -> None:
        self._open = open
        self._last_words = last_words
        self._close = close
        # Two threads, each with a loop of its own, may enter at the same moment.
        self._lock = threading.Lock()
        self._entered = 0
        # Done when the opening or closing that is under way has ended.
        self._changing: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        return self._entered > 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the app is open in this process."""
        # After a fork the loop belongs to the parent, and nothing would run there for this process.
        return self._loop if self.is_open and self._pid == os.getpid() else None

    def require(self) -> None:
        """Raise NotOpen unless the app is open."""
        if not self._entered:
            raise NotOpen

    # Not one context manager: a loop that ends closes all generators at once, and none within another can be closed so.

    async def enter(self) -> None:
        """Have the app open until `leave`. Raises DeclarationError on another loop than it is open on."""
        while True:
            with self._own_lock():
                self._require_one_loop()
                changing = self._changing
                if changing is None and self._entered:
                    self._entered += 1
                    return
                if changing is None:
                    self._begin_change()
                    break
            # Somebody else is at it; where that fails, one of those who wait is the next to try.
            await asyncio.wait([changing])
        try:
            await self._open_or_undo()
            self._entered = 1
        finally:
            self._end_change()

    async def leave(self) -> None:
        """Once for each `enter`; the last one closes the app."""
        try:
            if self._entered == 1:
                # Those who speak may still enqueue and look.
                await self._last_words()
        finally:
            with self._own_lock():
                self._entered -= 1
                is_last = self._entered == 0
                if is_last:
                    # Who opens it meanwhile waits, as for somebody else's opening.
                    self._begin_change()
            if is_last:
                try:
                    await shield_until_done(self._close())
                finally:
                    self._end_change()

    async def _open_or_undo(self) -> None:
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await shield_until_done(opening)
            if not opening.cancelled():
                # It was open before it could be cancelled.
                await shield_until_done(self._close())
            raise
        opening.result()

    def _begin_change(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changing = self._loop.create_future()

    def _end_change(self) -> None:
        with self._own_lock():
            changing, self._changing = self._changing, None
            if self._entered == 0:
                self._loop = None
        if changing is not None:
            changing.set_result(None)

    def _own_lock(self) -> threading.Lock:
        """The lock of this process: in a child, what its parent was at when it was forked never ends."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._changing = self._loop = None
        return self._lock

    def _require_one_loop(self) -> None:
        if self._loop not in (None, asyncio.get_running_loop()):
            raise DeclarationError(
                "this app is open on another event loop, or being opened or closed there; where code that cannot await "
                "has opened it (`app.sync`, `task.sync`), end that first: `app.sync.close()`"
            )
