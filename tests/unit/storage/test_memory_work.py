"""What the verbs of the memory store cost, in executed lines: the same however much is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import Draw, JobState, NewJob
from headgate.jobs.lifecycle import Finished, Returned
from headgate.limits.limit import AnyRule
from headgate.limits.strict_rate import StrictRate
from headgate.storage.memory import MemoryStorage
from headgate.storage.protocol import Claim, Room
from headgate.testing.manual_clock import ManualClock
from tests.executed_lines import lines_of

RULES: dict[str, AnyRule] = {"hourly": StrictRate(1, per=3600, margin=0).rule}

FEW, MANY = 100, 10_000


class World:
    """A memory store with `size` of everything that may be stored, and one job of each kind to do something with."""

    def __init__(self, size: int) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage(self.clock)
        self.size = size
        self._count = 0

    def new(self, key: str | None = None, **values: Any) -> NewJob:
        self._count += 1
        now = self.clock.now()
        job = {"task": "work", "queue": "default", "payload": "{}", "priority": 0, "delayed": False, "run_at": now}
        draws = () if key is None else (Draw("hourly", key),)
        return NewJob(**{"id": f"job-{self._count:08}", "enqueued_at": now, "draws": draws, **job, **values})

    async def add(self, jobs: Iterable[NewJob]) -> list[str]:
        added = list(jobs)
        await self.storage.add(added)
        return [job.id for job in added]

    def claim(self, node: str = "node", slots: int = 10, queue: str = "default") -> Claim:
        return Claim(node, {queue: Room(slots)}, RULES, frozenset({"work"}))

    async def fill(self) -> None:
        """Jobs that have ended, run, wait behind one key or behind a key each, or for their time."""
        storage, size, soon = self.storage, self.size, self.clock.now() + 1000 * SECOND
        for node in ("node", "busy"):
            await storage.join(node, node)
        await self.add(self.new() for _ in range(size))
        ended = await storage.claim(self.claim(slots=10 * size))
        await storage.finish("node", [Finished(j.id, j.fence, JobState.SUCCEEDED, result="null") for j in ended.jobs])
        await self.add(self.new("acme") for _ in range(size))
        await self.add(self.new(f"key {number}") for number in range(size) for _ in range(2))
        await self.add(self.new(delayed=True, run_at=soon + number) for number in range(size))
        await self.add(self.new(expires_at=soon + number, delayed=True, run_at=2 * soon) for number in range(size))
        while (claimed := await storage.claim(self.claim("busy", 10 * size))).jobs or claimed.more:
            pass
        await self.add(self.new(queue="elsewhere") for _ in range(size))


async def add_one(world: World) -> Awaitable[Any]:
    return world.storage.add([world.new("acme")])


async def claim_nothing(world: World) -> Awaitable[Any]:
    return world.storage.claim(world.claim())


async def claim_one_of_many(world: World) -> Awaitable[Any]:
    return world.storage.claim(world.claim(slots=1, queue="elsewhere"))


async def claim_a_fresh_key(world: World) -> Awaitable[Any]:
    await world.add([world.new("a fresh key")])
    return world.storage.claim(world.claim())


async def _running(world: World) -> Any:
    await world.add([world.new()])
    (job,) = (await world.storage.claim(world.claim())).jobs
    return job


async def finish_one(world: World) -> Awaitable[Any]:
    job = await _running(world)
    return world.storage.finish("node", [Finished(job.id, job.fence, JobState.SUCCEEDED, result="null")])


async def retry_one_later(world: World) -> Awaitable[Any]:
    job = await _running(world)
    ending = Returned(job.id, job.fence, "failed", spent=True, run_at=world.clock.now() + SECOND)
    return world.storage.finish("node", [ending])


async def cancel_one_in_the_middle(world: World) -> Awaitable[Any]:
    ids = await world.add(world.new("acme") for _ in range(3))
    return world.storage.cancel(ids[1])


async def replace_one(world: World) -> Awaitable[Any]:
    await world.add([world.new("acme", unique_key="one", on_conflict="replace")])
    return world.storage.add([world.new("acme", unique_key="one", on_conflict="replace")])


async def beat(world: World) -> Awaitable[Any]:
    return world.storage.beat("node")


async def recover_an_idle_node(world: World) -> Awaitable[Any]:
    await world.storage.join("dead", "dead")
    await world.add([world.new()])
    await world.storage.claim(world.claim("dead"))
    (dead,) = [node for node in await world.storage.nodes() if node.id == "dead"]
    return world.storage.recover("dead", dead.beat)


async def expire_nothing(world: World) -> Awaitable[Any]:
    return world.storage.expire()


async def prune_nothing(world: World) -> Awaitable[Any]:
    return world.storage.prune(world.clock.now() - 3600 * SECOND)


async def look_at_one(world: World) -> Awaitable[Any]:
    (id,) = await world.add([world.new()])
    return world.storage.job(id)


async def count(world: World) -> Awaitable[Any]:
    return world.storage.counts()


VERBS = [
    add_one,
    claim_nothing,
    claim_one_of_many,
    claim_a_fresh_key,
    finish_one,
    retry_one_later,
    cancel_one_in_the_middle,
    replace_one,
    beat,
    recover_an_idle_node,
    expire_nothing,
    prune_nothing,
    look_at_one,
    count,
]


async def work_of_all(size: int) -> dict[str, int]:
    world = World(size)
    await world.fill()
    return {verb.__name__: lines_of(await verb(world)) for verb in VERBS}


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_no_verb_of_an_engine_looks_at_all_that_is_stored() -> None:
    """The fault: a store in memory that searched a list under a lock did 3,000 jobs a second at best, and fewer the
    more there were."""
    few, many = asyncio.run(work_of_all(FEW)), asyncio.run(work_of_all(MANY))
    grown = {verb: (few[verb], many[verb]) for verb in few if many[verb] > 2 * few[verb] + 50}
    assert not grown, f"lines with {FEW} of everything, and with {MANY}: {grown}"
