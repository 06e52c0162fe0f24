"""Searches in payloads and reports: each reads many rows, so few run at once, for a bounded time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.clock import Clock, microseconds
from headgate.errors import SearchTooLong, TooManySearches

R = TypeVar("R")

SEARCH_TIMEOUT = 8.0
"""Seconds for which a search may read; a browser waits 15 seconds for the answer."""

TURN_TIMEOUT = 4.0
"""Seconds for which a search waits until other searches have ended."""


class Searches:
    """Runs at most `at_once` searches, in the order of their arrival."""

    def __init__(self, clock: Clock, at_once: int) -> None:
        self._clock = clock
        self._free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, search: Callable[[], Awaitable[R]]) -> R:
        """Return the result of `search`. Raises TooManySearches if the others take too long."""
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
            # The turn may have been granted at the moment of the cancellation.
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
    return TooManySearches(f"other searches and reports have not ended within {TURN_TIMEOUT:g} s; try again later")


def too_long(what: str = "search", advice: str = "narrow it by state, task, queue, key or time") -> SearchTooLong:
    return SearchTooLong(
        f"the {what} was stopped after {SEARCH_TIMEOUT:g} s, before it had read all jobs that its filters select; what "
        f"it had found is not shown; {advice}"
    )
