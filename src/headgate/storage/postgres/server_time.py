"""The server's time as this process has last read it; steps of the server's clock are removed from limit time.

Wall time is the server's own, because instants that one machine stores are compared by others. Limit time is the
server's clock and an offset that all nodes share. A node that sees limit time step against its own monotonic clock
corrects the offset, so that no step of the server's clock opens or closes a limit.

The invariant: a start that a node makes at limit time t is made no earlier than t by the node's own monotonic clock,
except for `AHEAD`, 1 / `DRIFT` of the time since, and the time of the fastest of the last replies. So limit time that
runs ahead is corrected exactly, because it opens limits early: a series of small steps too, which is why limit time
never follows one. Limit time that falls behind only opens them late. It is corrected if it falls behind by more than
`BEHIND`, and accepted otherwise: a node whose own clock stood still for a moment has set it back for all.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.clock import SECOND, Clock
from headgate.storage.postgres.database import Session

AHEAD = 2000
"""The lead of limit time at which it is corrected (microseconds).

The margin of a strict rate is 20 ms by default, and a late start may use half of it. In a minute, this, `DRIFT` and a
reply within 2 ms use the other half.
"""

BEHIND = SECOND
"""The lag of limit time at which it is corrected (microseconds)."""

DRIFT = 10_000
"""Two clocks that run freely differ by less than one microsecond after so many. A faster one is corrected."""

FOLLOW_EVERY = 5.0
"""Seconds between two readings of the server's clock by a process that runs no other statements."""


class Instants(NamedTuple):
    """One moment: wall time and limit time."""

    now: int
    limit_now: int


class ServerTime:
    """The time of the server.

    A reply shows what the server's clock was between request and reply. Of the two bounds, the one is used with which
    `limit_now` is never ahead of the server.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = _Offset()
        self._limit = _Offset()

    def now(self) -> int:
        """Return wall time at this moment, as far as it is known without a statement."""
        return self._clock.monotonic() + self._wall.least

    def limit_now(self) -> int:
        """Return limit time at this moment, as far as it is known without a statement."""
        return self._clock.monotonic() + self._limit.least

    def own(self) -> Instants | None:
        """Return the time that statements use instead of the server's clock; None for the server's clock."""
        return None

    def observe(self, sent_at: int, now: int, ahead: int) -> int:
        """Note a reply: the server's clock was `now`, and limit time `ahead` of it, after the request at `sent_at`.

        Returns by how much limit time has stepped; 0 if it has not.
        """
        received_at = self._clock.monotonic()
        # Wall time steps when operators set the clock.
        self._wall.narrow(now - received_at, now - sent_at, received_at)
        limit_now = now + ahead
        stepped = self._limit.step(limit_now - received_at, limit_now - sent_at, received_at)
        if not stepped:
            self._limit.narrow(limit_now - received_at, limit_now - sent_at, received_at, follows_ahead=False)
        return stepped

    def reset(self) -> None:
        """Take the next reading of limit time as right, whatever was known."""
        self._limit.forget()


class OwnTime(ServerTime):
    """The time of this process in place of the server's: for tests, where time stands still until it is moved."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ahead = clock.now() - clock.monotonic()

    def now(self) -> int:
        return self._clock.now()

    def limit_now(self) -> int:
        return self._clock.monotonic() + self._ahead

    def own(self) -> Instants | None:
        return Instants(self.now(), self.limit_now())

    def observe(self, sent_at: int, now: int, ahead: int) -> int:
        return 0


class _Offset:
    """How far another clock is ahead of this one: at least `least`, at most `most`."""

    def __init__(self) -> None:
        self.least = 0
        self.most = 0
        self._as_of: int | None = None

    def forget(self) -> None:
        """Keep the offset until the next reading replaces it."""
        self._as_of = None

    def step(self, least: int, most: int, now: int) -> int:
        """Return by how much the other clock has stepped, if the new bounds do not fit the known ones; else 0.

        It is the smallest step that explains the new bounds.
        """
        if self._as_of is None:
            return 0
        slack = (now - self._as_of) // DRIFT
        if least > self.most + slack + AHEAD:
            return least - self.most
        if most < self.least - slack - BEHIND:
            return most - self.least
        return 0

    def narrow(self, least: int, most: int, now: int, *, follows_ahead: bool = True) -> None:
        """Narrow the bounds by another reading; one that does not fit replaces them.

        Without `follows_ahead`, bounds are kept if the reading is ahead of them: else many small steps would add up.
        """
        if self._as_of is None:
            self.least, self.most, self._as_of = least, most, now
            return
        # The known bounds have become a little less certain since then. What is less than a microsecond counts next
        # time: frequent readings must not hide the drift.
        slack = (now - self._as_of) // DRIFT
        self._as_of += slack * DRIFT
        self.least, self.most = self.least - slack, self.most + slack
        is_ahead = least > self.most
        if most < self.least or (is_ahead and follows_ahead):
            self.least, self.most = least, most
        elif not is_ahead:
            self.least, self.most = max(self.least, least), min(self.most, most)


async def follow_clock(session: Session, time: ServerTime, clock: Clock) -> None:
    """Read the server's clock."""
    sent_at = clock.monotonic()
    row = await session.row("clock")
    stepped = time.observe(sent_at, row["now"], row["ahead"])
    if stepped:
        await correct_limit_time(session, time, row["ahead"], stepped)


async def correct_limit_time(session: Session, time: ServerTime, ahead: int, stepped: int) -> None:
    """Remove the step of the server's clock from limit time, unless another node has.

    If that would set limit time back behind a value that others have read, this process was wrong: its own clock has
    stood still, as on a machine that is moved. Then it uses the stored limit time.
    """
    if await session.execute("shift_limit_time", seen=ahead, shift=-stepped):
        return
    row = await session.row("clock")
    if row["ahead"] == ahead:
        time.reset()
