"""The limits of one task, ready to tell for each call which buckets it draws on and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.errors import CostExceedsLimit, DeclarationError, PayloadError
from headgate.jobs.job import Draw
from headgate.limits.key import bucket_key, compile_key
from headgate.limits.limit import Limit

OnSkip = Callable[[str, str], None]
"""Told the limit's name and the reason when a job runs without it."""


class BoundLimit:
    """A limit with its full name, bound to the arguments of a task."""

    def __init__(self, limit: Limit, name: str, parameters: Sequence[str], where: str) -> None:
        self.limit = limit
        self.name = name
        self._where = where
        self._key = compile_key(limit.key, parameters, f"limit {name!r} of {where}")
        self._one_for_all = limit.key is None
        fixed = isinstance(limit.cost, int)
        self._cost = None if fixed else compile_key(limit.cost, parameters, f"the cost of {where}")
        self.fixed_cost = limit.cost if isinstance(limit.cost, int) else 0

    def key(self, arguments: Mapping[str, Any], headers: Mapping[str, str], on_skip: OnSkip) -> str | None:
        """The key of a call; None leaves it ungated by this limit."""
        try:
            key = bucket_key(self._key(arguments, headers))
        except Exception as error:
            # Whatever a user's key function raises must not lose the job.
            on_skip(self.name, f"its key could not be computed: {type(error).__name__}: {error}")
            return None
        if not key and not self._one_for_all:
            on_skip(self.name, "its key came out empty")
            return None
        return key

    def cost(self, arguments: Mapping[str, Any], headers: Mapping[str, str]) -> int:
        """What a call costs. Raises PayloadError for no whole number from 1, CostExceedsLimit for too much."""
        if self._cost is None:
            return self.fixed_cost
        value = self._cost(arguments, headers)
        try:
            cost = int(str(value))
        except ValueError:
            cost = 0
        if cost < 1:
            raise PayloadError(f"limit {self.name!r} of {self._where} costs {value!r}; a cost is a whole number from 1")
        try:
            self.limit.rule.take(None, 0, cost)
        except CostExceedsLimit as error:
            raise CostExceedsLimit(f"limit {self.name!r} of {self._where}: {error}") from None
        return cost


class Gate:
    """All limits of a task: they admit a job together or not at all."""

    def __init__(self, limits: Sequence[BoundLimit]) -> None:
        self.limits = tuple(limits)
        self._all_cost_one = all(limit.fixed_cost == 1 for limit in self.limits)

    def draws(
        self, arguments: Mapping[str, Any], headers: Mapping[str, str], on_skip: OnSkip
    ) -> tuple[tuple[Draw, ...], tuple[int, ...] | None]:
        """The buckets a call draws on, and its cost in each (None where all are 1)."""
        draws: list[Draw] = []
        costs: list[int] = []
        for limit in self.limits:
            key = limit.key(arguments, headers, on_skip)
            if key is not None:
                draws.append(Draw(limit.name, key))
                costs.append(limit.cost(arguments, headers))
        if self._all_cost_one or all(cost == 1 for cost in costs):
            return tuple(draws), None
        return tuple(draws), tuple(costs)


def bind_limits(
    limits: Sequence[Limit | str], shared: Mapping[str, Limit], task: str, parameters: Sequence[str]
) -> Gate:
    """The gate of a task. An unnamed limit is named after its task and rule; a string is the name of a shared one."""
    where = f"task {task!r}"
    bound: list[BoundLimit] = []
    for limit in limits:
        if isinstance(limit, str):
            if limit not in shared:
                raise DeclarationError(
                    f"{where} uses limit {limit!r}, which is not declared; declare it first: app.limit({limit!r}, …)"
                )
            bound.append(BoundLimit(shared[limit], limit, parameters, where))
        elif not isinstance(limit, Limit):
            raise DeclarationError(
                f"{limit!r} in limits= of {where} is not a limit; use RateLimit(…), StrictRate(…) or a name"
            )
        else:
            name = limit.name or _own_name(task, limit, [b.name for b in bound])
            bound.append(BoundLimit(limit, name, parameters, where))
    names = [b.name for b in bound]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DeclarationError(f"{where} uses limit {', '.join(sorted(twice))} twice; once is enough")
    return Gate(bound)


def _own_name(task: str, limit: Limit, taken: Sequence[str]) -> str:
    # By kind and order, not by numbers: a changed rate keeps its buckets.
    name = f"{task}:{limit.rule.kind}"
    number = 2
    while name in taken:
        name = f"{task}:{limit.rule.kind}{number}"
        number += 1
    return name
