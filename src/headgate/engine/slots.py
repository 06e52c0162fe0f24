"""What a node may claim: jobs for its free slots, in queues where a job may have become claimable."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from headgate.jobs.job import ClaimedJob
from headgate.storage.records import FreeSlots


class Slots:
    """Counts the slots in use by queue.

    `capacity` maps each served queue to its slots. `most` bounds those of all queues together, which they share by
    their `weights` (default: 1 each) if not all can have what they want.
    """

    def __init__(
        self, capacity: Mapping[str, int], most: int | None = None, weights: Mapping[str, int] | None = None
    ) -> None:
        self.capacity = capacity
        self._most = most
        self._is_quiet = False
        self._weights = weights or {}
        self._busy = dict.fromkeys(capacity, 0)
        self._odd_for_gated = dict.fromkeys(capacity, True)
        # The queues in which jobs may wait only for a slot.
        self._short_of_slots = set(capacity)

    @property
    def busy(self) -> dict[str, int]:
        """The slots in use, by queue."""
        return dict(self._busy)

    def change(self, capacity: Mapping[str, int], most: int | None, *, is_quiet: bool) -> None:
        """Change the slots of the served queues and the bound of all; while the node is quiet, none is free.

        Jobs in more slots than that continue.
        """
        self.capacity = {queue: capacity.get(queue, slots) for queue, slots in self.capacity.items()}
        self._most = most
        self._is_quiet = is_quiet
        # What earlier claims found was for other slots.
        self._short_of_slots.update(self.capacity)

    def take(self, queue: str) -> None:
        """Take a slot for a job of the queue."""
        self._busy[queue] += 1

    def release(self, queue: str) -> Collection[str]:
        """Release the slot of a job of the queue; return the queues in which a job may wait for it."""
        self._busy[queue] -= 1
        if self._most is not None:
            return self._short_of_slots
        return (queue,) if queue in self._short_of_slots else ()

    def most_in(self, queue: str) -> int:
        """Return how many jobs of a queue can run at once, at least 1."""
        capacity = max(1, self.capacity.get(queue, 1))
        return capacity if self._most is None else max(1, min(capacity, self._most))

    def free_in(self, queue: str) -> int:
        """Return the free slots of a queue; 0 for a queue that this node does not serve."""
        if self._is_quiet:
            return 0
        return max(0, self.capacity.get(queue, 0) - self._busy.get(queue, 0))

    @property
    def free(self) -> int:
        """Return the free slots of all queues."""
        if self._is_quiet:
            return 0
        free = sum(max(0, capacity - self._busy[queue]) for queue, capacity in self.capacity.items())
        return free if self._shared is None else min(free, self._shared)

    @property
    def are_shared(self) -> bool:
        """Whether the queues share their slots, because all together are bounded."""
        return self._most is not None

    @property
    def _shared(self) -> int | None:
        """The free slots that all queues share; None if they are not bounded together."""
        return None if self._most is None else max(0, self._most - sum(self._busy.values()))

    def free_slots(self, queues: Iterable[str] | None = None) -> dict[str, FreeSlots]:
        """Return what the next claim may ask for in these queues (default: all).

        Queues without a free slot are left out, in a quiet node all. They count as short of slots until `note_claimed`
        shows otherwise, because a claim does not ask for slots that are released during it.
        """
        free_slots: dict[str, FreeSlots] = {}
        if self._is_quiet:
            return free_slots
        served = self.capacity.keys() if queues is None else queues
        self._short_of_slots.update(served)
        shared = self._shared
        for queue in served:
            free = self.capacity[queue] - self._busy[queue]
            if shared is not None:
                free = min(free, shared)
            if free > 0:
                # The odd slot goes to jobs with and without limits in turn, so a node with one slot starves neither.
                self._odd_for_gated[queue] = not self._odd_for_gated[queue]
                weight = self._weights.get(queue, 1)
                free_slots[queue] = FreeSlots(free, self._odd_for_gated[queue], self._busy[queue], weight)
        if shared is not None:
            # The first queue gets the odd slot, so each is the first one in turn.
            first, *rest = self.capacity
            self.capacity = {queue: self.capacity[queue] for queue in (*rest, first)}
        return free_slots

    def shared_by(self, free_slots: Mapping[str, FreeSlots]) -> int | None:
        """Return how many slots these queues share; None if each can be filled."""
        shared = self._shared
        return None if shared is None or sum(free.slots for free in free_slots.values()) <= shared else shared

    def note_claimed(self, free_slots: Mapping[str, FreeSlots], jobs: Sequence[ClaimedJob]) -> None:
        """Note the queues that were not short of slots: a claim for `free_slots` returned fewer jobs than slots."""
        if self._most is not None:
            # A queue may have got fewer than its free slots because others had their parts.
            return
        counts = Counter([job.queue for job in jobs])
        self._short_of_slots.difference_update(
            queue for queue, free in free_slots.items() if counts[queue] < free.slots
        )


class ClaimWakeup:
    """Wakes the claim loop for some of the served `queues`; wake-ups before the next claim of a queue are merged."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = frozenset(queues)
        self._woken: set[str] = set()
        # Woken without a cause.
        self._swept: set[str] = set()
        self._event = asyncio.Event()

    def wake(self, queues: Iterable[str] | None = None) -> None:
        """Wake the loop because a job of these queues may have become claimable; None: of any queue."""
        woken = self._queues if queues is None else self._queues.intersection(queues)
        if woken:
            self._woken.update(woken)
            self._event.set()

    def sweep(self) -> None:
        """Wake the loop for every queue without a cause, as a safety net."""
        self._swept = {*self._queues}
        self._event.set()

    def claim_ended(self) -> None:
        """Wake the loop again for what was woken while it could not be claimed."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until something may be claimed."""
        await self._event.wait()
        self._event.clear()

    def is_woken(self, queues: Collection[str]) -> bool:
        """Whether one of these queues was woken for a cause."""
        return not self._woken.isdisjoint(queues)

    def take(self, queues: Collection[str]) -> tuple[bool, bool]:
        """Return whether these queues were woken for a cause, and whether for a sweep; they no longer are."""
        woken, swept = self.is_woken(queues), not self._swept.isdisjoint(queues)
        self._woken.difference_update(queues)
        self._swept.difference_update(queues)
        return woken, swept
