"""One claim, as the lanes that it looks at see it."""

from __future__ import annotations

from typing import Generic

from headgate.storage.memory.job import Job, L

LATE_A_VISIT = 100
"""How many jobs of one lane whose time to start has passed a claim ends before it leaves the rest for the next one."""


class Visit(Generic[L]):
    """What a lane needs to know of the claim that looks at it, and what it found late or unknown."""

    __slots__ = ("aside", "known", "late", "set_aside", "wall")

    def __init__(self, wall: int, known: frozenset[str], aside: dict[str, dict[L, None]]) -> None:
        self.wall = wall
        self.known = known
        self.aside = aside
        self.late: list[Job[L]] = []
        self.set_aside: list[Job[L]] = []
