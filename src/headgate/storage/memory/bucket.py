"""A bucket and the lanes that wait behind it."""

from __future__ import annotations

from typing import Generic

from headgate.jobs.job import Draw
from headgate.limits.concurrency import NO_PERMITS, Permits
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER, Rule
from headgate.storage.admission import BucketView
from headgate.storage.memory.line import Line, M


class Bucket(BucketView, Generic[M]):
    """The state of one limit for one key.

    `waiters` are the lanes behind it, by the line in which their group waits for buckets to open. `users` counts all
    lanes that draw on it, and the buckets whose home it is. `declared` and `revision` tell what its rule was chosen
    from. It is penalised until `penalized_until`; `closed_until` also knows whether it is paused. It is open since
    `opened_at`, for the lanes that still wait behind it.
    """

    home: Bucket[M]

    __slots__ = ("declared", "is_listed", "opened_at", "penalized_until", "revision", "users", "waiters")

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw, _NO_RULE, None)
        self.declared: AnyRule = _NO_RULE
        self.revision = 0
        self.penalized_until = 0
        self.waiters: dict[Line[Waiters[M]], Waiters[M]] = {}
        self.users = 0
        self.is_listed = False
        self.opened_at: int | None = None

    def use(self, rule: AnyRule, now: int, *, is_paused: bool) -> None:
        """Be judged by `rule` from now on; the state is carried over if another one wrote it."""
        before = self.rule
        if self.state is not None and before != rule:
            self.state = rule.load(before.dump(self.state), now)
        self.rule = rule
        self.closed_until = NEVER if is_paused else self.penalized_until

    def penalize(self, until: int) -> None:
        """Let nothing start before that limit time."""
        self.penalized_until = max(self.penalized_until, until)
        self.closed_until = max(self.closed_until, until)

    def renew(self, *, keep_state: bool) -> None:
        """Be as good as new, but for the permits that are still held."""
        if not keep_state:
            self.state = None
        self.penalized_until = 0
        # Whether it is paused is found out by the next claim.
        self.closed_until = 0
        self.revision = 0
        self.declared = _NO_RULE

    @property
    def permits(self) -> Permits:
        """Who holds it; nobody if it does not grant permits."""
        return self.state if isinstance(self.state, Permits) else NO_PERMITS

    @property
    def waiting_lanes(self) -> int:
        """How many lanes wait behind it."""
        return sum(waiters.count for waiters in self.waiters.values())

    @property
    def idle_at(self) -> int:
        """From this limit time on it is as good as new."""
        if self.state is None:
            return self.penalized_until
        return max(self.penalized_until, self.rule.idle_at(self.state))


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
_NO_RULE: AnyRule = Rule()
