"""The wake-up of the claim loop: a job may have become claimable, or a sweep is due."""

from __future__ import annotations

import asyncio


class ClaimWakeup:
    """Wakes the claim loop. Wake-ups that come while it is busy are merged into one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._is_sweep = False

    @property
    def is_set(self) -> bool:
        """Whether the claim loop will claim again without waiting."""
        return self._event.is_set()

    def wake(self) -> None:
        """Wake the loop because a job may have become claimable."""
        self._is_sweep = False
        self._event.set()

    def sweep(self) -> None:
        """Wake the loop without a cause, as a safety net. A pending wake-up stays one with a cause."""
        if not self._event.is_set():
            self._is_sweep = True
            self._event.set()

    async def wait(self) -> bool:
        """Wait for the next wake-up; return whether it is a sweep."""
        await self._event.wait()
        self._event.clear()
        is_sweep, self._is_sweep = self._is_sweep, False
        return is_sweep
