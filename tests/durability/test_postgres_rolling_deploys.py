"""Two releases work on one PostgreSQL at a time: other tables, other limits, and the older one starts once more."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate import JobState
from headgate.storage.migrations import MIGRATIONS
from tests.durability.postgres import Endings, ask, count_endings
from tests.durability.processes import Child, Children
from tests.durability.release import program
from tests.internals import store_of
from tests.postgres_server import PostgresServer
from tests.until import becomes, result_within

pytestmark = pytest.mark.nightly

LATER = [
    "-- People want to write things down.\nALTER TABLE headgate.job ADD COLUMN remark text;\n"
    "CREATE INDEX job_remark ON headgate.job (remark) WHERE remark IS NOT NULL;",
    "ALTER TABLE headgate.lane ADD COLUMN colour text NOT NULL DEFAULT 'red';",
]
BREAKING = (
    "-- breaking: a job belongs to a shard\nALTER TABLE headgate.job ADD COLUMN shard integer NOT NULL DEFAULT 0;"
)


def folder_with(tmp_path: Path, name: str, *more: str) -> str:
    """The migrations of this release, and those of a later one."""
    folder = tmp_path / name
    shutil.copytree(MIGRATIONS, folder)
    for number, script in enumerate(more, len(list(MIGRATIONS.iterdir())) + 1):
        (folder / f"{number:04}_later.sql").write_text(script)
    return str(folder)


async def worker(children: Children, url: str, limits: str, **options: Any) -> Child:
    child = await children.start("release.py", url=url, limits=limits, **options)
    await child.wait_for_line("ready", seconds=30)
    return child


async def states(url: str) -> Counter[str]:
    return Counter((await Endings.of(url)).states.values())


async def succeeded(url: str) -> int:
    return (await states(url))["succeeded"]


async def all_ended_once(url: str, jobs: list[Any], workers: Sequence[Child]) -> None:
    """A worker that stops may hand back what it has claimed and not begun, so attempts are not counted but runs."""
    endings = await Endings.of(url)
    assert {job.id for job in jobs} == {id for id, state in endings.states.items() if state == "succeeded"}
    assert set(endings.times.values()) == {1}
    runs = Counter(job for worker in workers for (job,) in worker.lines_with("ran"))
    assert runs == Counter(job.id for job in jobs)


async def stopped(worker: Child) -> None:
    worker.signal(signal.SIGTERM)
    assert await worker.end() == 0


async def test_a_release_with_more_tables_starts_beside_the_older_one_which_may_start_again(
    postgres: PostgresServer, children: Children, tmp_path: Path
) -> None:
    url = postgres.url
    old = await worker(children, url, "wide")
    app = program(url, "wide")
    jobs: list[Any] = []
    stop = asyncio.Event()

    async def enqueue() -> None:
        while not stop.is_set():
            jobs.append(await app.tasks["call"].enqueue(f"tenant-{len(jobs) % 5}"))
            await asyncio.sleep(0.01)

    async with app.open():
        await count_endings(url)
        enqueuing = asyncio.ensure_future(enqueue())
        await old.wait_for_line("ran")
        new = await worker(children, url, "wide", migrations=folder_with(tmp_path, "later", *LATER))
        await new.wait_for_line("ran", seconds=20)
        assert await ask(url, "SELECT max(number) FROM headgate.migration") == 1 + len(LATER)
        # The older release continues, with workers and enqueuers.
        old.unread_lines.clear()
        await old.wait_for_line("ran")
        await stopped(old)
        again = await worker(children, url, "wide")
        await again.wait_for_line("ran", seconds=20)
        # The roll back: the newer one goes, and the older one is alone with the newer tables.
        await stopped(new)
        again.unread_lines.clear()
        await again.wait_for_line("ran")
        stop.set()
        await enqueuing
        await becomes(lambda: succeeded(url), len(jobs), seconds=20)
        assert await store_of(app).check() == []
        await stopped(again)
    await all_ended_once(url, jobs, (old, new, again))
    assert "ERROR" not in children.log, children.log


async def test_a_backlog_moves_to_the_limits_of_the_newest_release_and_stays_there(
    postgres: PostgresServer, children: Children, tmp_path: Path
) -> None:
    url = postgres.url
    old = await worker(children, url, "tight")
    app = program(url, "tight")
    call = app.tasks["call"]
    async with app.open():
        await count_endings(url)
        jobs = await call.enqueue_many([("acme",)] * 40)
        await becomes(lambda: succeeded(url), 3)
        new = await worker(children, url, "wide", migrations=folder_with(tmp_path, "later", *LATER))
        # Only the newer one knows the limit under which they lie now.
        await becomes(lambda: succeeded(url), 40, seconds=20)
        # Enqueuers of the older release put jobs into the old lanes, and these jobs are moved.
        jobs += await call.enqueue_many([("acme",)] * 20)
        await becomes(lambda: succeeded(url), 60, seconds=20)
        # An older worker that starts again moves nothing back: jobs that wait under the newer limit stay there.
        await old.kill()
        again = await worker(children, url, "tight")
        jobs += await call.enqueue_many([("globex",)] * 20)
        await becomes(lambda: succeeded(url), 80, seconds=20)
        assert (await jobs[-1].status()).state is JobState.SUCCEEDED
        assert await store_of(app).check() == []
        await stopped(new)
        await stopped(again)
    await all_ended_once(url, jobs, (old, new, again))


async def test_after_a_breaking_release_running_older_workers_continue_until_they_restart(
    postgres: PostgresServer, children: Children, tmp_path: Path
) -> None:
    url = postgres.url
    old = await worker(children, url, "wide")
    app = program(url, "wide")
    async with app.open():
        await result_within(await app.tasks["call"].enqueue("acme"))
        opener = await worker(children, url, "wide", migrations=folder_with(tmp_path, "broken", BREAKING), opens=True)
        opener.send("go")
        await opener.wait_for_line("opened")
        assert await opener.end() == 0
        await result_within(await app.tasks["call"].enqueue("acme"))
        await stopped(old)
    refused = await worker(children, url, "wide", opens=True)
    refused.send("go")
    kind, message = await refused.wait_for_line("refused")
    assert kind == "StorageUnusable"
    assert "written by a newer Headgate" in message
    assert "upgrade this program" in message
