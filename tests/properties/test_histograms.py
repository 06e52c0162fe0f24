"""Histograms as properties: they add up in any order, and their percentiles are those of all durations, to a bucket."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.jobs.history import BOUNDS, BUCKETS, added, percentile, trimmed
from tests.seeds import examples

thorough = settings(max_examples=examples(50, 200))

durations = st.lists(st.integers(0, 2 * BOUNDS[-1]) | st.integers(0, 100_000), min_size=1, max_size=60)
fractions = st.floats(0, 1)


def of(given_durations: list[int]) -> tuple[int, ...]:
    counts = [0] * BUCKETS
    for duration in given_durations:
        counts[bisect_left(BOUNDS, duration)] += 1
    return trimmed(counts)


@thorough
@given(durations, durations, durations)
def test_merged_histograms_equal_one_histogram_of_all_values(one: list[int], two: list[int], three: list[int]) -> None:
    together = of(one + two + three)
    assert trimmed(added(added(of(one), of(two)), of(three))) == together
    assert trimmed(added(of(three), added(of(two), of(one)))) == together


@thorough
@given(durations, fractions)
def test_a_percentile_lies_in_the_bucket_of_the_true_one(some: list[int], fraction: float) -> None:
    true = sorted(some)[max(0, ceil(fraction * len(some)) - 1)]
    received = percentile(of(some), fraction, max(some))
    assert received is not None
    place = bisect_left(BOUNDS, true)
    low, high = BOUNDS[place - 1] if place else 0, BOUNDS[place] if place < len(BOUNDS) else max(some)
    assert low <= received <= max(high, low)
    assert received <= max(some)


@thorough
@given(durations, fractions, fractions)
def test_percentiles_grow_with_their_fraction(some: list[int], one: float, other: float) -> None:
    counts, longest = of(some), max(some)
    less, more = (percentile(counts, each, longest) for each in sorted([one, other]))
    assert less is not None
    assert more is not None
    assert less <= more
