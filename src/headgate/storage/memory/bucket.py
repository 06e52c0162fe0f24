"""A bucket and the lanes that wait behind it."""

from __future__ import annotations

from typing import Any, Generic

from headgate.jobs.job import Draw
from headgate.limits.limit import AnyRule
from headgate.storage.admission import BucketView
from headgate.storage.memory.line import Line, M


class Bucket(BucketView, Generic[M]):
    """The state of one limit for one key.

    `waiters` are the lanes behind it, by the line in which their group waits for buckets to open; `lanes` counts all
    lanes that draw on it.
    """

    __slots__ = ("is_listed", "lanes", "order", "waiters")

    def __init__(self, draw: Draw, order: int) -> None:
        super().__init__(draw, _NO_RULE, None)
        self.order = order
        self.waiters: dict[Line[Waiters[M]], Waiters[M]] = {}
        self.lanes = 0
        self.is_listed = False

    def use(self, rule: AnyRule, now: int) -> None:
        """Be judged by `rule` from now on; the state is carried over if another one wrote it."""
        before = self.rule
        if before is rule:
            return
        if self.state is not None and (before.kind, before.describe()) != (rule.kind, rule.describe()):
            if before.kind == rule.kind:
                self.state = rule.load(before.dump(self.state), now)
            else:
                # Nothing is known of what its window holds already: it starts exhausted.
                self.state = rule.take(None, now, rule.snapshot(None, now).available)[1]
        self.rule = rule

    @property
    def idle_at(self) -> int:
        """From this limit time on it is as good as new."""
        if self.state is None:
            return self.closed_until
        return max(self.closed_until, self.rule.idle_at(self.state))


class Waiters(Generic[M]):
    """The lanes of one group that wait behind one bucket; `opens_at` is what its timer is set to."""

    __slots__ = ("bucket", "count", "line", "opens_at", "tick")

    def __init__(self, bucket: Bucket[M]) -> None:
        self.bucket = bucket
        self.line: Line[M] = Line()
        self.count = 0
        self.opens_at: int | None = None
        self.tick = 0


# A bucket gets its rule from the first claim that looks at it.
_NO_RULE: Any = None
