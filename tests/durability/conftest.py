"""Fixtures of the durability tests: a database of its own, and child processes that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.durability.processes import Children, children_of
from tests.postgres_server import PostgresServer, server_in


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server of the test's own, which keeps what it commits."""
    with server_in(tmp_path, durable=True) as server:
        yield server


@pytest_asyncio.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    async with children_of(tmp_path) as children:
        yield children
