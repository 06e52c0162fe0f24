"""What the tests of the gates share."""

from __future__ import annotations

import uuid

import pytest

from tests.faces.contrib.gate_suite import Side
from tests.faces.contrib.workers import Log
from tests.redis_server import RedisServer


@pytest.fixture
def log(server: RedisServer, side: Side) -> Log:
    """What the tasks of the module's own framework wrote."""
    return Log(server.url, side.own)


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex
