"""Rounds: when the lines of a gate are looked at again, and what is logged where they cannot be."""

from __future__ import annotations

import logging

from headgate.errors import StorageUnavailable

logger = logging.getLogger("headgate.gates")

LOOK_EVERY = 0.1
"""Seconds after which a line is seen that somebody else has begun."""

AGAIN_AFTER = 1.0
"""Seconds until the next look when Redis or the broker could not be reached."""


class PollSchedule:
    """What comes after each look at the lines: seconds until the next."""

    def __init__(self) -> None:
        self._is_failing = False

    def after(self, next_in: float | None) -> float:
        """What waits can go in `next_in` seconds; None: nothing waits."""
        self._is_failing = False
        return LOOK_EVERY if next_in is None else min(next_in, LOOK_EVERY)

    def after_failure(self, error: Exception) -> float:
        """Nothing is lost: what was not sent goes back to its place. Logged once, until a look goes well."""
        if not self._is_failing:
            unreachable = isinstance(error, StorageUnavailable)
            logger.warning("the gate cannot release: %s", error, exc_info=None if unreachable else error)
        self._is_failing = True
        return AGAIN_AFTER
