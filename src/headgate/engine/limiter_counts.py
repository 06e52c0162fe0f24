"""Counts of what an app's limiters grant and refuse, and of requests that pass without one, as few events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headgate.clock import SECOND, Clock, Timer
from headgate.engine.bus import EventBus
from headgate.jobs.event import LimiterEvent

WINDOW = 30 * SECOND


@dataclass(slots=True)
class _Window:
    """The counts for one limit since its last event."""

    loop: asyncio.AbstractEventLoop
    key: str
    count: int = 1
    timer: Timer | None = None


class LimiterCounts:
    """Counts calls in any thread, and publishes them on the event loop of the app, as events of this `kind`.

    For each limit there is an event at once, then one every 30 s at most. `loop` returns that loop, or None while the
    app is not open.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        bus: EventBus,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        kind: type[LimiterEvent],
    ) -> None:
        self._kind = kind
        self._clock = clock
        self._bus = bus
        self._loop = loop
        self._lock = threading.Lock()
        self._windows: dict[str, _Window] = {}

    def note(self, limit: str, key: str) -> None:
        """Count one; does nothing while the app is not open, or if nothing takes the events."""
        loop = self._loop()
        if loop is None or not self._bus.has_listener(self._kind):
            return
        with self._lock:
            window = self._windows.get(limit)
            # A loop that has ended, or that a fork has left behind, publishes nothing any more.
            if window is not None and window.loop is loop:
                window.count += 1
                window.key = key
                return
            self._windows[limit] = _Window(loop, key)
        if asyncio._get_running_loop() is loop:
            self._publish(limit)
        else:
            # A loop that ends at this moment closes the app.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._publish, limit)

    def close(self) -> None:
        """Publish what was counted since the last events."""
        with self._lock:
            windows, self._windows = self._windows, {}
        for limit, window in windows.items():
            if window.timer is not None:
                window.timer.cancel()
            if window.count:
                self._bus.publish(self._event(limit, window))

    def _publish(self, limit: str) -> None:
        """Publish what the window of a limit has counted, and begin the next one; an empty window ends."""
        with self._lock:
            window = self._windows.get(limit)
            if window is None:
                return
            if not window.count:
                del self._windows[limit]
                return
            event = self._event(limit, window)
            window.count = 0
        self._bus.publish(event)
        window.timer = self._clock.call_at(self._clock.monotonic() + WINDOW, partial(self._publish, limit))

    def _event(self, limit: str, window: _Window) -> LimiterEvent:
        return self._kind(at=self._clock.now(), limit=limit, key=window.key, count=window.count)
