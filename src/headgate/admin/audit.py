"""Audit: whether a limit held, recomputed from the starts that were recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.clock import SECOND
from headgate.limits.limit import AnyRule
from headgate.storage.protocol import RecordedStart


@dataclass(frozen=True, slots=True)
class Audited:
    """What the starts of one key came to.

    `highest` is the most that started in any window of `window` seconds, as a sum of costs, and `bound` the most that
    the rule allows there. `held` says whether it did.
    """

    limit: str
    key: str
    starts: int
    window: float
    highest: int
    bound: int

    @property
    def held(self) -> bool:
        return self.highest <= self.bound


def audit_starts(limit: str, key: str, rule: AnyRule, starts: Sequence[RecordedStart]) -> Audited:
    """The verdict on the starts of one key, oldest first, judged in windows as long as the rule's own."""
    window = rule.period
    return Audited(
        limit=limit,
        key=key,
        starts=len(starts),
        window=window / SECOND,
        highest=highest_in_window(((start.started_at, start.cost) for start in starts), window),
        bound=rule.bound(window),
    )


def highest_in_window(starts: Iterable[tuple[int, int]], window: int) -> int:
    """The highest sum of costs in any half-open window of that length; `starts` are (instant, cost), oldest first."""
    inside: deque[tuple[int, int]] = deque()
    cost_inside = highest = 0
    for at, cost in starts:
        inside.append((at, cost))
        cost_inside += cost
        while inside[0][0] <= at - window:
            cost_inside -= inside.popleft()[1]
        highest = max(highest, cost_inside)
    return highest
