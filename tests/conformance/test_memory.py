"""A database in memory keeps the promises of every store where each verb runs where it is called.

The statements are those of a file, which `test_sqlite.py` runs the whole suite on; here run the parts that add, claim,
finish and recover.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.budgets import BudgetsConformance
from tests.conformance.storage_suite.jobs import JobsConformance
from tests.conformance.storage_suite.nodes import NodesConformance


class TestMemoryStorage(JobsConformance, BudgetsConformance, NodesConformance):
    @pytest_asyncio.fixture(loop_scope="class")
    async def storage(self, clock: ManualClock) -> AsyncIterator[Store]:
        storage = MemoryStorage(clock)
        await storage.open()
        yield storage
        await storage.close()
