"""The buckets of job storages, as plain code uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.limits.bucket_store import BucketStore
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.storage.stored_buckets import StoredBuckets
from headgate.testing.manual_clock import ManualClock
from tests.conformance.bucket_suite import BucketStoreConformance


class TestStoredBuckets(BucketStoreConformance):
    @pytest_asyncio.fixture(params=["sqlite", "postgres"])
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str, postgres_schema: str
    ) -> AsyncIterator[BucketStore]:
        self.time = clock = ManualClock()
        storage: Store
        if request.param == "postgres":
            storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
        else:
            storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
        await storage.open()
        self.storage = storage
        yield StoredBuckets(storage)
        await storage.close()

    async def elapse(self, store: BucketStore, seconds: float) -> None:
        self.time.advance(seconds)

    async def forget_idle(self, store: BucketStore) -> None:
        while await self.storage.evict():
            pass
