"""A database that is removed or replaced while it is open: noticed, and nothing is written into nowhere."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageFailed
from headgate.jobs.query import JobFilter
from headgate.storage.facts import SqliteFacts
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.files import copy, is_there, log_of, rename, size, unlink
from tests.durability.stores import NODE, claim_for, new_job, open_store
from tests.until import patient, result_within, until


def move_away(path: Path) -> None:
    rename(path, path.with_name("elsewhere.db"))


def replace_with_a_copy(path: Path) -> None:
    copy(path, path.with_name("copy.db"))
    rename(path.with_name("copy.db"), path)


def unlink_the_log(path: Path) -> None:
    unlink(log_of(path))


def unlink_the_locks(path: Path) -> None:
    """Without them, two processes write at once."""
    unlink(path.with_name(f"{path.name}-shm"))


def unlink_the_log_and_the_locks(path: Path) -> None:
    unlink_the_log(path)
    unlink_the_locks(path)


async def until_it_is_noticed(storage: SqliteStorage) -> None:
    """Each look that still succeeds is followed by another; five seconds are promised, on a quiet machine."""

    async def is_noticed() -> bool:
        try:
            await storage.counts()
        except StorageUnavailable:
            return True
        return False

    await until(is_noticed, 5)


@pytest.mark.parametrize("loss", [unlink, move_away, replace_with_a_copy, unlink_the_log, unlink_the_locks])
async def test_a_deleted_file_is_noticed_and_every_operation_raises(
    loss: Callable[[Path], None], database: Path
) -> None:
    async with open_store(database) as storage:
        await storage.add([new_job(now=1)])
        loss(database)
        await until_it_is_noticed(storage)
        for verb in (
            storage.add([new_job(now=1)]),
            storage.claim(claim_for()),
            storage.finish(NODE, []),
            storage.cancel("job"),
            storage.retry("job"),
            storage.job("job"),
            storage.final(["job"]),
            storage.attempts("job"),
            storage.jobs(JobFilter()),
            storage.counts(),
            storage.buckets(),
            storage.nodes(),
            storage.node_update(),
            storage.join("node-b", "b"),
            storage.beat(NODE),
            storage.cancels(NODE, []),
            storage.leave(NODE),
            storage.recover(NODE, 0),
            storage.expire(),
            storage.prune(0),
            storage.evict(),
            storage.check(),
        ):
            with pytest.raises(StorageUnavailable, match=r"was removed or replaced while it was open.*put it back"):
                await verb


@pytest.mark.nightly
@pytest.mark.parametrize("loss", [unlink, move_away, replace_with_a_copy, unlink_the_log, unlink_the_locks])
async def test_no_job_is_accepted_into_a_file_that_was_just_deleted(
    loss: Callable[[Path], None], database: Path
) -> None:
    app = Headgate(f"sqlite:///{database}")

    @app.task
    async def work() -> None: ...

    async with app.open():
        await work.enqueue()
        loss(database)
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match=r"was removed or replaced while it was open"):
                await work.enqueue()


@pytest.mark.parametrize("loss", [unlink, move_away, replace_with_a_copy, unlink_the_log, unlink_the_locks])
async def test_a_transaction_on_a_file_that_was_just_deleted_is_not_reported_as_committed(
    loss: Callable[[Path], None], database: Path
) -> None:
    async with open_store(database) as storage:
        with pytest.raises(StorageUnavailable, match=r"was removed or replaced while it was open"):
            async with storage.transaction():
                loss(database)


@pytest.mark.nightly
async def test_a_file_behind_a_symbolic_link_is_watched_too(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(real / "jobs.db")
    (real / "jobs.db").touch()
    async with open_store(link) as storage:
        await storage.add([new_job(now=1)])
        await asyncio.sleep(2.5)
        assert (await storage.counts())[0].waiting == 1, "nothing has happened yet"
        (real / "jobs.db").unlink()
        await until_it_is_noticed(storage)


async def test_a_link_that_leads_to_another_file_is_noticed(tmp_path: Path) -> None:
    """The fault: new readers and the transactions of handlers used the other file, everything else the first one."""
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "first.db")
    async with open_store(tmp_path / "other.db"), open_store(link) as storage:
        unlink(link)
        link.symlink_to(tmp_path / "other.db")
        with pytest.raises(StorageUnavailable, match=r"link\.db was removed or replaced while it was open"):
            await storage.add([new_job(now=1)])


async def test_a_worker_stops_claiming_when_its_file_is_gone(database: Path) -> None:
    app = Headgate(f"sqlite:///{database}")
    failed = asyncio.Event()
    runs: list[int] = []
    app.subscribe(lambda _event: failed.set(), StorageFailed)

    @app.task
    async def work(number: int) -> None:
        runs.append(number)

    async with app:
        await result_within(await work.enqueue(1), 5)
        elsewhere = database.with_name("elsewhere.db")
        rename(database, elsewhere)
        await asyncio.wait_for(failed.wait(), patient(5))
        with pytest.raises(StorageUnavailable, match="put it back"):
            await work.enqueue(2)
    assert runs == [1]
    # Nothing was written beside it: what is opened at that path now is new.
    assert not is_there(database)
    rename(elsewhere, database)
    async with open_store(database) as storage:
        assert (await storage.counts())[0].succeeded == 1


async def test_a_lost_file_does_not_stop_an_app_from_closing(database: Path) -> None:
    storage = SqliteStorage(database, SystemClock())
    await storage.open()
    unlink(database)
    await until_it_is_noticed(storage)
    await asyncio.wait_for(storage.close(), patient(5))


ADD = """
import asyncio, sys
from pathlib import Path
from headgate.jobs.identity import job_text
from tests.durability.stores import new_job, open_store

async def add():
    async with open_store(Path(sys.argv[1])) as storage:
        for number in range(5):
            # Not the ids that `new_job` gives in the process of the test.
            await storage.add([new_job(now=1, task="other", id=job_text(1_000_000 + number))])

asyncio.run(add())
"""


async def add_in_another_process(path: Path) -> None:
    adding = await asyncio.create_subprocess_exec(sys.executable, "-c", ADD, path)
    assert await adding.wait() == 0


@pytest.mark.parametrize("loss", [unlink_the_locks, unlink_the_log_and_the_locks])
async def test_closing_keeps_what_others_have_written_since_a_loss(
    loss: Callable[[Path], None], database: Path
) -> None:
    """The fault: closing copied the log that it knew into the file, and removed the log with the jobs of others."""
    async with open_store(database) as storage:
        await storage.add([new_job(now=1)])
        loss(database)
        await add_in_another_process(database)
    async with open_store(database) as storage:
        # Those that were added before are in the log that was removed.
        assert (await storage.counts())[0].waiting == (5 if loss is unlink_the_log_and_the_locks else 6)
        assert (await storage.check_indexes()).contradictions == ()


async def test_an_app_that_closes_after_a_loss_leaves_the_locks_of_others_in_its_process(database: Path) -> None:
    """The fault: it released them, so another process removed the log, and the next to close wrote over its jobs."""
    async with open_store(database) as second:
        async with open_store(database) as first:
            await first.add([new_job(now=1)])
            await second.add([new_job(now=1)])
            unlink_the_locks(database)
        await add_in_another_process(database)
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 7


async def test_no_write_replaces_what_others_have_written_since_a_loss(database: Path) -> None:
    """The fault: it was noticed after the commit, which had overwritten the jobs of others in the log."""
    async with open_store(database) as storage:
        await storage.add([new_job(now=1)])
        unlink_the_locks(database)
        await add_in_another_process(database)
        with pytest.raises(StorageUnavailable, match=r"was removed or replaced while it was open"):
            await storage.add([new_job(now=1)])
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 6


async def test_an_app_that_is_opened_after_a_loss_beside_another_of_its_process_is_refused(database: Path) -> None:
    """The fault: it shared the index of the first one, and its jobs replaced those of other processes in the log."""
    async with open_store(database) as first:
        await first.add([new_job(now=1)])
        unlink_the_locks(database)
        await add_in_another_process(database)
        with pytest.raises(
            StorageUnavailable, match=r"was removed or replaced while it was open.*restart this process"
        ):
            async with open_store(database) as second:
                await second.add([new_job(now=1)])
    async with open_store(database) as storage:
        assert (await storage.counts())[0].waiting == 6


async def test_a_new_file_at_the_place_of_one_that_an_app_of_the_process_still_has_open_can_be_used(
    database: Path,
) -> None:
    async with open_store(database) as first:
        await first.add([new_job(now=1)])
        unlink(database)
        unlink_the_log_and_the_locks(database)
        async with open_store(database) as second:
            await second.add([new_job(now=1)])
            assert (await second.counts())[0].waiting == 1


async def test_the_error_of_a_lost_file_does_not_grow_with_its_calls(database: Path) -> None:
    async with open_store(database) as storage:
        unlink(database)
        await until_it_is_noticed(storage)
        entries: list[int] = []
        for _ in range(20):
            with pytest.raises(StorageUnavailable) as raised:
                await storage.counts()
            entries.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(entries)) == 1


async def test_the_facts_about_a_link_are_those_of_its_file(tmp_path: Path) -> None:
    """The fault: of a link, `headgate doctor` reported the disk and the folder of the link, and a log of 0 MiB."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "jobs.db")
    async with open_store(tmp_path / "link.db") as storage:
        facts = await storage.facts()
        assert isinstance(facts, SqliteFacts)
        assert facts.path == str(tmp_path / "real" / "jobs.db")
        assert facts.log_bytes == size(log_of(tmp_path / "real" / "jobs.db")) > 0
