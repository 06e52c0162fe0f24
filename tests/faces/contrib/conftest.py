"""What the tests of all gates begin with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer, server_in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with server_in(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex
