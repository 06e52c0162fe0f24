"""What is simulated: limits, slots, how long a job runs, and which jobs come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.cli.simulation.simulated_arrivals import SimulatedArrival
from headgate.limits.limit import Limit, changed
from headgate.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question: what becomes of these arrivals under these named limits? Durations in seconds.

    A limit is counted by the key of an arrival, or is one for all. It is cut off after `longest`.
    """

    title: str
    limits: Sequence[Limit]
    slots: int
    run_time: float
    arrivals: Sequence[SimulatedArrival]
    longest: float
    seed: int


def keyed(limit: Limit, name: str, *, one_for_all: bool) -> Limit:
    """The limit under a name, counted by the key of an arrival unless it is one for all."""
    return changed(limit, name=name, key=None if one_for_all else "{key}")


def limits_of(task: Task[..., object]) -> list[Limit]:
    """The limits of a declared task as they are simulated: by the one key of an arrival, at a cost of 1, with the jobs.

    What an app computes from arguments a simulation cannot know.
    """
    return [_simulated(bound.limit, bound.name) for bound in task.gate.limits]


def with_rule(limits: Sequence[Limit], name: str, new: Limit) -> list[Limit]:
    """The same with another rule for the limit of that name."""
    return [changed(limit, rule=new.rule) if limit.name == name else limit for limit in limits]


def _simulated(limit: Limit, name: str) -> Limit:
    cost = limit.cost if isinstance(limit.cost, int) else 1
    found = changed(limit, name=name, key=None if limit.key is None else "{key}", cost=cost, store=None)
    return found if found.permit is None else changed(found, owner=None)
