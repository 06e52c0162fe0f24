"""A backup while worker processes write: what is in the copy, and what a worker does with it after a restore."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.errors import StorageUnusable
from headgate.jobs.identity import job_number, job_text
from headgate.storage.sqlite import backup
from tests.durability.files import copy, corrupt, mode_of, names_in, rename
from tests.durability.processes import Children
from tests.durability.stores import new_job, open_store
from tests.until import result_within, until, until_now

APP = """
import asyncio
from headgate import Headgate

app = Headgate("sqlite:///{file}", synchronous="OFF", grace=0.5)
app.queue("slow", concurrency=1)

@app.task
async def work(number: int, text: str = "") -> int:
    return number

@app.task(queue="slow")
async def hang() -> None:
    await asyncio.Event().wait()
"""


@pytest.mark.slow
async def test_a_copy_made_while_workers_write_has_each_acknowledged_job_and_runs_after_a_restore(
    database: Path, tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many small steps, and commits between them.
    monkeypatch.setattr(backup, "STEP", 5)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"backed_up_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP.format(file=database))
    app = importlib.import_module(name).app
    stored: list[str] = []

    async def write_for_ever() -> None:
        while True:
            stored.extend(job.id for job in await app.tasks["work"].enqueue_many([(1, "x" * 500)] * 20))

    steps: list[tuple[int, int]] = []
    async with app.open():
        for _ in range(2):
            await children.start("headgate_worker.py", folder=str(tmp_path), target=f"{name}:app")
        number = job_number((await app.tasks["hang"].enqueue()).id)
        await until(lambda: rows(database, "SELECT state FROM job WHERE id = ?", number) == [("running",)])
        writing = asyncio.ensure_future(write_for_ever())
        await until(lambda: len(stored) > 2000)
        before = set(stored)
        looking = sqlite3.connect(database, check_same_thread=False)

        def version() -> int:
            return int(looking.execute("PRAGMA data_version").fetchone()[0])

        def on_step(left: int, _pages: int) -> None:
            if len(steps) < 4:
                seen = version()
                until_now(lambda: version() != seen)
            steps.append((left, version()))

        copied = tmp_path / "copy.db"
        await asyncio.to_thread(backup.back_up, database, copied, SystemClock(), on_step)
        looking.close()
        writing.cancel()
        await asyncio.wait([writing])
    await children.end()

    assert len({version for _, version in steps}) > 2, "others have committed between the steps"
    assert [left for left, _ in steps] == sorted((left for left, _ in steps), reverse=True), "it was not started again"
    assert names_in(tmp_path, "copy") == ["copy.db"]
    assert mode_of(copied) == 0o600

    # The restore: the file and its log are moved away, and the copy is put in their place.
    for file in names_in(tmp_path, "jobs.db"):
        rename(tmp_path / file, tmp_path / f"old-{file}")
    copy(copied, database)
    async with open_store(database) as store:
        assert await store.check() == []
    kept = {job_text(id) for (id,) in rows(database, "SELECT id FROM job")}
    assert before <= kept
    assert set(stored) - kept, "jobs that were stored after its start are not in it"
    async with app:
        # What ran at the backup runs again, as after a kill.
        lost = "SELECT state, lost FROM job WHERE id = ?"
        await until(lambda: rows(database, lost, number) == [("running", 1)], 40)
        assert await result_within(await app.tasks["work"].enqueue(7), 60) == 7
    async with open_store(database) as store:
        assert await store.check() == []


def rows(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("page", [3, 60])
async def test_a_damaged_file_leaves_no_copy(database: Path, tmp_path: Path, page: int) -> None:
    async with open_store(database) as store:
        await store.add([new_job(now=1, payload='"' + "x" * 500 + '"') for _ in range(200)])
    corrupt(database, page)
    with pytest.raises(StorageUnusable, match=r"jobs\.db is damaged"):
        backup.back_up(database, tmp_path / "copy.db", SystemClock(), lambda *_: None)
    assert names_in(tmp_path, "copy") == []
