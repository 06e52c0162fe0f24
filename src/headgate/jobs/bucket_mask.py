"""Sets of a job's buckets, for example those whose permits it holds, or those it is not charged for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NewType, TypeVar

T = TypeVar("T")

BucketMask = NewType("BucketMask", int)
"""A set of the buckets of one job, by their positions in its list. In rows it is an integer: bit `i` is bucket `i`."""

NO_BUCKETS = BucketMask(0)


def mask_where(flags: Iterable[bool]) -> BucketMask:
    """Return the set of the buckets whose flag is true; there is one flag for each bucket of the job."""
    return BucketMask(sum(1 << index for index, flag in enumerate(flags) if flag))


union: Callable[[BucketMask, BucketMask], BucketMask] = operator.or_

intersection: Callable[[BucketMask, BucketMask], BucketMask] = operator.and_


def difference(left: BucketMask, right: BucketMask) -> BucketMask:
    return BucketMask(left & ~right)


def size(mask: BucketMask) -> int:
    """Return how many buckets are in the set."""
    return mask.bit_count()


def chosen(values: Iterable[T], mask: BucketMask) -> list[T]:
    """Return the values of the buckets in the set; `values` has one for each bucket.

    Buckets beyond the last value, as in an inconsistent row, are ignored.
    """
    found: list[T] = []
    left: int = mask
    for value in values:
        if not left:
            break
        if left & 1:
            found.append(value)
        left >>= 1
    return found


def without(values: Sequence[T], mask: BucketMask) -> tuple[T, ...]:
    """Return the values of the buckets that are not in the set; `values` has one for each bucket."""
    if not mask:
        return tuple(values)
    return tuple([value for index, value in enumerate(values) if not mask >> index & 1])


def spread(values: Sequence[T], mask: BucketMask, rest: T) -> list[T]:
    """Return one value for each bucket of the job: `rest` for those in the set, `values` in turn for the others.

    The inverse of `without`.
    """
    rest_of_values = iter(values)
    count = len(values) + size(mask)
    return [rest if mask >> index & 1 else next(rest_of_values, rest) for index in range(count)]
