"""Writes that share a commit on SQLite: one that is bad fails alone, and a finish is the word of its attempt only."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.errors import IllegalTransition
from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Finished, Returned
from headgate.storage.protocol import Claim, Room
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.manual_clock import ManualClock

CLAIM = Claim("node-a", {"default": Room(100)}, {}, frozenset({"work"}))
TOO_LATE = 86_400_000_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def storage(clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
    await storage.open()
    await storage.join("node-a", "a")
    yield storage
    assert list(await storage.check()) == []
    await storage.close()


def job(id: str, clock: ManualClock, *, run_at: int | None = None, draws: tuple[Draw, ...] = ()) -> NewJob:
    now = clock.now()
    return NewJob(
        id=id,
        task="work",
        queue="default",
        payload="{}",
        priority=0,
        delayed=run_at is not None,
        run_at=now if run_at is None else run_at,
        enqueued_at=now,
        draws=draws,
    )


@pytest.mark.parametrize("place", [0, 3, 6])
async def test_an_add_that_breaks_a_constraint_fails_its_caller_only(
    storage: SqliteStorage, clock: ManualClock, place: int
) -> None:
    adds = [[job(f"{number}.{part}", clock) for part in range(2)] for number in range(7)]
    # An instant beyond what 64 bits hold: SQLite would keep it as a fraction, and nobody could read it again.
    adds[place][1] = job("bad", clock, run_at=TOO_LATE)
    results = await asyncio.gather(*(storage.add(jobs) for jobs in adds), return_exceptions=True)
    for number, result in enumerate(results):
        if number == place:
            assert isinstance(result, sqlite3.IntegrityError)
            assert await storage.job(f"{number}.0") is None, "an add is all or nothing"
        else:
            assert result == {}
            assert await storage.job(f"{number}.0") is not None
            assert await storage.job(f"{number}.1") is not None
    assert len((await storage.claim(CLAIM)).jobs) == 12


async def test_a_bad_add_does_not_keep_other_verbs_of_its_group_from_happening(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    await storage.add([job("first", clock), job("second", clock)])
    bad, cancelled, good, retried, claimed = await asyncio.gather(
        storage.add([job("bad", clock, run_at=TOO_LATE)]),
        storage.cancel("first"),
        storage.add([job("good", clock)]),
        storage.retry("second"),
        storage.claim(CLAIM),
        return_exceptions=True,
    )
    assert isinstance(bad, sqlite3.IntegrityError)
    assert cancelled is JobState.WAITING
    assert good == {}
    assert isinstance(retried, IllegalTransition)
    assert not isinstance(claimed, BaseException)
    assert {each.id for each in claimed.jobs} == {"second", "good"}


async def test_the_same_job_added_twice_at_once_is_stored_once(storage: SqliteStorage, clock: ManualClock) -> None:
    draws = (Draw("calls", "acme"),)
    await asyncio.gather(*(storage.add([job("same", clock, draws=draws)]) for _ in range(5)))
    ((_, waiting, *_),) = [(c.queue, c.waiting) for c in await storage.counts()]
    assert waiting == 1


async def test_endings_of_two_attempts_of_one_job_are_told_apart(storage: SqliteStorage, clock: ManualClock) -> None:
    await storage.add([job("one", clock), job("two", clock)])
    first = {each.id: each for each in (await storage.claim(CLAIM)).jobs}
    await storage.finish("node-a", [Returned(id, each.fence, "interrupted", spent=False) for id, each in first.items()])
    second = {each.id: each for each in (await storage.claim(CLAIM)).jobs}
    late = JobError(type="Late", message="of an attempt that is over")
    written = await storage.finish(
        "node-a",
        [
            Finished("one", first["one"].fence, JobState.FAILED, error=late),
            Finished("one", second["one"].fence, JobState.SUCCEEDED, result="1"),
            Finished("two", second["two"].fence, JobState.SUCCEEDED, result="2"),
            Returned("two", first["two"].fence, "failed", spent=True, run_at=clock.now(), error=late),
        ],
    )
    assert list(written) == [False, True, True, False]
    for id in ("one", "two"):
        record = await storage.job(id)
        assert record is not None
        assert (record.state, record.error) == (JobState.SUCCEEDED, None)
        assert [attempt.outcome for attempt in await storage.attempts(id)] == ["interrupted"]


async def test_limit_time_does_not_go_back_when_a_boot_begins_with_an_earlier_wall_clock(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    clock.advance(100)
    await storage.add([job("gated", clock)])
    connection = storage._writer
    assert connection is not None
    used = storage.limit_now()
    await asyncio.get_running_loop().run_in_executor(
        storage._write_thread, connection.execute, f"UPDATE limit_time SET last_used = {used}"
    )

    class NextBoot(ManualClock):
        def boot_id(self) -> str:
            return "the next"

    later = SqliteStorage(storage.path, NextBoot(clock.now() - 3_600_000_000), synchronous="OFF")
    await later.open()
    try:
        assert later.limit_now() >= used
    finally:
        await later.close()
