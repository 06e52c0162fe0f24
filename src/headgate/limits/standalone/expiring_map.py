"""A map that removes idle entries, a few at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headgate.clock import SECOND

V = TypeVar("V")

ENTRIES_PER_CALL = 8
"""How many entries one call checks."""

PASS_PAUSE = SECOND // 10_000
"""While a pass runs, how long (µs) hits do not continue it; misses always do."""

PASS_INTERVAL = 60 * SECOND
"""How often (µs) a pass checks all entries, however few are added."""


class ExpiringMap(Generic[V]):
    """Values by key, each kept at least until `idle_at(value)`.

    Used entries are in `recent`. A pass turns `recent` into `older` and checks a few entries of it per call: it drops
    idle ones and moves the others to the new `recent`. A pass begins when the number of keys has doubled since the last
    one, and once a minute. So each addition pays for a bounded number of checks, no call checks everything, and the
    size follows the number of active keys. Not thread-safe: the owner's lock guards it.
    """

    __slots__ = ("_idle_at", "_older", "_pass_at", "_pass_size", "check_at", "recent")

    def __init__(self, idle_at: Callable[[V], int]) -> None:
        self.recent: dict[str, V] = {}
        self._older: dict[str, V] = {}
        self._idle_at = idle_at
        self._pass_at = 0
        self._pass_size = 64
        self.check_at = 0
        """From this instant on, call `find` even if the key is in `recent`."""

    def find(self, key: str, now: int) -> V | None:
        """Return the value, or None, and move it to `recent`."""
        self._expire(now)
        value = self.recent.get(key)
        if value is None and self._older:
            value = self._older.pop(key, None)
            if value is not None:
                self.recent[key] = value
        return value

    def pop(self, key: str) -> V | None:
        """Remove and return the value, or None."""
        value = self.recent.pop(key, None)
        return self._older.pop(key, None) if value is None else value

    def clear(self) -> None:
        """Remove everything."""
        self.recent.clear()
        self._older.clear()

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def _expire(self, now: int) -> None:
        if self._older:
            for _ in range(ENTRIES_PER_CALL):
                key, value = self._older.popitem()
                if self._idle_at(value) > now:
                    self.recent[key] = value
                if not self._older:
                    self._pass_size = 2 * len(self.recent) + 64
                    break
        elif now >= self._pass_at or len(self.recent) >= self._pass_size:
            self._pass_at = now + PASS_INTERVAL
            self.recent, self._older = {}, self.recent
        self.check_at = now + PASS_PAUSE if self._older else self._pass_at
