"""Counts that take a store long, made in the background while other reads show the last result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from headgate.clock import SECOND, Clock
from headgate.errors import HeadgateError

FRESH_FOR = SECOND
"""Microseconds for which a count of final jobs, or of jobs by task, is reused at least."""

SHARE = 50
"""A count is reused for 50 times as long as it took, so that counting takes at most a 50th of the time."""

MAX_AGE = 10 * SECOND
"""Microseconds: it is counted again before the result is this old, so a page that updates itself shows no older one."""

STALE_PATIENCE = 2.0
"""Seconds for which a reader waits for a running count if the last result is older than its `max_age`."""

PATIENCE = 0.03
"""Seconds for which a reader waits for a running count."""

T = TypeVar("T")

_log = logging.getLogger("headgate.admin")


@dataclass(frozen=True, slots=True)
class CountReading(Generic[T]):
    """The result of a count, and when it began."""

    at: datetime
    found: T


class BackgroundCounts(Generic[T]):
    """A count that is repeated in the background while it is read.

    `read` waits `patience` seconds (None: without end) for a running count, and returns the last result if the count
    takes longer. Before the first result it waits `first_patience`, and `stale_patience` if the last result is older
    than `max_age` microseconds. A result is reused for 50 times as long as the count took, and at least for `fresh_for`
    microseconds, but not so long that it is older than `max_age` before the next one is there. A count that takes more
    than a third of `max_age` cannot keep to that: counts take at most half of the time. If the store refuses to count,
    `read` returns the last result, and the next count begins after 50 times as long as the refusal took.
    """

    def __init__(
        self,
        clock: Clock,
        what: str,
        *,
        patience: float | None = PATIENCE,
        first_patience: float | None = PATIENCE,
        stale_patience: float = STALE_PATIENCE,
        fresh_for: int = FRESH_FOR,
        max_age: int = MAX_AGE,
    ) -> None:
        self._clock = clock
        self._what = what
        self._patience = patience
        self._first_patience = first_patience
        self._stale_patience = stale_patience
        self._fresh_for = fresh_for
        self._max_age = max_age
        self._began_at = 0
        self._known: CountReading[T] | None = None
        self._counted_at: int | None = None
        self._is_refused = False
        self._took = 0
        self._counting: asyncio.Task[None] | None = None

    def begin(self, count: Callable[[], Awaitable[T]], now: Callable[[], datetime]) -> None:
        """Start a count, unless one is running or the last result is fresh."""
        # The age of a result counts from the beginning of its count, and lasts until the next count has ended.
        longest = max(self._took, self._max_age - 2 * self._took)
        fresh_for = max(self._fresh_for, SHARE * self._took)
        if not self._is_refused:
            fresh_for = min(fresh_for, longest)
        is_due = self._counted_at is None or self._clock.monotonic() - self._counted_at >= fresh_for
        if is_due and (self._counting is None or self._counting.done()):
            self._counting = asyncio.ensure_future(self._count(count, now))
            # If no read follows a failed count, asyncio must not warn that its exception was never retrieved.
            self._counting.add_done_callback(lambda counting: counting.cancelled() or counting.exception())

    async def read(self) -> CountReading[T] | None:
        """Return the last result; None before the first. Raises what a count raised, except HeadgateError."""
        counting = self._counting
        if counting is not None:
            patience = self._first_patience if self._known is None else self._patience
            age = self._clock.monotonic() - self._began_at
            # The last result is too old to be shown while the next one can be awaited.
            if self._known is not None and patience is not None and age > self._max_age:
                patience = max(patience, self._stale_patience)
            await asyncio.wait([counting], timeout=patience)
            if counting.done():
                self._counting = None
                if not counting.cancelled():
                    counting.result()
        return self._known

    async def _count(self, count: Callable[[], Awaitable[T]], now: Callable[[], datetime]) -> None:
        began_at, at = self._clock.monotonic(), now()
        try:
            self._known = CountReading(at, await count())
            self._began_at = began_at
            self._is_refused = False
        except HeadgateError as error:
            if not self._is_refused:
                _log.warning("%s could not be counted; the last counts are shown instead: %s", self._what, error)
            self._is_refused = True
        finally:
            self._counted_at = self._clock.monotonic()
            self._took = self._counted_at - began_at

    async def close(self) -> None:
        """Cancel a running count, and wait until it has ended."""
        counting, self._counting = self._counting, None
        if counting is not None and not counting.done():
            counting.cancel()
            await asyncio.wait([counting])
