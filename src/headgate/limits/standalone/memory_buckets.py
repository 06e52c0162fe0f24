"""Buckets in memory, for one process; tests compare the shared stores with them."""

from __future__ import annotations

import threading

from headgate.clock import Clock, SystemClock
from headgate.errors import DeclarationError
from headgate.limits.bucket_store import Bucket, Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.bucket_table import BucketTable, SharedStateTable


class MemoryBuckets:
    """A BucketStore in this process's memory; it never waits, and any number of threads may use it.

    It removes idle buckets, a few at each call, and never one that still counts something. Limit time is the wall time
    when the store was made, plus the time since then on the monotonic clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.ahead = self.clock.now() - self.clock.monotonic()
        """How far (µs) limit time is ahead of `clock.monotonic()`."""
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, AnyRule], BucketTable] = {}
        self._siblings: dict[str, list[BucketTable]] = {}

    def table(self, limit: str, rule: AnyRule) -> BucketTable:
        """Return the buckets of a limit, to decide without awaiting; the same table for the same limit and rule."""
        with self._lock:
            table = self._tables.get((limit, rule))
            if table is None:
                kind = SharedStateTable if rule.shares_state else BucketTable
                table = kind(rule, self.clock, self.ahead, self._siblings.setdefault(limit, []))
                self._tables[limit, rule] = table
            return table

    async def open(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Remove all buckets."""
        for table in list(self._tables.values()):
            table.clear()

    async def take(self, bucket: Bucket, cost: int = 1, *, count: int = 1, id: str | None = None) -> Taken:
        return self._table_of(bucket).take(bucket.key, cost, count, id)

    async def reserve(self, bucket: Bucket, cost: int = 1, *, id: str) -> Taken:
        return self._table_of(bucket).reserve(bucket.key, cost, id)

    async def cancel(self, bucket: Bucket, *, id: str) -> bool:
        return self._table_of(bucket).cancel(bucket.key, id)

    async def amend(self, bucket: Bucket, charged_at: int, cost: int, started_at: int, actual: int) -> int | None:
        return self._table_of(bucket).amend(bucket.key, charged_at, cost, started_at, actual)

    async def penalize(self, bucket: Bucket, closed_for: int) -> None:
        self._table_of(bucket).penalize(bucket.key, closed_for)

    async def refuse(self, bucket: Bucket, charged_at: int | None = None) -> None:
        self._table_of(bucket).refuse(bucket.key, charged_at)

    async def snapshot(self, bucket: Bucket) -> Snapshot:
        return self._table_of(bucket).snapshot(bucket.key)

    async def reset(self, bucket: Bucket) -> None:
        self._table_of(bucket).reset(bucket.key)

    def _table_of(self, bucket: Bucket) -> BucketTable:
        if bucket.rule.holds_permits:
            raise DeclarationError(
                "a bucket store counts starts; permits belong to their holders: use `Limiter(Concurrency(…)).hold()`"
            )
        return self.table(bucket.limit, bucket.rule)
