"""A job that one process enqueues starts in another immediately; without a notification, polling finds it soon."""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate
from headgate.clock import SECOND, SystemClock
from headgate.storage.sqlite.storage import SqliteStorage
from tests.durability.processes import Children
from tests.until import result_within

pytestmark = pytest.mark.slow


async def delays(database: Path, children: Children, count: int, *, ignores_wake_ups: bool) -> list[float]:
    """Seconds from the acknowledgement of a job here to its start in another process."""
    storage = SqliteStorage(database, SystemClock())
    app = Headgate(storage=storage)

    @app.task
    async def wait_for_word(key: str) -> Any: ...

    measured: list[float] = []
    async with app.open():
        worker = await children.start(
            "worker.py", path=str(database), run_log=f"{database}.run_log", ignores_wake_ups=ignores_wake_ups
        )
        await worker.wait_for_line("NodeStarted")
        worker.send("go")
        # The first one also lets this process learn of the other's port.
        await result_within(await wait_for_word.enqueue("first"), 5)
        await worker.wait_for_line("JobStarted")
        for number in range(count):
            # Not in step with the quarter of a second between two looks.
            time.sleep(0.01 * (number % 7))  # noqa: ASYNC251  # nothing else is to happen here meanwhile
            job = await wait_for_word.enqueue("later")
            enqueued = SystemClock().now()
            while True:
                started, at = await worker.wait_for_line("JobStarted")
                if started == job.id:
                    break
            measured.append((at - enqueued) / SECOND)
            await result_within(job, 5)
        worker.signal(signal.SIGTERM)
        assert await worker.end() == 0
    return measured


async def test_a_job_of_another_process_starts_at_once(database: Path, children: Children) -> None:
    measured = await delays(database, children, 21, ignores_wake_ups=False)
    assert statistics.median(measured) < 0.1, measured


async def test_a_job_without_a_datagram_is_found_by_the_next_poll(database: Path, children: Children) -> None:
    measured = await delays(database, children, 11, ignores_wake_ups=True)
    assert statistics.median(measured) < 0.4, measured
    assert max(measured) < 2, measured
    assert max(measured) > 0.02, "without datagrams a poll finds the job; did the worker ignore datagrams at all?"
