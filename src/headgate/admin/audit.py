"""Audit: whether a limit was kept, recomputed from the recorded starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from headgate.clock import SECOND
from headgate.limits.limit import AnyRule
from headgate.storage.records import RecordedStart


class Audited(msgspec.Struct, frozen=True):
    """The result of an audit for one key.

    `highest` is the highest sum of costs that started in any window of `window` seconds, and `bound` the highest sum
    that the rule allows there. `is_within_limit` is whether the limit was kept.
    """

    limit: str
    key: str
    starts: int
    window: float
    highest: int
    bound: int
    is_within_limit: bool


@dataclass(frozen=True, slots=True)
class LimitAudit:
    """The result of an audit of the newest starts on a limit: a verdict for each key, worst first.

    `starts` starts were read, all since `since` (None: all that are stored). It `is_cut` if there are more starts than
    were to be read: then `since` is the oldest start that was read, and the limit may have been exceeded before.
    """

    verdicts: Sequence[Audited]
    starts: int
    since: datetime | None
    is_cut: bool


class StartAudit:
    """Audits starts in order, newest or oldest first, and stores no more of each key than those of one window."""

    def __init__(self, limit: str, rule_of: Callable[[str], AnyRule]) -> None:
        self._limit = limit
        self._rule_of = rule_of
        self._keys: dict[str, tuple[AnyRule, Window]] = {}
        self.starts: int = 0

    def take(self, starts: Iterable[RecordedStart]) -> None:
        """Add these starts."""
        for start in starts:
            known = self._keys.get(start.key)
            if known is None:
                rule = self._rule_of(start.key)
                known = self._keys[start.key] = rule, Window(rule.period)
            known[1].add(start.started_at, start.cost)
            self.starts += 1

    def verdicts(self) -> Sequence[Audited]:
        """Return the verdicts so far, worst keys first."""
        found = [
            Audited(
                limit=self._limit,
                key=key,
                starts=window.starts,
                window=rule.period / SECOND,
                highest=window.highest,
                bound=rule.bound(rule.period),
                is_within_limit=window.highest <= rule.bound(rule.period),
            )
            for key, (rule, window) in self._keys.items()
        ]
        return sorted(found, key=lambda verdict: (verdict.bound - verdict.highest, verdict.key))


class Window:
    """The highest sum of costs in any half-open window of that length; starts are added oldest or newest first."""

    __slots__ = ("_cost", "_inside", "_length", "highest", "starts")

    def __init__(self, length: int) -> None:
        self._length = length
        self._inside: deque[tuple[int, int]] = deque()
        self._cost = 0
        self.highest: int = 0
        self.starts: int = 0

    def add(self, at: int, cost: int) -> None:
        self._inside.append((at, cost))
        self._cost += cost
        while abs(at - self._inside[0][0]) >= self._length:
            self._cost -= self._inside.popleft()[1]
        self.highest = max(self.highest, self._cost)
        self.starts += 1


def highest_in_window(starts: Iterable[tuple[int, int]], window: int) -> int:
    """Return the highest sum of costs in any half-open window; `starts` are (instant, cost), oldest first."""
    found = Window(window)
    for at, cost in starts:
        found.add(at, cost)
    return found.highest
