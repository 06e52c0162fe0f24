"""Summaries of throttling: an event at once when a bucket is first met closed, then at most one each 30 s."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from headgate.clock import SECOND
from headgate.jobs.event import JobThrottled
from headgate.storage.records import Throttled

WINDOW = 30 * SECOND
MAX_BUCKETS = 10_000


class ThrottleLog:
    """Turns the closed buckets of each claim into few events."""

    def __init__(self) -> None:
        # Maps a bucket to the start of its window and how often it was met since the last event; oldest window first.
        self._windows: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def events(self, throttled: Iterable[Throttled], at: int, now: int) -> list[JobThrottled]:
        """Return the events to publish; `at` is wall time, `now` monotonic."""
        events: list[JobThrottled] = []
        for met in throttled:
            bucket = (met.draw.limit, met.draw.key)
            began, count = self._windows.get(bucket, (None, 0))
            if began is not None and now - began < WINDOW:
                self._windows[bucket] = (began, count + 1)
                continue
            self._windows[bucket] = (now, 0)
            self._windows.move_to_end(bucket)
            events.append(
                JobThrottled(
                    at=at,
                    limit=met.draw.limit,
                    key=met.draw.key,
                    opens_at=met.opens_at,
                    waiting=met.waiting,
                    count=count + 1,
                )
            )
        while len(self._windows) > MAX_BUCKETS:
            self._windows.popitem(last=False)
        return events
