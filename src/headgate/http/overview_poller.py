"""The overview as everybody sees it who looks now: read once, however many look."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec

from headgate.admin import Overview
from headgate.clock import SECOND, Clock, to_datetime

FRESH_FOR = SECOND
"""Microseconds for which what was read is shown, at least; so many looks cost the store one read."""

SHARE = 10
"""What was read is shown for so many times as long as reading took: a look takes no more of a store than a tenth."""

_NO_TIME = to_datetime(0)

T = TypeVar("T")


class AppCaller(Protocol):
    """Runs a coroutine where the app is open, which may be the loop of another thread."""

    async def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


async def reach_here(coroutine: Coroutine[Any, Any, T], /) -> T:
    """For an app that is open on this loop."""
    return await coroutine


@dataclass(frozen=True, slots=True)
class OverviewReading:
    """An overview as it was read; `tag` is the same as long as nothing but the time has changed.

    `revision` grows with each change that was seen by this process.
    """

    overview: Overview
    tag: str
    revision: int


class OverviewPoller:
    """Reads the overview when somebody asks for it, and nobody reads while nobody looks.

    What was read is shown for a second, or for ten times as long as reading took; but not to whoever looks after
    something was changed through this process. Whoever looks, from whatever loop, it is read on that of the app.
    """

    def __init__(self, read: Callable[[], Awaitable[Overview]], clock: Clock, reach: AppCaller = reach_here) -> None:
        self._read = read
        self._reach = reach
        self._clock = clock
        self._seen: OverviewReading | None = None
        self._fresh_until = 0
        self._reading: asyncio.Task[OverviewReading] | None = None

    async def look(self) -> OverviewReading:
        """The overview. Who asks while it is read waits for that read, and shares its error."""
        return await self._reach(self._look())

    async def _look(self) -> OverviewReading:
        if self._seen is not None and self._clock.monotonic() < self._fresh_until:
            return self._seen
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._renew())
            # Who asked may be gone by the time that it fails.
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        # One who goes away must not take the answer from those who wait as well.
        return await asyncio.shield(self._reading)

    def changed(self) -> None:
        """Something was changed: what was read before, or is being read, is not what is."""
        self._fresh_until = 0
        self._reading = None

    async def _renew(self) -> OverviewReading:
        began_at, own = self._clock.monotonic(), asyncio.current_task()
        overview = await self._read()
        took = self._clock.monotonic() - began_at
        before = self._seen
        tag = hashlib.sha256(
            msgspec.json.encode(replace(overview, now=_NO_TIME, finals_at=None, counted_at=None))
        ).hexdigest()[:16]
        seen = OverviewReading(overview, tag, 0 if before is None else before.revision + (tag != before.tag))
        # Unless something was changed meanwhile: then another one reads, or will.
        if self._reading is own:
            self._seen = seen
            self._fresh_until = began_at + max(FRESH_FOR, SHARE * took)
        return seen

    async def close(self) -> None:
        """End a read that is under way, and forget what was read."""
        await self._reach(self._end())

    async def _end(self) -> None:
        reading = self._reading
        self.changed()
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
