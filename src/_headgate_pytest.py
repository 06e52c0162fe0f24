"""The fixtures of Headgate for pytest.

Pytest loads this module wherever Headgate is installed, so it stands outside of the package and imports none of it: a
run that uses no fixture of it pays for nothing else.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate import Headgate
    from headgate.testing import LiveApp, Workbench


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("headgate_app", "the app that the fixtures of Headgate work on, as 'package.module:app'", default="")


@pytest.fixture
def headgate_app(request: pytest.FixtureRequest) -> Headgate:
    """The app under test: that of the ini option `headgate_app`. Override it to return another one."""
    from headgate import Headgate

    where = str(request.config.getini("headgate_app"))
    if not where:
        raise pytest.UsageError(
            'Headgate does not know which app to test: set headgate_app = "package.module:app" in pytest\'s '
            "configuration, or define a fixture headgate_app that returns it"
        )
    found = pkgutil.resolve_name(where)
    if not isinstance(found, Headgate):
        raise pytest.UsageError(f"headgate_app = {where!r} is {found!r}, and no Headgate app")
    return found


@pytest.fixture
def headgate_manual(headgate_app: Headgate) -> Iterator[Workbench]:
    """What is enqueued is kept, and runs when the test says so; see `headgate.testing.manual`."""
    from headgate.testing import manual

    with manual(headgate_app) as jobs:
        yield jobs


@pytest.fixture
def headgate_inline(headgate_app: Headgate) -> Iterator[Workbench]:
    """What is enqueued runs at once; see `headgate.testing.inline`."""
    from headgate.testing import inline

    with inline(headgate_app) as jobs:
        yield jobs


@pytest.fixture
def headgate_live(headgate_app: Headgate, tmp_path: Path) -> Iterator[LiveApp]:
    """A real engine runs in a thread beside the test, on a SQLite file, for tests that cannot await.

    See `headgate.testing.live`, which also is for those that can.
    """
    from headgate.testing import live

    with live(headgate_app, file=tmp_path / "jobs.db") as running:
        yield running
