"""The result of a simulation: waits by key, whether limits were kept, throughput. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Literal

from headgate.admin.audit import highest_in_window
from headgate.cli.simulation.scenario import Scenario, SimulatedArrival, SimulationRun
from headgate.clock import SECOND
from headgate.limits.limit import Limit

PERCENTS = (1, 10, 25, 50, 75, 90, 95, 99, 100)

COLUMNS = 60
"""The most bars of the chart of starts."""

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""The seconds that one bar may cover."""


@dataclass(frozen=True, slots=True)
class KeyWaits:
    """How long the jobs of one key waited, in seconds."""

    which: Literal["busiest", "median", "lightest"]
    key: str
    jobs: int
    median: float
    longest: float
    last_start: float


@dataclass(frozen=True, slots=True)
class LimitPeak:
    """The worst key of a limit: the most that started in any of its windows, or ran at once (window 0), and the bound.

    `window` is in seconds.
    """

    limit: str
    rule: str
    key: str
    highest: int
    bound: int
    window: float

    @property
    def is_within_limit(self) -> bool:
        return self.highest <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """All results; instants and durations are seconds from the beginning.

    `starts_at` maps percentages to when that share of the jobs had started. `drained_at` is when the last one ended,
    None if some were left at the end. `starts` are the starts of each `step`.
    """

    title: str
    jobs: int
    ran: int
    rejected: int
    left: int
    drained_at: float | None
    starts_at: Mapping[str, float]
    wait_median: float
    wait_p95: float
    wait_longest: float
    keys: Sequence[KeyWaits]
    limits: Sequence[LimitPeak]
    step: float
    starts: Sequence[int]

    @property
    def is_within_limits(self) -> bool:
        """Whether every limit was kept."""
        return all(limit.is_within_limit for limit in self.limits)


def result_of_run(scenario: Scenario, happened: SimulationRun) -> SimulationResult:
    """Return the result of a run."""
    ran = happened.ran
    waits = sorted(each.started_at - each.at for each in ran)
    last_end = max((each.ended_at for each in ran), default=0)
    step, starts = _throughput([each.started_at for each in ran])
    total = len(scenario.arrivals)
    return SimulationResult(
        title=scenario.title,
        jobs=total,
        ran=len(ran),
        rejected=happened.rejected,
        left=happened.left,
        drained_at=None if happened.left else last_end / SECOND,
        starts_at={
            f"p{percent}": ran[place].started_at / SECOND
            for percent in PERCENTS
            if (place := ceil(total * percent / 100) - 1) < len(ran) and ran
        },
        wait_median=percentile(waits, 50),
        wait_p95=percentile(waits, 95),
        wait_longest=percentile(waits, 100),
        keys=_keys(ran),
        limits=[_held(limit, ran) for limit in scenario.limits],
        step=step,
        starts=starts,
    )


def percentile(ordered: Sequence[int], percent: int) -> float:
    """Return a percentile of microseconds in seconds; 0 without values."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] / SECOND if ordered else 0.0


def _throughput(starts: Sequence[int]) -> tuple[float, list[int]]:
    seconds = starts[-1] / SECOND if starts else 0
    step = next((step for step in STEPS if seconds / step < COLUMNS), ceil(seconds / COLUMNS))
    counts = [0] * (int(seconds // step) + 1 if starts else 0)
    for at in starts:
        counts[at // (step * SECOND)] += 1
    return float(step), counts


def _keys(ran: Sequence[SimulatedArrival]) -> list[KeyWaits]:
    by_key: defaultdict[str, list[SimulatedArrival]] = defaultdict(list)
    for each in ran:
        by_key[each.key].append(each)
    order = sorted(by_key, key=lambda key: (-len(by_key[key]), key))
    if not order:
        return []
    chosen: dict[Literal["busiest", "median", "lightest"], str] = {"busiest": order[0]}
    if len(order) > 2:
        chosen["median"] = order[len(order) // 2]
    if len(order) > 1:
        chosen["lightest"] = order[-1]
    return [_waits(which, key, by_key[key]) for which, key in chosen.items()]


def _waits(which: Literal["busiest", "median", "lightest"], key: str, ran: Sequence[SimulatedArrival]) -> KeyWaits:
    waits = sorted(each.started_at - each.at for each in ran)
    return KeyWaits(which, key, len(ran), percentile(waits, 50), waits[-1] / SECOND, ran[-1].started_at / SECOND)


def _held(limit: Limit, ran: Sequence[SimulatedArrival]) -> LimitPeak:
    """Return the key of a limit that came closest to its bound, or exceeded it."""
    cost = limit.cost if isinstance(limit.cost, int) else 1
    one_for_all = limit.key is None
    ordered = sorted(ran, key=lambda each: ("" if one_for_all else each.key, each.started_at))
    worst = LimitPeak(limit.name or "", limit.rule.describe(), "", 0, limit.rule.bound(limit.rule.period), 0.0)
    for key, group in groupby(ordered, key=lambda each: "" if one_for_all else each.key):
        of_key = list(group)
        if limit.rule.holds_permits:
            highest = most_at_once(of_key) * cost
        else:
            highest = highest_in_window(((each.started_at, cost) for each in of_key), limit.rule.period)
        if highest > worst.highest:
            worst = LimitPeak(worst.limit, worst.rule, key, highest, worst.bound, limit.rule.period / SECOND)
    return worst


def most_at_once(ran: Sequence[SimulatedArrival]) -> int:
    """Return how many ran at once; a job that ends makes room for one that starts in the same microsecond."""
    changes = sorted([(each.started_at, 1) for each in ran] + [(each.ended_at, -1) for each in ran])
    running = highest = 0
    for _, change in changes:
        running += change
        highest = max(highest, running)
    return highest
