"""A histogram of durations: counts in fixed buckets, ten to each power of ten, that can be added up and asked.

Counts of any two histograms add up to that of all their durations, whoever counted them and when: that is what averages
and percentiles cannot do. What is read off lies within one bucket, so it is at most 26 % from the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

PER_DECADE = 10
DECADES = 9

BOUNDS = tuple(round(1000 * 10 ** (step / PER_DECADE)) for step in range(PER_DECADE * DECADES + 1))
"""The longest duration that each bucket counts, in microseconds: 1 ms to 11.6 days. One more counts what is longer.

They are stored by their places, so they stay as they are.
"""

BUCKETS = len(BOUNDS) + 1


def added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The counts of both; what is missing at the end of one counts as 0."""
    return tuple(mine + theirs for mine, theirs in zip_longest(one, other, fillvalue=0))


def trimmed(counts: Sequence[int]) -> tuple[int, ...]:
    """The same without the zeros at its end: as it is stored."""
    last = len(counts)
    while last and not counts[last - 1]:
        last -= 1
    return tuple(counts[:last])


def percentile(counts: Sequence[int], fraction: float, longest: int) -> int | None:
    """The duration (µs) that this fraction of all does not exceed; None if there are none.

    Inside its bucket it is estimated as if the logarithms of durations were spread evenly there. `longest` is the
    longest duration of all, and nothing above it is answered.
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
