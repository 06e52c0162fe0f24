"""A limiter that reports each call that it refuses."""

from __future__ import annotations

from collections.abc import Callable

from headgate.clock import Clock, Duration
from headgate.limits.bucket_store import BucketStore
from headgate.limits.limit import Limit
from headgate.limits.standalone.budget import Budget
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.limiter import Limiter, SyncLimiter

Report = Callable[[str], None]
"""Is called with the key of a refused call, in the thread of its caller."""


class ReportingLimiter(Limiter):
    """A Limiter that calls `report` for each refused call of `try_acquire`, `acquire` and `hold`."""

    def __init__(self, limit: Limit, store: BucketStore, *, clock: Clock, report: Report) -> None:
        super().__init__(limit, store, clock=clock)
        self._report = report
        self.sync = ReportingSyncLimiter(self._budget, report)

    async def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        return _reported(await super().try_acquire(key, cost), key, self._report)

    async def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        return _reported(await super().acquire(key, cost, timeout), key, self._report)


class ReportingSyncLimiter(SyncLimiter):
    """The verbs of a `ReportingLimiter` for threads."""

    def __init__(self, budget: Budget, report: Report) -> None:
        super().__init__(budget)
        self._report = report

    def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        return _reported(super().try_acquire(key, cost), key, self._report)

    def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        return _reported(super().acquire(key, cost, timeout), key, self._report)


def _reported(decision: Decision, key: str, report: Report) -> Decision:
    if not decision.allowed:
        report(key)
    return decision
