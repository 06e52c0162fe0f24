"""A scenario: limits, slots, run times and arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.cli.simulation.simulated_arrivals import SimulatedArrival
from headgate.client.task import Task
from headgate.limits.limit import Limit, changed


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
