"""A clock that moves only when a test advances it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from headgate.arguments import read_duration
from headgate.clock import SECOND, Duration, Timer, to_datetime
from headgate.testing.virtual_time import START


class ManualClock:
    """A Clock for tests. Both scales advance together; only wall time can step. Raises ValueError before 1970."""

    def __init__(self, now: int = START) -> None:
        if now < 0:
            raise ValueError(f"a test cannot begin at {to_datetime(now)}: limits count from 1970; pass a later now=")
        self._wall = now
        self._monotonic = 1000 * SECOND
        self._timers: list[tuple[int, int, _ManualTimer]] = []
        self._made = 0

    def now(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._monotonic

    def boot_id(self) -> str:
        return "manual"

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        timer = _ManualTimer(callback)
        self._made += 1
        heappush(self._timers, (when, self._made, timer))
        return timer

    def advance(self, duration: Duration) -> None:
        """Let time pass; each timer fires at its own instant, also those that a timer sets."""
        end = self._monotonic + read_duration(duration, "duration", "advance")
        if end < self._monotonic:
            raise ValueError(f"time cannot advance by {duration!r}; use step_wall() to set wall time back")
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heappop(self._timers)
            self._move(max(when, self._monotonic))
            timer.fire()
        self._move(end)

    def step_wall(self, duration: Duration) -> None:
        """Set wall time forward or back, as an operator or a time server does; timers are not affected."""
        self._wall += read_duration(duration, "duration", "step_wall")

    def _move(self, monotonic: int) -> None:
        self._wall += monotonic - self._monotonic
        self._monotonic = monotonic


class _ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None
