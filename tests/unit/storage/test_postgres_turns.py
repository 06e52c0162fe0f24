"""Reads of a PostgreSQL store take turns, and what one of them waits for delays no other."""

from __future__ import annotations

import asyncio

import pytest

from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from headgate.storage.postgres.database import PATIENCE, Database, Session
from headgate.testing.virtual_time import VirtualClock, run_virtual


@pytest.mark.parametrize("verb", ["look_up", "scan"])
def test_many_readers_of_a_server_that_is_away_are_told_so_together(verb: str) -> None:
    """The fault: each waited until all before it had tried for five seconds: the last of 50 for two minutes."""

    async def main(clock: VirtualClock) -> None:
        # It is not open, so each try raises at once, as where a server refuses connections.
        database = Database("postgresql://nobody.invalid/jobs", "headgate", size=8)
        database.clock = clock

        async def work(session: Session) -> None: ...

        read = getattr(database, verb)
        began = clock.monotonic()
        answers = await asyncio.gather(*(read(work) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(answer, StorageUnavailable) for answer in answers)
        assert clock.monotonic() - began < PATIENCE + SECOND

    run_virtual(main)
