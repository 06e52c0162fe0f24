"""Memory keeps the promises of every store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from headgate.storage.memory import MemoryStorage
from headgate.storage.protocol import Storage
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite import StorageConformance


class TestMemoryStorage(StorageConformance):
    @pytest_asyncio.fixture
    async def storage(self, clock: ManualClock) -> AsyncIterator[Storage]:
        storage = MemoryStorage(clock)
        await storage.open()
        yield storage
        await storage.close()
