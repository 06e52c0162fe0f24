"""What a claim costs SQLite, in steps of its virtual machine: the same however much waits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.limits.fair import PREFIX, FairOrder
from headgate.limits.key import BETWEEN_LEVELS
from headgate.limits.limit import AnyRule
from headgate.limits.strict_rate import StrictRate
from headgate.storage.records import Claim, Claimed
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.tasks.queue import DEFAULT_QUEUE
from headgate.testing.manual_clock import ManualClock
from tests.durability.stores import claim_for, new_job, on_writer, open_store
from tests.internals import writer_of

RULES: dict[str, AnyRule] = {
    "hourly": StrictRate(1, per=3600, margin=0).rule,
    "shared": StrictRate(2, per=10, margin=0).rule,
    "quick": StrictRate(100, per=1, margin=0).rule,
}

R = TypeVar("R")

STEP = 10
"""SQLite calls the progress handler after this number of steps."""

pytestmark = pytest.mark.nightly


class Meter:
    """Counts the steps of SQLite's virtual machine on the connection that the store writes with."""

    def __init__(self, storage: SqliteStorage) -> None:
        self._storage = storage
        self._calls = 0

    async def claim(self, claim: Claim) -> tuple[int, Claimed]:
        """The steps that this claim took, and what it came to."""
        return await self._measured(self._storage.claim(claim))

    async def add(self, job: NewJob) -> int:
        """The steps that it took to add this job."""
        return (await self._measured(self._storage.add([job])))[0]

    async def _measured(self, doing: Awaitable[R]) -> tuple[int, R]:
        self._calls = 0
        writer_of(self._storage).set_progress_handler(self._count, STEP)
        result = await doing
        writer_of(self._storage).set_progress_handler(None, 0)
        return self._calls * STEP, result

    def _count(self) -> int:
        self._calls += 1
        return 0


async def add(storage: SqliteStorage, jobs: Iterable[NewJob]) -> None:
    jobs = list(jobs)
    for start in range(0, len(jobs), 5000):
        await storage.add(jobs[start : start + 5000])


async def settle(storage: SqliteStorage, claim: Claim) -> None:
    """Claim until nothing more can go, and finish all of it."""
    while True:
        claimed = await storage.claim(claim)
        endings = [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null") for job in claimed.jobs]
        await storage.finish(claim.node, endings)
        if not claimed.more and not claimed.jobs:
            return


async def steps_of_claims(storage: SqliteStorage, clock: ManualClock) -> dict[str, int]:
    """The steps of an empty claim, of one that takes a fresh key's job, and of one that takes an ungated job."""
    meter = Meter(storage)
    steps: dict[str, int] = {}
    steps["nothing"], claimed = await meter.claim(claim_for(RULES))
    assert claimed.jobs == []
    await storage.add([new_job(("hourly", "a fresh key"), now=clock.now())])
    steps["a fresh key"], claimed = await meter.claim(claim_for(RULES))
    assert len(claimed.jobs) == 1
    await storage.add([new_job(now=clock.now())])
    steps["ungated"], claimed = await meter.claim(claim_for(RULES))
    assert len(claimed.jobs) == 1
    return steps


def assert_alike(few: dict[str, int], many: dict[str, int]) -> None:
    for what, steps in few.items():
        assert many[what] <= 1.5 * steps + 100, f"{what}: {steps} steps with few, {many[what]} with many"


async def with_a_key_exhausted(path: Path, waiting: int) -> dict[str, int]:
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        await add(storage, (new_job(("hourly", "acme"), now=clock.now()) for _ in range(waiting + 1)))
        await settle(storage, claim_for(RULES))
        assert (await storage.counts())[0].waiting == waiting
        return await steps_of_claims(storage, clock)


async def test_many_jobs_that_wait_for_one_key_cost_a_claim_nothing(tmp_path: Path) -> None:
    few = await with_a_key_exhausted(tmp_path / "few.db", 200)
    many = await with_a_key_exhausted(tmp_path / "many.db", 50_000)
    assert_alike(few, many)


async def with_keys_of_a_fair_queue(path: Path, keys: int, tenant: str) -> dict[str, int]:
    clock = ManualClock()
    limit = PREFIX + DEFAULT_QUEUE
    rules: dict[str, AnyRule] = {limit: FairOrder("{tenant}", {}).rule}
    async with open_store(path, clock, synchronous="OFF") as storage:
        meter = Meter(storage)
        tenants = [f"{tenant.format(key % 100)}key {key}" for key in range(keys)]
        await add(storage, (new_job((limit, key), now=clock.now()) for _ in range(2) for key in tenants))
        # All have had a turn.
        started = 0
        while started < keys:
            started += len((await storage.claim(claim_for(rules, slots=100))).jobs)
        return {
            "a claim": (await meter.claim(claim_for(rules, slots=10)))[0],
            "a known key": await meter.add(new_job((limit, tenants[0]), now=clock.now())),
            "a new key": await meter.add(new_job((limit, f"{tenant.format(1)}new"), now=clock.now())),
            "a new tenant": await meter.add(new_job((limit, f"{tenant.format('new')}new too"), now=clock.now())),
        }


@pytest.mark.parametrize("tenant", ["", f"tenant {{}}{BETWEEN_LEVELS}"], ids=["one level", "two levels"])
async def test_many_keys_of_a_fair_queue_cost_neither_claims_nor_additions(tmp_path: Path, tenant: str) -> None:
    """The fault: a job of a key with two levels was added after all lanes of its queue had been read."""
    few = await with_keys_of_a_fair_queue(tmp_path / "few.db", 1_000, tenant)
    many = await with_keys_of_a_fair_queue(tmp_path / "many.db", 10_000, tenant)
    assert_alike(few, many)


async def with_exhausted_keys(path: Path, keys: int) -> dict[str, int]:
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        await add(
            storage, (new_job(("hourly", f"key {key}"), now=clock.now()) for _ in range(2) for key in range(keys))
        )
        await settle(storage, claim_for(RULES, slots=1000))
        assert (await storage.counts())[0].waiting == keys
        return await steps_of_claims(storage, clock)


async def test_many_exhausted_keys_cost_a_claim_nothing(tmp_path: Path) -> None:
    few = await with_exhausted_keys(tmp_path / "few.db", 100)
    many = await with_exhausted_keys(tmp_path / "many.db", 20_000)
    assert_alike(few, many)


async def behind_a_shared_bucket(path: Path, lanes: int) -> dict[str, int]:
    """Lanes of the same queue and of another one, all behind one bucket that has opened."""
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        both = claim_for(RULES, slots=1000, queues=["default", "other"])
        for queue in ("other", "default"):
            await add(
                storage,
                (
                    new_job(("shared", ""), ("quick", f"{queue} {lane}"), now=clock.now(), queue=queue)
                    for lane in range(lanes)
                ),
            )
        claimed = Claimed(jobs=(), next_in=None, more=True)
        while claimed.more:
            claimed = await storage.claim(both)
        meter = Meter(storage)
        steps: dict[str, int] = {}
        steps["closed"], claimed = await meter.claim(claim_for(RULES))
        assert claimed.jobs == []
        clock.advance(11)
        steps["opened, for a queue that is not concerned"], claimed = await meter.claim(
            claim_for(RULES, queues=["third"])
        )
        assert claimed.jobs == []
        steps["opened, for the queue at the end of the line"], claimed = await meter.claim(
            claim_for(RULES, queues=["default"])
        )
        assert len(claimed.jobs) == 2
        return steps


async def test_lanes_behind_a_shared_bucket_cost_what_it_releases(tmp_path: Path) -> None:
    few = await behind_a_shared_bucket(tmp_path / "few.db", 50)
    many = await behind_a_shared_bucket(tmp_path / "many.db", 10_000)
    assert_alike(few, many)


async def with_two_tenants_behind_a_bucket(path: Path, tenants: int) -> dict[str, int]:
    """The steps of a claim of jobs that a limit releases, of two tenants, in a queue that so many others have used."""
    clock = ManualClock()
    limit = PREFIX + DEFAULT_QUEUE
    rules: dict[str, AnyRule] = {limit: FairOrder("{tenant}", {}).rule, "shared": RULES["shared"]}
    async with open_store(path, clock, synchronous="OFF") as storage:
        keys = [f"{tenant}{BETWEEN_LEVELS}user" for tenant in range(tenants)]
        await add(storage, (new_job((limit, key), now=clock.now()) for key in keys))
        await settle(storage, claim_for(rules, slots=1000))
        late = [f"late {tenant}{BETWEEN_LEVELS}user" for tenant in range(2)]
        await add(storage, (new_job(("shared", ""), (limit, key), now=clock.now()) for key in late for _ in range(3)))
        await settle(storage, claim_for(rules))
        clock.advance(11)
        steps, claimed = await Meter(storage).claim(claim_for(rules))
        assert len(claimed.jobs) == 2
        return {"opened": steps}


async def test_tenants_that_wait_for_nothing_cost_those_behind_a_bucket_nothing(tmp_path: Path) -> None:
    """The fault: for two tenants behind a shared limit, each claim looked at all tenants of the queue."""
    few = await with_two_tenants_behind_a_bucket(tmp_path / "few.db", 20)
    many = await with_two_tenants_behind_a_bucket(tmp_path / "many.db", 2_000)
    assert_alike(few, many)


async def with_scheduled_jobs(path: Path, jobs: int) -> dict[str, int]:
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        await add(
            storage,
            (
                new_job(now=clock.now(), delayed=True, run_at=clock.now() + (100 + number) * SECOND)
                for number in range(jobs)
            ),
        )
        await add(
            storage,
            (
                new_job(("hourly", "acme"), now=clock.now(), delayed=True, run_at=clock.now() + (100 + number) * SECOND)
                for number in range(jobs)
            ),
        )
        await settle(storage, claim_for(RULES))
        steps = await steps_of_claims(storage, clock)
        clock.advance(100)
        steps["one of them due"], claimed = await Meter(storage).claim(claim_for(RULES))
        assert len(claimed.jobs) == 2
        return steps


async def test_many_scheduled_jobs_cost_a_claim_nothing(tmp_path: Path) -> None:
    few = await with_scheduled_jobs(tmp_path / "few.db", 100)
    many = await with_scheduled_jobs(tmp_path / "many.db", 20_000)
    assert_alike(few, many)


async def test_a_job_that_only_waits_is_never_written(database: Path) -> None:
    clock = ManualClock()
    async with open_store(database, clock) as storage:
        await add(storage, (new_job(("hourly", f"key {n % 20}"), now=clock.now()) for n in range(400)))
        await add(storage, (new_job(("shared", ""), ("hourly", f"key {n % 20}"), now=clock.now()) for n in range(100)))
        await add(
            storage, (new_job(now=clock.now(), delayed=True, run_at=clock.now() + 7200 * SECOND) for _ in range(9))
        )
        # Of another release: this node can do nothing with them, due or not.
        await add(storage, (new_job(("unknown", f"{n}"), now=clock.now()) for n in range(30)))
        await add(storage, (new_job(("quick", f"{n}"), now=clock.now(), task="unknown") for n in range(30)))
        await settle(storage, claim_for(RULES))

        await on_writer(storage, "PRAGMA wal_checkpoint(TRUNCATE)")
        before = _fingerprint(database)
        written = writer_of(storage).total_changes
        for _ in range(300):
            clock.advance(10)
            claimed = await storage.claim(claim_for(RULES))
            assert claimed.jobs == []
            assert not claimed.more
            await storage.expire()
        assert writer_of(storage).total_changes == written
        assert _fingerprint(database) == before
        assert await storage.check() == []


def _fingerprint(path: Path) -> list[tuple[int, str]]:
    files = [path, path.with_name(path.name + "-wal")]
    return [(os.stat(file).st_size, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]  # noqa: PTH116


async def test_lanes_of_another_release_do_not_hide_those_of_this_one(database: Path) -> None:
    clock = ManualClock()
    async with open_store(database, clock, synchronous="OFF") as storage:
        await add(storage, (new_job(("unknown", f"{n}"), now=clock.now()) for n in range(300)))
        await add(storage, (new_job(("quick", f"{n}"), now=clock.now(), task="unknown") for n in range(300)))
        soon = clock.now() + SECOND
        await add(
            storage,
            (new_job(("unknown", f"later {n}"), now=clock.now(), delayed=True, run_at=soon) for n in range(300)),
        )
        mine = [
            new_job(("quick", "due"), now=clock.now()),
            new_job(("quick", "later"), now=clock.now(), delayed=True, run_at=soon),
        ]
        await add(storage, mine)
        clock.advance(2)
        taken: list[str] = []
        for _ in range(5):
            taken += [job.id for job in (await storage.claim(claim_for(RULES, slots=1))).jobs]
        assert sorted(taken) == sorted(job.id for job in mine)
        assert not (await storage.claim(claim_for(RULES, slots=1))).more, "there is nothing to do but wait"


async def test_lanes_of_another_release_behind_a_shared_bucket_do_not_hide_those_of_this_one(database: Path) -> None:
    clock = ManualClock()
    theirs: dict[str, AnyRule] = {**RULES, "unknown": RULES["quick"]}
    async with open_store(database, clock, synchronous="OFF") as storage:
        await add(storage, [new_job(("shared", ""), now=clock.now()) for _ in range(2)])
        assert len((await storage.claim(claim_for(RULES))).jobs) == 2
        await add(storage, (new_job(("shared", ""), ("unknown", f"{n}"), now=clock.now()) for n in range(50)))
        await settle(storage, claim_for(theirs))
        mine = new_job(("shared", ""), now=clock.now())
        await add(storage, [mine])
        await settle(storage, claim_for(RULES))
        clock.advance(11)
        assert [job.id for job in (await storage.claim(claim_for(RULES))).jobs] == [mine.id]
