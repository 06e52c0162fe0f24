"""The polling of a gate's lines: the seconds until the next poll, and the log of failures."""

from __future__ import annotations

import logging

from headgate.errors import StorageUnavailable

logger = logging.getLogger("headgate.gates")

POLL_INTERVAL = 0.1
"""Seconds between polls, which find lines that another program has started."""

RETRY_INTERVAL = 1.0
"""Seconds until the next poll when Redis or the broker could not be reached."""


class PollSchedule:
    """Returns the seconds until the next poll of the lines."""

    def __init__(self) -> None:
        self._is_failing = False

    def after(self, next_in: float | None) -> float:
        """Return the seconds to wait, when a waiting message can go in `next_in` seconds (None: none waits)."""
        self._is_failing = False
        return POLL_INTERVAL if next_in is None else min(next_in, POLL_INTERVAL)

    def after_failure(self, error: Exception) -> float:
        """Return the seconds to wait after a failure, and log the first one. Unsent messages return to their place."""
        if not self._is_failing:
            unreachable = isinstance(error, StorageUnavailable)
            logger.warning("the gate cannot release: %s", error, exc_info=None if unreachable else error)
        self._is_failing = True
        return RETRY_INTERVAL
