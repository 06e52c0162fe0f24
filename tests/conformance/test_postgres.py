"""PostgreSQL keeps the promises of every store, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.protocol import Storage
from headgate.testing.conformance import StorageConformance
from headgate.testing.manual_clock import ManualClock


class TestPostgresStorage(StorageConformance):
    @pytest_asyncio.fixture
    async def storage(  # type: ignore[override]  # a fixture takes what it needs
        self, clock: ManualClock, postgres_url: str, postgres_schema: str
    ) -> AsyncIterator[Storage]:
        storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
        await storage.open()
        yield storage
        await storage.close()
