"""Refusal log: the refusals of a limiter without an app, as one log line every 30 s at most."""

from __future__ import annotations

import logging

from headgate.clock import SECOND
from headgate.escaping import as_fields
from headgate.limits.rule import NEVER
from headgate.plural import counted

WINDOW = 30 * SECOND
"""The shortest time between two lines of a limiter."""

RECHECK = SECOND
"""The time after which the level of the logger is checked again if it was too high."""

logger = logging.getLogger("headgate.limiter")


class RefusalLog:
    """Logs the refusals of the limiter of that `name`: the first at once, later ones with their number.

    What is refused after a line is in the next one. Any number of threads may count at once; then some refusals may be
    missing in the number, because a lock would slow each refusal.
    """

    __slots__ = ("_name", "count", "next_at")

    def __init__(self, name: str) -> None:
        self._name = name
        self.count: int = 0
        self.next_at: int = 0

    def note(self, key: str, at: int) -> None:
        """Count a refusal at that time (microseconds of one clock), and write a line if one is due."""
        self.count += 1
        if at >= self.next_at:
            self.write(key, at)

    def write(self, key: str, at: int) -> None:
        """Write the line of the refusals that were counted, the latest of them at that time."""
        if not logger.isEnabledFor(logging.INFO):
            self.count, self.next_at = 0, at + RECHECK
            return
        count, self.count, self.next_at = self.count, 0, at + WINDOW
        latest = f", the latest for key {key!r}" if key else ""
        logger.info(
            "%s refused %s%s [refused %s]",
            self._name,
            counted(count, "start"),
            latest,
            as_fields(limiter=self._name, key=key, count=count),
            extra={"event": "LimiterRefused", "headgate": {"limiter": self._name, "key": key, "count": count}},
        )

    def silence(self) -> None:
        """Write nothing from now on: something else reports the refusals."""
        self.next_at = NEVER
