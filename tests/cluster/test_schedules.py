"""Several workers that are killed at random: each occurrence of a schedule is enqueued once, and none is left out."""

from __future__ import annotations

import asyncio
import signal
import uuid
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from headgate import Every, Headgate
from headgate.clock import SECOND, from_datetime
from headgate.jobs.job import JobState
from headgate.jobs.query import JobFilter
from tests.cluster.schedule_worker import NAMES, PERIODS, START, make_app
from tests.durability.processes import children_of
from tests.internals import store_of
from tests.until import until

WORKERS = 3
KILLS = 5

pytestmark = pytest.mark.nightly


async def is_nothing_open(app: Headgate) -> bool:
    """Whether every job of a schedule is final."""
    return not any(status.open for status in await app.admin.schedules.list())


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_each_occurrence_is_enqueued_once_although_workers_are_killed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    random = Random(f"schedules {store}")
    settings: dict[str, Any] = {"heartbeat": 0.3, "lease": 4.0}
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
        settings["schema"] = f"schedules_{uuid.uuid4().hex[:16]}"
    app = make_app(url, **settings)
    program = str(Path(__file__).with_name("schedule_worker.py"))
    try:
        async with children_of(tmp_path) as children, app.open():
            workers = [await children.start(program, url=url, settings=settings) for _ in range(WORKERS)]
            for worker in workers:
                await worker.wait_for_line("started")
            # One that another process stores is noticed by those that run.
            late = await app.tasks["work"].schedule("late", Every(hours=1), first="now").enqueue()

            async def has_run() -> bool:
                return (await late.status()).runs > 0

            await until(has_run, 5)
            assert await late.remove()
            replacements = []
            for _ in range(KILLS):
                await asyncio.sleep(random.uniform(0.2, 0.6))
                await workers.pop(random.randrange(len(workers))).kill()
                replacements.append(await children.start(program, url=url, settings=settings))
                workers.append(replacements[-1])
            # A process that has not started yet has no handler for SIGTERM.
            for worker in workers:
                if worker in replacements:
                    await worker.wait_for_line("started")
            for name in NAMES:
                await app.admin.schedules.pause(name)
            await until(lambda: is_nothing_open(app), 30)
            for worker in workers:
                worker.signal(signal.SIGTERM)
            for worker in workers:
                assert await worker.end(20) == 0

            jobs = await store_of(app).jobs(JobFilter(count=10_000))
            assert {job.state for job in jobs} == {JobState.SUCCEEDED}
            for status in await app.admin.schedules.list():
                period = round(PERIODS[status.name] * SECOND)
                origins = [job.origin for job in jobs if job.origin is not None]
                occurrences = sorted(o.occurs_at or 0 for o in origins if o.schedule == status.name)
                assert len(occurrences) >= 5
                assert (occurrences[0] - from_datetime(START)) % period == 0
                expected = list(range(occurrences[0], occurrences[0] + period * len(occurrences), period))
                assert occurrences == expected
                assert (status.runs, status.open) == (len(occurrences), 0)
            assert await store_of(app).check() == []
    finally:
        if store == "postgres":
            connection = await asyncpg.connect(url)
            await connection.execute(f'DROP SCHEMA IF EXISTS "{settings["schema"]}" CASCADE')
            await connection.close()
