"""Keys that are closed for a while, whatever their budget, because a server has refused them."""

from __future__ import annotations

MANY = 64
"""Keys; at twice the number that was still closed at the last check, those that have opened again are removed."""


class ClosedKeys:
    """Until when keys are closed (µs of limit time). Not thread-safe: the owner's lock guards it."""

    __slots__ = ("_look_at", "until_by_key")

    def __init__(self) -> None:
        self.until_by_key: dict[str, int] = {}
        self._look_at = MANY

    def close(self, key: str, until: int, now: int) -> None:
        """Close a key until then; a key that is closed for longer stays so."""
        until_by_key = self.until_by_key
        if len(until_by_key) >= self._look_at:
            for other in [other for other, end in until_by_key.items() if end <= now]:
                del until_by_key[other]
            self._look_at = 2 * len(until_by_key) + MANY
        until_by_key[key] = max(until, until_by_key.get(key, 0))

    def until(self, key: str) -> int:
        """Return when a key opens, or opened; 0 if it was not closed."""
        return self.until_by_key.get(key, 0)

    def open(self, key: str) -> None:
        """Open a key at once."""
        self.until_by_key.pop(key, None)

    def clear(self) -> None:
        """Open all keys."""
        self.until_by_key.clear()
