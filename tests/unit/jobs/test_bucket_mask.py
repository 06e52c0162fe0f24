"""Sets of a job's buckets, against sets of their places."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.jobs.bucket_mask import (
    NO_BUCKETS,
    BucketMask,
    chosen,
    difference,
    intersection,
    mask_where,
    size,
    spread,
    union,
    without,
)

flags = st.lists(st.booleans(), max_size=70)
PLACES = range(70)


def places(buckets: BucketMask) -> set[int]:
    return set(chosen(PLACES, buckets))


@given(flags)
def test_a_set_has_the_buckets_whose_flag_is_true(flags: list[bool]) -> None:
    expected = {place for place, flag in enumerate(flags) if flag}
    assert places(mask_where(flags)) == expected
    assert size(mask_where(flags)) == len(expected)


@given(flags, flags)
def test_sets_are_joined_and_taken_apart_as_sets_are(left: list[bool], right: list[bool]) -> None:
    one, other = mask_where(left), mask_where(right)
    assert places(union(one, other)) == places(one) | places(other)
    assert places(intersection(one, other)) == places(one) & places(other)
    assert places(difference(one, other)) == places(one) - places(other)


@given(flags)
def test_the_values_of_a_set_and_those_without_it_are_all_in_their_order(flags: list[bool]) -> None:
    buckets, values = mask_where(flags), list(range(len(flags)))
    assert chosen(values, buckets) == [value for value in values if flags[value]]
    assert without(values, buckets) == tuple(value for value in values if not flags[value])


@given(flags)
def test_spread_is_the_inverse_of_without(flags: list[bool]) -> None:
    buckets, values = mask_where(flags), list(range(len(flags)))
    assert spread(without(values, buckets), buckets, -1) == [-1 if flag else value for value, flag in enumerate(flags)]


def test_a_set_that_names_more_buckets_than_there_are_has_no_values_for_them() -> None:
    buckets = mask_where([True, False, False, True])
    assert chosen("ab", buckets) == ["a"]
    assert without("ab", buckets) == ("b",)
    assert spread([5], buckets, 1) == [1, 5, 1]


def test_no_buckets_leave_all_as_they_are() -> None:
    values = (1, 2, 3)
    assert chosen(values, NO_BUCKETS) == []
    assert without(values, NO_BUCKETS) is values
    assert spread(values, NO_BUCKETS, 0) == [1, 2, 3]
    assert size(NO_BUCKETS) == 0


def test_in_a_row_it_is_an_integer_whose_bits_are_the_buckets() -> None:
    buckets = mask_where([True, False, True])
    assert msgspec.json.encode(buckets) == b"5"
    assert msgspec.json.decode(b"5", type=BucketMask) == buckets
