"""A map that forgets what has become idle, a little at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headgate.clock import SECOND

V = TypeVar("V")

STEPS = 8
"""How many entries one call looks at."""

PAUSE = SECOND // 10_000
"""While a pass is on, how long (µs) hits leave it alone; misses never do."""

PASS_EVERY = 60 * SECOND
"""How often (µs) everything is gone through, however little is added."""


class ExpiringMap(Generic[V]):
    """Values by key, each kept at least until `idle_at(value)`.

    What is touched lies in `recent`. A pass makes that `older` and goes through it a few entries a call: what is idle
    is dropped, the rest moves over. A pass begins when the number of keys has doubled since the last one, and once a
    minute; so each addition pays for a bounded number of looks, nothing is ever swept at once, and the size follows
    what is active. Not safe from several threads: whoever owns the map has the lock.
    """

    __slots__ = ("_idle_at", "_older", "_pass_at", "_pass_size", "look_at", "recent")

    def __init__(self, idle_at: Callable[[V], int]) -> None:
        self.recent: dict[str, V] = {}
        self._older: dict[str, V] = {}
        self._idle_at = idle_at
        self._pass_at = 0
        self._pass_size = 64
        self.look_at = 0
        """From then on even who finds a key in `recent` should come through `find`."""

    def find(self, key: str, now: int) -> V | None:
        """The value, or None; afterwards it is in `recent`."""
        self._fade(now)
        value = self.recent.get(key)
        if value is None and self._older:
            value = self._older.pop(key, None)
            if value is not None:
                self.recent[key] = value
        return value

    def pop(self, key: str) -> V | None:
        """The value, which is forgotten, or None."""
        value = self.recent.pop(key, None)
        return self._older.pop(key, None) if value is None else value

    def clear(self) -> None:
        """Forget everything."""
        self.recent.clear()
        self._older.clear()

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def _fade(self, now: int) -> None:
        if self._older:
            for _ in range(STEPS):
                key, value = self._older.popitem()
                if self._idle_at(value) > now:
                    self.recent[key] = value
                if not self._older:
                    self._pass_size = 2 * len(self.recent) + 64
                    break
        elif now >= self._pass_at or len(self.recent) >= self._pass_size:
            self._pass_at = now + PASS_EVERY
            self.recent, self._older = {}, self.recent
        self.look_at = now + PAUSE if self._older else self._pass_at
