"""Concurrent claims of a fair queue with keys of two levels keep the shares of tenants, and forget no lane."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from headgate.clock import SystemClock
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.limits.fair import FairOrder
from headgate.limits.key import BETWEEN_LEVELS, levels_of
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, FreeSlots
from tests.until import until

pytestmark = pytest.mark.nightly

ORDER = "fair:default"
WEIGHTS = {"a": 1, "b": 2, "c": 3}
RULES = {ORDER: FairOrder("{0}", WEIGHTS).rule}


class FairRace:
    """Several stores on one schema, and the tenants of the jobs that they have started."""

    def __init__(self, url: str, schema: str) -> None:
        self.clock = SystemClock()
        self.ids = IdSource()
        self.stores = [PostgresStorage(url, self.clock, schema=schema) for _ in range(3)]
        self.started: list[str] = []
        self.ended: set[str] = set()
        self.is_over = False

    def new(self, tenant: str, member: int, *, delay: int = 0) -> NewJob:
        now = self.clock.now()
        return NewJob(
            id=self.ids.next(now),
            task="work",
            queue="default",
            payload="{}",
            priority=0,
            delayed=delay > 0,
            run_at=now + delay,
            enqueued_at=now,
            buckets=(BucketRef(ORDER, f"{tenant}{BETWEEN_LEVELS}{member}"),),
        )

    async def work(self, store: PostgresStorage, node: str, most: int | None = None) -> None:
        await store.join(node, node)
        claim = Claim(node, {"default": FreeSlots(5)}, RULES, frozenset({"work"}))
        while not self.is_over and (most is None or len(self.started) < most):
            jobs = (await store.claim(claim)).jobs
            self.started += [levels_of(job.buckets[0].key)[0] for job in jobs]
            assert self.ended.isdisjoint(job.id for job in jobs)
            self.ended |= {job.id for job in jobs}
            await store.finish(node, [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs])
            await asyncio.sleep(0)
        await store.leave(node)


async def test_shares_are_those_of_the_weights_over_three_claimers(postgres_url: str, postgres_schema: str) -> None:
    race = FairRace(postgres_url, postgres_schema)
    for store in race.stores:
        await store.open()
    members = {"a": 30, "b": 1, "c": 4}
    await race.stores[0].add([race.new(tenant, n % members[tenant]) for n in range(400) for tenant in "abc"])
    async with asyncio.TaskGroup() as group:
        for number, store in enumerate(race.stores):
            group.create_task(race.work(store, f"node-{number}", most=600))
    counts = Counter(race.started[:600])
    # Each claim in progress holds a tenant, while the others start jobs of the other two.
    for tenant, weight in WEIGHTS.items():
        assert abs(counts[tenant] - 100 * weight) <= 15, counts
    assert list(await race.stores[0].check()) == []
    for store in race.stores:
        await store.close()


async def test_no_lane_is_forgotten(postgres_url: str, postgres_schema: str) -> None:
    """While users come and go, jobs are cancelled, and groups leave the line and are deleted."""
    race, random = FairRace(postgres_url, postgres_schema), Random(1)
    for store in race.stores:
        await store.open()
    added: list[str] = []
    cancelled: set[str] = set()

    async def produce(store: PostgresStorage) -> None:
        for _ in range(60):
            jobs = [
                race.new(random.choice("abc"), random.randrange(6), delay=random.choice((0, 0, 0, 20_000)))
                for _ in range(random.choice((1, 3, 10)))
            ]
            await store.add(jobs)
            added.extend(job.id for job in jobs)
            if random.random() < 0.3:
                id = random.choice(jobs).id
                if (await store.cancel(id)) is not None and id not in race.ended:
                    cancelled.add(id)
            if random.random() < 0.2:
                await store.evict(100)
            await asyncio.sleep(random.uniform(0, 0.01))

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(race.work(store, f"node-{n}")) for n, store in enumerate(race.stores)]
        async with asyncio.TaskGroup() as producers:
            for store in race.stores:
                producers.create_task(produce(store))
        try:
            await until(lambda: set(added) <= race.ended | cancelled, 20, lambda: set(added) - race.ended - cancelled)
        finally:
            race.is_over = True
        await asyncio.gather(*workers)
    assert list(await race.stores[0].check()) == []
    for store in race.stores:
        await store.close()
