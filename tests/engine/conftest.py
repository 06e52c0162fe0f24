"""What tests of the engine share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate
from headgate.clock import SystemClock
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.testing.virtual_time import VirtualClock

MakeApp = Callable[..., Headgate]
"""Returns an app on the database of the test, with these settings; each call another app."""

Stores = Callable[[VirtualClock], Store]


@pytest.fixture(params=["sqlite", "postgres"])
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> MakeApp:
    if request.param == "sqlite":
        return lambda **settings: Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", **settings)
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return lambda **settings: Headgate(url, schema=schema, **settings)


@pytest.fixture(params=["one store", "one file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """What each node opens: the very same store in memory, or the same file."""
    if request.param == "one file":
        return lambda clock: SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
    shared: list[Store] = []

    def one(clock: VirtualClock) -> Store:
        shared.append(shared[0] if shared else MemoryStorage(clock))
        return shared[0]

    return one


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """A store for several apps, with their settings."""
    if request.param == "memory":
        return MemoryStorage(SystemClock()), {}
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}", {}
    return request.getfixturevalue("postgres_url"), {"schema": request.getfixturevalue("postgres_schema")}
