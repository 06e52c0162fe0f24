"""A budget per key in memory, for handlers of engines that have no such limits: it returns when to retry."""

from __future__ import annotations

import time

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter


class MovingWindow:
    """The exact limiter of `limits`, for one process."""

    def __init__(self, count: int, per: int) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._item = RateLimitItemPerSecond(count, per)

    def wait(self, key: str) -> float:
        """0 if it may go now, or else the seconds after which to come again."""
        if self._limiter.hit(self._item, key):
            return 0.0
        return max(0.01, self._limiter.get_window_stats(self._item, key).reset_time - time.time())
