"""Keys that a server has closed: nothing is sent under them before their time."""

from __future__ import annotations

import threading

MANY = 1000
"""Keys; with more of them those are forgotten that have opened again."""


class ClosedKeys:
    """Until when keys are closed, on a clock's monotonic scale (µs). For threads and tasks alike."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, int] = {}

    def close(self, key: str, until: int, now: int) -> None:
        """Close a key until then; one that is closed for longer stays so."""
        with self._lock:
            if len(self._until) >= MANY:
                self._until = {other: end for other, end in self._until.items() if end > now}
            self._until[key] = max(until, self._until.get(key, 0))

    def until(self, key: str, now: int) -> int | None:
        """When a key opens; None if it is open."""
        with self._lock:
            end = self._until.get(key)
            if end is not None and end <= now:
                del self._until[key]
            return end if end is not None and end > now else None
