"""The overview for all clients of this process: read once, however many clients request it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec

from headgate.admin import Overview
from headgate.admin.verdict import last_known
from headgate.clock import SECOND, Clock, to_datetime
from headgate.errors import StorageUnavailable

FRESH_FOR = SECOND
"""Microseconds for which a reading is reused at least, so that many requests cost the store one read."""

PATIENCE = 1.5
"""Seconds without an answer after which a page is shown the last known state."""

SHARE = 10
"""A reading is reused for 10 times as long as it took, so that reading takes at most a tenth of the store's time."""

_NO_TIME = to_datetime(0)


@dataclass(frozen=True, slots=True)
class OverviewReading:
    """An overview as it was read; `tag` stays the same while only times change.

    `revision` grows with each change that this process has read.
    """

    overview: Overview
    tag: str
    revision: int


class OverviewPoller:
    """Reads the overview when it is requested, and never otherwise.

    A reading is reused for a second, or for ten times as long as it took; but not after something was changed through
    this process. All its calls are made on the app's loop.
    """

    def __init__(self, read: Callable[[], Awaitable[Overview]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._seen: OverviewReading | None = None
        self._fresh_until = 0
        self._silent_since: int | None = None
        self._reading: asyncio.Task[OverviewReading] | None = None

    async def look(self) -> OverviewReading:
        """Return the overview. Callers that come during a read wait for it, and share its error."""
        if self._seen is not None and self._clock.monotonic() < self._fresh_until:
            return self._seen
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._renew())
            # If no caller is left when it fails, asyncio must not warn about its exception.
            self._reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        # A caller that is cancelled must not cancel the read for the others.
        return await asyncio.shield(self._reading)

    async def latest(self) -> Overview:
        """Return the overview, or the last known state with its `silent_since` if the store does not answer for 1.5 s.

        Raises the error of the read if no state is known.
        """
        asked_at = self._clock.now()
        looking = asyncio.ensure_future(self.look())
        try:
            await asyncio.wait([looking], timeout=None if self._seen is None else PATIENCE)
            if looking.done():
                return looking.result().overview
        except StorageUnavailable:
            if self._seen is None:
                raise
        finally:
            looking.cancel()
        if self._silent_since is None:
            self._silent_since = asked_at
        assert self._seen is not None
        return last_known(self._seen.overview, to_datetime(self._silent_since), to_datetime(self._clock.now()))

    def changed(self) -> None:
        """Drop what was read before, or is being read, because something was changed."""
        self._fresh_until = 0
        self._reading = None

    async def _renew(self) -> OverviewReading:
        began_at, own = self._clock.monotonic(), asyncio.current_task()
        overview = await self._read()
        self._silent_since = None
        took = self._clock.monotonic() - began_at
        before = self._seen
        tag = hashlib.sha256(
            msgspec.json.encode(replace(overview, now=_NO_TIME, finals_at=None, counted_at=None, tasks_at=None))
        ).hexdigest()[:16]
        seen = OverviewReading(overview, tag, 0 if before is None else before.revision + (tag != before.tag))
        # Unless something was changed meanwhile: then another read follows.
        if self._reading is own:
            self._seen = seen
            self._fresh_until = began_at + max(FRESH_FOR, SHARE * took)
        return seen

    async def close(self) -> None:
        """End a running read, and drop what was read."""
        reading = self._reading
        self.changed()
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
