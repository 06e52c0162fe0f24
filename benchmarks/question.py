"""What a benchmark is made of: a question, the scenarios that answer it, what they measure, and the goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that scenarios measure. Fewer `digits` than it has are noise."""

    key: str
    label: str
    digits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One contender under one load, run in a process of its own.

    `run` names a function as `module:function`; it is called with a folder for its files and with `params` (with
    `quick` overriding them for a quick run), and returns its metrics. `conditions` say what a number means without
    looking at the code: slots, payload, durability. `against` maps column titles to the scenarios that it is divided
    by, in the question's lead metric. What is `quiet` hardly uses the machine, and runs beside other quiet ones.
    """

    name: str
    run: str
    conditions: str
    params: Params = field(default_factory=dict)
    quick: Params = field(default_factory=dict)
    against: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a scenario's median has to reach: by itself, or divided by (`over`) or less (`minus`) that of another."""

    scenario: str
    metric: str
    text: str
    at_least: float | None = None
    at_most: float | None = None
    over: str | None = None
    minus: str | None = None

    def is_met(self, measured: float) -> bool:
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question. Scenarios take turns, `rounds` times; `lead` is the metric that ratios are made of.

    `heading` is its title in the docs, its name if it has none. `prepare` makes files that all scenarios share, once.
    """

    name: str
    asks: str
    scenarios: tuple[Scenario, ...]
    metrics: tuple[Metric, ...]
    lead: str
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    rounds: int = 3
    heading: str = ""
    prepare: str | None = None
    prepare_params: Params = field(default_factory=dict)
    prepare_quick: Params = field(default_factory=dict)
