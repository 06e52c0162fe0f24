"""When jobs start that wait behind one bucket: what the worked examples of the rules are written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from headgate.clock import SECOND

NOON = 1_767_268_800 * SECOND
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
DAY = 24 * HOUR

S = TypeVar("S")


class Takes(Protocol[S]):
    """As much of a rule as starts need."""

    def take(self, state: S | None, now: int, cost: int = 1, /) -> tuple[int, S]: ...


def seconds(instants: Sequence[int]) -> list[float]:
    return [(instant - NOON) / SECOND for instant in instants]


def start_all(rule: Takes[S], jobs: int, now: int = NOON, state: S | None = None) -> tuple[list[int], S]:
    """When so many jobs start that all wait at `now`, each claimed at the instant that its bucket opens."""
    starts: list[int] = []
    while len(starts) < jobs:
        opens_at, after = rule.take(state, now)
        if opens_at > now:
            now = opens_at
        else:
            starts.append(now)
            state = after
    assert state is not None
    return starts, state


def most_in_any_window(starts: Sequence[int], window: int) -> int:
    return max(sum(1 for other in starts if start <= other < start + window) for start in starts)
