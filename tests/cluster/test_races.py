"""Concurrent claims, adds, endings, cancellations and deaths on one PostgreSQL leave correct counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from headgate.clock import SECOND, SystemClock
from headgate.errors import LimitInUse
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, ClaimedJob, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import Concurrency
from headgate.limits.rate_limit import RateLimit
from headgate.limits.strict_rate import StrictRate
from headgate.storage.live_rules import LimitSetting
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Amendment, Claim, FreeSlots
from tests.conformance.storage_suite import most_in_a_window
from tests.limit_settings import change

pytestmark = pytest.mark.nightly

SECONDS = float(os.environ.get("HEADGATE_TEST_RACE_SECONDS", "3"))

RULES: dict[str, Any] = {
    "strict": StrictRate(5, per=0.5, margin=0).rule,
    "rate": RateLimit(300, per=1, burst=10).rule,
    "shared": StrictRate(100, per=0.5, margin=0).rule,
    "mutex": Concurrency(1).rule,
    "slots": Concurrency(4).rule,
}
PERMITS = {"mutex", "slots"}
KEYS = [f"key-{number}" for number in range(12)]


class RaceRun:
    """Several stores on one schema, and what the test expects of their jobs."""

    def __init__(self, url: str, schema: str, seed: int) -> None:
        self.random = Random(seed)
        self.clock = SystemClock()
        self.ids = IdSource()
        self.stores = [PostgresStorage(url, self.clock, schema=schema) for _ in range(3)]
        self.added: set[str] = set()
        self.starts: dict[BucketRef, list[int]] = defaultdict(list)
        self.inside: dict[BucketRef, set[str]] = defaultdict(set)
        self.finished: dict[str, int] = defaultdict(int)
        self.is_over = False
        self.dead: set[str] = set()

    def new(self) -> NewJob:
        random = self.random
        key = random.choice(KEYS)
        choices = [
            (),
            (BucketRef("strict", key),),
            (BucketRef("rate", key), BucketRef("shared", "")),
            (BucketRef("mutex", key),),
            (BucketRef("slots", ""), BucketRef("strict", key)),
            (BucketRef("mutex", key), BucketRef("slots", "")),
        ]
        buckets = random.choice(choices)
        until = random.choice(["running", "until_final"])
        holds = tuple(PermitTerms(until) if ref.limit in PERMITS else None for ref in buckets)  # type: ignore[arg-type]
        terms = LimitTerms(holds=holds) if any(holds) else None
        now = self.clock.now()
        delayed = random.random() < 0.1
        return NewJob(
            id=self.ids.next(now),
            task="work",
            queue=random.choice(["left", "right"]),
            payload="{}",
            priority=random.choice([0, 0, 0, 5]),
            delayed=delayed,
            run_at=now + (random.randrange(300_000) if delayed else 0),
            enqueued_at=now,
            expires_at=now + SECOND // 2 if random.random() < 0.02 else None,
            buckets=buckets,
            terms=terms,
            wait_mode="" if terms is None else terms.wait_mode(),
        )

    def unique(self, job: NewJob) -> NewJob:
        """The same under one of a few keys, with a cost now and then."""
        costs = (2, *(1 for _ in job.buckets[1:])) if job.buckets and self.random.random() < 0.3 else None
        return replace(job, unique_key=self.random.choice("abcdef"), on_conflict="replace", costs=costs)

    async def produce(self, store: PostgresStorage) -> None:
        while not self.is_over:
            jobs = [self.new() for _ in range(self.random.choice([1, 1, 3, 20]))]
            if self.random.random() < 0.3:
                jobs = [self.unique(jobs[0])]
            others = await store.add(jobs)
            self.added |= {job.id for job in jobs} - others.keys()
            await asyncio.sleep(self.random.uniform(0, 0.03))

    async def hold_back(self, url: str, store: PostgresStorage) -> None:
        """A user's transaction that is open for long, with a job in it."""
        from headgate.storage.postgres.database import Session
        from headgate.storage.postgres.dialect import statements_of
        from headgate.storage.procedures.add import add_jobs

        connection = await asyncpg.connect(url)
        try:
            while not self.is_over:
                job = self.new()
                others: Mapping[str, str] = {}
                async with connection.transaction():
                    if self.random.random() < 0.7:
                        # It replaces a job that waits, or whose node may die, or follows one that runs.
                        others = await store.add_in(connection, [self.unique(job)])
                    else:
                        session = Session(connection, statements_of(store.schema), is_pooled=False)
                        await add_jobs(store._tx(session), [job])
                    await asyncio.sleep(self.random.uniform(0.05, 0.4))
                self.added |= {job.id} - others.keys()
        finally:
            await connection.close()

    async def work(self, store: PostgresStorage, name: str) -> None:
        """A node: claims, runs for a moment, ends; now and then it dies, and another takes its jobs back."""
        random = self.random
        while not self.is_over:
            node = f"{name}-{random.getrandbits(32):x}"
            await store.join(node, name)
            while not self.is_over:
                free = FreeSlots(random.choice([1, 4, 20]), gated_first=random.random() < 0.5)
                jobs, has_more = await self.claim(store, node, free)
                self.note_starts(jobs)
                if random.random() < 0.01:
                    self.dead.add(node)
                    self.release_permits_of(jobs)
                    break
                await asyncio.sleep(random.uniform(0, 0.01) if jobs or has_more else 0.01)
                await self.end(store, node, jobs)

    async def claim(self, store: PostgresStorage, node: str, free: FreeSlots) -> tuple[list[ClaimedJob], bool]:
        """One claim of both queues, or two at the same time."""
        together = self.random.random() < 0.5
        free_slots = [{"left": free, "right": free}] if together else [{"left": free}, {"right": free}]
        claims = [
            Claim(node, asked, RULES, frozenset({"work"}), has_backlog="left" not in asked) for asked in free_slots
        ]
        made = await asyncio.gather(*map(store.claim, claims))
        return [job for claimed in made for job in claimed.jobs], any(claimed.more for claimed in made)

    def note_starts(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            for ref in job.buckets:
                if ref.limit in PERMITS:
                    most = RULES[ref.limit].count
                    self.inside[ref].add(job.id)
                    assert len(self.inside[ref]) <= most, f"{len(self.inside[ref])} hold {ref}"
                else:
                    self.starts[ref].append(job.charged_at)

    def release_permits_of(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            for ref in job.buckets:
                self.inside[ref].discard(job.id)

    async def end(self, store: PostgresStorage, node: str, jobs: Sequence[ClaimedJob]) -> None:
        endings: list[Ending] = []
        for job in jobs:
            roll = self.random.random()
            if roll < 0.8:
                endings.append(Finished(job.id, job.fence, JobState.SUCCEEDED, result="1"))
            elif roll < 0.85:
                endings.append(Finished(job.id, job.fence, JobState.FAILED))
            else:
                run_at = store.now() + 20_000 if roll < 0.95 else None
                endings.append(Returned(job.id, job.fence, "failed", spent=roll < 0.95, run_at=run_at))
            for ref in job.buckets:
                # A permit held until the job is final counts here as returned when the job is claimed again.
                self.inside[ref].discard(job.id)
        while endings:
            received = list(zip(endings, await store.finish(node, endings), strict=True))
            for ending, written in received:
                if written and isinstance(ending, Finished):
                    self.finished[ending.id] += 1
            # The results of locked jobs are known later.
            endings = [ending for ending, written in received if written is None]

    async def recover_dead_nodes(self, store: PostgresStorage) -> None:
        while not self.is_over:
            for node in await store.nodes():
                if node.id in self.dead:
                    await store.recover(node.id, node.beat)
            await asyncio.sleep(0.05)

    async def operate(self, store: PostgresStorage) -> None:
        """Do what operators, users and housekeeping do, at random."""
        random = self.random
        while not self.is_over:
            await asyncio.sleep(random.uniform(0, 0.03))
            roll = random.random()
            if roll < 0.4 and self.added:
                await store.cancel(random.choice(sorted(self.added)))
            elif roll < 0.5:
                await store.expire()
            elif roll < 0.6:
                await store.evict()
            elif roll < 0.7:
                ref = BucketRef("rate", random.choice(KEYS))
                await store.amend([Amendment(ref, store.limit_now(), 1, store.limit_now(), 2)], RULES)
            elif roll < 0.75:
                await store.pause_queue("left")
                await asyncio.sleep(0.02)
                await store.resume_queue("left")
            elif roll < 0.8:
                setting = LimitSetting("strict", "key", random.choice(KEYS), None, True)
                await change(store, setting)
                await asyncio.sleep(0.02)
                await change(store, setting, remove=True)
            elif roll < 0.85:
                with contextlib.suppress(LimitInUse):
                    await store.forget("nobody's")
            else:
                await store.counts()
                await store.queues()


@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADGATE_TEST_RACE_SEEDS", "2"))))
async def test_the_counts_are_right_after_all_races(postgres_url: str, postgres_schema: str, seed: int) -> None:
    race_run = RaceRun(postgres_url, postgres_schema, seed)
    first = race_run.stores[0]
    for store in race_run.stores:
        await store.open()
    async with asyncio.TaskGroup() as group:
        for number, store in enumerate(race_run.stores):
            group.create_task(race_run.produce(store))
            group.create_task(race_run.work(store, f"node-{number}"))
            group.create_task(race_run.recover_dead_nodes(store))
        group.create_task(race_run.operate(first))
        for store in race_run.stores:
            group.create_task(race_run.hold_back(postgres_url, store))
        await asyncio.sleep(SECONDS)
        race_run.is_over = True

    for node in await first.nodes():
        await first.recover(node.id, node.beat)
    assert list(await first.check()) == []
    # Whatever still waits can be claimed: no lane was forgotten.
    await first.join("last", "last")
    for _ in range(2000):
        free = FreeSlots(100)
        claimed = await first.claim(Claim("last", {"left": free, "right": free}, RULES, frozenset({"work"})))
        for job in claimed.jobs:
            for ref in job.buckets:
                if ref.limit not in PERMITS:
                    race_run.starts[ref].append(job.charged_at)
        endings = [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs]
        for ending, written in zip(endings, await first.finish("last", endings), strict=True):
            race_run.finished[ending.id] += bool(written)
        if not claimed.jobs and not claimed.more:
            if claimed.next_in is None:
                break
            await asyncio.sleep(min(claimed.next_in / SECOND, 0.2) + 0.001)
    states = {record.id: record.state for record in await first.final(sorted(race_run.added))}
    left = [await first.job(id) for id in sorted(race_run.added - set(states))]
    assert left == [], [await first.queue_position(record.id) for record in left if record is not None]
    assert list(await first.check()) == []
    assert max(race_run.finished.values()) == 1
    for ref, starts in race_run.starts.items():
        rule = RULES[ref.limit]
        assert most_in_a_window(starts, rule.period) <= rule.bound(rule.period), ref
    for store in race_run.stores:
        await store.close()
