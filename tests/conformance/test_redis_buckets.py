"""Redis keeps the promises of every bucket store, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from headgate.limits.bucket_store import BucketStore
from headgate.limits.redis.redis_buckets import RedisBuckets
from tests.conformance.bucket_suite import BucketStoreConformance


class TestRedisBuckets(BucketStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, redis_url: str) -> AsyncIterator[BucketStore]:
        store = RedisBuckets.from_url(redis_url)
        await store.open()
        yield store
        await store.close()
