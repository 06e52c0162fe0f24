"""Skew: compares the clocks of a node and of the store."""

from __future__ import annotations

from headgate.clock import SECOND

MAX_SKEW = 5 * SECOND
"""How far the clocks may differ (microseconds) without a warning."""


class SkewWatch:
    """Reports a difference of the two clocks once, and again only after they have agreed in between."""

    def __init__(self) -> None:
        self._is_skewed = False

    def observe(self, own: int, stores: int) -> float | None:
        """Return the seconds that the node's clock is ahead of the store's, if it newly exceeds 5 s; else None."""
        was_skewed = self._is_skewed
        self._is_skewed = abs(own - stores) > MAX_SKEW
        return (own - stores) / SECOND if self._is_skewed and not was_skewed else None
