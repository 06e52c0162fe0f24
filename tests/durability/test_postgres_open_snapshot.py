"""Beside a transaction that stays open, no statement reads all dead rows that the jobs before have left."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from statistics import median

import asyncpg
import pytest

from headgate.clock import SystemClock
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.limits.rate_limit import RateLimit
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, FreeSlots
from tests.durability.plans import EXPLAINING, Plans
from tests.postgres_server import server_in

pytestmark = pytest.mark.nightly

ROUNDS = int(os.environ.get("HEADGATE_TEST_SNAPSHOT_ROUNDS", "100"))
KEYS = 15
MOST_PAGES = 2000
"""What a statement may look at; the dead rows of all rounds are on far more."""

RULES = {"free": RateLimit(1_000_000, per=1, burst=1_000_000).rule}


async def test_no_statement_of_a_claim_reads_all_rows_that_are_dead(tmp_path: Path) -> None:
    with server_in(tmp_path, *EXPLAINING, "autovacuum=off") as server:
        storage = PostgresStorage(server.url, SystemClock())
        await storage.open()
        await storage.join("n", "node")
        connection = await asyncpg.connect(server.url)
        plans = Plans(tmp_path / "postgres.log")
        other = await asyncpg.connect(server.url)
        try:
            async with other.transaction(isolation="repeatable_read"):
                await other.fetch("SELECT count(*) FROM headgate.job")
                last: dict[str, list[int]] = defaultdict(list)
                ids = IdSource()
                for number in range(ROUNDS):
                    await run_jobs(storage, ids)
                    if number % 10 == 0:
                        # As autovacuum does. All jobs are final, so the planner expects next to none that wait.
                        await connection.execute("ANALYZE")
                    for run in plans.read():
                        if number >= ROUNDS - 20:
                            last[run.statement].append(run.pages)
                # Half of the runs, because a sweep reads all dead rows. Long pauses follow it.
                pages = {name: median(runs) for name, runs in last.items()}
                assert {"merge", "claim_snapshot", "empty_lanes", "lock_for_claim", "write_claim"} <= set(pages)
                assert not {name: many for name, many in pages.items() if many > MOST_PAGES}
        finally:
            await other.close()
            await connection.close()
            await storage.close()


async def run_jobs(storage: PostgresStorage, ids: IdSource) -> None:
    """Add three jobs to each lane, run two of them, and cancel the third, so that the next merge finds empty lanes."""
    now = storage.now()
    new = [
        NewJob(
            id=ids.next(now),
            task="send",
            queue="mail",
            payload="{}",
            priority=0,
            delayed=False,
            run_at=now,
            enqueued_at=now,
            buckets=(BucketRef("free", str(number % KEYS)),),
        )
        for number in range(3 * KEYS)
    ]
    await storage.add(new)
    claimed = await storage.claim(Claim("n", {"mail": FreeSlots(2 * KEYS)}, RULES, frozenset({"send"})))
    assert len(claimed.jobs) == 2 * KEYS
    assert all(await storage.finish("n", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs]))
    for id in {job.id for job in new} - {job.id for job in claimed.jobs}:
        assert await storage.cancel(id) is JobState.WAITING
