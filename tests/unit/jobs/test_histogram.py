"""Histograms of durations: what is counted apart adds up, and what is read off lies in the right bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest

from headgate.clock import SECOND
from headgate.jobs.history import BOUNDS, BUCKETS, added, percentile, trimmed


def of(durations: Sequence[int]) -> tuple[int, ...]:
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bisect_left(BOUNDS, duration)] += 1
    return tuple(counts)


def test_the_buckets_are_ten_to_each_power_of_ten_from_a_millisecond_to_eleven_days() -> None:
    assert BOUNDS[0] == 1000
    assert BOUNDS[10] == 10_000
    assert BOUNDS[30] == SECOND
    assert BOUNDS[-1] == 1_000_000 * SECOND
    assert all(1.2 < high / low < 1.3 for low, high in pairwise(BOUNDS))


def test_nothing_has_no_percentile() -> None:
    assert percentile((), 0.5, 0) is None
    assert percentile((0, 0), 0.95, 0) is None


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_is_from_nothing_to_all(fraction: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        percentile((1,), fraction, 1)


def test_values_above_all_bounds_are_counted_in_the_last_bucket() -> None:
    assert percentile(of([5 * 10**12, 7 * 10**12]), 0.5, 7 * 10**12) == 7 * 10**12


def test_no_percentile_is_above_the_last_bound() -> None:
    assert percentile(of([1_000_001] * 10), 0.95, 1_000_001) == 1_000_001


def test_zeros_at_the_end_are_not_kept() -> None:
    assert trimmed((0, 3, 0, 0)) == (0, 3)
    assert trimmed((0, 0)) == trimmed(()) == ()
    assert added((1, 2), (0, 0, 5)) == (1, 2, 5)
