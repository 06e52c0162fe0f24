"""Punctuality: what to do when a job starts later than it was charged.

A strict limit counts a start at the instant of its charge, and its margin allows for the little that lies between that
and the call. When a slow disk or a busy event loop makes it more, the next window has to be measured from the start
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from headgate.jobs.job import ClaimedJob, Draw
from headgate.limits.limit import AnyRule
from headgate.storage.protocol import LateStart


class Start(Enum):
    """How a claimed job may start."""

    ON_TIME = "on time"
    LATE = "late"
    TOO_LATE = "too late"


def judge_start(job: ClaimedJob, rules: Mapping[str, AnyRule], now: int) -> Start:
    """Whether `job` may start at limit time `now`, and whether its buckets have to be told.

    Within half of each limit's margin: on time. Later: it starts, and its charge is moved to now, which reaches the
    store long before the window ends. Later than half of a window, as after a freeze of the process, that is no longer
    sure: it goes back unspent instead.
    """
    lateness = now - job.charged_at
    start = Start.ON_TIME
    for draw in job.draws:
        rule = rules.get(draw.limit)
        if rule is None or not rule.margin or 2 * lateness <= rule.margin:
            continue
        if 2 * lateness > rule.period:
            return Start.TOO_LATE
        start = Start.LATE
    return start


class LateStarts:
    """Late starts that the store has not been told of, those of one charge together."""

    def __init__(self) -> None:
        self._starts: dict[tuple[Draw, int], tuple[int, int]] = {}

    def add(self, job: ClaimedJob, now: int) -> None:
        for index, draw in enumerate(job.draws):
            cost = 1 if job.costs is None else job.costs[index]
            charge = (draw, job.charged_at)
            started_at, known = self._starts.get(charge, (now, 0))
            self._starts[charge] = (max(started_at, now), known + cost)

    def put_back(self, late: Sequence[LateStart]) -> None:
        """The store has not heard of these."""
        for start in late:
            charge = (start.draw, start.charged_at)
            started_at, known = self._starts.get(charge, (start.started_at, 0))
            self._starts[charge] = (max(started_at, start.started_at), known + start.cost)

    def take(self) -> list[LateStart]:
        """All of them; from now on they are the caller's to tell."""
        starts, self._starts = self._starts, {}
        return [
            LateStart(draw, charged_at, started_at, cost) for (draw, charged_at), (started_at, cost) in starts.items()
        ]
