"""A booked slot."""

from __future__ import annotations

from headgate.limits.standalone.budget import Budget


class _ReservedStart:
    def __init__(self, budget: Budget, key: str, id: str, delay: float) -> None:
        self._budget = budget
        self._key = key
        self.id = id
        """The id of the booking; booking again with it returns the same slot."""
        self.delay = delay
        """Seconds from the booking to the slot."""


class Reservation(_ReservedStart):
    """A booked slot: wait for `delay` seconds and start, without asking again."""

    async def cancel(self) -> bool:
        """Give the slot back and return True, if it is still ahead and nothing of the key was booked after it."""
        return await self._budget.cancel_async(self._key, self.id)


class SyncReservation(_ReservedStart):
    """A slot booked by a thread; see `Reservation`."""

    def cancel(self) -> bool:
        """Same as `Reservation.cancel`."""
        return self._budget.cancel(self._key, self.id)
