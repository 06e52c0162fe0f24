"""What plain code was answered that drew on a bucket under an id."""

from __future__ import annotations

from heapq import heappop, heappush

from headgate.jobs.job import Draw


class Notes:
    """Notes by bucket and id, each until a limit time."""

    def __init__(self) -> None:
        self._notes: dict[tuple[Draw, str], tuple[str, int]] = {}
        self._ends: list[tuple[int, str, str, str]] = []

    def find(self, draw: Draw, id: str, now: int) -> str | None:
        note, until = self._notes.get((draw, id), (None, 0))
        return note if until > now else None

    def keep(self, draw: Draw, id: str, note: str | None, until: int) -> None:
        """Note it, in place of what was noted before; None forgets that."""
        if note is None:
            self._notes.pop((draw, id), None)
        else:
            self._notes[draw, id] = (note, until)
            heappush(self._ends, (until, draw.limit, draw.key, id))

    def evict(self, count: int, now: int) -> int:
        """Forget up to `count` notes that count no more."""
        forgotten = 0
        while forgotten < count and self._ends and self._ends[0][0] <= now:
            _, limit, key, id = heappop(self._ends)
            place = (Draw(limit, key), id)
            if place in self._notes and self._notes[place][1] <= now:
                del self._notes[place]
                forgotten += 1
        return forgotten
