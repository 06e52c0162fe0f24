"""Disks that are full or fail: a clean error, nothing half written, and on it goes once there is room."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageFailed
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.processes import Children
from tests.durability.stores import allow_all_pages, allow_no_more_pages, claim_for, new_job, open_store
from tests.internals import app_on
from tests.until import patient, result_within

SMALL = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"')


@pytest.fixture(scope="session")
def small_disk() -> tuple[str, ...]:
    """The words that run a command with a filesystem of 1 MiB on a folder, which comes next."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to make a small disk with")
    made = subprocess.run([*SMALL, "/mnt", "true"], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no small disk can be made here: {made.stderr.decode().strip()}")
    return SMALL


async def run(children: Children, scenario: str, folder: Path, command: tuple[str, ...] = ()) -> None:
    child = await children.start("disk.py", command=command, scenario=scenario, folder=str(folder))
    code = await child.end()
    assert code == 0, children.log
    assert child.has_line("passed")


async def test_an_enqueue_that_finds_the_disk_full_leaves_nothing_behind(database: Path) -> None:
    now = SystemClock().now()
    async with open_store(database) as storage:
        kept = [new_job(("calls", "acme"), now=now) for _ in range(5)]
        await storage.add(kept)
        await allow_no_more_pages(storage)
        large = [new_job(("calls", f"key {n}"), now=now, payload='"' + "x" * 9000 + '"') for n in range(10)]
        with pytest.raises(StorageUnavailable, match=r"the disk of .*jobs\.db is full.*free space and try again"):
            await storage.add(large)
        assert [job.id for job in large if await storage.job(job.id) is not None] == []
        assert [job.id for job in kept if await storage.job(job.id) is None] == []
        assert await storage.check() == []

        await allow_all_pages(storage)
        await storage.add(large)
        assert [job.id for job in large if await storage.job(job.id) is None] == []


async def test_one_large_write_on_a_full_disk_does_not_block_small_ones_for_ever(
    database: Path,
) -> None:
    now = SystemClock().now()
    async with open_store(database) as storage:
        await allow_no_more_pages(storage)
        large = new_job(now=now, payload='"' + "x" * 90_000 + '"')
        small = new_job(now=now)
        results = await asyncio.gather(storage.add([large]), storage.add([small]), return_exceptions=True)
        assert isinstance(results[0], StorageUnavailable)
        if results[1] is not None:
            await storage.add([small])
        assert await storage.job(small.id) is not None
        assert len((await storage.claim(claim_for())).jobs) == 1


async def test_an_ending_on_a_full_disk_is_repeated_until_there_is_room(database: Path) -> None:
    storage = SqliteStorage(database, SystemClock())
    app = app_on(storage)
    runs: list[int] = []
    failed = asyncio.Event()
    app.subscribe(lambda _event: failed.set(), StorageFailed)

    @app.task
    async def work(size: int) -> str:
        runs.append(size)
        await allow_no_more_pages(storage)
        return "x" * size

    async with app:
        job = await work.enqueue(100_000)
        await asyncio.wait_for(failed.wait(), patient(10))
        with pytest.raises(TimeoutError):
            await job.result(timeout=0.5)
        await allow_all_pages(storage)
        assert len(await result_within(job)) == 100_000
    assert runs == [100_000]


async def test_a_node_that_cannot_join_because_the_disk_is_full_logs_no_traceback(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: a worker that started on a nearly full disk ended with 40 lines of Headgate's own code."""
    storage = SqliteStorage(database, SystemClock())
    app = app_on(storage)

    async def join(*_values: object, **_named: object) -> None:
        await allow_no_more_pages(storage)
        await storage.add([new_job(now=SystemClock().now(), payload='"' + "x" * 90_000 + '"')])

    monkeypatch.setattr(storage, "join", join)
    with pytest.raises(StorageUnavailable, match="is full"):
        await app.run()
    assert "crashed and runs no more jobs" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.nightly
async def test_acknowledged_jobs_survive_a_disk_that_fills_up(
    tmp_path: Path, children: Children, small_disk: tuple[str, ...]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await run(children, "enqueue until full", disk, (*small_disk, str(disk)))


@pytest.mark.nightly
async def test_a_job_that_ends_on_a_full_disk_runs_once_and_is_recorded_when_there_is_room(
    tmp_path: Path, children: Children, small_disk: tuple[str, ...]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await run(children, "finish when full", disk, (*small_disk, str(disk)))


async def test_a_write_that_fails_half_way_is_undone(tmp_path: Path, children: Children) -> None:
    await run(children, "write errors", tmp_path)


async def test_a_log_that_cannot_be_copied_into_the_file_is_reported_once(tmp_path: Path, children: Children) -> None:
    """The fault: nothing was logged until the log had 512 MiB, and then it blamed a reader."""
    await run(children, "checkpoint errors", tmp_path)
    assert children.log.count("jobs.db-wal grows, because it cannot be copied into the file: disk I/O error") == 1


@pytest.mark.nightly
async def test_opening_on_a_full_disk_is_reported_and_can_be_repeated(tmp_path: Path, children: Children) -> None:
    await run(children, "open when no more can be written", tmp_path)
