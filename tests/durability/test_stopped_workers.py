"""Workers that are stopped or asked to stop: late results are refused, running jobs finish or are returned."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.jobs.job import JobState
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.files import unlink
from tests.durability.processes import Child, Children
from tests.durability.run_log import count_endings, endings, read_run_log, runs_by_job
from tests.internals import app_on
from tests.until import patient, result_within

pytestmark = pytest.mark.nightly

HEARTBEAT, LEASE = 0.3, 2.0


class ParentApp:
    """The parent's own app: it enqueues and looks."""

    def __init__(self, path: Path) -> None:
        self.storage = SqliteStorage(path, SystemClock())
        self.app = app_on(self.storage)

        @self.app.task
        async def wait_for_word(key: str) -> str:
            raise AssertionError("runs in the children only")

        @self.app.task
        def hold_a_thread(key: str) -> None: ...

        @self.app.task
        async def block_the_loop(file: str) -> None: ...

        self.wait_for_word = wait_for_word
        self.hold_a_thread = hold_a_thread
        self.block_the_loop = block_the_loop


async def start_worker(children: Children, database: Path, **options: Any) -> Child:
    run_log = database.with_name("run_log")
    worker = await children.start("worker.py", path=str(database), run_log=str(run_log), **options)
    await worker.wait_for_line("NodeStarted")
    return worker


async def test_the_late_result_of_a_worker_that_was_frozen_beyond_its_lease_is_refused(
    database: Path, children: Children
) -> None:
    local = ParentApp(database)
    async with local.app.open():
        count_endings(database)
        frozen = await start_worker(children, database, heartbeat=HEARTBEAT, lease=LEASE)
        job = await local.wait_for_word.enqueue("acme")
        await frozen.wait_for_line("running")
        frozen.stop(database)
        # The word is sent while it is stopped: its handler ends immediately after it resumes.
        frozen.send("go")

        other = await start_worker(children, database, heartbeat=HEARTBEAT, lease=LEASE)
        _node, returned, _poisonous = await other.wait_for_line("NodeLost")
        assert returned == 1
        await other.wait_for_line("running")
        other.send("go")
        assert await result_within(job) == "acme"

        # A node that was declared dead must not claim jobs that wait when it resumes.
        frozen.signal(signal.SIGCONT)
        more = [await local.wait_for_word.enqueue(f"after {number}") for number in range(5)]
        await frozen.wait_for_line("NodeDeclaredDead")
        await asyncio.gather(*(result_within(each) for each in more))

        record = await local.storage.job(job.id)
        assert record is not None
        assert record.state is JobState.SUCCEEDED
        assert record.attempt == 2
        assert [attempt.outcome for attempt in await local.storage.attempts(job.id)] == ["lost"]
        assert await local.storage.check() == []
        frozen.signal(signal.SIGTERM)
        other.signal(signal.SIGTERM)
        assert await frozen.end() == 0
        assert await other.end() == 0
    assert endings(database) == dict.fromkeys([job.id, *(each.id for each in more)], 1)


async def test_a_result_that_was_on_its_way_when_its_worker_froze_is_refused(
    database: Path, children: Children
) -> None:
    local = ParentApp(database)
    async with local.app.open():
        count_endings(database)
        frozen = await start_worker(children, database, heartbeat=60, lease=120)
        job = await local.wait_for_word.enqueue("acme")
        await frozen.wait_for_line("running")
        frozen.stop(database)
        frozen.send("go")
        # Recovered by the test, so that its own heartbeat is not the first thing after it resumes.
        (node,) = await local.storage.nodes()
        assert await local.storage.recover(node.id, node.beat) is not None
        frozen.signal(signal.SIGCONT)
        assert await frozen.wait_for_line("EndingRefused") == [job.id]
        record = await local.storage.job(job.id)
        assert record is not None
        assert record.state is JobState.WAITING
        assert endings(database) == {}
        # It would take the job again once it has joined again.
        await frozen.kill()
        other = await start_worker(children, database)
        await other.wait_for_line("running")
        other.send("go")
        await result_within(job)
    assert endings(database) == {job.id: 1}


async def test_workers_stopped_again_and_again_under_load_lose_no_job(database: Path, children: Children) -> None:
    local = ParentApp(database)
    async with local.app.open():
        count_endings(database)
        workers = [
            await start_worker(children, database, heartbeat=HEARTBEAT, lease=LEASE, concurrency=3) for _ in range(2)
        ]
        for worker in workers:
            worker.send("go")
        jobs = []
        # Twice only: a job that is lost three times with its node counts as poisonous.
        for turn in range(2):
            victim, other = workers[turn % 2], workers[(turn + 1) % 2]
            jobs += await local.wait_for_word.enqueue_many([(f"{turn}.{number}",) for number in range(20)])
            victim.stop(database)
            adding = asyncio.ensure_future(
                local.wait_for_word.enqueue_many([(f"{turn}+{number}",) for number in range(20)])
            )
            await other.wait_for_line("NodeLost")
            victim.signal(signal.SIGCONT)
            jobs += await adding
        await asyncio.gather(*(result_within(job, 20) for job in jobs))
        assert await local.storage.check() == []
        (counts,) = await local.storage.counts()
        assert (counts.waiting, counts.running, counts.succeeded) == (0, 0, len(jobs))
    assert endings(database) == dict.fromkeys([job.id for job in jobs], 1)


async def test_a_worker_that_is_asked_to_stop_finishes_its_jobs(database: Path, children: Children) -> None:
    local = ParentApp(database)
    async with local.app.open():
        worker = await start_worker(children, database, grace=20)
        job = await local.wait_for_word.enqueue("acme")
        await worker.wait_for_line("running")
        worker.signal(signal.SIGTERM)
        await worker.wait_for_line("NodeStopping")
        later = await local.wait_for_word.enqueue("later")
        with pytest.raises(TimeoutError):
            await job.result(timeout=0.3)
        worker.send("go")
        assert await result_within(job) == "acme"
        assert await worker.end() == 0
        status = await later.status()
        assert status.state is JobState.WAITING, "a worker that ends claims nothing more"
        assert await local.storage.nodes() == []
    assert runs_by_job(read_run_log(database.with_name("run_log"))) == {job.id: 1}


async def test_jobs_that_outlast_the_grace_are_returned_without_spending_an_attempt(
    database: Path, children: Children
) -> None:
    local = ParentApp(database)
    async with local.app.open():
        worker = await start_worker(children, database, grace=0.2)
        job = await local.wait_for_word.enqueue("acme")
        await worker.wait_for_line("running")
        worker.signal(signal.SIGTERM)
        assert await worker.wait_for_line("cancelled") == [job.id]
        assert await worker.end() == 0
        record = await local.storage.job(job.id)
        assert record is not None
        assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)
        assert await local.storage.nodes() == []


async def test_a_second_signal_ends_a_worker_that_waits_for_its_jobs(database: Path, children: Children) -> None:
    local = ParentApp(database)
    async with local.app.open():
        worker = await start_worker(children, database, grace=600)
        jobs = [await local.wait_for_word.enqueue("acme") for _ in range(3)]
        for _ in jobs:
            await worker.wait_for_line("running")
        worker.signal(signal.SIGTERM)
        await worker.wait_for_line("NodeStopping")
        await worker.read_lines()
        assert not worker.has_line("cancelled")
        worker.signal(signal.SIGTERM)
        assert await worker.end() == 0
        for job in jobs:
            record = await local.storage.job(job.id)
            assert record is not None
            assert (record.state, record.attempt, record.lost) == (JobState.WAITING, 0, 0)


async def test_a_second_signal_ends_a_worker_whose_file_another_program_has_locked(
    database: Path, children: Children
) -> None:
    """The fault: it waited for the lock three times, 30 s each: for its heartbeat, to return its jobs, to close."""
    local = ParentApp(database)
    async with local.app.open():
        worker = await start_worker(children, database, grace=600, heartbeat=HEARTBEAT, lease=600, patience=600)
        job = await local.wait_for_word.enqueue("acme")
        await worker.wait_for_line("running")
        with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=patient(15))) as other:
            other.execute("BEGIN IMMEDIATE")
            worker.signal(signal.SIGTERM)
            await worker.wait_for_line("NodeStopping")
            worker.signal(signal.SIGTERM)
            assert await worker.end() == 0
        assert "storage failure while leaving" in children.log
        # As after any death on the same machine, another worker takes the job back.
        other_worker = await start_worker(children, database, lease=600)
        await other_worker.wait_for_line("running")
        other_worker.send("go")
        assert await result_within(job) == "acme"


@pytest.mark.parametrize("is_store_lost", [False, True])
async def test_a_thread_that_cannot_be_stopped_does_not_delay_the_end_of_a_worker(
    database: Path, children: Children, tmp_path: Path, is_store_lost: bool
) -> None:
    tasks = tmp_path / "stuck.py"
    tasks.write_text(
        "import threading\n"
        "from headgate import Headgate\n"
        f"app = Headgate('sqlite:///{database}', heartbeat={HEARTBEAT}, lease={LEASE})\n"
        "@app.task\n"
        "def hold_a_thread(key: str) -> None:\n"
        "    print('running []', flush=True)\n"
        "    threading.Event().wait(600)\n"
    )
    local = ParentApp(database)
    async with local.app.open():
        worker = await children.start("headgate_worker.py", folder=str(tmp_path), target="stuck:app")
        job = await local.hold_a_thread.enqueue("acme")
        await worker.wait_for_line("running")
        if is_store_lost:
            # The fault: nothing restarted the worker, because it did not end.
            unlink(database)
            assert await worker.end() == 1
            return
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
        assert await worker.end() == 0, "it does not wait for the thread, which holds on for ten minutes"
        record = await local.storage.job(job.id)
        assert record is not None
        assert (record.state, record.attempt) == (JobState.WAITING, 0)


async def test_a_handler_that_blocks_the_loop_beyond_the_lease_is_reported_and_never_recorded_twice(
    database: Path, children: Children
) -> None:
    local = ParentApp(database)
    async with local.app.open():
        count_endings(database)
        blocked = await start_worker(children, database, heartbeat=HEARTBEAT, lease=LEASE)
        word = database.with_name("word")
        job = await local.block_the_loop.enqueue(str(word))
        await blocked.wait_for_line("running")
        other = await start_worker(children, database, heartbeat=HEARTBEAT, lease=LEASE)
        await other.wait_for_line("running")
        word.touch()
        await blocked.wait_for_line("LoopBlocked")
        await blocked.kill()
        await result_within(job, 20)
    assert endings(database) == {job.id: 1}
