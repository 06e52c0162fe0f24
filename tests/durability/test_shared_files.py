"""One file and many users: locks held too long, writers at once, long readers, forks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headgate.admin.findings import findings_of
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.processes import Children
from tests.durability.run_log import damage
from tests.durability.stores import claim_for, new_job, on_writer, open_store
from tests.internals import app_on
from tests.until import patient, result_within, until


@pytest.mark.nightly
async def test_while_a_lock_holder_is_stopped_writers_wait_readers_continue_and_no_node_is_declared_dead(
    database: Path, tmp_path: Path, children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    storage = SqliteStorage(database, SystemClock())
    app = app_on(storage)

    @app.task
    async def wait_for_word(key: str) -> Any: ...

    async with app.open():
        workers = [
            await children.start(
                "worker.py", path=str(database), run_log=str(tmp_path / "run_log"), heartbeat=0.4, lease=2
            )
            for _ in range(2)
        ]
        nodes = {(await worker.wait_for_line("NodeStarted"))[0] for worker in workers}
        running = await wait_for_word.enqueue("before")
        for worker in workers:
            worker.send("go")
        await result_within(running)

        holder = await children.start("sqlite_user.py", role="hold the write lock", path=str(database))
        await holder.wait_for_line("locked")
        holder.signal(signal.SIGSTOP)
        holder.send("go")
        with caplog.at_level(logging.WARNING, logger="headgate.storage"):
            pending = asyncio.ensure_future(wait_for_word.enqueue("during"))
            began = time.monotonic()
            # Longer than a lease. The holder is stopped, so these looks would not end if readers were held up.
            while time.monotonic() - began < 3:
                assert (await storage.counts())[0].succeeded == 1
                assert {node.id for node in await storage.nodes()} == nodes
                await asyncio.sleep(0.05)
            assert not pending.done()
            assert "another connection has an open write transaction" in caplog.text
            if sys.platform == "linux":
                assert f"(process {holder.pid}, " in caplog.text
                assert "which is stopped)" in caplog.text

        holder.signal(signal.SIGCONT)
        await holder.wait_for_line("released")
        job = await asyncio.wait_for(pending, patient(5))
        assert await result_within(job) == "during"
        # Both have sent heartbeats again, with the same ids.
        beats = {node.id: node.beat for node in await storage.nodes()}

        async def have_sent_more() -> bool:
            now = {node.id: node.beat for node in await storage.nodes()}
            assert set(now) == nodes
            return all(now[node] > beats[node] + 2 for node in nodes)

        await until(have_sent_more)
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert await worker.end() == 0
            assert not worker.has_line("NodeLost")
            assert not worker.has_line("NodeDeclaredDead")
    assert "another connection has an open write transaction" in children.log, "the workers tell of it as well"


@pytest.mark.skipif(sys.platform != "linux", reason="reads what the Linux kernel lists")
async def test_operators_see_which_process_holds_the_file(database: Path, children: Children) -> None:
    """The fault: a frozen process held the file, and doctor found no blockers and advised to start a worker."""
    storage = SqliteStorage(database, SystemClock())
    app = app_on(storage)
    async with app.open():
        assert await app.admin.blockers() == []
        holder = await children.start("sqlite_user.py", role="hold the write lock", path=str(database))
        await holder.wait_for_line("locked")
        holder.signal(signal.SIGSTOP)

        async def is_seen() -> bool:
            return any("which is stopped" in each.what for each in await app.admin.blockers())

        await until(is_seen)
        (blocker,) = (await app.admin.overview()).blockers
        assert (blocker.kind, blocker.pid) == ("blocks", holder.pid)
        assert blocker.what.startswith(f"the write lock of {storage.path} is held by process {holder.pid}, ")
        (found,) = [each for each in findings_of(await app.admin.checkup()) if each.check == "blockers"]
        assert found.level == "problem"
        assert found.advice == f"continue it: kill -CONT {holder.pid}; or end it: kill -9 {holder.pid}"
        holder.signal(signal.SIGCONT)
        # One that is not stopped is seen when nobody has committed for a while.
        log = database.with_name(f"{database.name}-wal")
        os.utime(log, (time.time(), time.time() - 60))

        async def is_seen_running() -> bool:
            return any("stopped" not in each.what for each in await app.admin.blockers())

        await until(is_seen_running)
        holder.send("go")
        await holder.wait_for_line("released")
        assert await app.admin.blockers() == []


async def test_a_writer_that_times_out_reports_the_process_with_the_lock(database: Path, children: Children) -> None:
    async with open_store(database, patience=0.3) as storage:
        holder = await children.start("sqlite_user.py", role="hold the write lock", path=str(database))
        await holder.wait_for_line("locked")
        with pytest.raises(
            StorageUnavailable, match="is locked by another connection with an open write transaction"
        ) as raised:
            await storage.add([new_job(now=1)])
        if sys.platform == "linux":
            assert f"(process {holder.pid}, " in str(raised.value)
        assert await storage.counts() == []
        holder.send("go")
        await holder.wait_for_line("released")
        await storage.add([new_job(now=1)])


async def test_a_users_own_transaction_is_neither_lost_nor_seen_early(database: Path, children: Children) -> None:
    async with open_store(database) as storage:
        holder = await children.start("sqlite_user.py", role="hold the write lock", path=str(database))
        await holder.wait_for_line("locked")
        adding = asyncio.ensure_future(storage.add([new_job(now=1)]))
        connection = sqlite3.connect(database)
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'of_the_user'").fetchone() == (0,)
        holder.send("go")
        await asyncio.wait_for(adding, patient(5))
        assert connection.execute("SELECT x FROM of_the_user").fetchall() == [(1,)]
        connection.close()
        assert len((await storage.claim(claim_for())).jobs) == 1


@pytest.mark.nightly
async def test_eight_processes_that_write_at_once_share_the_file_evenly(database: Path, children: Children) -> None:
    """None is passed over again and again: while one commits a number of times, no other commits ten times as often."""
    async with open_store(database, joined=False):
        pass
    writers = [await children.start("sqlite_user.py", role="write until told", path=str(database)) for _ in range(8)]
    for writer in writers:
        await writer.wait_for_line("ready")
    for writer in writers:
        writer.send("go")
    for writer in writers:
        await writer.wait_for_line("has-written-50", seconds=30)
    for writer in writers:
        writer.send("enough")
    commits = [count for (count,) in [await writer.wait_for_line("wrote") for writer in writers]]
    assert min(commits) / max(commits) >= 0.1, commits
    async with open_store(database, joined=False) as storage:
        assert (await storage.counts())[0].waiting == sum(commits)
        assert await storage.check() == []
    assert damage(database) == "ok"


@pytest.mark.nightly
async def test_processes_that_open_a_new_file_together_all_succeed(database: Path, children: Children) -> None:
    writers = [await children.start("sqlite_user.py", role="write until told", path=str(database)) for _ in range(8)]
    for writer in writers:
        writer.send("go")
    for writer in writers:
        writer.send("enough")
    for writer in writers:
        assert await writer.end() == 0, children.log
    assert damage(database) == "ok"


async def test_a_long_reader_lets_the_log_grow_and_nothing_fails(database: Path) -> None:
    async with open_store(database, synchronous="OFF") as storage:
        await on_writer(storage, "PRAGMA wal_autocheckpoint = 100")
        await storage.add([new_job(now=1)])
        reader = sqlite3.connect(database, isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM job").fetchone() == (1,)
        log = database.with_name("jobs.db-wal")
        for _ in range(200):
            await storage.add([new_job(now=1, payload='"' + "x" * 50_000 + '"')])
        grown = log.stat().st_size
        assert grown > 8_000_000
        assert reader.execute("SELECT count(*) FROM job").fetchone() == (1,), "it still sees what it saw"
        assert (await storage.counts())[0].waiting == 201
        reader.execute("COMMIT")
        reader.close()
        # The next checkpoint empties the log, which then begins anew instead of growing.
        for _ in range(20):
            await storage.add([new_job(now=1, payload='"' + "x" * 50_000 + '"')])
        assert log.stat().st_size <= grown + 1_000_000
        assert await storage.check() == []


async def test_a_fork_cannot_use_the_store_of_its_parent_and_does_not_harm_it(
    database: Path, children: Children
) -> None:
    parent = await children.start("fork.py", path=str(database))
    assert await parent.end() == 0, children.log


def locks_held_on(path: Path) -> int:
    """How many locks this process holds on the file."""
    inode = path.stat().st_ino
    held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return sum(1 for lock in held if int(lock[4]) == os.getpid() and int(lock[5].rpartition(":")[2]) == inode)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="reads /proc/locks")
async def test_opening_the_file_again_releases_no_locks_of_the_first_connection(database: Path) -> None:
    """A process that opens and closes a file loses all its locks on it, whoever in it had taken them.

    SQLite knows that and keeps its descriptors; a look at the file past it would let another process overwrite what is
    being written here.
    """
    async with open_store(database) as storage:
        await storage.add([new_job(now=1)])
        connection = sqlite3.connect(database)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM job").fetchall()
        before = locks_held_on(database)
        assert before > 0
        await SqliteStorage(database, SystemClock()).migrate(dry_run=True)
        async with open_store(database):
            assert locks_held_on(database) >= before
        assert locks_held_on(database) >= before
        connection.rollback()
        connection.close()
