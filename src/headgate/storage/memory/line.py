"""The order in which a claim meets what waits: earliest instant first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar


class Movable(Protocol):
    """What stands in lines. A new tick takes it out of the one it stood in."""

    tick: int


M = TypeVar("M", bound=Movable)


class Line(Generic[M]):
    """Lanes or wait lists in order of an instant; an entry is stale once its item has another tick."""

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, M]] = []
        self._limit = 64

    def push(self, at: int, tick: int, item: M) -> None:
        heappush(self._entries, (at, tick, item))
        if len(self._entries) > self._limit:
            self._entries = [entry for entry in self._entries if entry[2].tick == entry[1]]
            heapify(self._entries)
            self._limit = max(64, 2 * len(self._entries))

    def head(self) -> tuple[int, int, M] | None:
        entries = self._entries
        while entries:
            head = entries[0]
            if head[2].tick == head[1]:
                return head
            heappop(entries)
        return None

    def __iter__(self) -> Iterator[M]:
        return (item for _, tick, item in self._entries if item.tick == tick)

    def __contains__(self, item: M) -> bool:
        return any(other is item for other in self)
