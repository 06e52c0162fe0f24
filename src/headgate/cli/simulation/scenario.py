"""The parts of `headgate simulate`: a scenario, its arrivals, and the engine that runs it on virtual time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Literal, NamedTuple, get_args

from headgate.app import Headgate
from headgate.cli.quiet import quiet
from headgate.client.task import Task
from headgate.clock import SECOND, sleep, sleep_until
from headgate.errors import DeclarationError
from headgate.jobs.retry import RetryPolicy
from headgate.limits.limit import Limit, changed
from headgate.testing.virtual_time import VirtualClock, run_virtual

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


def with_rule(limits: Sequence[Limit], name: str, new: Limit) -> list[Limit]:
    """Return the limits with another rule for the limit of that name."""
    return [changed(limit, rule=new.rule) if limit.name == name else limit for limit in limits]


def _simulated(limit: Limit, name: str) -> Limit:
    cost = limit.cost if isinstance(limit.cost, int) else 1
    found = changed(limit, name=name, key=None if limit.key is None else "{key}", cost=cost, store=None)
    return found if found.permit is None else changed(found, owner=None)


QUEUE = "simulated"

LOOK_EVERY = 5.0
"""Virtual seconds between two checks whether all jobs have ended."""


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
    app = Headgate(
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
        for group in in_groups(scenario.arrivals):
            if begin + group[0].at > last:
                break
            await sleep_until(clock, begin + group[0].at)
            await job.enqueue_many([(each.key, each.at) for each in group])
            come += len(group)
        while clock.monotonic() < last:
            (counts,) = [each for each in await app.admin.counts() if each.queue == QUEUE]
            if not counts.waiting and not counts.running:
                break
            await sleep(clock, LOOK_EVERY)
        (counts,) = [each for each in await app.admin.counts() if each.queue == QUEUE]
    rejected = counts.failed + counts.cancelled
    ran.sort(key=lambda each: each.started_at)
    return SimulationRun(ran, rejected, len(scenario.arrivals) - come + counts.waiting + counts.running)
