"""A job that one process enqueues starts in another immediately; without a notification, polling finds it soon."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.processes import Children
from tests.internals import app_on
from tests.until import result_within

pytestmark = pytest.mark.nightly


async def start_elsewhere(database: Path, children: Children, count: int, **ways: Any) -> None:
    """Enqueue so many jobs, one after the other, for a worker process that learns of them in one way only."""
    storage = SqliteStorage(database, SystemClock())
    app = app_on(storage)

    @app.task
    async def wait_for_word(key: str) -> Any: ...

    async with app.open():
        worker = await children.start("worker.py", path=str(database), run_log=f"{database}.run_log", **ways)
        await worker.wait_for_line("NodeStarted")
        worker.send("go")
        for number in range(count):
            # Not in step with the quarter of a second between two looks.
            await asyncio.sleep(0.01 * (number % 7))
            job = await wait_for_word.enqueue("later")
            started, _ = await worker.wait_for_line("JobStarted")
            assert started == job.id
            await result_within(job)
        worker.signal(signal.SIGTERM)
        assert await worker.end() == 0


async def test_a_job_of_another_process_starts_at_once(database: Path, children: Children) -> None:
    """A datagram starts it: the worker does not look for jobs by itself."""
    await start_elsewhere(database, children, 21, only_is_told=True)


async def test_a_job_without_a_datagram_is_found_by_the_next_poll(database: Path, children: Children) -> None:
    await start_elsewhere(database, children, 11, only_looks=True)
