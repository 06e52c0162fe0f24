"""A circuit breaker: after a failure it blocks calls to a store for a while, longer each time."""

from __future__ import annotations

from headgate.clock import SECOND

FIRST_PAUSE = SECOND // 2
MAX_PAUSE = 30 * SECOND


class Breaker:
    """Closed while calls succeed; open for 0.5 s to 30 s after a failure. Instants are monotonic microseconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0

    def is_open(self, now: int) -> bool:
        """Return whether calls are blocked at `now`."""
        return now < self._until

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    def fail(self, now: int) -> int:
        """Open the breaker after a failed call; return until when."""
        self._until = now + min(MAX_PAUSE, FIRST_PAUSE << min(self._failures, 10))
        self._failures += 1
        return self._until

    def succeed(self) -> None:
        """Close the breaker after a successful call."""
        self._failures = 0
        self._until = 0
