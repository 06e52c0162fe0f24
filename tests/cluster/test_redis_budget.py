"""A budget in Redis that two processes use to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.budget import two_takers_use_exactly_the_budget
from tests.durability.processes import children_of
from tests.redis_server import server_in

pytestmark = pytest.mark.nightly


async def test_two_processes_use_exactly_the_budget(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        async with children_of(tmp_path) as children:
            await two_takers_use_exactly_the_budget(children, server.url, count=40, per=1, seconds=3)
