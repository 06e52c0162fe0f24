"""Sets of a job's draws, for example those whose permits it holds, or those it is not charged for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NewType, TypeVar

T = TypeVar("T")

DrawSet = NewType("DrawSet", int)
"""A set of the draws of one job, by their positions in its list. In rows it is an integer: bit `i` is draw `i`."""

NO_DRAWS = DrawSet(0)


def draws_where(flags: Iterable[bool]) -> DrawSet:
    """Return the set of the draws whose flag is true; there is one flag for each draw of the job."""
    return DrawSet(sum(1 << index for index, flag in enumerate(flags) if flag))


union: Callable[[DrawSet, DrawSet], DrawSet] = operator.or_

intersection: Callable[[DrawSet, DrawSet], DrawSet] = operator.and_


def difference(left: DrawSet, right: DrawSet) -> DrawSet:
    return DrawSet(left & ~right)


def size(draws: DrawSet) -> int:
    """Return how many draws are in the set."""
    return draws.bit_count()


def chosen(values: Iterable[T], draws: DrawSet) -> list[T]:
    """Return the values of the draws in the set, of one value for each draw of the job.

    Draws beyond the last value, as in an inconsistent row, are ignored.
    """
    found: list[T] = []
    left: int = draws
    for value in values:
        if not left:
            break
        if left & 1:
            found.append(value)
        left >>= 1
    return found


def without(values: Sequence[T], draws: DrawSet) -> tuple[T, ...]:
    """Return the values of the draws that are not in the set, of one value for each draw of the job."""
    if not draws:
        return tuple(values)
    return tuple([value for index, value in enumerate(values) if not draws >> index & 1])


def spread(values: Sequence[T], draws: DrawSet, rest: T) -> list[T]:
    """Return one value for each draw of the job: `rest` for those in the set, `values` in turn for the others.

    The inverse of `without`.
    """
    others = iter(values)
    count = len(values) + size(draws)
    return [rest if draws >> index & 1 else next(others, rest) for index in range(count)]
