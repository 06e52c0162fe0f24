"""Damaged and foreign files: a clear error, and the file is not changed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable, StorageUnusable
from headgate.jobs.query import JobFilter
from headgate.storage.sqlite.connection import APPLICATION_ID, connect
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.files import PAGE, contents, copy, corrupt, cut, log_of, open_files, put, size
from tests.durability.stores import new_job, open_store


async def refuse(path: Path, words: str) -> None:
    """Opening raises StorageUnusable with these words, and changes nothing."""
    before = contents(path)
    with pytest.raises(StorageUnusable, match=words) as caught:
        await SqliteStorage(path, SystemClock()).open()
    assert str(path) in str(caught.value)
    assert contents(path) == before


async def fill(path: Path, jobs: int = 200) -> None:
    async with open_store(path) as storage:
        await storage.add([new_job(now=1, payload='"' + "x" * 500 + '"') for _ in range(jobs)])


async def test_a_garbage_file_is_refused(database: Path) -> None:
    put(database, os.urandom(10_000))
    await refuse(database, "is not a SQLite database; nothing was changed")


async def test_a_text_file_is_refused(database: Path) -> None:
    put(database, b"hello")
    await refuse(database, "is not a SQLite database")


async def test_the_database_of_another_program_is_refused(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA application_id = 252006674")
        connection.execute("CREATE TABLE precious (x)")
    connection.close()
    await refuse(database, "is another program's SQLite database")


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("name", ["plain.db", "what?.db", "a#b.db", "50%20.db", "with space.db"])
async def test_the_database_of_another_program_without_an_application_id_is_refused(
    tmp_path: Path, name: str, mode: str
) -> None:
    path = tmp_path / name
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE precious (x)")
    connection.execute("INSERT INTO precious VALUES (1)")
    connection.commit()
    connection.close()
    await refuse(path, "is another program's SQLite database")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT x FROM precious").fetchall() == [(1,)]
    connection.close()


async def test_the_database_of_another_program_that_is_in_use_is_refused(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE precious (x)")
    connection.commit()
    try:
        # Its table is in the write-ahead log only: the file itself still looks empty.
        await refuse(database, "is another program's SQLite database")
    finally:
        connection.close()


async def test_a_truncated_file_is_refused(database: Path) -> None:
    await fill(database)
    cut(database, 20 * PAGE)
    await refuse(database, "is damaged or not a SQLite database.*restore a backup")


async def test_a_file_cut_within_its_header_is_refused(database: Path) -> None:
    await fill(database)
    cut(database, 60)
    await refuse(database, "is not a SQLite database")


@pytest.mark.parametrize(("begin", "end"), [(100, 2000), (2000, PAGE), (PAGE, 20 * PAGE)])
async def test_a_damaged_file_is_not_open_after_the_error(database: Path, begin: int, end: int) -> None:
    """The fault: the error kept a connection, which kept the file and its log open, and SQLite's locks on it."""
    await fill(database)
    whole = contents(database)
    put(database, whole[:begin] + b"\xff" * (end - begin) + whole[end:])
    with pytest.raises(StorageUnusable, match="is damaged") as caught:
        await SqliteStorage(database, SystemClock()).open()
    assert open_files(database) == []
    assert caught.value.__cause__ is not None


async def test_a_folder_and_a_missing_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StorageUnusable, match="is a folder; add a file name to the path"):
        await SqliteStorage(tmp_path, SystemClock()).open()
    with pytest.raises(StorageUnusable, match="does not exist; create it first"):
        await SqliteStorage(tmp_path / "missing" / "jobs.db", SystemClock()).open()


async def test_an_empty_file_becomes_a_database(database: Path) -> None:
    put(database, b"")
    await fill(database, 3)
    assert contents(database)[68:72] == APPLICATION_ID.to_bytes(4, "big")


async def test_an_empty_log_beside_a_sound_file_is_fine(database: Path) -> None:
    await fill(database, 3)
    put(log_of(database), b"")
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 3


async def test_a_garbage_log_beside_a_sound_file_is_ignored(database: Path) -> None:
    await fill(database, 3)
    put(log_of(database), os.urandom(50_000))
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 3
        assert await storage.check() == []


async def test_a_process_that_died_before_its_first_table_leaves_a_file_that_opens(database: Path) -> None:
    connection = connect(database, synchronous="FULL", timeout=1)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert size(database) == PAGE
    await fill(database, 3)


async def test_a_process_that_died_while_it_made_the_file_leaves_one_that_opens(database: Path) -> None:
    """The fault: no worker could start any more, and the error said to let its user write to the file."""
    writes = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA user_version = 0")
connection.execute("PRAGMA synchronous = OFF")
connection.execute("BEGIN IMMEDIATE")
connection.execute("PRAGMA user_version = 1")
os._exit(9)
"""
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", writes, str(database))
    assert await writer.wait() == 9
    assert size(database) == PAGE
    assert size(database.with_name(f"{database.name}-journal")) > 0
    await fill(database, 3)


async def test_a_file_with_the_journal_of_a_process_that_died_opens(database: Path) -> None:
    """A copy may be in the mode with a rollback journal. No reader opens it then: only a writer rolls back."""
    await fill(database, 3)
    writes = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = DELETE")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE junk (x)")
connection.executemany("INSERT INTO junk VALUES (?)", [("x" * 2000,)] * 3000)
os._exit(9)
"""
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", writes, str(database))
    assert await writer.wait() == 9
    assert database.with_name(f"{database.name}-journal").stat().st_size > 0
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 3
        assert await storage.check() == []


async def test_a_database_whose_tables_are_only_in_its_log_opens(database: Path, tmp_path: Path) -> None:
    await fill(database, 3)
    other = tmp_path / "copy.db"
    async with open_store(tmp_path / "new.db") as storage:
        # As after a crash: all that was written is in the log, the id of the file too.
        await storage.add([new_job(now=1) for _ in range(3)])
        copy(storage.path, other)
        copy(log_of(storage.path), log_of(other))
    async with open_store(other) as storage:
        assert (await storage.counts())[0].waiting == 3


async def test_a_file_whose_log_is_just_being_emptied_into_it_opens(database: Path, tmp_path: Path) -> None:
    """The fault: the header was written, the pages that it counts were not yet, and the file was taken for damaged."""
    other = tmp_path / "copy.db"
    async with open_store(tmp_path / "new.db") as storage:
        await storage.add([new_job(now=1) for _ in range(300)])
        copy(log_of(storage.path), log_of(other))
        before = size(storage.path)
        emptying = sqlite3.connect(storage.path)
        emptying.execute("PRAGMA wal_checkpoint(PASSIVE)")
        emptying.close()
        copy(storage.path, other)
    assert size(other) > before
    cut(other, before)
    async with open_store(other) as storage:
        assert (await storage.counts())[0].waiting == 300
        assert await storage.check() == []


async def test_a_page_that_is_corrupt_stops_the_store_and_says_what_to_do(database: Path) -> None:
    await fill(database, 2000)
    # All but the first pages, where the schema is.
    corrupt(database, 100)
    storage = SqliteStorage(database, SystemClock())
    await storage.open()
    try:
        damaged = "is damaged or not a SQLite database.*restore a backup"
        with pytest.raises(StorageUnavailable, match=damaged):
            await storage.jobs(JobFilter(count=500))
        # From the first sign of it nothing is written any more.
        with pytest.raises(StorageUnavailable, match=damaged):
            await storage.add([new_job(now=1)])
        with pytest.raises(StorageUnavailable, match=damaged):
            await storage.counts()
    finally:
        await storage.close()


async def test_a_database_of_a_newer_release_is_refused(database: Path) -> None:
    await fill(database, 3)
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO migration VALUES (999, 'from_the_future', 'abc', 0)")
    connection.close()
    await refuse(database, r"was written by a newer Headgate \(migration 999 'from_the_future'.*upgrade this program")


async def test_a_migration_that_was_edited_is_refused(database: Path) -> None:
    await fill(database, 3)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE migration SET checksum = 'edited' WHERE number = 1")
    connection.close()
    await refuse(database, "migration 1 .* differs from this program's; one of the two was edited")
