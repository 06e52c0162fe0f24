"""Fixtures of the durability tests: a database file of its own, and child processes that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.durability.processes import Children, children_of


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest_asyncio.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    async with children_of(tmp_path) as children:
        yield children
