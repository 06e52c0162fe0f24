"""One claim, as the lanes that it looks at see it."""

from __future__ import annotations

from typing import Generic

from headgate.storage.memory.job import Job, L

EXPIRED_A_VISIT = 100
"""How many expired jobs of one lane a claim fails before it leaves the rest for the next one."""


class Visit(Generic[L]):
    """What a lane needs to know of the claim that looks at it, and what it found expired or unknown."""

    __slots__ = ("aside", "expired", "tasks", "unknown", "wall")

    def __init__(self, wall: int, tasks: frozenset[str], aside: dict[str, set[L]]) -> None:
        self.wall = wall
        self.tasks = tasks
        self.aside = aside
        self.expired: list[Job[L]] = []
        self.unknown: set[str] = set()
