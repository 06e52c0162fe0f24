"""A slot that was booked."""

from __future__ import annotations

from headgate.limits.standalone.budget import Budget


class _ReservedStart:
    def __init__(self, budget: Budget, key: str, id: str, delay: float) -> None:
        self._budget = budget
        self._key = key
        self.id = id
        """Under which it was booked; booking again under it gives the same slot."""
        self.delay = delay
        """Seconds from the booking to the slot."""


class Reservation(_ReservedStart):
    """A slot that was booked: wait for `delay` seconds and go, without asking again."""

    async def cancel(self) -> bool:
        """Give it back if its slot is still ahead and nothing of the key was booked after it; whether that worked."""
        return await self._budget.cancel_async(self._key, self.id)


class SyncReservation(_ReservedStart):
    """A slot that was booked by a thread; see `Reservation`."""

    def cancel(self) -> bool:
        """As `Reservation.cancel`."""
        return self._budget.cancel(self._key, self.id)
