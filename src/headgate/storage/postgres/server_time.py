"""What time it is at the server, as this process knows it, and whether the server's clock has stepped.

Wall time is the server's own: what is stored by one machine is compared by another. Limit time is the server's clock
and an offset that all nodes share. A node that sees limit time step against its own monotonic clock corrects the
offset, so that no step of the server's clock opens or closes a limit.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headgate.clock import SECOND, Clock

STEP = SECOND
"""By how much limit time has to be off before it counts as a step. A clock that is slewed is off by far less."""

DRIFT = 1000
"""Two clocks part by less than one microsecond in so many."""


class Instants(NamedTuple):
    """One moment: wall time and limit time."""

    now: int
    limit_now: int


class StoreTime(Protocol):
    """Where a store on a server has its time from."""

    def now(self) -> int:
        """Wall time at this moment, as far as it is known without asking."""
        ...

    def limit_now(self) -> int:
        """Limit time at this moment, as far as it is known without asking."""
        ...

    def own(self) -> Instants | None:
        """What statements are to take for the time instead of the server's clock."""
        ...

    def heard(self, sent_at: int, now: int, ahead: int) -> int:
        """The server's clock was `now`, and limit time `ahead` of it, in a reply to what was sent at `sent_at`.

        By how much limit time has stepped; 0 for an honest clock.
        """
        ...

    def believe(self) -> None:
        """Limit time is where the store has it, whatever was known: take the next reading for granted."""
        ...


class OwnTime:
    """The time of this process, in place of the server's: for tests, where time stands still until it is moved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()

    def now(self) -> int:
        return self._clock.now()

    def limit_now(self) -> int:
        return self._clock.monotonic() + self._ahead

    def own(self) -> Instants | None:
        return Instants(self.now(), self.limit_now())

    def heard(self, sent_at: int, now: int, ahead: int) -> int:
        return 0

    def believe(self) -> None:
        """There is nobody else to believe."""


class ServerTime:
    """The time of the server.

    A reply tells what its clock was between sending and hearing; the later of the two bounds is what is told, so that
    `limit_now` is never ahead of the server.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = _Offset()
        self._limit = _Offset()

    def now(self) -> int:
        return self._clock.monotonic() + self._wall.least

    def limit_now(self) -> int:
        return self._clock.monotonic() + self._limit.least

    def own(self) -> Instants | None:
        return None

    def heard(self, sent_at: int, now: int, ahead: int) -> int:
        heard_at = self._clock.monotonic()
        # Wall time may step as its operators like.
        if self._wall.step(now - heard_at, now - sent_at):
            self._wall = _Offset()
        self._wall.narrow(now - heard_at, now - sent_at, heard_at)
        limit_now = now + ahead
        stepped = self._limit.step(limit_now - heard_at, limit_now - sent_at)
        if not stepped:
            self._limit.narrow(limit_now - heard_at, limit_now - sent_at, heard_at)
        return stepped

    def believe(self) -> None:
        self._limit.forget()


class _Offset:
    """How far another clock is ahead of ours: no less than `least`, no more than `most`."""

    def __init__(self) -> None:
        self.least = 0
        self.most = 0
        self._as_of: int | None = None

    def forget(self) -> None:
        """Go on from what is known, until the next reading says otherwise."""
        self._as_of = None

    def step(self, least: int, most: int) -> int:
        """By how much the other clock has stepped, if what was just read of it does not fit what is known."""
        if self._as_of is None:
            return 0
        if least > self.most + STEP:
            return least - self.most
        if most < self.least - STEP:
            return most - self.least
        return 0

    def narrow(self, least: int, most: int, now: int) -> None:
        """Know better by one more reading."""
        if self._as_of is None:
            self.least, self.most = least, most
        else:
            # What was known has become a little less sure since.
            slack = (now - self._as_of) // DRIFT
            self.least, self.most = max(self.least - slack, least), min(self.most + slack, most)
            if self.least > self.most:
                # Less than a step apart: a clock that is slewed, or was set by a little.
                self.least, self.most = least, most
        self._as_of = now
