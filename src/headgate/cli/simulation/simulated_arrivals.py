"""Arrivals of jobs: generated from a few numbers, or read from a trace."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Literal, NamedTuple, get_args

from headgate.clock import SECOND
from headgate.errors import DeclarationError

Skew = Literal["uniform", "zipf", "one"]
"""Spreads over keys: even, the n-th key 1/n as many as the first, or half of all for the first."""

SKEWS: Sequence[str] = get_args(Skew)


class SimulatedArrival(NamedTuple):
    """A job that arrives `at` microseconds after the beginning, for that key; and its start and end if it ran."""

    at: int
    key: str
    started_at: int = 0
    ended_at: int = 0


def make_arrivals(jobs: int, keys: int, skew: Skew, per_second: float | None, random: Random) -> list[SimulatedArrival]:
    """Return arrivals spread over keys: all at once, or at random instants with `per_second` on average."""
    names = [f"key-{number:0{len(str(keys))}}" for number in range(1, keys + 1)]
    chosen = random.choices(names, weights=_weights(keys, skew), k=jobs)
    if per_second is None:
        return [SimulatedArrival(0, key) for key in chosen]
    at = 0.0
    found: list[SimulatedArrival] = []
    for key in chosen:
        at += random.expovariate(per_second)
        found.append(SimulatedArrival(round(at * SECOND), key))
    return found


def read_trace(lines: Iterable[str], where: str) -> list[SimulatedArrival]:
    """Return the arrivals of a CSV file: `at,key`, in seconds or ISO 8601, counted from the earliest.

    A header line is skipped. Raises DeclarationError for a line that cannot be read.
    """
    found: list[tuple[float, str]] = []
    for number, row in enumerate(csv.reader(lines), start=1):
        if not row:
            continue
        at = _instant(row[0])
        if at is None and number == 1:
            continue
        if at is None or len(row) != 2:
            raise DeclarationError(
                f"line {number} of {where} is not `at,key`: {','.join(row)[:60]!r}; at is seconds, or an instant such "
                "as 2026-05-01T08:00:00Z"
            )
        found.append((at, row[1]))
    if not found:
        raise DeclarationError(f"{where} has no jobs; each line is `at,key`")
    found.sort(key=lambda arrival: arrival[0])
    begin = found[0][0]
    return [SimulatedArrival(round((at - begin) * SECOND), key) for at, key in found]


def in_groups(arrivals: Sequence[SimulatedArrival]) -> list[Sequence[SimulatedArrival]]:
    """Yield the arrivals of each instant together."""
    ends = [at for at, (one, next_) in enumerate(pairwise(arrivals), start=1) if one.at != next_.at]
    bounds = [0, *ends, len(arrivals)]
    return [arrivals[begin:end] for begin, end in pairwise(bounds)]


def _weights(keys: int, skew: Skew) -> list[float]:
    match skew:
        case "zipf":
            return [1 / rank for rank in range(1, keys + 1)]
        case "one":
            return [float(max(1, keys - 1)), *[1.0] * (keys - 1)]
        case _:
            return [1.0] * keys


def _instant(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
