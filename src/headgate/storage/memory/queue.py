"""A queue: its lanes, their groups and how many jobs it has."""

from __future__ import annotations

from headgate.jobs.job import Draw
from headgate.storage.memory.group import Group
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.tally import Tally


class Queue:
    """The lanes of one queue by draws and variant, and their groups by the limits; the open lane has no draws."""

    __slots__ = ("groups", "lanes", "name", "open", "tally")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally = Tally()
        self.open = Lane(self.tally, Group(name, ()))
        self.lanes: dict[tuple[tuple[Draw, ...], str], Lane] = {((), ""): self.open}
        self.groups: dict[tuple[str, ...], Group[Lane]] = {}
