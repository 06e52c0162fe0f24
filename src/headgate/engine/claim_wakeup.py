"""The wake-up of the claim loop: a job of some queue may have become claimable, or a sweep is due."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable


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
