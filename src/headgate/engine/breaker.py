"""A circuit breaker: a store that does not answer is left alone for a while, longer each time."""

from __future__ import annotations

from headgate.clock import SECOND

FIRST = SECOND // 2
LONGEST = 30 * SECOND


class Breaker:
    """Closed while all is well. Instants are monotonic microseconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0

    def is_open(self, now: int) -> bool:
        """Whether the store is to be left alone still."""
        return now < self._until

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    def fail(self, now: int) -> int:
        """It did not answer: when it may be asked again."""
        self._until = now + min(LONGEST, FIRST << min(self._failures, 10))
        self._failures += 1
        return self._until

    def succeed(self) -> None:
        """It answered."""
        self._failures = 0
        self._until = 0
