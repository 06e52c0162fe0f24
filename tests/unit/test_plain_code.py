"""Programs without an event loop: `with app:` runs jobs in the background, `with app.open():` connects."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate, JobState, NotOpen, StorageUnusable, StrictRate
from headgate.clock import SystemClock
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, client_of
from tests.until import patient, until_now

THREAD = "headgate-sync"

SCRIPT = """
from headgate import Headgate

app = Headgate("memory://")


@app.task
def double(number: int) -> int:
    return 2 * number


with app:
    print(double.sync.enqueue(21).result())
"""


def has_thread() -> bool:
    return THREAD in {thread.name for thread in threading.enumerate()}


@pytest.fixture(autouse=True)
def no_thread() -> Iterator[None]:
    """Whatever a test does, the thread has ended after it."""
    yield
    assert not has_thread()


def make_app(url: str = "memory://") -> Headgate:
    app = Headgate(url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return app


def test_a_script_runs_a_job(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, timeout=patient(20), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_jobs_run_while_the_block_lasts_and_not_after_it(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    with app as running:
        assert running is app
        assert app.tasks["double"].sync.enqueue(1).result(timeout=patient(10)) == 2
    with app.open():
        assert app.tasks["double"].sync.enqueue(1).status().state is JobState.WAITING
    with app:
        assert app.tasks["double"].sync.enqueue(3).result(timeout=patient(10)) == 6
    with pytest.raises(NotOpen):
        _ = app.admin


def test_blocks_nest_and_the_app_is_open_until_the_last_has_ended() -> None:
    app = make_app()
    outer, inner = app.open(), app.open()
    with outer, inner, app, outer:
        assert app.tasks["double"].sync.enqueue(1).result(timeout=patient(10)) == 2
    with outer:
        inner.__enter__()
    _ = app.admin
    inner.__exit__(None, None, None)
    with pytest.raises(NotOpen):
        _ = app.admin


def test_what_a_first_call_has_opened_is_not_closed_by_a_block() -> None:
    app = make_app()
    job = app.tasks["double"].sync.enqueue(1)
    with app:
        assert job.result(timeout=patient(10)) == 2
    _ = app.admin
    app.sync.close()
    with pytest.raises(NotOpen):
        _ = app.admin


def test_what_the_block_raises_is_raised_and_the_app_is_closed() -> None:
    app = make_app()
    for block in (app, app.open()):
        with pytest.raises(LookupError, match="of the block"), block:
            raise LookupError("of the block")
        with pytest.raises(NotOpen):
            _ = app.admin


def test_an_app_that_cannot_be_opened_says_so_in_a_block_as_well(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path / 'nowhere' / 'jobs.db'}")
    for block in (app, app.open()):
        with pytest.raises(StorageUnusable, match="does not exist"), block:
            raise AssertionError
    with (
        pytest.raises(StorageUnusable, match="there is no file"),
        make_app(f"sqlite:///{tmp_path}/jobs.db").open(migrate=False),
    ):
        raise AssertionError


def test_a_thread_that_outlives_the_block_asks_for_the_app_and_both_end() -> None:
    """The fault: the thread waited for a lock that the block held while it waited for the thread."""
    app = Headgate("memory://", grace=0)
    has_begun, has_ended = threading.Event(), threading.Event()
    ids: list[str] = []

    def outlive() -> None:
        has_begun.set()
        while client_of(app).lifecycle.is_open:
            threading.Event().wait(0.001)
        ids.append(work.using(delay=60).sync.enqueue().id)
        has_ended.set()

    @app.task
    async def work() -> None:
        await asyncio.to_thread(outlive)

    with app:
        work.sync.enqueue()
        assert has_begun.wait(patient(10))
    assert has_ended.wait(patient(10))
    assert app.sync.job(ids[0]).status().is_scheduled
    app.sync.close()


async def test_a_thread_beside_an_event_loop_shares_the_app_of_the_loop() -> None:
    app = make_app()

    def work() -> int:
        with app:
            return int(app.tasks["double"].sync.enqueue(4).result(timeout=patient(10)))

    async with app.open():
        assert await asyncio.to_thread(work) == 8
        _ = app.admin


class Breaking(MemoryStorage):
    is_broken = False

    async def claim(self, claim: Claim) -> Claimed:
        self.is_broken = True
        raise LookupError("a mistake in a part of the node")


def test_a_node_that_crashes_in_the_background_is_raised_at_the_end_of_the_block() -> None:
    storage = Breaking(SystemClock())
    app = app_on(storage)
    with pytest.raises(ExceptionGroup) as crashed, app:
        until_now(lambda: storage.is_broken)
    assert "a mistake in a part of the node" in str(crashed.value.exceptions)


def test_a_worker_runs_in_a_thread_that_is_not_the_main_one(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    with app.open():
        job = app.tasks["double"].sync.enqueue(5)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(app.run(drain="ready"))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(patient(20))
    assert failures == []
    with app.open():
        assert app.sync.job(job.id).result(timeout=0) == 10


def test_awaiting_a_result_without_a_worker_raises_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None: ...

        async with app.open():
            job = await work.enqueue()
            with pytest.raises(TimeoutError, match=r"within 5 s; no worker serves queue 'default'; start one"):
                await job.result(timeout=5)
            assert caplog.messages == []
            waiting = [asyncio.ensure_future(job.result(timeout=15)) for _ in range(3)]
            await asyncio.wait(waiting)
            assert all("no worker serves queue 'default'" in str(each.exception()) for each in waiting)
            (line,) = caplog.messages
            assert line.startswith("a result is awaited, and no worker serves queue 'default'; start one")
        async with app:
            await job.result()
        async with app.open():
            await asyncio.sleep(40)
            with pytest.raises(TimeoutError, match="was not final within 5 s; no worker"):
                await (await work.enqueue()).result(timeout=5)

    with caplog.at_level(logging.WARNING, "headgate"):
        run_virtual(main)


def test_a_result_that_does_not_come_in_time_says_what_its_job_does(caplog: pytest.LogCaptureFixture) -> None:
    """The fault: "it continues to run" of jobs that waited, and advice to start what runs."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[StrictRate("1/h", name="api")])
        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.task
        async def free() -> None: ...

        async def why(task: Any, *arguments: float) -> str:
            with pytest.raises(TimeoutError) as raised:
                await (await task.enqueue(*arguments)).result(timeout=5)
            return str(raised.value).partition("; ")[2]

        async with app:
            assert await why(work, 10) == "it continues to run"
            waits = "`headgate jobs explain` and app.admin.explain() say until when"
            assert await why(work, 10) == f"it waits for limit 'api'; {waits}"
            assert await why(free.using(delay=60)) == f"it waits; {waits}"
            app.queue("late")

            @app.task(queue="late")
            async def late() -> None: ...

            unserved = (
                "no worker serves queue 'late', and the one of this program was started without it; "
                "stop the app and start it again"
            )
            assert await why(late) == unserved
            job = await late.enqueue()
            with pytest.raises(TimeoutError):
                await job.result(timeout=15)
            assert caplog.messages == [f"a result is awaited, and {unserved}"]

    run_virtual(main)
