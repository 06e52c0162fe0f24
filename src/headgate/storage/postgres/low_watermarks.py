"""Low watermarks: the places in an index below which claims do not read, because only dead entries are there.

Lanes leave the front of the line, and buckets the front of those that have opened. Each leaves a dead index entry
there. While an open transaction could still see them, the server cannot remove them, and each read from the start
passes all of them: one idle transaction made claims 50 times slower. So once a snapshot is slow, a process reads from
the first lane and bucket that it last read. Each queue has its own places: a claim of others does not pass its lanes.

**No lane is put in line below a place that a process may have passed.** Whoever puts a lane in line relies on it:

- A low watermark of lanes is below the present limit time, less `SLACK`. A lane without a virtual time gets the present
  limit time as its place, whenever its jobs arrived, less a microsecond for each lane that is merged with it.
- A lane of a fair queue that joins other lanes gets the lowest virtual time in line, or a higher one (a new key: one
  below). If the line is empty, jobs that arrive get the highest virtual time so far, and a lane that waited for a
  bucket keeps its virtual time, unless the claim that puts it in line has passed that. So the lowest virtual time in
  line does not fall, and the low watermark of a fair queue is the lowest virtual time that was last read, less `SLACK`.
  It stays while the line is empty.
- Buckets open at the present limit time or later.

What is left is a transaction that chooses a place and commits so much later that other claims have passed it by more
than `SLACK`, and a lane that keeps a virtual time which another process has passed. Such a lane or bucket waits for a
sweep: each second one begins `REACH` below the first position, which is longer than transactions of Headgate last.
What is still lower waits for a whole sweep, which reads from the start. Sweeps take a tenth of the time at most, whole
ones a hundredth: they pass all dead entries, and a whole one beside a transaction that was open for six minutes took
0.2 s. Jobs need no sweep: each lane has a front that is proven, see `merge` in lanes.sql.

The low watermark of arrivals is proven, so they are not swept. A transaction writes a job, and so gets a transaction
id, before it draws the id of an arrival. When a merge M1 sees an arrival L, every transaction that has drawn a lower
id than L has a lower transaction id than M1. When a later merge M2 sees that no transaction below M1 is open, it sees
all arrivals up to L that there will ever be, and merges those that no other transaction has locked. So none is left
below both L + 1 and the first arrival that M2 has seen and not merged. An open transaction holds this low watermark
back if it has written, not if it only reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headgate.clock import FARTHEST, SECOND, Clock
from headgate.storage.procedures.claim_snapshot import LaneRow

SLOW = 3_000
"""A snapshot is slow if it takes more microseconds than this in the server."""

SWEEP_EVERY = SECOND

SWEEP_SHARE = 10
"""A sweep is followed by so many times its own duration without one."""

WHOLE_EVERY = 60 * SECOND

WHOLE_SHARE = 100
"""The same for a whole sweep."""

AFTER_FAILURE = 600 * SECOND
"""After a whole sweep that the server ended, as it took too long, the next one is tried so much later."""

REACH = 10 * SECOND
"""How far below the first position a sweep begins."""

SLACK = SECOND // 10
"""Claims commit in about, not exactly, the order in which they put lanes in line. It is also ten turns of a key."""


class LowWatermarks:
    """The low watermarks of one process: the lowest due lane's place, opened bucket's `opens_at`, and arrival's id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The places of each queue that was read.
        self._due: dict[str, int] = {}
        self._virtual_times: dict[str, int] = {}
        self._opened: dict[str, int] = {}
        self._sweeps_at = 0
        self._sweeps_whole_at = 0
        self._is_slow = False
        self._below: int | None = None
        """How far below the last positions this claim begins to read; None: it reads from the start."""
        self.arrivals = 0
        """The id below which there is no arrival and never will be."""
        self._unproven: tuple[int, int] | None = None

    def begin(self) -> None:
        """Begin a claim. It sweeps if a sweep is due, and reads from the start if the last whole sweep was fast."""
        now = self._clock.monotonic()
        if not self._is_slow:
            self._below = None
        elif now >= self._sweeps_whole_at:
            self._below, self._sweeps_whole_at = None, now + AFTER_FAILURE
        else:
            self._below = REACH if now >= self._sweeps_at else SLACK

    def record_read_duration(self, in_server: int) -> None:
        """Note that a snapshot took so many microseconds in the server."""
        now = self._clock.monotonic()
        if self._below is None:
            self._is_slow = in_server > SLOW
            self._sweeps_whole_at = now + max(WHOLE_EVERY, WHOLE_SHARE * in_server)
        if self._below != SLACK:
            self._sweeps_at = now + max(SWEEP_EVERY, SWEEP_SHARE * in_server)

    @property
    def has_swept(self) -> bool:
        """Whether the last read of this claim was a sweep: what it found is where the next read has to begin."""
        return self._is_slow and self._below != SLACK

    @property
    def sweeps_in(self) -> int | None:
        """Microseconds until a claim sweeps; None if claims read from the start at the moment."""
        if not self._is_slow:
            return None
        return max(0, min(self._sweeps_at, self._sweeps_whole_at) - self._clock.monotonic())

    def due(self, queue: str) -> int:
        """Return where to begin among the due lanes of a queue."""
        return 0 if self._below is None else self._virtual_times.get(queue, self._due.get(queue, 0)) - self._below

    @property
    def virtual_times(self) -> Mapping[str, int]:
        """The virtual time at which to begin among the due lanes of each fair queue."""
        below = self._below
        return {} if below is None else {queue: first - below for queue, first in self._virtual_times.items()}

    @property
    def passed(self) -> Mapping[str, int]:
        """The virtual time of each fair queue below which no lane may be put: the next claims do not read there."""
        return {queue: first - SLACK for queue, first in self._virtual_times.items()} if self._is_slow else {}

    def opened(self, queues: Iterable[str]) -> int:
        """Return the limit time at which to begin among the opened buckets of these queues."""
        # Without queues, if all are paused, none is found.
        first = min((self._opened.get(queue, 0) for queue in queues), default=FARTHEST)
        return 0 if self._below is None else first - self._below

    def record_merge(self, last: int, first_left: int | None, *, merger: int, oldest_writer: int) -> None:
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

    def record_positions(
        self,
        due: Sequence[LaneRow],
        opened: Sequence[int],
        limit_now: int,
        queues: Iterable[str],
        fair: Collection[str] = (),
    ) -> None:
        """Note the places of due lanes, and when buckets had opened, in the last snapshot.

        It has read these queues; `fair` has the names of those that are fair. What this claim reads again begins there.
        """
        # Turns of fair queues may be above limit time, and lanes of an older release have none.
        lowest: dict[str, int] = {}
        for lane in due:
            lowest[lane.queue] = min(lane.place, lowest.get(lane.queue, limit_now))
        for queue in queues:
            self._opened[queue] = min(opened, default=limit_now)
            if queue not in fair:
                self._due[queue] = lowest.get(queue, limit_now)
            elif queue in lowest:
                self._virtual_times[queue] = lowest[queue]
            else:
                self._virtual_times.setdefault(queue, 0)
        if self._is_slow:
            self._below = SLACK
