"""What each node reads again and again does not grow with the jobs that only wait or have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import Finished
from headgate.jobs.limit_sets import NO_LIMIT_SETS
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.manual_clock import ManualClock
from tests.durability.stores import NODE, claim_for, new_job
from tests.internals import writer_of

TASKS = frozenset({"work"})
NO_LIMITS: frozenset[str] = frozenset()

READS: dict[str, Callable[[MemoryStorage], Awaitable[Any]]] = {
    "failed holders": lambda storage: storage.failed_holders(TASKS, other_than=NO_LIMIT_SETS),
    "jobs of unknown limits": lambda storage: storage.gated_jobs(TASKS, unknown_to=NO_LIMITS, other_than=NO_LIMIT_SETS),
    "first jobs of unknown limits": lambda storage: storage.jobs_of_other_limits(NO_LIMITS),
    "node_update": lambda storage: storage.node_update(NODE),
    "heartbeat": lambda storage: storage.beat(NODE),
    "expiry": lambda storage: storage.expire(),
    "missing nodes": lambda storage: storage.add_missing_nodes(),
}


async def steps_beside(size: int, read: str) -> int:
    """Return the steps of SQLite's virtual machine beside so many delayed jobs and as many that have ended."""
    clock = ManualClock()
    storage = MemoryStorage(clock)
    await storage.join(NODE, "node")
    await storage.add([new_job(now=clock.now()) for _ in range(size)])
    while jobs := (await storage.claim(claim_for({}, slots=500))).jobs:
        await storage.finish(NODE, [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs])
    late = clock.now() + 3600 * SECOND
    await storage.add([new_job(now=clock.now(), delayed=True, run_at=late) for _ in range(size)])
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    writer_of(storage).set_progress_handler(count, 1)
    await READS[read](storage)
    writer_of(storage).set_progress_handler(None, 0)
    return steps


@pytest.mark.parametrize("read", READS)
async def test_a_sweep_passes_over_no_job_that_is_not_its_own(read: str) -> None:
    """The fault: the sweep for permits of failed jobs followed the primary key, over all jobs, in each minute."""
    few, many = await steps_beside(20, read), await steps_beside(1000, read)
    assert 0 < many <= 1.2 * few + 20
