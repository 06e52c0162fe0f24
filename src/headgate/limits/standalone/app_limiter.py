"""Limiters of an app: they report refusals, and use the current bucket store of the app.

A test may replace that store for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headgate.clock import Clock, Duration
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, TakenOrBooked, take_turn
from headgate.limits.limit import Limit
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.holding import Budget
from headgate.limits.standalone.limiter import Limiter, SyncLimiter
from headgate.limits.standalone.refusal_log import RefusalLog
from headgate.limits.standalone.shared_budget import SharedBudget

Report = Callable[[str, Decision], None]
"""Is called with the key of a call and its decision, in the thread of the caller."""


class CurrentBuckets:
    """A BucketStore that finds the current store at each call and passes the call on."""

    def __init__(self, find: Callable[[], BucketStore]) -> None:
        self._find = find

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._find(), verb)

    # Methods of the class, by which it is a SharedWithJobs and a NotesRefusals.
    async def take_turn(self, bucket: Bucket, cost: int = 1, *, count: int = 1, patience: int) -> TakenOrBooked:
        return await take_turn(self._find(), bucket, cost, count=count, patience=patience)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        store = self._find()
        assert isinstance(store, NotesRefusals), "checked when the limit was declared"
        await store.refuse(bucket, charged_at)


class ReportingLimiter(Limiter):
    """A Limiter that calls `report` for each `try_acquire`, `acquire` and `hold`, and writes no log lines itself."""

    def __init__(
        self,
        limit: Limit,
        store: BucketStore,
        *,
        clock: Clock,
        report: Report,
        report_bypass: Callable[[str], None],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        open_app: Callable[[], object],
    ) -> None:
        super().__init__(limit, store, clock=clock)
        if isinstance(self._budget, SharedBudget):
            self._budget.home.find, self._budget.open_app = loop, open_app
        self._refusals.silence()
        self._report = report
        self._report_bypass = report_bypass
        self.sync = ReportingSyncLimiter(self._budget, self._refusals, report)

    def note_bypass(self, key: str) -> None:
        self._report_bypass(key)

    async def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        return _reported(await super().try_acquire(key, cost), key, self._report)

    async def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        return _reported(await super().acquire(key, cost, timeout), key, self._report)


class ReportingSyncLimiter(SyncLimiter):
    """The verbs of a `ReportingLimiter` for threads."""

    def __init__(self, budget: Budget, refusals: RefusalLog, report: Report) -> None:
        super().__init__(budget, refusals)
        self._report = report

    def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        return _reported(super().try_acquire(key, cost), key, self._report)

    def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        return _reported(super().acquire(key, cost, timeout), key, self._report)


def _reported(decision: Decision, key: str, report: Report) -> Decision:
    report(key, decision)
    return decision
