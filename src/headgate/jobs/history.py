"""History: counts of jobs and charges to limits, in steps of time, for charts.

It is best effort: no job waits for it, and counts that cannot be written are lost. There are three lengths of steps;
longer ones are kept longer. Steps begin at whole multiples of their length since the epoch.

Durations are counted in histograms, in fixed buckets, ten per power of ten. Two histograms from any processes and times
can be added, which averages and percentiles cannot. A percentile lies within one bucket, so its error is at most 26 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND

MAX_POINTS = 1440
"""How many steps of each length are kept, and so the most points of a chart."""

KEPT_FOR: Mapping[int, int] = MappingProxyType({10: 3600, 60: 60 * MAX_POINTS, 3600: 3600 * MAX_POINTS})
"""The lengths of steps, and how long each is kept, in seconds: an hour, a day, 60 days."""

SHORTEST = min(KEPT_FOR)

LIMIT_STEPS = (10, 60)
"""The steps in which the use of limits is kept: only for a day, as there may be many keys."""

ALL = ""
"""The task of a row for a whole queue, and the queue and task of a row for everything; no task or queue has this name.

There is no row for a task in all queues: most tasks are in one queue, and it would be the same row again.
"""

PER_DECADE = 10
DECADES = 9

BOUNDS = tuple(round(1000 * 10 ** (step / PER_DECADE)) for step in range(PER_DECADE * DECADES + 1))
"""The longest duration of each bucket, in microseconds: 1 ms to 11.6 days. One more bucket counts longer ones.

Counts are stored by position, so the bounds must not change.
"""

BUCKETS = len(BOUNDS) + 1


SUMS = ("enqueued", "started", "succeeded", "failed", "cancelled", "skipped", "retried")
"""The fields of a row that count jobs."""

MAXIMA = ("wait_max", "run_max")
"""The fields of a row that are the longest of all."""


class JobsStep(msgspec.Struct, frozen=True, array_like=True):
    """The counts of jobs of one queue and task in one step; ALL stands for all tasks, or all queues and tasks.

    `at` (wall microseconds) is when the step begins, `step` its length in seconds. `waits` is the histogram of how long
    started jobs had been due, `runs` of how long ended attempts took; `…_max` is the longest (microseconds).
    """

    step: int
    queue: str
    task: str
    at: int
    enqueued: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    retried: int = 0
    wait_max: int = 0
    run_max: int = 0
    waits: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()

    def plus(self, other: JobsStep) -> JobsStep:
        """Return the sum of two rows of the same step."""
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in SUMS},
            **{name: max(getattr(self, name), getattr(other, name)) for name in MAXIMA},
            waits=added(self.waits, other.waits),
            runs=added(self.runs, other.runs),
        )


class LimitStep(msgspec.Struct, frozen=True, array_like=True):
    """The sum of costs charged to a limit in one step: for one key, or for all keys if `key` is None.

    Of many keys only the most used have their own steps; the total counts every key. A refund may make the sum of a key
    negative if the charge was made while the key had no step of its own. `unlimited`, counted for all keys
    together only, is how many starts were not charged, because the store of the limit was unavailable.
    """

    step: int
    limit: str
    key: str | None
    at: int
    used: int
    unlimited: int = 0


class Flush(msgspec.Struct, frozen=True):
    """The identity of a write, so that a write repeated after a lost reply is not added twice.

    `writer` is unique per process, and `number` grows with each write.
    """

    writer: str
    number: int


def step_at(instant: int, step: int) -> int:
    """Return when the step of `step` seconds that contains the instant begins; both are wall microseconds."""
    return instant - instant % (step * SECOND)


def added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the sums of two lists of counts; missing counts at the end are 0."""
    return tuple(mine + theirs for mine, theirs in zip_longest(one, other, fillvalue=0))


def trimmed(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the counts without the zeros at the end, as they are stored."""
    last = len(counts)
    while last and not counts[last - 1]:
        last -= 1
    return tuple(counts[:last])


def percentile(counts: Sequence[int], fraction: float, longest: int) -> int | None:
    """Return the duration (µs) that this fraction of all does not exceed; None without durations.

    Inside a bucket the logarithms of durations are assumed to be evenly spread. The result is at most `longest`, the
    longest duration of all. Raises ValueError for a fraction outside 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction} must be from 0 to 1")
    total = sum(counts)
    if not total:
        return None
    rank = fraction * total
    below = 0
    for place, count in enumerate(counts):
        if count and below + count >= rank:
            share = (rank - below) / count
            if place == 0:
                return min(round(BOUNDS[0] * share), longest)
            if place < len(BOUNDS):
                low, high = BOUNDS[place - 1], BOUNDS[place]
                return min(round(low * math.exp(share * math.log(high / low))), longest)
            break
        below += count
    return longest
