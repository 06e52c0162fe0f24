"""The current bucket store of an app; a test may replace it for a while."""

from __future__ import annotations

from collections.abc import Callable

from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken
from headgate.limits.rule import Snapshot


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
