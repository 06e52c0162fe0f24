"""Stores that have grown: many waiting jobs on many keys and as many finished ones, with some of everything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.postgres_server import postgres_on
from benchmarks.seeds import BATCH, note_release, use_up
from benchmarks.stores import storage_at
from benchmarks.worker_app import LIMIT, Probed
from headgate.clock import SECOND, SystemClock
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.history import ALL, Flush, JobsStep, LimitStep, step_at
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobError, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Finished
from headgate.jobs.limit_sets import DeclaredLimitSets
from headgate.storage.records import Claim, FreeSlots, NodeControls
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE

SIZES = ("small", "full")

BATCH_OF = 100
"""Jobs of each batch."""

DAY = 86_400 * SECOND

ERROR = JobError("ValueError", "no such page", "Traceback (most recent call last): …")


def prepare(folder: Path, *, store: str, jobs: dict[str, int], keys: dict[str, int]) -> dict[str, float]:
    """For each size so many jobs wait on so many keys whose budget is used up, and as many jobs are final."""
    for size in SIZES:
        grow(folder, store, size, jobs[size], keys[size])
    return {}


def grow(folder: Path, store: str, size: str, jobs: int, keys: int) -> None:
    """Make one store; one of no jobs is empty."""
    if store == "postgres":
        with postgres_on(_server(folder, size), "-c", "fsync=off", "-c", "max_wal_size=8GB") as url:
            asyncio.run(_fill(storage_at(url), jobs, keys))
            asyncio.run(_settle(url))
    else:
        asyncio.run(_fill(SqliteStorage(_file(folder, size), SystemClock(), synchronous="OFF"), jobs, keys))


@contextlib.contextmanager
def grown_store(folder: Path, store: str, size: str) -> Iterator[str]:
    """The URL of a prepared store."""
    if store == "postgres":
        with postgres_on(_server(folder, size)) as url:
            yield url
    else:
        yield f"sqlite:///{_file(folder, size)}"


def _file(folder: Path, size: str) -> Path:
    return folder / f"{size}.db"


def _server(folder: Path, size: str) -> Path:
    return folder / f"{size}-server"


async def _settle(url: str) -> None:
    """What autovacuum would do within minutes."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM (ANALYZE, FREEZE)")
    await connection.close()


async def _fill(storage: Store, jobs: int, keys: int) -> None:
    await storage.open()
    if jobs == 0:
        await storage.close()
        return
    seeds = Seeds()
    await note_release(storage, seeds.probed.app._registry)
    await _add(storage, (seeds.ungated() for _ in range(jobs - keys)))
    await finish_all(storage, seeds)
    # One more for each key: the one that uses up its budget, and is final, too.
    await _add(storage, (seeds.gated(f"acme-{number % keys}") for number in range(jobs * 9 // 10 + keys)))
    rules = {bound.name: bound.limit.rule for bound in seeds.probed.gated.limit_set.limits}
    await use_up(storage, rules[LIMIT], task=seeds.probed.gated.name, limit=LIMIT, limit_sets=seeds.limit_sets)
    await _add_others(storage, seeds, jobs // 10)
    await _add_history(storage)
    await storage.close()


class Seeds:
    """Return new jobs, as the tasks of the app that reads them would be enqueued."""

    def __init__(self) -> None:
        self.probed = Probed()
        registry = self.probed.app._registry
        self.limit_sets: DeclaredLimitSets = registry.limit_sets()
        self._limit_set = registry.limit_set_name(self.probed.gated.name, DEFAULT_QUEUE)
        self._ungated_limit_set = registry.limit_set_name(self.probed.ungated.name, DEFAULT_QUEUE)
        self.tasks = frozenset((self.probed.gated.name, self.probed.ungated.name))
        self._clock = SystemClock()
        self.ids = IdSource()

    def now(self) -> int:
        return self._clock.now()

    def gated(self, key: str, **other: Any) -> NewJob:
        buckets = (BucketRef(LIMIT, key),)
        return self._job(
            self.probed.gated.name, buckets=buckets, limit_set=self._limit_set, payload=_payload(key), **other
        )

    def ungated(self, **other: Any) -> NewJob:
        return self._job(self.probed.ungated.name, limit_set=self._ungated_limit_set, **other)

    def _job(self, task: str, *, delay: int = 0, queue: str = DEFAULT_QUEUE, **other: Any) -> NewJob:
        now = self.now()
        given = {"payload": _payload("none"), "headers": {"tenant": "acme"}, **other}
        return NewJob(
            id=self.ids.next(now),
            task=task,
            queue=queue,
            priority=0,
            delayed=delay > 0,
            run_at=now + delay,
            enqueued_at=now,
            **given,
        )


def _payload(key: str) -> str:
    return f'{{"key":"{key}","number":0}}'


async def _add(storage: Store, jobs: Iterable[NewJob], at_once: int = BATCH) -> None:
    remaining = iter(jobs)
    while portion := list(islice(remaining, at_once)):
        await storage.add(portion)


async def finish_all(storage: Store, seeds: Seeds) -> None:
    """Nine of ten succeed."""
    await storage.join("seeds", "seeds")
    claim = Claim("seeds", {DEFAULT_QUEUE: FreeSlots(2_000)}, {}, seeds.tasks, seeds.limit_sets)
    while (claimed := await storage.claim(claim)).jobs or claimed.more:
        ended = [
            Finished(job.id, job.fence, JobState.FAILED, error=ERROR)
            if number % 10 == 0
            else Finished(job.id, job.fence, JobState.SUCCEEDED, "null")
            for number, job in enumerate(claimed.jobs)
        ]
        await storage.finish("seeds", ended)
    await storage.leave("seeds")


async def _add_others(storage: Store, seeds: Seeds, jobs: int) -> None:
    """What is ready, waits for its time or for other jobs; batches, unique keys, a queue of few jobs."""
    now = seeds.now()
    batches = [NewBatch(seeds.ids.next(now), BATCH_OF, now) for _ in range(max(1, jobs // 4 // BATCH_OF))]
    for batch in batches:
        origin = Origin(batch=batch.id)
        await storage.add([seeds.ungated(origin=origin) for _ in range(BATCH_OF)], [batch])
    await _add(storage, (seeds.ungated(origin=Origin(follows=batches[0].id)) for _ in range(jobs // 4)))
    await _add(storage, (seeds.ungated(delay=DAY) for _ in range(jobs // 8)))
    await _add(storage, (seeds.gated(f"acme-{number}", delay=DAY) for number in range(jobs // 8)))
    scheduled = Origin(schedule="nightly", occurs_at=now)
    await _add(storage, (seeds.ungated(origin=scheduled) for _ in range(jobs // 8)))
    await _add(storage, (seeds.ungated(unique_key=f"key-{number}") for number in range(jobs // 8)), 500)
    await _add(storage, (seeds.ungated(queue="rare") for _ in range(10)))
    cancelled = [seeds.ungated(queue="rare") for _ in range(500)]
    await storage.add(cancelled)
    for job in cancelled:
        await storage.cancel(job.id, audit_record=AuditRecord("ada", "cancel", "job", job.id))
    await storage.add_audit_record(AuditRecord("ada", "pause", "limit", LIMIT))
    # Ten nodes, one of which runs a hundred jobs.
    for number in range(10):
        controls = NodeControls({DEFAULT_QUEUE: 100})
        await storage.join(f"node-{number}", f"machine:{number}", controls=controls, version="1")
    claim = Claim("node-0", {DEFAULT_QUEUE: FreeSlots(100)}, {}, seeds.tasks, seeds.limit_sets)
    await storage.claim(claim)


async def _add_history(storage: Store) -> None:
    """A full chart of each step."""
    now = storage.now()
    counts: dict[str, Any] = {"enqueued": 10, "started": 10, "succeeded": 9, "failed": 1, "waits": (10,), "runs": (10,)}
    names = [(ALL, ALL), (DEFAULT_QUEUE, ALL), (DEFAULT_QUEUE, "gated"), (DEFAULT_QUEUE, "ungated")]
    for number in range(360):
        for step in (10, 60, 3600):
            at = step_at(now - number * step * SECOND, step)
            jobs = [JobsStep(step, queue, task, at, **counts) for queue, task in names]
            limits = [] if step == 3600 else [LimitStep(step, LIMIT, key, at, 10) for key in (None, "acme-1")]
            await storage.add_history(jobs, limits, Flush("seeds", 3 * number + (10, 60, 3600).index(step) + 1))
