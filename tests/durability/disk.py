"""What a store does on a disk that gives out: run in a process of its own, on a filesystem of its own."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

from headgate import Headgate
from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.jobs.event import Event, StorageFailed
from headgate.storage.sqlite import connection as sqlite_file
from headgate.storage.sqlite.connection import prepare
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.run_log import damage
from tests.durability.stores import claim_for, look_at_the_log, new_job, open_store
from tests.until import patient, result_within


def print_line(word: str) -> None:
    os.write(1, f"{word} []\n".encode())


def expect(words: str, error: Exception) -> None:
    assert words in str(error), error


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (4096, 64):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


async def enqueue_until_full(folder: Path) -> None:
    path = folder / "jobs.db"
    acknowledged: list[str] = []
    async with open_store(path) as storage:
        refused: list[str] = []
        for _ in range(1000):
            jobs = [new_job(now=SystemClock().now(), payload='"' + "x" * 5000 + '"') for _ in range(3)]
            try:
                await storage.add(jobs)
            except StorageUnavailable as error:
                expect("is full", error)
                refused += [job.id for job in jobs]
                if len(refused) > 6:
                    break
            else:
                assert not refused, "room came from nowhere"
                acknowledged += [job.id for job in jobs]
        assert acknowledged
        assert refused
        assert await storage.check() == []
        for job in refused:
            assert await storage.job(job) is None
        for job in acknowledged:
            assert await storage.job(job) is not None
        # Opening the file now, to read it, writes nothing to it.
        other = SqliteStorage(path, SystemClock())
        await other.open()
        assert sum(queue.waiting for queue in await other.counts()) == len(acknowledged)
        await other.close()
        print_line("full")
        (folder / "ballast").unlink()
        more = new_job(now=SystemClock().now())
        await storage.add([more])
        assert len((await storage.claim(claim_for(slots=1))).jobs) == 1
        assert await storage.check() == []
    assert damage(path) == "ok"


async def finish_when_full(folder: Path) -> None:
    failed = asyncio.Event()
    runs: list[str] = []
    app = Headgate(f"sqlite:///{folder / 'jobs.db'}")

    @app.task
    async def work(name: str) -> str:
        runs.append(name)
        if name == "large":
            filler = fill(folder)
            app.subscribe(lambda event: seen(event), StorageFailed)
            assert filler.stat().st_size > 0
        return name * 4000

    def seen(_event: Event) -> None:
        failed.set()

    async with app:
        large = await work.enqueue("large")
        await asyncio.wait_for(failed.wait(), patient(10))
        print_line("full")
        (folder / "filler").unlink()
        assert await result_within(large) == "large" * 4000
        assert await result_within(await work.enqueue("after")) == "after" * 4000
    assert runs == ["large", "after"]
    assert damage(folder / "jobs.db") == "ok"


def open_when_no_more_can_be_written(folder: Path) -> None:
    """At each size of the file at which the disk can be full: a clear error, and an undamaged file afterwards."""
    for size in (0, 3000, 4096, 9000, 34000, 40000, 64000, 80000, 100000):
        path = folder / f"{size}.db"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            prepare(path, SystemClock(), synchronous="FULL")
        except StorageUnavailable as error:
            expect(str(path), error)
        else:
            raise AssertionError(f"nothing can be opened in {size} bytes")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        prepare(path, SystemClock(), synchronous="FULL")
        assert damage(path) == "ok"


async def write_errors(folder: Path) -> None:
    """Writes that fail in the middle of a transaction: all of it is rolled back, and later ones succeed."""
    path = folder / "jobs.db"
    acknowledged: list[str] = []
    refused: list[str] = []
    async with open_store(path) as storage:
        await storage.add([new_job(now=SystemClock().now())])
        wal = path.with_name("jobs.db-wal")
        for extra in (0, 100, 4000, 5000, 20_000, 60_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + extra, resource.RLIM_INFINITY))
            jobs = [new_job(now=SystemClock().now(), payload='"' + "y" * 30_000 + '"') for _ in range(5)]
            try:
                await storage.add(jobs)
            except StorageUnavailable as error:
                expect("SQLITE_IOERR_WRITE", error)
                refused += [job.id for job in jobs]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            whole = [new_job(now=SystemClock().now()) for _ in range(2)]
            await storage.add(whole)
            acknowledged += [job.id for job in whole]
        assert len(refused) == 30
        assert [job for job in refused if await storage.job(job) is not None] == []
        assert [job for job in acknowledged if await storage.job(job) is None] == []
        assert await storage.check() == []
    assert damage(path) == "ok"


async def checkpoint_errors(folder: Path) -> None:
    """The file cannot grow, while its log still can, which is shorter."""
    setattr(sqlite_file, "CHECKPOINT_EVERY", 20)  # noqa: B010
    path = folder / "jobs.db"
    added = 0
    async with open_store(path) as storage:

        async def add() -> None:
            nonlocal added
            await storage.add([new_job(now=SystemClock().now(), payload='"' + "x" * 30_000 + '"')])
            await look_at_the_log(storage)
            added += 1

        limit = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            while path.with_name("jobs.db-wal").stat().st_size < limit - 100_000:
                await add()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert added > 4
        assert path.stat().st_size == limit
        # It is tried at each look, not only when the log has grown: there may be no room for that.
        await look_at_the_log(storage)
        assert path.stat().st_size > limit
        assert sum(queue.waiting for queue in await storage.counts()) == added
    assert damage(path) == "ok"


def main() -> None:
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    match options["scenario"]:
        case "enqueue until full":
            (folder / "ballast").write_bytes(b"\0" * 200_000)
            asyncio.run(enqueue_until_full(folder))
        case "finish when full":
            asyncio.run(finish_when_full(folder))
        case "open when no more can be written":
            open_when_no_more_can_be_written(folder)
        case "write errors":
            asyncio.run(write_errors(folder))
        case "checkpoint errors":
            asyncio.run(checkpoint_errors(folder))
        case other:
            raise SystemExit(f"no scenario {other!r}")
    print_line("passed")


if __name__ == "__main__":
    main()
