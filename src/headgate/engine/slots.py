"""Slots: how many jobs of each queue run on this node, and how many more it can start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headgate.jobs.job import ClaimedJob
from headgate.storage.records import Room


class Slots:
    """Counts the slots in use by queue; `capacity` maps each served queue to its slots."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self.capacity = capacity
        self._busy = dict.fromkeys(capacity, 0)
        self._odd_for_gated = dict.fromkeys(capacity, True)
        # The queues in which jobs may wait only for a slot.
        self._short_of_slots = set(capacity)

    @property
    def busy(self) -> dict[str, int]:
        """The slots in use, by queue."""
        return dict(self._busy)

    def take(self, queue: str) -> None:
        """Take a slot for a job of the queue."""
        self._busy[queue] += 1

    def release(self, queue: str) -> bool:
        """Release the slot of a job of the queue; return whether another job may wait for it."""
        self._busy[queue] -= 1
        return queue in self._short_of_slots

    def free_in(self, queue: str) -> int:
        """Return the free slots of a queue; 0 for a queue that this node does not serve."""
        return self.capacity.get(queue, 0) - self._busy.get(queue, 0)

    @property
    def free(self) -> int:
        """Return the free slots of all queues."""
        return sum(max(0, capacity - self._busy[queue]) for queue, capacity in self.capacity.items())

    def rooms(self) -> dict[str, Room]:
        """Return what the next claim may ask for; queues without a free slot are left out.

        All queues count as short of slots until `note_claimed` shows otherwise, because a claim does not ask for slots
        that are released during it.
        """
        rooms: dict[str, Room] = {}
        self._short_of_slots.update(self.capacity)
        for queue, capacity in self.capacity.items():
            free = capacity - self._busy[queue]
            if free > 0:
                # The odd slot goes to jobs with and without limits in turn, so a node with one slot starves neither.
                self._odd_for_gated[queue] = not self._odd_for_gated[queue]
                rooms[queue] = Room(free, gated_first=self._odd_for_gated[queue])
        return rooms

    def note_claimed(self, rooms: Mapping[str, Room], jobs: Sequence[ClaimedJob]) -> None:
        """Note the queues that were not short of slots: a claim for `rooms` returned fewer jobs than slots."""
        counts = Counter([job.queue for job in jobs])
        self._short_of_slots.difference_update(queue for queue, room in rooms.items() if counts[queue] < room.slots)
