"""Skew: whether a node's own clock tells another time than the store's."""

from __future__ import annotations

from headgate.clock import SECOND

SKEWED = 5 * SECOND
"""How far apart the clocks may be (microseconds) before somebody should hear of it."""


class SkewWatch:
    """Tells once that the two clocks are apart, and again only after they had agreed meanwhile."""

    def __init__(self) -> None:
        self._is_skewed = False

    def notice(self, own: int, stores: int) -> float | None:
        """How many seconds the node's clock is ahead of the store's, if that is news."""
        was_skewed = self._is_skewed
        self._is_skewed = abs(own - stores) > SKEWED
        return (own - stores) / SECOND if self._is_skewed and not was_skewed else None
