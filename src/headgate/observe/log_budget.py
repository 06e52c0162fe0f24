"""Log budget: a bound on the log lines that unknown clients can cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.clock import SECOND, Clock, Timer


class LogBudget:
    """Admits `lines` lines in `per` seconds. At the end of that time it reports once how many it left out."""

    def __init__(self, clock: Clock, *, lines: int = 20, per: int = 60) -> None:
        self._clock = clock
        self._lines = lines
        self._per = per
        self._began_at = clock.monotonic() - per * SECOND
        self._admitted = 0
        self._omitted = 0
        self._timer: Timer | None = None

    def admits(self, report: Callable[[str], object]) -> bool:
        """Return whether to write one more line; if not, count it and call `report` later with a sentence."""
        if self._clock.monotonic() - self._began_at >= self._per * SECOND:
            self._end_period(report)
        if self._admitted < self._lines:
            self._admitted += 1
            return True
        self._omitted += 1
        if self._timer is None and asyncio._get_running_loop() is not None:
            self._timer = self._clock.call_at(self._began_at + self._per * SECOND, lambda: self._end_period(report))
        return False

    def _end_period(self, report: Callable[[str], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        omitted, self._omitted = self._omitted, 0
        self._began_at, self._admitted = self._clock.monotonic(), 0
        if omitted:
            report(f"{omitted} more such lines were left out in the last {self._per} s")
