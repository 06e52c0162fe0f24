"""Power cuts, imitated: what lies on the disk at a random moment is a whole database with all that was acknowledged."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.durability.processes import Children
from tests.durability.run_log import damage
from tests.durability.stores import open_store


@pytest.mark.nightly
async def test_a_copy_taken_at_any_moment_has_all_acknowledged_jobs(
    database: Path, tmp_path: Path, children: Children
) -> None:
    random = Random(7)
    writer = await children.start("sqlite_user.py", role="write until killed", path=str(database))
    await writer.wait_for_line("ready")
    acknowledged: set[str] = set()
    for number in range(12):
        for _ in range(random.randrange(1, 80)):
            acknowledged.update(await writer.wait_for_line("acknowledged"))
        before = set(acknowledged)
        copy = tmp_path / f"copy{number}.db"
        # A checkpoint between the two copies would make a pair of files that never existed.
        with writer.frozen():
            shutil.copyfile(database, copy)
            shutil.copyfile(database.with_name("jobs.db-wal"), copy.with_name(copy.name + "-wal"))
        async with open_store(copy) as storage:
            assert await storage.check() == []
            found = [await storage.job(job) for job in random.sample(sorted(before), min(50, len(before)))]
            assert None not in found
            assert (await storage.counts())[0].waiting >= len(before)
        assert damage(copy) == "ok"
    await writer.kill()
    # The real file, after a real SIGKILL in the middle of writing.
    async with open_store(database) as storage:
        assert [job for job in acknowledged if await storage.job(job) is None] == []
        assert await storage.check() == []
    assert damage(database) == "ok"
    await asyncio.sleep(0)
