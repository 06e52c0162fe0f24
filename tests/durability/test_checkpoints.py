"""Checkpoints of a SQLite file: they run only while nobody can commit, and they keep the log short."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate import Headgate, current_job
from headgate.clock import SystemClock
from headgate.storage.sqlite import connection as sqlite_file
from headgate.storage.sqlite.connection import Checkpointer
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.files import size
from tests.durability.stores import checkpointer_of, look_at_the_log, new_job, on_writer, open_store
from tests.until import result_within, until

EVERY = 40
FRAME = 4096 + 24


@pytest_asyncio.fixture
async def storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[SqliteStorage]]:
    """Two users of one file, whose log is due for a checkpoint after a few frames."""
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_EVERY", EVERY)
    async with contextlib.AsyncExitStack() as opened:
        storages = [SqliteStorage(tmp_path / "jobs.db", SystemClock(), synchronous="OFF") for _ in range(2)]
        for storage in storages:
            await storage.open(migrate=True)
            opened.push_async_callback(storage.close)
        yield storages


async def test_nobody_can_commit_while_the_log_is_checkpointed(
    storages: list[SqliteStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL-reset bug of SQLite needs a commit that resets the log during a checkpoint."""
    commits: list[str] = []
    with contextlib.closing(
        sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=0, check_same_thread=False)
    ) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")

        def commit(statement: str) -> None:
            if "wal_checkpoint" in statement or "ROLLBACK" in statement:
                try:
                    other.execute("CREATE TABLE IF NOT EXISTS other (x)")
                except sqlite3.OperationalError as error:
                    commits.append(f"{statement}: {error}")
                else:
                    commits.append(f"{statement}: committed")

        for storage in storages:
            point = checkpointer_of(storage)
            # As a statement begins: the checkpoint, and the end of the transaction that surrounds it.
            point._connection.set_trace_callback(commit)
            point._writer.set_trace_callback(commit)
        await storages[0].add([new_job(now=1, payload=f'"{"x" * 4096 * EVERY}"')])
        await until(lambda: len(commits) >= 2, 5)
    assert set(commits) == {
        "PRAGMA wal_checkpoint(PASSIVE): database is locked",
        "ROLLBACK: database is locked",
    }


async def test_the_log_stays_short_while_two_processes_write(storages: list[SqliteStorage], tmp_path: Path) -> None:
    for number in range(20):
        await storages[number % 2].add([new_job(now=1, payload=f'"{"x" * 4096 * EVERY}"')])
        for storage in storages:
            await look_at_the_log(storage)
    # Each addition writes more than EVERY frames, and a checkpoint follows; the log of all 20 would have 800.
    assert (tmp_path / "jobs.db-wal").stat().st_size < 6 * EVERY * FRAME
    assert await on_writer(storages[0], "PRAGMA integrity_check") == [("ok",)]


async def test_a_log_that_a_reader_keeps_is_checkpointed_again_only_after_as_many_frames(
    storages: list[SqliteStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Checkpointer] = []
    run = Checkpointer.run

    def run_counted(point: Checkpointer) -> None:
        runs.append(point)
        run(point)

    monkeypatch.setattr(Checkpointer, "run", run_counted)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM job").fetchall()
        await storages[0].add([new_job(now=1, payload=f'"{"x" * 4096 * EVERY}"')])
        await until(lambda: len(runs) == 2)
        for _ in range(3):
            await storages[0].add([new_job(now=1)])
            # Each process looks at the log again after a commit.
            for storage in storages:
                await look_at_the_log(storage)
        assert len(runs) == 2


async def test_a_log_that_a_reader_lets_grow_too_long_is_reported_once_and_again_after_it_was_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_EVERY", EVERY)
    monkeypatch.setattr(sqlite_file, "ALARM_AT", 3 * EVERY)

    async def add(storage: SqliteStorage, times: int) -> list[str]:
        for _ in range(times):
            await storage.add([new_job(now=1, payload=f'"{"x" * 4096 * EVERY}"')])
            await look_at_the_log(storage)
        return [record.message for record in caplog.records]

    report = f"{tmp_path / 'jobs.db-wal'} grows, because an open reader keeps SQLite from emptying it"
    async with open_store(tmp_path / "jobs.db", synchronous="OFF") as storage:
        assert await add(storage, 5) == []
        for times in (1, 2):
            with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM job").fetchall()
                assert await add(storage, 6) == [report] * times
            await add(storage, 2)


async def test_no_connection_of_headgate_or_lent_to_it_checkpoints_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    settings: list[int] = []

    class Recorded(sqlite3.Connection):
        def close(self) -> None:
            with contextlib.suppress(sqlite3.ProgrammingError):
                settings.extend(self.execute("PRAGMA wal_autocheckpoint").fetchone())
            super().close()

    connect: Any = sqlite3.connect

    def recorded(database: Any, *arguments: Any, **options: Any) -> Any:
        # Those with a URI only read, and commit nothing.
        return connect(database, *arguments, **options, **({} if options.get("uri") else {"factory": Recorded}))

    monkeypatch.setattr(sqlite3, "connect", recorded)
    app = Headgate(f"sqlite:///{path}", synchronous="OFF")

    @app.task
    async def pay() -> None:
        async with current_job().transaction() as connection:
            connection.execute("CREATE TABLE account (name TEXT)")

    async with app:
        await result_within(await pay.enqueue())
        await app.admin.jobs(text="ada")
        await app.admin.overview()
        with contextlib.closing(sqlite3.connect(path)) as lent, lent:
            await pay.using(connection=lent).enqueue()
    # The one that migrates, the writer, the one for checkpoints, the transaction and the lent one.
    assert settings == [0] * 5


async def test_a_log_that_a_reader_let_grow_shrinks_when_it_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: after a backup under load, the log took its room on the disk for as long as any worker ran."""
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_EVERY", EVERY)
    log = tmp_path / "jobs.db-wal"
    async with open_store(tmp_path / "jobs.db", synchronous="OFF") as storage:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM job").fetchall()
            for _ in range(10):
                await storage.add([new_job(now=1, payload=f'"{"x" * 4096 * EVERY}"')])
        assert size(log) > 10 * EVERY * FRAME
        await look_at_the_log(storage)
        await storage.add([new_job(now=1)])
        assert size(log) <= 4 * EVERY * FRAME
        assert await on_writer(storage, "PRAGMA integrity_check") == [("ok",)]


async def test_a_reader_that_is_the_last_to_close_the_file_syncs_it(tmp_path: Path) -> None:
    """The fault: the log was removed before the disk had its pages, where a program ended without closing its app."""
    async with open_store(tmp_path / "jobs.db") as storage:
        for name in ("lookups", "lists", "counts"):
            found = await storage._query(name, lambda connection: connection.execute("PRAGMA synchronous").fetchone())
            assert found == (2,)
