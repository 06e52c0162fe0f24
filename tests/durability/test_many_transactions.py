"""Transactions of many handlers on one SQLite file: they take turns, and nothing that ends one waits for the others."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate import Headgate, HeadgateError, StorageUnavailable, current_job
from headgate.clock import SystemClock
from headgate.storage.sqlite.storage import SqliteStorage
from tests.until import patient, result_within, until

HANDLERS = 8
FOR_EVER = 10_000.0


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[Headgate]:
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}", synchronous="OFF", slots=HANDLERS)
    async with app.open():
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
            file.execute("CREATE TABLE account (name TEXT)")
        yield app


async def test_handlers_that_open_transactions_at_once_all_commit_at_their_first_attempt(app: Headgate) -> None:
    """With one thread in the default executor, a wait for the file there would keep the commits waiting."""
    started: list[int] = []

    @app.task
    async def pay(number: int) -> int:
        started.append(number)
        await until(lambda: len(started) >= HANDLERS)
        async with current_job().transaction() as connection:
            connection.execute("INSERT INTO account VALUES (?)", (str(number),))
            # All others have called transaction() by now.
            await asyncio.sleep(0.01)
        return number

    with ThreadPoolExecutor(1) as only_thread:
        asyncio.get_running_loop().set_default_executor(only_thread)
        async with app:
            jobs = [await pay.enqueue(number) for number in range(HANDLERS)]
            assert [await result_within(job) for job in jobs] == list(range(HANDLERS))
    assert len(started) == HANDLERS


async def test_what_waits_to_be_written_is_written_before_the_next_transaction_begins(app: Headgate) -> None:
    """So a heartbeat waits for two transactions at most, however many handlers open one."""
    in_block, has_been_asked = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    @app.task
    async def other() -> None: ...

    @app.task
    async def pay() -> None:
        async with current_job().transaction() as connection:
            seen.extend(connection.execute("SELECT count(*) FROM job WHERE task LIKE '%other'").fetchone())
            in_block.set()
            await has_been_asked.wait()

    async with app:
        jobs = [await pay.enqueue() for _ in range(3)]
        await asyncio.wait_for(in_block.wait(), patient(5))
        enqueueing = asyncio.ensure_future(other.enqueue())
        await asyncio.sleep(0)
        has_been_asked.set()
        for job in jobs:
            await result_within(job)
        await enqueueing
    assert seen == [0, 1, 1]


async def test_a_write_inside_a_transaction_without_its_connection_is_refused_at_once(app: Headgate) -> None:
    errors: list[str] = []

    @app.task
    async def other(number: int) -> int:
        return number

    @app.task
    async def pay() -> None:
        job = current_job()
        async with job.transaction() as connection:
            for verb in (
                lambda: other.enqueue(1),
                lambda: asyncio.gather(other.enqueue(2)),
                lambda: app.admin.queues.pause("default"),
                lambda: job.transaction().__aenter__(),
            ):
                with pytest.raises(HeadgateError) as raised:
                    await verb()
                errors.append(str(raised.value))
            await other.using(connection=connection).enqueue(3)
            later = asyncio.ensure_future(_after(job_is_done, other.enqueue))
        await other.enqueue(4)
        job_is_done.set()
        await later

    async def _after(event: asyncio.Event, enqueue: object) -> None:
        await event.wait()
        await enqueue(5)  # type: ignore[operator]

    job_is_done = asyncio.Event()
    async with app:
        await result_within(await pay.enqueue())
    assert len(errors) == 4
    assert all("task.using(connection=connection).enqueue(…)" in error for error in errors)
    assert len(await app.admin.jobs(task=other.name)) == 3


async def test_a_transaction_may_write_to_another_file(app: Headgate, tmp_path: Path) -> None:
    elsewhere = Headgate(f"sqlite:///{tmp_path / 'others.db'}", synchronous="OFF")

    @elsewhere.task
    async def other() -> None: ...

    @app.task
    async def pay() -> str:
        async with current_job().transaction():
            return (await other.enqueue()).id

    async with elsewhere.open(), app:
        assert await result_within(await pay.enqueue())


async def test_a_cancelled_transaction_stops_waiting_for_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db", SystemClock(), patience=FOR_EVER)
    await storage.open(migrate=True)
    begin, begins = storage._begin, asyncio.Event()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:

        async def begin_too_late(*arguments: Any) -> None:
            other.execute("BEGIN IMMEDIATE")
            begins.set()
            await begin(*arguments)

        async def pay() -> None:
            async with storage.transaction():
                raise AssertionError("the file is locked")

        monkeypatch.setattr(storage, "_begin", begin_too_late)
        waiting = asyncio.ensure_future(pay())
        await asyncio.wait_for(begins.wait(), patient(5))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, patient(5))
        other.execute("ROLLBACK")
    await storage.close()


async def test_all_that_wait_to_begin_learn_together_that_the_file_stays_locked(tmp_path: Path) -> None:
    """The fault: each waited anew once the one before had given up, so that the last of 20 waited for ten minutes."""
    storage = SqliteStorage(tmp_path / "jobs.db", SystemClock(), patience=1)
    await storage.open()

    async def pay() -> None:
        async with storage.transaction():
            pass

    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        paying = asyncio.gather(*(pay() for _ in range(40)), return_exceptions=True)
        refused = await asyncio.wait_for(paying, patient(10))
        other.execute("ROLLBACK")
    assert all(isinstance(error, StorageUnavailable) for error in refused)
    assert len({id(error) for error in refused}) == 40
    # An error of the block is nobody else's.
    in_block = asyncio.Event()

    async def fail() -> None:
        async with storage.transaction():
            in_block.set()
            await asyncio.sleep(0.1)
            raise StorageUnavailable("another store is away")

    failing = asyncio.create_task(fail())
    await in_block.wait()
    await asyncio.wait_for(pay(), patient(5))
    with pytest.raises(StorageUnavailable, match="another store"):
        await failing
    await storage.close()


async def test_a_transaction_that_waits_for_its_turn_while_the_store_closes_is_refused(tmp_path: Path) -> None:
    store = SqliteStorage(tmp_path / "jobs.db", SystemClock())
    await store.open()

    in_block, may_leave = asyncio.Event(), asyncio.Event()

    async def transact() -> None:
        async with store.transaction():
            in_block.set()
            await may_leave.wait()

    first = asyncio.create_task(transact())
    await in_block.wait()
    second = asyncio.create_task(transact())
    await asyncio.sleep(0)
    await store.close()
    may_leave.set()
    await first
    with pytest.raises(StorageUnavailable, match="is not open"):
        await asyncio.wait_for(second, patient(5))
    await store.open()
    await asyncio.wait_for(store.pause_queue("default"), patient(5))
    await store.close()


async def test_a_write_by_a_link_inside_a_transaction_on_its_file_is_refused_at_once(tmp_path: Path) -> None:
    """The fault: it waited 30 s for the transaction around it, and named another connection of this process."""
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    app, linked = (Headgate(f"sqlite:///{tmp_path / name}", synchronous="OFF") for name in ("jobs.db", "link.db"))
    refused: list[HeadgateError] = []

    @linked.task
    async def other() -> None: ...

    @app.task
    async def pay() -> None:
        async with current_job().transaction():
            with pytest.raises(HeadgateError, match="this would wait for the transaction that is open here") as raised:
                await other.enqueue()
            refused.append(raised.value)

    async with app, linked.open():
        await result_within(await pay.enqueue())
    assert len(refused) == 1
