"""Limiters of an app: they report refusals, and use the current bucket store of the app.

A test may replace that store for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.clock import Clock, Duration
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken
from headgate.limits.limit import Limit
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.limiter import Budget, Limiter, SyncLimiter
from headgate.limits.standalone.refusal_log import RefusalLog

Report = Callable[[str, Decision], None]
"""Is called with the key of a call and its decision, in the thread of the caller."""

ReportBypass = Callable[[str], None]
"""Is called with the key of a request that a middleware passes without the limit."""


class CurrentBuckets:
    """A BucketStore that finds the current store at each call and passes the call on."""

    def __init__(self, find: Callable[[], BucketStore]) -> None:
        self._find = find

    async def open(self) -> None:
        await self._find().open()

    async def close(self) -> None:
        await self._find().close()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        return await self._find().take(bucket, cost, count=count, id=id)

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return await self._find().reserve(bucket, cost, id=id)

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        return await self._find().cancel(bucket, id=id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        await self._find().amend(bucket, charged_at, cost, started_at, actual)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        await self._find().penalize(bucket, closed_for)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        store = self._find()
        assert isinstance(store, NotesRefusals), "checked when the limit was declared"
        await store.refuse(bucket, charged_at)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return await self._find().snapshot(bucket)

    async def reset(self, bucket: Bucket) -> None:
        await self._find().reset(bucket)


class ReportingLimiter(Limiter):
    """A Limiter that calls `report` for each `try_acquire`, `acquire` and `hold`, and writes no log lines itself."""

    def __init__(
        self, limit: Limit, store: BucketStore, *, clock: Clock, report: Report, report_bypass: ReportBypass
    ) -> None:
        super().__init__(limit, store, clock=clock)
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
