"""Searches in payloads: they read all jobs that a query leaves, so few run at once, and each for a bounded time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.clock import Clock, microseconds
from headgate.errors import SearchTooLong, TooManySearches

R = TypeVar("R")

SEARCH_TIMEOUT = 8.0
"""Seconds for which a search may read; a browser waits for its answer for 15."""

TURN_TIMEOUT = 4.0
"""Seconds for which a search waits until others have ended."""


class Searches:
    """Runs at most `at_once` searches, in the order in which they came."""

    def __init__(self, clock: Clock, at_once: int) -> None:
        self._clock = clock
        self._free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, search: Callable[[], Awaitable[R]]) -> R:
        """What `search` returns. Raises TooManySearches if others take too long."""
        await self._take_turn()
        try:
            return await search()
        finally:
            self._end_turn()

    async def _take_turn(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)

        def give_up() -> None:
            if not turn.done():
                turn.set_exception(too_many())

        timer = self._clock.call_at(self._clock.monotonic() + microseconds(TURN_TIMEOUT), give_up)
        try:
            await turn
        except BaseException:
            # It may have been given in the same moment in which it was cancelled.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end_turn()
            raise
        finally:
            timer.cancel()

    def _end_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def too_many() -> TooManySearches:
    return TooManySearches(
        f"other searches in payloads run here and have not ended within {TURN_TIMEOUT:g} s; try again later"
    )


def too_long() -> SearchTooLong:
    return SearchTooLong(
        f"the search in payloads was ended after {SEARCH_TIMEOUT:g} s, before it had read all jobs that the other "
        "words leave, and what it had found is not shown; narrow it by state, task, queue, key or time"
    )
