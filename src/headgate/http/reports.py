"""Reports that read up to 10,000 rows: one at a time, for a bounded time, and shared by all who ask for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from headgate.clock import SECOND, Clock
from headgate.storage.searching import SEARCH_TIMEOUT, Searches, too_long

T = TypeVar("T")

SHARE = 10
"""A report is reused for 10 times as long as it took, so that reports take at most a tenth of the time."""

LONGEST_REUSE = 60 * SECOND
"""Microseconds for which a report is reused at most."""

MOST_KEPT = 32


@dataclass(slots=True, eq=False)
class _Report:
    reading: asyncio.Task[Any] | None = None
    fresh_until: int | None = None


class ReportMaker:
    """Makes reports for all clients of a process, on the loop of the app.

    However many clients request however many reports, the store makes one at a time, beside its other reads. Requests
    for the same report share its result or its error.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = Searches(clock, at_once=1)
        self._reports: dict[Hashable, _Report] = {}

    def __len__(self) -> int:
        return len(self._reports)

    async def read(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `make`, or of one with an equal `key`. Raises TooManySearches and SearchTooLong."""
        report = self._reports.get(key)
        if report is None or (report.fresh_until is not None and self._clock.monotonic() >= report.fresh_until):
            report = self._reports[key] = _Report()
            report.reading = asyncio.ensure_future(self._make(key, report, make))
            # If no caller is left when it fails, asyncio must not warn about its exception.
            report.reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        assert report.reading is not None
        # A caller that is cancelled must not cancel the report for the others.
        return cast(T, await asyncio.shield(report.reading))

    def changed(self) -> None:
        """Drop what was read before, or is being read, because something was changed."""
        self._reports.clear()

    async def close(self) -> None:
        """End the reports that are being read, and drop the others."""
        readings = [each.reading for each in self._reports.values() if each.reading is not None]
        self.changed()
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _make(self, key: Hashable, report: _Report, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        is_kept = False
        try:
            result, took = await self._turns.run(lambda: self._timed(make))
            report.fresh_until = self._clock.monotonic() + min(SHARE * took, LONGEST_REUSE)
            is_kept = True
            return result
        finally:
            if not is_kept and self._reports.get(key) is report:
                del self._reports[key]
            if len(self._reports) > MOST_KEPT:
                self._reports = {each: kept for each, kept in self._reports.items() if kept.fresh_until is None}

    async def _timed(self, make: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, int]:
        """Return the result of `make`, and the microseconds that it took."""
        began_at = self._clock.monotonic()
        making = asyncio.ensure_future(make())
        try:
            await asyncio.wait([making], timeout=SEARCH_TIMEOUT)
            if not making.done():
                raise too_long("report", "request a shorter time or one key")
            return making.result(), self._clock.monotonic() - began_at
        finally:
            if not making.done():
                making.cancel()
                await asyncio.wait([making])
