"""A queue: its lanes, their groups and how many jobs it has."""

from __future__ import annotations

from headgate.jobs.job import Draw
from headgate.storage.memory.group import Group
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.tally import Tally
from headgate.storage.protocol import QueueRecord


class Queue:
    """The lanes of one queue by draws and variant, and their groups by the limits; the open lane has no draws.

    A paused queue is since `paused_at`.
    """

    __slots__ = ("groups", "lanes", "name", "open", "paused_at", "tally")

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused_at: int | None = None
        self.tally = Tally()
        self.open = Lane(self.tally, Group(name, ()))
        self.lanes: dict[tuple[tuple[Draw, ...], str], Lane] = {((), ""): self.open}
        self.groups: dict[tuple[str, ...], Group[Lane]] = {}

    def record(self, wall: int, now: int) -> QueueRecord:
        """As people look at it at that wall and limit time."""
        oldest_at = min((at for lane in self.lanes.values() if (at := lane.oldest(wall)) is not None), default=None)
        ready_at = None if oldest_at is None or self.paused_at is not None else self._ready_at(wall, now)
        return QueueRecord(self.name, self.paused_at, oldest_at, ready_at)

    def _ready_at(self, wall: int, now: int) -> int | None:
        ahead = now - wall
        first = self.open.oldest(wall)
        instants = [] if first is None else [first]
        for group in self.groups.values():
            due = group.next_due(wall, ahead)
            if due is not None:
                instants.append(due[0] - ahead)
            opening = group.opening.head()
            if opening is not None and opening[0] <= now:
                instants.append(opening[0] - ahead)
        return min(instants, default=None)
