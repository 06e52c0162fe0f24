"""Reads of a PostgreSQL store take turns, and what one of them waits for delays no other."""

from __future__ import annotations

import asyncio

import pytest

from headgate.clock import SECOND, sleep
from headgate.errors import StorageUnavailable
from headgate.jobs.job import NewJob
from headgate.storage.postgres.database import PATIENCE, Database, Session
from headgate.storage.postgres.storage import PostgresStorage
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


@pytest.mark.parametrize("verb", ["look_up", "scan"])
def test_a_reader_that_has_waited_for_its_turn_tries_again_when_its_connection_is_lost(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the five seconds counted from the call, so that none were left after a wait behind a slow list."""

    async def main(clock: VirtualClock) -> None:
        database = Database("postgresql://nobody.invalid/jobs", "headgate", size=8)
        database.clock = clock
        tries = 0

        async def run(_work: object) -> str:
            nonlocal tries
            tries += 1
            if tries == 1:
                await sleep(clock, 60)
            if tries == 2:
                raise StorageUnavailable("the connection was lost")
            return "read"

        async def work(session: Session) -> None: ...

        monkeypatch.setattr(database, "run", run)
        read = getattr(database, verb)
        answers: list[str] = await asyncio.gather(*(read(work) for _ in range(2)))
        assert answers == ["read", "read"]
        assert tries == 3

    run_virtual(main)


def test_all_who_enqueue_under_one_key_learn_together_that_the_server_is_away() -> None:
    """The fault: each waited until all before it had tried for five seconds: the last of 50 for four minutes."""

    async def main(clock: VirtualClock) -> None:
        storage = PostgresStorage("postgresql://nobody.invalid/jobs", clock)
        storage._database.clock = clock
        jobs = [
            NewJob(
                id=f"{number:013}", task="refresh", queue="default", payload="{}", priority=0, delayed=False, run_at=0,
                enqueued_at=0, unique_key="acme",
            )
            for number in range(50)
        ]  # fmt: skip
        began = clock.monotonic()
        answers = await asyncio.gather(*(storage._add_unique([job]) for job in jobs), return_exceptions=True)
        assert all(isinstance(answer, StorageUnavailable) for answer in answers)
        assert clock.monotonic() - began < PATIENCE + SECOND

    run_virtual(main)
