"""What recovery, cleaning and single jobs cost SQLite: few commits, and steps that do not grow with the tables."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headgate import JobState
from headgate.clock import SECOND
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobOptions, NewJob, Origin, RetentionTerms
from headgate.jobs.lifecycle import Finished
from headgate.limits.limit import AnyRule
from headgate.limits.strict_rate import StrictRate
from headgate.storage.records import Recovered
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.manual_clock import ManualClock
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.durability.stores import NODE, claim_for, new_job, open_store
from tests.internals import app_on, writer_of

RULES: dict[str, AnyRule] = {"hourly": StrictRate(1, per=3600, margin=0).rule}

HOUR = 3600

STEP = 10
"""SQLite calls the progress handler after this number of steps."""

pytestmark = pytest.mark.nightly


class Meter:
    """Counts the commits, and the steps of SQLite's virtual machine, of the connection that a store writes with."""

    def __init__(self, storage: SqliteStorage) -> None:
        self.commits = 0
        self._calls = 0
        writer_of(storage).set_trace_callback(self._note)
        writer_of(storage).set_progress_handler(self._count, STEP)

    @property
    def steps(self) -> int:
        return self._calls * STEP

    def start(self) -> None:
        self.commits = self._calls = 0

    def _note(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    def _count(self) -> int:
        self._calls += 1
        return 0


# ---------------------------------------------------------------------------------------------------- commits


def test_many_jobs_at_once_are_one_commit_and_single_ones_share_theirs(tmp_path: Path) -> None:
    """The fault: each job was four writes one after the other, so 222 jobs a second were the most of a SQLite file."""

    async def main(clock: VirtualClock) -> None:
        store = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
        app = app_on(store, clock=clock)

        @app.task
        async def work(number: int) -> int:
            return number

        async with app.open():
            meter = Meter(store)
            # SQLite tells of each row that a trigger writes, with all that is written at once: more would take minutes.
            await work.enqueue_many([(number,) for number in range(1000)])
            assert meter.commits == 1
            meter.start()
            await asyncio.gather(*(work.enqueue(number) for number in range(500)))
            assert meter.commits <= 10
            meter.start()
            async with app:
                await asyncio.sleep(60)
            (counts,) = await app.admin.counts()
            assert counts.succeeded == 1500
            # Claimed and finished: each job alone would be 3,000.
            assert meter.commits <= 1500 / 10, "the heartbeats and looks of a minute included"

    run_virtual(main)


def test_charts_cost_no_statement_for_a_job_and_one_every_ten_seconds_for_a_process(
    tmp_path: Path,
) -> None:
    async def main(clock: VirtualClock) -> None:
        store = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
        app = app_on(store, clock=clock)
        about: list[str] = []

        @app.task(limits=[StrictRate(1000, per=60, name="plenty", key="{number}")])
        async def work(number: int) -> int:
            return number

        async with app:
            writer_of(store).set_trace_callback(
                lambda said: about.append(said) if "INTO jobs_history" in said else None
            )
            for number in range(9):
                await work.enqueue_many([(number,) for _ in range(100)])
                await asyncio.sleep(1)
            assert about == []
            await asyncio.sleep(1.5)
            assert len(about) == 1
            # What it wrote is all of it, in one go, and nothing follows while nothing happens.
            assert sum(point.succeeded for point in await app.admin.history.jobs(step=10)) == 900
            await asyncio.sleep(20)
            assert len(about) == 1

    run_virtual(main)


def test_a_thousand_jobs_that_come_due_together_are_released_in_few_commits(tmp_path: Path) -> None:
    """The fault: a scheduler waited for one write for each job that was due, so a thousand of them took as many round
    trips before the last one could start."""

    async def main(clock: VirtualClock) -> None:
        store = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
        app = app_on(store, clock=clock, concurrency=1000)
        started: list[int] = []
        all_started = asyncio.Event()

        @app.task
        async def work(number: int) -> None:
            started.append(number)
            if len(started) == 1000:
                all_started.set()
            await all_started.wait()

        async with app:
            await work.using(delay=60).enqueue_many([(number,) for number in range(1000)])
            await asyncio.sleep(55)
            meter = Meter(store)
            async with asyncio.timeout(10):
                await all_started.wait()
            assert meter.commits <= 20, "the heartbeats and looks of these seconds included"

    run_virtual(main)


async def test_a_dead_node_is_recovered_in_one_commit_however_much_it_ran(database: Path) -> None:
    """The fault: recovery read what was to be recovered page by page, with a write for each job, and one queue that was
    stuck held up the pages behind it."""
    clock = ManualClock()
    async with open_store(database, clock, synchronous="OFF") as storage:
        await storage.join("dead", "d")
        queues = ("default", "other", "third")
        await storage.add([new_job(now=clock.now(), queue=queue) for queue in queues for _ in range(1000)])
        running: list[str] = []
        while len(running) < 3000:
            claimed = await storage.claim(claim_for(RULES, slots=1000, queues=queues, node="dead"))
            running += [job.id for job in claimed.jobs]
        (dead,) = [node for node in await storage.nodes() if node.id == "dead"]
        meter = Meter(storage)
        recovered = await storage.recover("dead", dead.beat)
        assert meter.commits == 1
        assert isinstance(recovered, Recovered)
        assert sorted(recovered.returned) == sorted(running)
        for queue in queues:
            assert (await storage.claim(claim_for(RULES, slots=10, queues=[queue]))).jobs


async def test_followers_of_a_job_are_released_in_the_commit_that_ends_it(database: Path) -> None:
    """The fault: a job enqueued its own follower when it had ended, so a crash between the two lost the follower."""
    clock = ManualClock()
    async with open_store(database, clock, synchronous="OFF") as storage:
        leader = new_job(now=clock.now())
        followers = [new_job(now=clock.now(), origin=Origin(follows=leader.id)) for _ in range(50)]
        await storage.add([leader, *followers])
        (job,) = (await storage.claim(claim_for(RULES, slots=100))).jobs
        meter = Meter(storage)
        await storage.finish(NODE, [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null")])
        assert meter.commits == 1
        released = (await storage.claim(claim_for(RULES, slots=100))).jobs
        assert sorted(job.id for job in released) == sorted(job.id for job in followers)


# ------------------------------------------------------------------------------------------------------ steps


class Upkeep:
    """A store with `size` of all that may be stored, and what its nodes do all the time."""

    def __init__(self, storage: SqliteStorage, clock: ManualClock, size: int) -> None:
        self._storage = storage
        self._clock = clock
        self._size = size

    async def _add(self, jobs: Iterable[NewJob]) -> list[str]:
        ids: list[str] = []
        for group in _batched(jobs, 5000):
            await self._storage.add(group)
            ids += [job.id for job in group]
        return ids

    async def fill(self) -> None:
        """Jobs that have ended, that run on another node, that wait for their budget, their time, or to expire."""
        storage, clock, size = self._storage, self._clock, self._size
        await self._add(new_job(now=clock.now()) for _ in range(size))
        await self._add(new_job(("hourly", f"key {n}"), now=clock.now()) for n in range(size) for _ in range(2))
        claimed = await storage.claim(claim_for(RULES, slots=5000))
        while claimed.jobs or claimed.more:
            ended = [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null") for job in claimed.jobs]
            await storage.finish(NODE, ended)
            claimed = await storage.claim(claim_for(RULES, slots=5000))
        soon = clock.now() + HOUR * SECOND
        await self._add(new_job(now=clock.now(), delayed=True, run_at=soon, expires_at=soon + n) for n in range(size))
        # What runs is bounded by the slots of the nodes, however much there is.
        await storage.join("busy", "b")
        await self._add(new_job(now=clock.now()) for _ in range(50))
        assert len((await storage.claim(claim_for(RULES, slots=50, node="busy"))).jobs) == 50

    async def steps_of(self, doing: Awaitable[Any]) -> int:
        self._meter.start()
        await doing
        return self._meter.steps

    async def all_steps(self) -> dict[str, int]:
        storage, clock = self._storage, self._clock
        steps: dict[str, int] = {}
        await self.fill()
        self._meter = Meter(storage)
        await storage.join("dead", "d")
        (lost,) = await self._add([new_job(now=clock.now())])
        assert [job.id for job in (await storage.claim(claim_for(RULES, node="dead"))).jobs] == [lost]
        (dead,) = [node for node in await storage.nodes() if node.id == "dead"]
        steps["recover a node that ran one job"] = await self.steps_of(storage.recover("dead", dead.beat))
        (job,) = (await storage.claim(claim_for(RULES))).jobs
        ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="null")
        steps["finish a job"] = await self.steps_of(storage.finish(NODE, [ending]))
        steps["beat"] = await self.steps_of(storage.beat(NODE))
        steps["upkeep with nothing to do"] = await self.steps_of(storage.node_update())
        steps["expire nothing"] = await self.steps_of(storage.expire())
        old = clock.now() - HOUR * SECOND
        steps["prune nothing"] = await self.steps_of(storage.prune(old))
        steps["prune nothing by its own retention"] = await self.steps_of(storage.prune_by_own_retention())
        (late,) = await self._add([new_job(now=clock.now(), delayed=True, run_at=clock.now() + SECOND)])
        steps["cancel a job"] = await self.steps_of(storage.cancel(late))
        steps["add a job"] = await self.steps_of(storage.add([new_job(("hourly", "fresh"), now=clock.now())]))
        steps["expire one of many"] = await self.steps_of(_expire(storage, clock))
        steps["prune a few of many"] = await self.steps_of(storage.prune(clock.now(), 10))
        return steps


async def _expire(storage: SqliteStorage, clock: ManualClock) -> None:
    await storage.add([new_job(now=clock.now(), delayed=True, run_at=clock.now() + SECOND, expires_at=clock.now())])
    assert len(await storage.expire()) == 1


def _batched(jobs: Iterable[NewJob], count: int) -> Iterable[list[NewJob]]:
    left = iter(jobs)
    while group := list(itertools.islice(left, count)):
        yield group


async def steps_with(path: Path, size: int) -> dict[str, int]:
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        return await Upkeep(storage, clock, size).all_steps()


async def test_recovery_and_cleaning_do_not_read_whole_tables(tmp_path: Path) -> None:
    """The fault: recovery and cleaning loaded all rows of a SQLite file and looked through them in the program."""
    few, many = await steps_with(tmp_path / "few.db", 100), await steps_with(tmp_path / "many.db", 4_000)
    grown = {what: (few[what], many[what]) for what in few if many[what] > 1.5 * few[what] + 200}
    assert not grown, f"steps with few and with many rows: {grown}"


async def steps_to_prune_beside(path: Path, batches: int) -> int:
    """Those of pruning a few jobs, where so many batches are kept with jobs that failed."""
    clock = ManualClock()
    async with open_store(path, clock, synchronous="OFF") as storage:
        kept = [NewBatch(f"batch-{number}", 1, clock.now()) for number in range(batches)]
        failing = [new_job(now=clock.now(), origin=Origin(batch=batch.id)) for batch in kept]
        await storage.add(failing, kept)
        await storage.add([new_job(now=clock.now()) for _ in range(20)])
        failing_ids = {job.id for job in failing}
        while jobs := (await storage.claim(claim_for(RULES, slots=500))).jobs:
            states = [JobState.FAILED if job.id in failing_ids else JobState.SUCCEEDED for job in jobs]
            endings = [Finished(job.id, job.fence, state) for job, state in zip(jobs, states, strict=True)]
            assert all(await storage.finish(NODE, endings))
        clock.advance(HOUR)
        meter = Meter(storage)
        assert await storage.prune(clock.now(), 10, frozenset({JobState.SUCCEEDED})) == 10
        return meter.steps


async def test_pruning_jobs_does_not_read_batches_of_other_jobs(tmp_path: Path) -> None:
    """The fault: each step of pruning looked through all batches that are kept because one of their jobs failed."""
    few, many = (
        await steps_to_prune_beside(tmp_path / "few.db", 50),
        await steps_to_prune_beside(tmp_path / "many.db", 2000),
    )
    assert many <= 1.5 * few + 200, f"steps beside few and beside many: {few}, {many}"


async def test_a_part_of_the_time_is_pruned_without_a_read_of_the_batches_before(tmp_path: Path) -> None:
    """The fault: each round read all batches that are kept for longer, while it kept all others from writing."""
    found: list[int] = []
    for batches in (50, 2000):
        clock = ManualClock()
        async with open_store(tmp_path / f"{batches}.db", clock, synchronous="OFF") as storage:
            kept = [NewBatch(f"batch-{number}", 1, clock.now()) for number in range(batches)]
            await storage.add([new_job(now=clock.now(), origin=Origin(batch=batch.id)) for batch in kept], kept)
            while jobs := (await storage.claim(claim_for(RULES, slots=500))).jobs:
                assert all(await storage.finish(NODE, [Finished(job.id, job.fence, JobState.FAILED) for job in jobs]))
            clock.advance(HOUR)
            meter = Meter(storage)
            succeeded = frozenset({JobState.SUCCEEDED})
            assert await storage.prune(clock.now(), 10, succeeded, since=clock.now() - 60 * SECOND) == 0
            found.append(meter.steps)
    assert found[1] <= 1.5 * found[0] + 200, f"steps beside few and beside many: {found}"


async def test_no_write_waits_for_a_look_at_the_jobs_that_a_follower_of_their_batch_needs(tmp_path: Path) -> None:
    """The fault: of a batch of 100,000 jobs that are not kept, with a step after it, each round looked for 0.6 s."""
    found: list[int] = []
    for size in (50, 2000):
        clock = ManualClock()
        async with open_store(tmp_path / f"{size}.db", clock, synchronous="OFF") as storage:
            batch = NewBatch("batch", size + 1, clock.now())
            options = JobOptions(retention=RetentionTerms(0, 0, 0, 0))
            jobs = [new_job(now=clock.now(), origin=Origin(batch=batch.id), options=options) for _ in range(size)]
            late = new_job(now=clock.now(), origin=Origin(batch=batch.id), delayed=True, run_at=clock.now() + SECOND)
            await storage.add([*jobs, late, new_job(now=clock.now(), origin=Origin(follows=batch.id))], [batch])
            while claimed := (await storage.claim(claim_for(RULES, slots=500))).jobs:
                endings = [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed]
                assert all(await storage.finish(NODE, endings))
            meter = Meter(storage)
            assert await storage.prune_by_own_retention() == 0
            found.append(meter.steps)
    assert found[1] <= 1.5 * found[0] + 200, f"steps of the writer beside few and beside many: {found}"


async def test_readers_of_a_file_do_not_wait_for_its_writer(database: Path) -> None:
    """The fault: without a write-ahead log, whoever looked at jobs and whoever wrote them locked each other out."""
    async with open_store(database, ManualClock()) as storage:
        (mode,) = writer_of(storage).execute("PRAGMA journal_mode").fetchone()
        assert mode == "wal"
