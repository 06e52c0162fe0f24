"""SQLite keeps the promises of every store, in a real file with real threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite import StorageConformance
from tests.internals import writer_of


class TestSqliteStorage(StorageConformance):
    @pytest_asyncio.fixture(loop_scope="class")
    async def storage(  # type: ignore[override]  # a fixture takes what it needs
        self, clock: ManualClock, tmp_path: Path
    ) -> AsyncIterator[Store]:
        storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
        await storage.open()
        yield storage
        await storage.close()

    def writes(self, storage: Store) -> int | None:
        assert isinstance(storage, SqliteStorage)
        return writer_of(storage).total_changes
