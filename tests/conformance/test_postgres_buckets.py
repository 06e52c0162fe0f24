"""PostgreSQL keeps the promises of every bucket store to plain code, on a real server and in its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from headgate.limits.bucket_store import BucketStore
from headgate.storage.postgres.shared_buckets import PostgresBuckets
from tests.conformance.bucket_suite import BucketStoreConformance


class TestPostgresBuckets(BucketStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, postgres_url: str, postgres_schema: str) -> AsyncIterator[BucketStore]:
        store = PostgresBuckets.from_url(f"{postgres_url}?schema={postgres_schema}")
        await store.open()
        yield store
        await store.close()

    def test_they_are_opened_by_many_at_once_on_one_loop_after_another(
        self, postgres_url: str, postgres_schema: str
    ) -> None:
        """The fault: on the second loop, all but the first caller got a RuntimeError about a lock."""
        store = PostgresBuckets.from_url(f"{postgres_url}?schema={postgres_schema}")

        async def main() -> None:
            await asyncio.gather(*(store.open() for _ in range(3)))
            await store.close()

        for _ in range(2):
            asyncio.run(main())
