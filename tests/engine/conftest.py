"""What tests of the engine share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate import Headgate

MakeApp = Callable[..., Headgate]
"""Returns an app on the database of the test, with these settings; each call another app."""


@pytest.fixture(params=["sqlite", "postgres"])
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> MakeApp:
    if request.param == "sqlite":
        return lambda **settings: Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", **settings)
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return lambda **settings: Headgate(url, schema=schema, **settings)
