"""A histogram of durations: counts in fixed buckets, ten per power of ten.

Two histograms from any processes and times can be added, which averages and percentiles cannot. A percentile lies
within one bucket, so its error is at most 26 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

PER_DECADE = 10
DECADES = 9

BOUNDS = tuple(round(1000 * 10 ** (step / PER_DECADE)) for step in range(PER_DECADE * DECADES + 1))
"""The longest duration of each bucket, in microseconds: 1 ms to 11.6 days. One more bucket counts longer ones.

Counts are stored by position, so the bounds must not change.
"""

BUCKETS = len(BOUNDS) + 1


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
    wanted = fraction * total
    below = 0
    for place, count in enumerate(counts):
        if count and below + count >= wanted:
            return min(_between(place, (wanted - below) / count, longest), longest)
        below += count
    return longest


def _between(place: int, share: float, longest: int) -> int:
    if place == 0:
        return round(BOUNDS[0] * share)
    if place >= len(BOUNDS):
        return longest
    low, high = BOUNDS[place - 1], BOUNDS[place]
    return round(low * math.exp(share * math.log(high / low)))
