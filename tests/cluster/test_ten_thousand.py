"""Ten thousand tenants whose jobs become due within one second are served in the order in which they became due."""

from __future__ import annotations

from random import Random

import pytest

from headgate.clock import SECOND
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.limits.strict_rate import StrictRate
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, FreeSlots
from headgate.testing.manual_clock import ManualClock

TENANTS = 10_000
RULES = {"api": StrictRate(15, per=60, margin=0).rule}


@pytest.mark.nightly
async def test_the_job_that_is_due_first_starts_first(postgres_url: str, postgres_schema: str) -> None:
    clock, ids, random = ManualClock(), IdSource(), Random(1)
    storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
    await storage.open()
    await storage.join("one", "one")
    # A hundred microseconds apart, in an order that has nothing to do with that of their enqueueing.
    due = [clock.now() + 10 * SECOND + 100 * number for number in range(TENANTS)]
    random.shuffle(due)
    jobs = [
        NewJob(
            id=ids.next(clock.now()),
            task="work",
            queue="default",
            payload="{}",
            priority=0,
            delayed=True,
            run_at=run_at,
            enqueued_at=clock.now(),
            buckets=(BucketRef("api", f"tenant-{number}"),),
        )
        for number, run_at in enumerate(due)
    ]
    for begin in range(0, TENANTS, 1000):
        await storage.add(jobs[begin : begin + 1000])
    claim = Claim("one", {"default": FreeSlots(200)}, RULES, frozenset({"work"}))
    # A node that runs has counted them in their lanes, some with each claim, before they are due.
    while (await storage.claim(claim)).more:
        pass
    clock.advance(11)
    started: list[int] = []
    for _ in range(TENANTS):
        claimed = await storage.claim(claim)
        # Within one claim all start at once.
        started += sorted(job.run_at for job in claimed.jobs)
        await storage.finish("one", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs])
        if not claimed.more:
            break
    assert started == sorted(due)
    assert await storage.check() == []
    await storage.close()
