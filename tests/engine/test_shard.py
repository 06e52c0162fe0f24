"""TwoShards shards and one key: what a stalled mover may do at the worst moment, step by step."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.jobs.job import JobState
from headgate.limits.limit import AnyRule
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser, strict
from tests.engine.shard import KeyInTransit, KeyMoved, Shard, hash_home

NAMES = ("north", "south")
KEY = next(key for key in "abcdef" if hash_home(key, NAMES) == "north")
LIMIT = f"rate:{KEY}"
RULES: dict[str, AnyRule] = {LIMIT: strict(3)}

pytestmark = pytest.mark.asyncio


class TwoShards:
    """North, where the key is at first, and south, whose clock is a day behind."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.north, self.south = (Shard(name, NAMES, self.clock) for name in NAMES)
        self.south.step(-86400)
        self.store_user = {shard: StoreUser(shard, self.clock) for shard in (self.north, self.south)}
        for store_user in self.store_user.values():
            store_user.rules = dict(RULES)

    async def add(self, shard: Shard, count: int = 1) -> list[str]:
        await shard.join("node-a", "a")
        return await self.store_user[shard].add(count, buckets=[(LIMIT, KEY)])

    async def hand_over(self, source: Shard, target: Shard) -> int:
        """Commits 1 and 2; the epoch of the new owner."""
        await source.leave_key(KEY, target.name)
        epoch = source.executor_of(KEY).epoch + 1
        parcel = await source.pack(KEY, RULES)
        assert parcel is not None
        await target.take_in(KEY, epoch, parcel, parcel.now - await target.read_time(), RULES)
        return epoch

    async def move(self, source: Shard, target: Shard) -> None:
        await source.let_go(KEY, await self.hand_over(source, target))

    async def run_all(self, shard: Shard) -> list[str]:
        """Claim and finish what may start, and forget it."""
        await shard.join("node-a", "a")
        jobs = await self.store_user[shard].take()
        await self.store_user[shard].succeed(*jobs)
        await shard.prune(self.clock.now() + SECOND)
        return [job.id for job in jobs]


async def test_a_key_that_moves_keeps_what_it_has_used_by_its_own_time() -> None:
    two = TwoShards()
    await two.add(two.north, 3)
    assert len(await two.run_all(two.north)) == 3
    two.clock.advance(20)
    await two.move(two.north, two.south)
    late = await two.add(two.south, 4)
    assert await two.run_all(two.south) == []
    two.clock.advance(40)
    assert await two.run_all(two.south) == late[:3]


async def test_a_shard_refuses_keys_of_another_shard_and_names_that_shard() -> None:
    two = TwoShards()
    await two.north.leave_key(KEY, "south")
    with pytest.raises(KeyInTransit):
        await two.add(two.north)
    with pytest.raises(KeyMoved):
        await two.add(two.south)


async def test_a_stalled_batch_is_refused_after_its_key_returned_and_left_again() -> None:
    two = TwoShards()
    (job,) = await two.add(two.north)
    await two.move(two.north, two.south)
    stalled = await two.north.depart(KEY)
    assert stalled is not None
    await two.move(two.south, two.north)
    assert await two.run_all(two.north) == [job]
    await two.move(two.north, two.south)
    await two.south.arrive(KEY, stalled)
    assert await two.run_all(two.south) == []


async def test_a_delivered_batch_is_deleted_when_its_key_returns() -> None:
    two = TwoShards()
    (job,) = await two.add(two.north)
    await two.move(two.north, two.south)
    batch = await two.north.depart(KEY)
    assert batch is not None
    await two.south.arrive(KEY, batch)
    assert await two.run_all(two.south) == [job]
    # North does not know it yet, and south has deleted the job.
    await two.move(two.south, two.north)
    assert await two.run_all(two.north) == []


async def test_a_stalled_move_does_not_release_a_key_that_moves_a_second_time() -> None:
    two = TwoShards()
    epoch = await two.hand_over(two.north, two.south)
    await two.north.let_go(KEY, epoch)
    await two.move(two.south, two.north)
    await two.north.leave_key(KEY, "south")
    await two.north.let_go(KEY, epoch)
    assert two.north.executor_of(KEY).owner == "north"


async def test_a_job_that_moves_between_shards_is_cancelled_on_arrival() -> None:
    two = TwoShards()
    (job,) = await two.add(two.north)
    await two.move(two.north, two.south)
    batch = await two.north.depart(KEY)
    assert batch is not None
    with pytest.raises(KeyInTransit):
        await two.north.cancel(job)
    await two.south.arrive(KEY, batch)
    await two.north.departed(KEY, batch.number)
    assert await two.north.cancel(job) is None
    assert await two.south.cancel(job) is JobState.WAITING
    assert await two.run_all(two.south) == []


async def test_a_repeated_enqueue_is_answered_by_the_shard_that_has_the_job() -> None:
    two = TwoShards()
    store_user = two.store_user[two.north]
    new = store_user.new(buckets=[(LIMIT, KEY)])
    await two.north.add([new])
    await two.move(two.north, two.south)
    await two.north.add([new])
    batch = await two.north.depart(KEY)
    assert batch is not None
    assert [each.new.id for each in batch.jobs] == [new.id]
