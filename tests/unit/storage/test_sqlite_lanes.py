"""The lanes of SQLite: a job that joins a stored lane is counted in it by one short statement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from headgate.jobs.job import BucketRef, NewJob
from headgate.storage.procedures import lanes
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.tags import statements

CLAIM = Claim("node-a", {"default": FreeSlots(100)}, {}, frozenset({"work"}))
FAIR = (BucketRef("fair:default", "acme"),)


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


def job(id: str, clock: ManualClock, *, delay: int = 0, buckets: tuple[BucketRef, ...] = ()) -> NewJob:
    now = clock.now()
    return NewJob(
        id=id,
        task="work",
        queue="default",
        payload="{}",
        priority=0,
        delayed=delay > 0,
        run_at=now + delay,
        enqueued_at=now,
        buckets=buckets,
    )


async def stored_lane(storage: SqliteStorage) -> tuple[Any, ...]:
    columns = "waiting, since, behind, wakes_at, virtual_time, place"

    async def read(tx: Any) -> Any:
        return tx._connection.execute(f"SELECT {columns} FROM lane WHERE queue = 'default'").fetchall()

    (row,) = await storage.read(read, "lookup")
    return tuple(row)


async def state(storage: SqliteStorage, clock: ManualClock, name: str) -> None:
    """Bring the lane into this state."""
    match name:
        case "due":
            await storage.add([job("first", clock)])
        case "asleep":
            await storage.add([job("first", clock, delay=5_000_000)])
        case "due, and asleep":
            await storage.add([job("first", clock), job("second", clock, delay=5_000_000)])
        case "empty":
            await storage.add([job("first", clock)])
            assert len((await storage.claim(CLAIM)).jobs) == 1
    clock.advance(1)


@pytest.mark.parametrize("delay", [0, 2_000_000, 9_000_000])
@pytest.mark.parametrize("name", ["due", "asleep", "due, and asleep", "empty"])
async def test_a_job_that_joins_a_stored_lane_is_counted_as_any_arrival(
    storage: SqliteStorage, clock: ManualClock, tmp_path: Path, name: str, delay: int
) -> None:
    clock_there = ManualClock()
    there = SqliteStorage(tmp_path / "there.db", clock_there, synchronous="OFF")
    await there.open()
    await there.join("node-a", "a")
    await state(storage, clock, name)
    await state(there, clock_there, name)
    with statements() as counted:
        await storage.add([job("joins", clock, delay=delay)])
    assert counted == {"add_jobs": 1, "count_arrivals": 1}
    with mock.patch.object(lanes, "_count_in_stored_lane", mock.AsyncMock(return_value=False)):
        await there.add([job("joins", clock_there, delay=delay)])
    assert await stored_lane(storage) == await stored_lane(there)
    await there.close()


async def test_the_first_job_of_a_lane_and_those_of_fair_queues_arrive_in_line(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    for number in range(2):
        with statements() as counted:
            await storage.add([job(f"fair {number}", clock, buckets=FAIR)])
        assert counted == {"add_jobs": 1, "add_arrivals": 1}
    assert (await stored_lane(storage))[4] is not None
