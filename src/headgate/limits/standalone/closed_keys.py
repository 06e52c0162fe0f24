"""Keys that were closed for a while, whatever their budget: a server has refused them."""

from __future__ import annotations

MANY = 64
"""Keys; with twice as many as were still closed at the last look, those are forgotten that have opened again."""


class ClosedKeys:
    """Until when keys are closed (µs of limit time). Not safe from several threads: whoever owns it has the lock."""

    __slots__ = ("_look_at", "until_by_key")

    def __init__(self) -> None:
        self.until_by_key: dict[str, int] = {}
        self._look_at = MANY

    def close(self, key: str, until: int, now: int) -> None:
        """Close a key until then; one that is closed for longer stays so."""
        until_by_key = self.until_by_key
        if len(until_by_key) >= self._look_at:
            for other in [other for other, end in until_by_key.items() if end <= now]:
                del until_by_key[other]
            self._look_at = 2 * len(until_by_key) + MANY
        until_by_key[key] = max(until, until_by_key.get(key, 0))

    def until(self, key: str) -> int:
        """When a key opens, or opened; 0 if it was not closed."""
        return self.until_by_key.get(key, 0)

    def open(self, key: str) -> None:
        """Let a key be as if it had not been closed."""
        self.until_by_key.pop(key, None)

    def clear(self) -> None:
        """Open all keys."""
        self.until_by_key.clear()
