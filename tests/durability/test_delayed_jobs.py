"""Delayed jobs lie in the store until they are due: however many there are, they cost a worker no memory and no work.

`HEADGATE_TEST_DELAYED_JOBS=1000000` is how many the promise is about; the tests as they are run have fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.jobs.event import JobStarted
from tests.durability.processes import ended
from tests.until import patient, result_within

HERE = Path(__file__).parent
MANY = int(os.environ.get("HEADGATE_TEST_DELAYED_JOBS", "30000"))
AT_ONCE = 5000
HOUR = 3600.0

Place = tuple[str, str]
"""Where jobs live: a URL, and on PostgreSQL a schema."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db", "unused"
    return request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")


def make_app(place: Place) -> Headgate:
    url, schema = place
    app = Headgate(url, schema=schema, synchronous="OFF")

    @app.task
    async def remind(number: int) -> int:
        return number

    return app


async def add_delayed(app: Headgate, count: int) -> None:
    """Jobs that are due in an hour and more, each at another second."""
    task = app.tasks["remind"]
    for first in range(0, count, AT_ONCE):
        await task.using(delay=HOUR + first).enqueue_many([(n,) for n in range(first, min(first + AT_ONCE, count))])


@contextlib.asynccontextmanager
async def worker(place: Place, errors: Path) -> AsyncIterator[int]:
    """A worker process on the store; its process id."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")},
        "HEADGATE_URL": place[0],
        "HEADGATE_SCHEMA": place[1],
        "HEADGATE_SYNCHRONOUS": "OFF",
        "PYTHONPATH": str(HERE.parent.parent),
    }
    command = (sys.executable, "-m", "headgate", "worker", "tests.durability.delayed_app:app")
    with errors.open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        await ended(process)


def resident(pid: int) -> int:
    """Bytes of memory that the process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def worked(pid: int) -> float:
    """Seconds of processor time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cost_of_waiting(place: Place, delayed: int, log: Path) -> tuple[int, float]:
    """What a worker has in memory beside so many delayed jobs, and how much it works in a second of nothing to do."""
    app = make_app(place)
    async with app.open():
        await add_delayed(app, delayed)
        async with worker(place, log) as pid:
            jobs = await app.tasks["remind"].enqueue_many([(number,) for number in range(20)])
            assert await asyncio.gather(*(result_within(job, 30) for job in jobs)) == list(range(20))
            before, began = worked(pid), time.monotonic()
            # Nothing is waited for here: this is the second that is measured.
            await asyncio.sleep(1.0)
            spent = (worked(pid) - before) / (time.monotonic() - began)
            soon = await app.tasks["remind"].using(delay=1).enqueue(-1)
            assert await result_within(soon, 30) == -1
            waited = await soon.status()
            assert waited.started_at is not None
            late = (waited.started_at - waited.run_at).total_seconds()
            assert 0 <= late < patient(1), f"a delayed job started {late:.2f} s late beside {delayed} others"
            return resident(pid), spent


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.timeout(0 if MANY > 100_000 else 300)
@pytest.mark.nightly
async def test_a_worker_keeps_no_delayed_jobs_in_memory(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    alone, spent_alone = await cost_of_waiting(place, 0, log)
    beside, spent = await cost_of_waiting(place, MANY, log)
    # A million delayed jobs held in memory would be hundreds of megabytes. A worker that reads each of them once keeps
    # what SQLite read in its cache: 8 MB for 30,000, 16 MB at most. Two workers alike differ by 0.3 MB.
    assert beside - alone < 4_000_000 + MANY, f"{alone} bytes beside none, {beside} beside {MANY}"
    assert spent < 2 * spent_alone + 0.25, (
        f"an idle worker used {spent:.2f} s of a second beside {MANY} delayed jobs, and {spent_alone:.2f} s beside none"
    )


async def test_delayed_jobs_are_never_moved_before_they_are_due(tmp_path: Path) -> None:
    """Peers load what is due soon, or move rows to a ready queue when they come due; here nothing does."""
    app = make_app((f"sqlite:///{tmp_path}/jobs.db", "unused"))
    started: list[str] = []
    app.subscribe(lambda event: started.append(event.job_id) if isinstance(event, JobStarted) else None)
    async with app:
        await add_delayed(app, 2000)
        await result_within(await app.tasks["remind"].enqueue(1))
        jobs = await app.admin.jobs(count=500)
        assert sum(job.is_scheduled for job in jobs) == 499
        assert all(job.attempt == 0 for job in jobs if job.is_scheduled)
    assert len(started) == 1
