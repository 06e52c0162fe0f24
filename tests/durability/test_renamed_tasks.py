"""A task is renamed between two releases, with real workers of both."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headgate import JobState
from tests.durability.processes import Children
from tests.durability.renamed import program
from tests.until import result_within

pytestmark = pytest.mark.nightly


async def test_jobs_of_a_renamed_task_wait_for_a_release_that_has_it(children: Children, database: Path) -> None:
    """The fault: a release that did not know a task's old name failed its jobs, or deleted them."""
    url = f"sqlite:///{database}"
    old = program(url, "old")
    async with old.open():
        job = await old.tasks["sync_customer"].enqueue("acme")
        careless = await children.start("renamed.py", url=url, release="careless")
        assert await careless.wait_for_line("unknown") == ["sync_customer"]
        status = await job.status()
        assert (status.state, status.attempt) == (JobState.WAITING, 0)

        aware = await children.start("renamed.py", url=url, release="aware")
        assert await aware.wait_for_line("ran") == ["aware", "sync_customer"]
        assert await result_within(job) == "aware acme"
        for worker in (careless, aware):
            worker.signal(signal.SIGTERM)
            assert await worker.end() == 0
        assert careless.lines_with("ran") == []
