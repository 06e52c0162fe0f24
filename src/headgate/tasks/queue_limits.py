"""The limits of queues: all jobs of a queue draw on them, whatever their task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.errors import DeclarationError
from headgate.limits.argument_fields import ArgumentFields
from headgate.limits.concurrency import Concurrency
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.key import UNTYPED
from headgate.limits.limit import Limit, suggested_limits
from headgate.tasks.gate import BoundLimit, numbered_name
from headgate.tasks.queue import Queue

RESERVED = "queue:"
"""The prefix of limits that queues make: `queue:emails`, `queue:emails:rate`."""


class QueueLimit(NamedTuple):
    """A limit of a queue under its full name; `is_own` if only this queue can declare that name."""

    name: str
    limit: Limit
    is_own: bool


class QueueLimits:
    """The limits of one queue."""

    def __init__(self, declared: Queue, shared: Mapping[str, Limit]) -> None:
        queue, global_concurrency = declared.name, declared.global_concurrency
        self._where = f"queue {queue!r}"
        self.concurrency: BoundLimit | None = (
            None
            if global_concurrency is None
            else BoundLimit(Concurrency(global_concurrency, on_limit="wait"), RESERVED + queue, (), self._where)
        )
        self.named: list[QueueLimit] = []
        for limit in declared.limits:
            self.named.append(self._named(queue, limit, shared))
        names = [limit.name for limit in self.named if not limit.limit.may_repeat]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DeclarationError(f"{self._where} uses limit {', '.join(twice)} twice; once is enough")
        self._order = (
            None
            if declared.fair_by is None
            else QueueLimit(PREFIX + queue, FairOrder(declared.fair_by, declared.weights or {}), is_own=True)
        )

    def _named(self, queue: str, limit: Limit | str, shared: Mapping[str, Limit]) -> QueueLimit:
        if isinstance(limit, str):
            if limit not in shared:
                if (rate := suggested_limits(limit)) is not None:
                    raise DeclarationError(f"{self._where}: {limit!r} is a rate, not the name of a limit; write {rate}")
                raise DeclarationError(
                    f"{self._where} uses limit {limit!r}, which is not declared; declare it first: "
                    f"app.limit({limit!r}, …)"
                )
            return QueueLimit(limit, shared[limit], is_own=False)
        if not isinstance(limit, Limit):
            raise DeclarationError(
                f"{limit!r} in limits= of {self._where} is not a limit; use RateLimit(…), StrictRate(…) or a name"
            )
        if limit.name is not None:
            return QueueLimit(limit.name, limit, is_own=False)
        taken = {known.name for known in self.named}
        return QueueLimit(numbered_name(f"{RESERVED}{queue}:{limit.rule.family}", taken), limit, is_own=True)

    def bound(
        self,
        parameters: Sequence[str],
        taken: Sequence[str],
        *,
        fields: ArgumentFields = UNTYPED,
        waits_here: bool = True,
    ) -> list[BoundLimit]:
        """Return its limits, bound to the arguments of a task that draws on the `taken` ones itself.

        Its concurrency and its order are those of jobs that wait in this queue.
        """
        named = [limit for limit in self.named if limit.name not in taken or limit.limit.may_repeat]
        if self._order is not None and waits_here:
            named.append(self._order)
        bound = [BoundLimit(limit.limit, limit.name, parameters, self._where, fields) for limit in named]
        return [*bound, self.concurrency] if self.concurrency is not None and waits_here else bound

    @property
    def own(self) -> dict[str, Limit]:
        """The limits that only this queue declares, by name."""
        own = {limit.name: limit.limit for limit in self.named if limit.is_own}
        if self._order is not None:
            own[self._order.name] = self._order.limit
        if self.concurrency is not None:
            own[self.concurrency.name] = self.concurrency.limit
        return own
