"""The gated lanes of one queue that draw on the same limits, in lines."""

from __future__ import annotations

from typing import Generic

from headgate.storage.memory.bucket import Waiters
from headgate.storage.memory.line import Line, M


class Group(Generic[M]):
    """The gated lanes of one queue whose jobs draw on the same limits, in the lines that a claim looks at.

    Each of them is due, asleep, or behind a bucket whose timer stands in `opening`; or no claim could take from it, and
    it is in none.
    """

    __slots__ = ("asleep", "due", "limits", "opening", "queue")

    def __init__(self, queue: str, limits: tuple[str, ...]) -> None:
        self.queue = queue
        self.limits = limits
        self.due: Line[M] = Line()
        self.asleep: Line[M] = Line()
        self.opening: Line[Waiters[M]] = Line()

    @property
    def has_lanes(self) -> bool:
        return self.due.head() is not None or self.opening.head() is not None or self.asleep.head() is not None

    def next_due(self, wall: int, ahead: int) -> tuple[int, int, M] | None:
        """The lane that is due for longest, as (since, tick, lane); `ahead` is limit time minus wall time."""
        due = self.due.head()
        asleep = self.asleep.head()
        if asleep is not None and asleep[0] <= wall:
            since = asleep[0] + ahead
            if due is None or since < due[0]:
                return since, asleep[1], asleep[2]
        return due
