"""Real workers that are cut off or frozen for longer than their lease: a mutex is never held by two at once."""

from __future__ import annotations

import contextlib
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate, JobState
from tests.durability.guarded_worker import guarded_app, may_leave, most_inside, read_visits
from tests.durability.processes import Child, Children
from tests.durability.tcp_proxy import TcpProxy
from tests.postgres_server import PostgresServer
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

LEASE = 6.0
"""A worker leaves a sixth of it early: that much later may its event loop run, and everything is as it should be."""

LONG = 600.0
"""Seconds inside: until the test says that they may leave, or the job is cancelled."""


async def start(children: Children, url: str, run_log: Path, **options: Any) -> Child:
    worker = await children.start(
        "guarded_worker.py", url=url, run_log=str(run_log), heartbeat=0.5, lease=LEASE, **options
    )
    await worker.wait_for_line("NodeStarted")
    return worker


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, database: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{database}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


@contextlib.asynccontextmanager
async def here_on(url: str, run_log: Path) -> AsyncIterator[Headgate]:
    app = guarded_app(url, run_log)
    async with app.open():
        yield app


@pytest.mark.parametrize("task", ["enter", "call"])
async def test_a_worker_frozen_between_its_claim_and_the_start_starts_nothing_that_others_have_taken(
    url: str, task: str, children: Children, tmp_path: Path
) -> None:
    """The fault: it entered the mutex when it went on, while the worker that had taken its job was inside."""
    run_log = tmp_path / "visits"
    async with here_on(url, run_log) as app:
        work = app.tasks.get(task)
        assert work is not None
        frozen = await start(children, url, run_log, freezes=True)
        job = await work.enqueue(LONG)
        await frozen.wait_for_line("claimed")
        frozen.stop(_file(url))
        frozen.send("go on")
        other = await start(children, url, run_log)
        await other.wait_for_line("inside", seconds=30)
        frozen.signal(signal.SIGCONT)
        await frozen.wait_for_line("NodeDeclaredDead")
        may_leave(run_log).touch()
        await result_within(job, 30)
        visits = read_visits(run_log)
        assert most_inside(visits) == 1
        assert {visit.pid for visit in visits} == {other.pid}


async def test_a_worker_that_was_stopped_inside_a_mutex_leaves_it_when_it_resumes(
    url: str, children: Children, tmp_path: Path
) -> None:
    """While it is stopped it cannot leave; the service it calls can compare its token with that of the later holder."""
    run_log = tmp_path / "visits"
    async with here_on(url, run_log) as app:
        work = app.tasks.get("enter")
        assert work is not None
        frozen = await start(children, url, run_log)
        job = await work.enqueue(LONG)
        await frozen.wait_for_line("inside")
        frozen.stop(_file(url))
        other = await start(children, url, run_log)
        await other.wait_for_line("inside", seconds=30)
        frozen.signal(signal.SIGCONT)
        (_, cancelled) = await frozen.wait_for_line("LeaseNotRenewed")
        assert cancelled == 1
        await frozen.wait_for_line("NodeDeclaredDead")
        await until(lambda: len(read_visits(run_log)) >= 3)
        (entered, second, left) = read_visits(run_log)[:3]
        assert [entered.word, second.word, left.word] == ["enters", "enters", "leaves"]
        assert left.pid == frozen.pid
        assert entered.token < second.token
        await app.job(job.id).cancel()


def _file(url: str) -> str | None:
    return url.removeprefix("sqlite:///") if url.startswith("sqlite") else None


@contextlib.contextmanager
def _nobody_can_write(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, timeout=patient(15), isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        yield
        file.execute("ROLLBACK")


async def test_a_worker_cut_off_from_postgres_leaves_a_mutex_before_another_enters(
    postgres: PostgresServer, children: Children, tmp_path: Path
) -> None:
    """The fault: it was inside for 8 to 10 s beside the worker that had taken its job."""
    run_log = tmp_path / "visits"
    async with TcpProxy.to(postgres.port) as proxy, here_on(postgres.url, run_log) as app:
        work = app.tasks.get("enter")
        assert work is not None
        cut = await start(children, postgres.url_at(proxy.port), run_log)
        first = await work.enqueue(LONG)
        await cut.wait_for_line("inside")
        other = await start(children, postgres.url, run_log)
        second = await work.enqueue(0.1)
        proxy.hold()
        (seconds, cancelled) = await cut.wait_for_line("LeaseNotRenewed")
        assert (seconds < LEASE, cancelled) == (True, 1)
        await other.wait_for_line("NodeLost")
        await other.wait_for_line("inside")
        proxy.release()
        await cut.wait_for_line("NodeDeclaredDead")
        may_leave(run_log).touch()
        await result_within(first, 40)
        await result_within(second, 40)
        assert most_inside(read_visits(run_log)) == 1
        record = (await app.admin.job(first.id)).record
        assert (record.state, record.attempt, record.lost) == (JobState.SUCCEEDED, 2, 1)


async def test_a_worker_whose_disk_is_full_leaves_a_mutex_before_another_enters(
    database: Path, children: Children, tmp_path: Path
) -> None:
    """Reads work, and other processes may still have room."""
    run_log = tmp_path / "visits"
    url = f"sqlite:///{database}"
    async with here_on(url, run_log) as app:
        work = app.tasks.get("enter")
        assert work is not None
        full = await start(children, url, run_log)
        job = await work.enqueue(LONG)
        await full.wait_for_line("inside")
        other = await start(children, url, run_log)
        # No file of this process grows beyond a page any more.
        unlimited = resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        await full.wait_for_line("LeaseNotRenewed")
        await other.wait_for_line("inside")
        resource.prlimit(full.pid, resource.RLIMIT_FSIZE, unlimited)
        await full.wait_for_line("NodeDeclaredDead")
        may_leave(run_log).touch()
        await result_within(job, 40)
        assert most_inside(read_visits(run_log)) == 1


async def test_a_worker_that_cannot_write_to_its_file_returns_the_job_that_holds_a_mutex(
    database: Path, children: Children, tmp_path: Path
) -> None:
    """No other process can write either, so none has taken the job: its attempt is not spent."""
    run_log = tmp_path / "visits"
    url = f"sqlite:///{database}"
    async with here_on(url, run_log) as app:
        work = app.tasks.get("enter")
        assert work is not None
        worker = await start(children, url, run_log)
        job = await work.enqueue(LONG)
        await worker.wait_for_line("inside")
        with _nobody_can_write(database):
            await worker.wait_for_line("LeaseNotRenewed")
            await until(lambda: [visit.word for visit in read_visits(run_log)] == ["enters", "leaves"])
        may_leave(run_log).touch()
        await result_within(job, 40)
        assert most_inside(read_visits(run_log)) == 1
        assert not worker.has_line("NodeDeclaredDead")
        record = (await app.admin.job(job.id)).record
        assert (record.state, record.attempt, record.lost) == (JobState.SUCCEEDED, 1, 0)
