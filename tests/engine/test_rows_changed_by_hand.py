"""A job whose row was changed in the database waits; nothing else stops."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

import pytest

from headgate import Headgate, JobState, StrictRate
from headgate.jobs.identity import job_number
from headgate.storage import stored_rows
from tests.until import result_within, until


@pytest.mark.parametrize(("column", "value"), [("task", "gone"), ("queue", "nowhere")])
@pytest.mark.parametrize("is_limited", [False, True])
async def test_a_job_with_another_task_or_queue_than_its_limit_set_waits_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, column: str, value: str, *, is_limited: bool
) -> None:
    stored_rows._logged.clear()
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")

    @app.task(limits=[StrictRate("1000/s", key="{number}")] if is_limited else [])
    async def work(number: int) -> int:
        return number

    async with app.open():
        jobs = await work.enqueue_many([(number,) for number in range(5)])
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
            connection.execute(f"UPDATE job SET {column} = ? WHERE id = ?", (value, job_number(jobs[2].id)))
        with caplog.at_level(logging.ERROR, logger="headgate"):
            async with app:
                assert [await result_within(jobs[number]) for number in (0, 1, 3, 4)] == [0, 1, 3, 4]
                assert await result_within(await work.enqueue(7)) == 7

                async def is_returned() -> bool:
                    status = await jobs[2].status()
                    return status.state is JobState.WAITING and status.is_scheduled

                await until(is_returned, missing=jobs[2].status)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if value in line]) == 1, lines
    assert not [line for line in lines if "crashed" in line], lines
