"""The opening of an app: the first who enters opens it, the last who leaves closes it, all on one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.errors import DeclarationError, NotOpen

Step = Callable[[], Coroutine[Any, Any, None]]


class Opening:
    """Knows who has an app open: it is opened by `open`, and closed by `close` after its `last_words`."""

    def __init__(self, *, open: Step, last_words: Step, close: Step) -> None:
        self._open = open
        self._last_words = last_words
        self._close = close
        self._entered = 0
        self._changing: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def is_open(self) -> bool:
        return self._entered > 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the app is open in this process."""
        # After a fork the loop belongs to the parent, and nothing would run there for this process.
        return self._loop if self._pid == os.getpid() else None

    def require(self) -> None:
        """Raise NotOpen unless the app is open."""
        if not self.is_open:
            raise NotOpen

    # Not one context manager: a loop that ends closes all generators at once, and none within another can be closed so.

    async def enter(self) -> None:
        """Have the app open until `leave`. Raises DeclarationError on another loop than it is open on."""
        self._require_one_loop()
        while self._entered == 0 and self._changing is not None:
            # Somebody else is at it; where that fails, one of those who wait is the next to try.
            await asyncio.wait([self._changing])
        if self._entered == 0:
            await self._change(self._open)
            self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._entered += 1

    async def leave(self) -> None:
        """Once for each `enter`; the last one closes the app."""
        try:
            if self._entered == 1:
                # Those who speak may still enqueue and look.
                await self._last_words()
        finally:
            self._entered -= 1
            if self._entered == 0:
                # Who opens it meanwhile waits, as for somebody else's opening.
                try:
                    await self._change(self._close)
                finally:
                    self._loop = None

    async def _change(self, step: Step) -> None:
        self._changing = asyncio.ensure_future(step())
        try:
            await self._changing
        finally:
            self._changing = None

    def _require_one_loop(self) -> None:
        if self._entered and self._pid == os.getpid() and self._loop is not asyncio.get_running_loop():
            raise DeclarationError(
                "this app is open on another event loop; where code that cannot await has opened it (`app.sync`, "
                "`task.sync`), end that first: `app.sync.close()`"
            )
