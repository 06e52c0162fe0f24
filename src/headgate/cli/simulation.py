"""The parts of `headgate simulate`: arrivals, the engine that runs a scenario on virtual time, and the result."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from math import ceil, isfinite
from operator import attrgetter
from random import Random
from typing import Literal, NamedTuple, get_args

from headgate.admin.audit import highest_in_window
from headgate.app import Headgate
from headgate.cli.output import percentile, quiet
from headgate.client.task import Task
from headgate.clock import SECOND, sleep, sleep_until
from headgate.errors import DeclarationError
from headgate.jobs.retry import RetryPolicy
from headgate.limits.limit import Limit, changed
from headgate.storage.records import QueueCounts
from headgate.testing.virtual_time import VirtualClock, run_virtual

Skew = Literal["uniform", "zipf", "one"]
"""Spreads over keys: even, the n-th key 1/n as many as the first, or half of all for the first."""

SKEWS: Sequence[str] = get_args(Skew)

QUEUE = "simulated"

LOOK_EVERY = 5.0
"""Virtual seconds between two checks whether all jobs have ended."""

PERCENTS = (1, 10, 25, 50, 75, 90, 95, 99, 100)

COLUMNS = 60
"""The most bars of the chart of starts."""

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""The seconds that one bar may cover."""


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
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise DeclarationError(f"{where} is not a CSV file: {error}") from None
    for number, row in enumerate(rows, start=1):
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


def _weights(keys: int, skew: Skew) -> list[float]:
    match skew:
        case "zipf":
            return [1 / rank for rank in range(1, keys + 1)]
        case "one":
            return [float(max(1, keys - 1)), *[1.0] * (keys - 1)]
        case _:
            return [1.0] * keys


def _instant(text: str) -> float | None:
    with suppress(ValueError):
        seconds = float(text)
        return seconds if isfinite(seconds) else None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """These arrivals under these named limits. Durations in seconds.

    A limit uses the key of an arrival, or is one for all. The simulation stops after `longest`.
    """

    title: str
    limits: Sequence[Limit]
    slots: int
    run_time: float
    arrivals: Sequence[SimulatedArrival]
    longest: float
    seed: int


def keyed(limit: Limit, name: str, *, one_for_all: bool) -> Limit:
    """Return the limit under a name, with the key of an arrival unless it is one for all."""
    return changed(limit, name=name, key=None if one_for_all else "{key}")


def limits_of(task: Task[..., object]) -> list[Limit]:
    """Return the limits of a declared task for simulation: one key per arrival, cost 1, kept with the jobs.

    A simulation has no arguments to compute keys and costs from.
    """
    return [_simulated(bound.limit, bound.name) for bound in task.limit_set.limits]


def _simulated(limit: Limit, name: str) -> Limit:
    cost = limit.cost if isinstance(limit.cost, int) else 1
    found = changed(limit, name=name, key=None if limit.key is None else "{key}", cost=cost, store=None)
    return found if found.permit is None else changed(found, owner=None)


class _SimulatedApp(Headgate):
    """An app that the variables of the environment do not change."""

    _environment: Mapping[str, str] = {}


class SimulationRun(NamedTuple):
    """The run of a scenario: the jobs that ran, by their start, and how many were rejected or still wait."""

    ran: list[SimulatedArrival]
    rejected: int
    left: int


def run_scenario(scenario: Scenario) -> SimulationRun:
    """Run a scenario; equal scenarios have equal results."""
    with quiet():
        return run_virtual(lambda clock: _run(scenario, clock), seed=scenario.seed)


async def _run(scenario: Scenario, clock: VirtualClock) -> SimulationRun:
    begin = clock.monotonic()
    ran: list[SimulatedArrival] = []
    app = _SimulatedApp(
        "memory://", clock=clock, random=Random(scenario.seed), retry=RetryPolicy(retries=0), audit="none", log_lines=0
    )
    app.queue(QUEUE, concurrency=scenario.slots)

    @app.task(queue=QUEUE, limits=scenario.limits)
    async def job(key: str, came_at: int) -> None:
        started_at = clock.monotonic() - begin
        if scenario.run_time:
            await sleep(clock, scenario.run_time)
        ran.append(SimulatedArrival(came_at, key, started_at, clock.monotonic() - begin))

    async with app:
        last = begin + round(scenario.longest * SECOND)
        come = 0
        for at, group in groupby(scenario.arrivals, key=attrgetter("at")):
            if begin + at > last:
                break
            await sleep_until(clock, begin + at)
            come += len(await job.enqueue_many([(each.key, each.at) for each in group]))
        while True:
            counts = next(iter(await app.admin.counts()), QueueCounts(QUEUE, 0, 0, 0, 0, 0))
            if not counts.waiting + counts.running or clock.monotonic() >= last:
                break
            await sleep(clock, LOOK_EVERY)
    rejected = counts.failed + counts.cancelled
    ran.sort(key=lambda each: each.started_at)
    return SimulationRun(ran, rejected, len(scenario.arrivals) - come + counts.waiting + counts.running)


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
        wait_median=percentile(waits, 50) / SECOND,
        wait_p95=percentile(waits, 95) / SECOND,
        wait_longest=percentile(waits, 100) / SECOND,
        keys=_keys(ran),
        limits=[_held(limit, ran) for limit in scenario.limits],
        step=step,
        starts=starts,
    )


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
    median = percentile(waits, 50) / SECOND
    return KeyWaits(which, key, len(ran), median, waits[-1] / SECOND, ran[-1].started_at / SECOND)


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
