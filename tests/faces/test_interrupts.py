"""Ctrl+C while a job runs: one line at once says what is waited for, and a second Ctrl+C ends the program."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate import Headgate, JobContext
from headgate.jobs.event import NodeStopped
from tests.until import patient, until_now

PROGRAM = """
import asyncio
import sys

from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF", grace=600)


@app.task
async def work() -> None:
    print("the job runs", flush=True)
    await asyncio.sleep(3600)


async def run_inside() -> None:
    async with app:
        await (await work.enqueue()).result()


async def run_worker() -> None:
    async with app.open():
        await work.enqueue()
    await app.run()


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        with app:
            work.sync.enqueue().result()
    asyncio.run(run_inside() if sys.argv[1] == "inside" else run_worker())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["inside", "worker", "plain"])
def test_ctrl_c_says_at_once_what_is_waited_for_and_again_ends_the_program(tmp_path: Path, kind: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "program.py", kind], cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until_now(lambda: "the job runs" in log.read_text(), missing=log.read_text)
        process.send_signal(signal.SIGINT)
        until_now(lambda: "waits up to 600 s for 1 running job; Ctrl+C" in log.read_text(), missing=log.read_text)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        # Far below the grace.
        process.wait(patient(20))
    finally:
        process.kill()
        process.wait()


async def test_the_second_signal_to_a_program_ends_the_callbacks_of_its_last_jobs(tmp_path: Path) -> None:
    """The fault: it was without effect once the node had ended, and the program went on for up to five seconds."""
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    calling, stopped, called = asyncio.Event(), asyncio.Event(), list[str]()
    app.subscribe(lambda _: stopped.set(), NodeStopped)

    @app.task
    async def work() -> None: ...

    @work.on_completed
    async def call(job: JobContext, result: None) -> None:
        calling.set()
        # Without the node's handler the second signal would end the tests: it must come while this runs.
        await asyncio.sleep(4)
        called.append(job.id)

    async with app.open():
        await work.enqueue()
    running = asyncio.create_task(app.run())
    await calling.wait()
    signal.raise_signal(signal.SIGTERM)
    await stopped.wait()
    signal.raise_signal(signal.SIGTERM)
    await running
    assert not called


async def test_a_node_that_waits_for_jobs_says_so_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    app = Headgate("memory://", grace=0)
    running = asyncio.Event()

    @app.task
    async def work() -> None:
        running.set()
        await asyncio.sleep(3600)

    with caplog.at_level(logging.INFO, logger="headgate"):
        async with app:
            await work.enqueue()
            await running.wait()
        async with app:
            pass
    stopping = [(each.levelname, each.getMessage()) for each in caplog.records if "is stopping" in each.getMessage()]
    assert [level for level, _ in stopping] == ["WARNING", "INFO"]
    assert "waits up to 0 s for 1 running job; Ctrl+C or SIGTERM once more ends it at once" in stopping[0][1]


async def test_a_node_that_waits_for_threads_says_that_nothing_ends_them(caplog: pytest.LogCaptureFixture) -> None:
    """The fault: a second Ctrl+C "ends it at once", and the program went on until its threads ended."""
    app = Headgate("memory://", grace=0)
    running, end = threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        running.set()
        end.wait()

    async with app:
        await work.enqueue()
        await asyncio.to_thread(running.wait)
        asyncio.get_running_loop().call_later(0.05, end.set)
    (line,) = [each for each in caplog.messages if "is stopping" in each]
    assert line.endswith("once more ends it at once, but for 1 in threads, which end by themselves")
