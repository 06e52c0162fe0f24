"""A limit: a rule, declared with the key that it counts by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.key import Header
from headgate.limits.rule import Rule

MAX_NAME = 100

Key = str | Callable[..., object] | Header | None
Cost = int | str | Callable[..., int]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What all limits share.

    `key` names the bucket a job draws on: a template over its arguments (`"{tenant_id}"`, `"{order.tenant_id}"`,
    `"{0}"`), a callable that is given the arguments it names, `header("tenant")`, or None for one bucket for all.
    A key that comes out empty leaves the job ungated by this limit, with one warning.
    `name` (up to 100 characters) makes it one budget for every task that uses the name; without it the limit belongs
    to its task. `cost` (default 1) is what one start weighs: a number, a template or a callable.
    """

    key: Key = None
    name: str | None = None
    cost: Cost = 1

    # Every limit has one; the annotation is a class variable so that dataclasses leave it to the subclasses.
    rule: ClassVar[Any]

    def __post_init__(self) -> None:
        if self.name is not None and not 1 <= len(self.name) <= MAX_NAME:
            raise DeclarationError(
                f"limit name {self.name[:40]!r} has {len(self.name)} characters; use 1 to {MAX_NAME}"
            )
        if isinstance(self.cost, int):
            if isinstance(self.cost, bool) or self.cost < 1:
                raise DeclarationError(f"cost={self.cost!r} of a limit must be a whole number of at least 1")
            try:
                self.rule.take(None, 0, self.cost)
            except CostExceedsLimit as error:
                raise DeclarationError(str(error)) from None


AnyRule = Rule[Any]
