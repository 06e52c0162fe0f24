"""What has to look at each of many jobs, counted beside the looks that show it: a million take half a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from headgate.clock import SECOND, Clock
from headgate.errors import HeadgateError
from headgate.storage.records import QueueCounts, WaitingCount

FRESH_FOR = SECOND
"""Microseconds for which what was counted is shown, at least."""

SHARE = 50
"""What was counted is shown for so many times as long as counting took: so it takes no more of a store than a 50th."""

PATIENCE = 0.03
"""Seconds that a look waits for a count; it is shown without, or with that of before, where that takes longer."""

T = TypeVar("T")

_log = logging.getLogger("headgate.admin")


class SlowCounts:
    """What an overview shows and does not wait for, kept by whoever looks again and again."""

    def __init__(self, clock: Clock, *, patience: float = PATIENCE) -> None:
        self.finals: BackgroundCounts[Sequence[QueueCounts]] = BackgroundCounts(clock, "final jobs", patience=patience)
        self.tasks: BackgroundCounts[Sequence[WaitingCount]] = BackgroundCounts(
            clock, "waiting jobs by task", patience=patience
        )

    async def close(self) -> None:
        """End the counts that are under way."""
        await self.finals.close()
        await self.tasks.close()


@dataclass(frozen=True, slots=True)
class CountReading(Generic[T]):
    """What was counted, and when."""

    at: datetime
    found: T


class BackgroundCounts(Generic[T]):
    """Counts for those who look again and again, in the background where it takes long.

    Where a store refuses to count so many, nothing else that is looked at fails with it: what was counted before is
    shown, and it is asked no more often than if it had counted. A look waits for it for `patience` seconds.
    """

    def __init__(self, clock: Clock, what: str, *, patience: float = PATIENCE) -> None:
        self._clock = clock
        self._what = what
        self._patience = patience
        self._known: CountReading[T] | None = None
        self._counted_at: int | None = None
        self._is_refused = False
        self._took = 0
        self._counting: asyncio.Task[None] | None = None

    def begin(self, count: Callable[[], Awaitable[T]], now: Callable[[], datetime]) -> None:
        """Count anew, if that was long ago and nobody does."""
        fresh_for = max(FRESH_FOR, SHARE * self._took)
        is_due = self._counted_at is None or self._clock.monotonic() - self._counted_at >= fresh_for
        if is_due and (self._counting is None or self._counting.done()):
            self._counting = asyncio.ensure_future(self._count(count, now))
            # Nobody may look again once it has failed.
            self._counting.add_done_callback(lambda counting: counting.cancelled() or counting.exception())

    async def look(self) -> CountReading[T] | None:
        """What is known; None as long as nothing was counted."""
        counting = self._counting
        if counting is not None:
            await asyncio.wait([counting], timeout=self._patience)
            if counting.done():
                self._counting = None
                if not counting.cancelled():
                    counting.result()
        return self._known

    async def _count(self, count: Callable[[], Awaitable[T]], now: Callable[[], datetime]) -> None:
        began_at, at = self._clock.monotonic(), now()
        try:
            self._known = CountReading(at, await count())
            self._is_refused = False
        except HeadgateError as error:
            if not self._is_refused:
                _log.warning("%s were not counted, and are shown as they were counted last: %s", self._what, error)
            self._is_refused = True
        finally:
            self._counted_at = self._clock.monotonic()
            self._took = self._counted_at - began_at

    async def close(self) -> None:
        """End a count that is under way."""
        counting, self._counting = self._counting, None
        if counting is not None and not counting.done():
            counting.cancel()
            await asyncio.wait([counting])
