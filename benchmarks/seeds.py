"""Jobs in a store, by the storage verbs alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headgate.clock import SystemClock
from headgate.jobs.identity import IdSource
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.lifecycle import Finished
from headgate.jobs.limit_sets import DeclaredLimitSets
from headgate.limits.key import BETWEEN_LEVELS
from headgate.limits.limit import AnyRule
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.store import Store
from headgate.tasks.queue import DEFAULT_QUEUE
from headgate.tasks.registry import Registry

BATCH = 10_000


async def add_seeds(
    storage: Store,
    jobs: int,
    keys: int,
    *,
    task: str,
    limit: str = "",
    prefix: str = "acme",
    limit_set: str = "",
    queue: str = DEFAULT_QUEUE,
    tenants: int = 0,
    number: int = 0,
) -> None:
    """Store jobs that wait, evenly spread over so many keys of the limit; without a limit they use none.

    With `tenants`, the keys are those of users, evenly spread over so many. `number` is an argument of the jobs.
    """
    seeds = _seeds(jobs, keys, task, limit, prefix, limit_set, queue, tenants, number)
    while batch := list(islice(seeds, BATCH)):
        await storage.add(batch)


async def note_release(storage: Store, registry: Registry) -> None:
    """Note what a release declares, before its jobs: else the first node would visit each lane of its limits again."""
    await storage.note_limit_sets(registry.subjects())
    await storage.limit_sets_done(registry.subjects())


async def use_up(
    storage: Store, rule: AnyRule, *, task: str, limit: str, limit_sets: DeclaredLimitSets | None = None
) -> None:
    """Run the jobs of a task until its budgets are used up, or none is left."""
    await storage.join("seeds", "seeds")
    claim = Claim("seeds", {DEFAULT_QUEUE: FreeSlots(2_000)}, {limit: rule}, frozenset([task]), limit_sets)
    while (claimed := await storage.claim(claim)).jobs or claimed.more:
        await storage.finish("seeds", [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs])
    await storage.leave("seeds")


def _seeds(
    jobs: int, keys: int, task: str, limit: str, prefix: str, limit_set: str, queue: str, tenants: int, argument: int
) -> Iterator[NewJob]:
    clock, ids = SystemClock(), IdSource()
    for number in range(jobs):
        key = f"{prefix}-{number % keys}"
        used = f"{number % tenants}{BETWEEN_LEVELS}{key}" if tenants else key
        now = clock.now()
        yield NewJob(
            id=ids.next(now),
            task=task,
            queue=queue,
            payload=f'{{"key":"{key}","number":{argument}}}',
            priority=0,
            delayed=False,
            run_at=now,
            enqueued_at=now,
            buckets=(BucketRef(limit, used),) if limit else (),
            limit_set=limit_set,
        )
