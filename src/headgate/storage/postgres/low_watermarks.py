"""Low watermarks: where claims begin to read while dead rows make reading from the start slow.

Claims take jobs from the front of an index and leave dead entries there. While an open transaction could still see
them, the server cannot remove them, and each read from the start passes all of them: one idle transaction made claims
50 times slower. So once reading from the start is slow, a process reads from where it last took jobs, and sweeps from
the start only a second after its last sweep has ended. A job that another process returns, or commits late, below the
low watermark waits for that sweep at most. While reading is fast, there is no low watermark. A claim that sweeps uses
none at all: its snapshot, and the statements that take jobs from it, begin at the start.

The low watermark of arrivals is proven, so they are not swept. A transaction writes a job, and so gets a transaction
id, before it draws the id of an arrival. When a merge M1 sees an arrival L, every transaction that has drawn a lower
id than L has a lower transaction id than M1. When a later merge M2 sees that no transaction below M1 is open, it sees
all arrivals up to L that there will ever be, and merges those that no other transaction has locked. So none is left
below both L + 1 and the first arrival that M2 has seen and not merged. An open transaction holds this low watermark
back if it has written, not if it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.clock import SECOND, Clock
from headgate.storage.claiming import LaneHead

SLOW = 3_000
"""Reading from the start is slow if it takes more microseconds than this."""

SWEEP_EVERY = SECOND

SLACK = SECOND // 10
"""Jobs commit in about the order in which they were created, not exactly in it."""


class LowWatermarks:
    """The low watermarks of one process: `run_at` by lane, `since` of due lanes, `opens_at` of opened buckets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lanes: dict[str, int] = {}
        self._due = 0
        self._opened = 0
        self._swept_at = 0
        self._is_slow = False
        self._are_used = False
        self._round_trip = 0
        self.arrivals = 0
        """The id below which there is no arrival and never will be."""
        self._unproven: tuple[int, int] | None = None

    def begin(self) -> None:
        """Begin a claim. It sweeps if the last sweep was a second ago, or fast."""
        self._are_used = self._is_slow and not self.is_sweep_due
        if not self._are_used:
            self._is_slow = False
            self._swept_at = self._clock.monotonic()

    def looked(self, microseconds: int, in_server: int) -> None:
        """Note how long a snapshot took, in total and in the server."""
        self._round_trip = microseconds - in_server
        self._took(in_server)

    def took(self, microseconds: int) -> None:
        """Note how long another statement took that reads from the front, with its round trip."""
        self._took(microseconds - self._round_trip)

    def _took(self, microseconds: int) -> None:
        if microseconds > SLOW:
            self._is_slow = True
            if not self._are_used:
                self._swept_at = self._clock.monotonic()

    @property
    def is_sweep_due(self) -> bool:
        """Whether the next claim has to sweep."""
        return self.sweeps_in == 0

    @property
    def sweeps_in(self) -> int | None:
        """Microseconds until a claim sweeps; None if claims read from the start at the moment."""
        return max(0, self._swept_at + SWEEP_EVERY - self._clock.monotonic()) if self._is_slow else None

    def of(self, lane: str) -> int:
        """Where to begin in a lane."""
        return self._lanes.get(lane, 0) if self._are_used else 0

    @property
    def due(self) -> int:
        """Where to begin among due lanes."""
        return self._due if self._are_used else 0

    @property
    def opened(self) -> int:
        """Where to begin among opened buckets."""
        return self._opened if self._are_used else 0

    def taken(self, lane: str, heads: Sequence[LaneHead]) -> None:
        """Note that these jobs were taken from the front of a lane."""
        last = heads[-1]
        # Jobs of the lowest priority are taken last: no older job is left then.
        if last.priority == 0:
            self._lanes[lane] = last.run_at - SLACK
        if len(self._lanes) > 10_000:
            self._lanes.clear()

    def merged_up_to(self, last: int, first_left: int | None, *, merger: int, oldest_writer: int) -> None:
        """Note that the transaction `merger` has merged arrivals, `last` being the highest id among them.

        `first_left` is the first that it saw and did not merge; no transaction below `oldest_writer` was open then.
        """
        if self._unproven is not None and oldest_writer >= self._unproven[1]:
            above = self._unproven[0] + 1
            self.arrivals = max(self.arrivals, above if first_left is None else min(above, first_left))
            self._unproven = None
        if self._unproven is None:
            self._unproven = last, merger

    def forget_arrivals(self) -> None:
        """Reset it: a server that has lost its last moments assigns ids again that it had assigned."""
        self.arrivals = 0
        self._unproven = None

    def saw(self, due: Sequence[int], opened: Sequence[int], limit_now: int) -> None:
        """Note since when lanes were due, and when buckets had opened, in the last snapshot."""
        self._due = min(due, default=limit_now) - SLACK
        self._opened = min(opened, default=limit_now) - SLACK
