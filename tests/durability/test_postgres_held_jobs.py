"""A user's open transaction has added, replaced or followed jobs: whatever does not concern those goes on at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate.admin.bulk import CANCEL, change_many
from headgate.admin.query import JobQuery
from headgate.errors import IllegalTransition, JobHeld, StorageUnavailable
from headgate.jobs.gating import GateChange
from headgate.jobs.job import ClaimedJob, Draw, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import JobFilter
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser, at_once, rate, strict
from tests.durability.postgres import becomes

R = TypeVar("R")

PROMPT = 2.0
"""Seconds; a statement that waits for a lock is given up after 5."""

PLENTY = rate(1000, burst=1000)


class User:
    """Somebody who has a transaction open, and enqueues in it."""

    def __init__(self, storage: PostgresStorage, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._storage = storage
        self._transaction: Any = None

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def enqueue(self, *jobs: NewJob) -> None:
        await self._storage.add_in(self.connection, jobs)

    async def end(self, how: str = "commit") -> None:
        transaction, self._transaction = self._transaction, None
        await getattr(transaction, how)()

    @contextlib.asynccontextmanager
    async def holding(self, *jobs: NewJob, ends: str = "commit") -> AsyncIterator[None]:
        """These are enqueued, and nothing is committed before the block ends."""
        await self.begin()
        try:
            await self.enqueue(*jobs)
            yield
        finally:
            await self.end(ends)


class World:
    """Two nodes on one schema, each with a store of its own, and two users."""

    def __init__(self, clock: ManualClock, left: StoreUser, right: StoreUser, users: list[User]) -> None:
        self.clock = clock
        self.left = left
        self.right = right
        self.user, self.other = users

    def rule(self, **rules: Any) -> None:
        """What both nodes are told about limits."""
        self.left.rules = self.right.rules = rules

    def unique(self, key: str = "acme", **options: Any) -> NewJob:
        return replace(self.left.new(**options), unique_key=key, on_conflict="replace")

    async def add(self, key: str = "acme", **options: Any) -> str:
        job = self.unique(key, **options)
        others = await self.left.storage.add([job])
        return others.get(job.id, job.id)

    async def check(self) -> None:
        assert list(await self.left.storage.check()) == []


@pytest_asyncio.fixture
async def world(postgres_url: str, postgres_schema: str) -> AsyncIterator[World]:
    clock = ManualClock()
    stores = [
        PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True, connections=4, is_watched=False)
        for _ in range(2)
    ]
    left, right = (StoreUser(store, clock) for store in stores)
    right.node = "node-b"
    connections = [await asyncpg.connect(postgres_url) for _ in range(2)]
    try:
        for store_user, name in ((left, "a"), (right, "b")):
            await store_user.storage.open()
            await store_user.storage.join(store_user.node, name)
        yield World(clock, left, right, [User(stores[0], connection) for connection in connections])
    finally:
        for connection in connections:
            connection.terminate()
        for store in stores:
            await store.close()


async def promptly(work: Awaitable[R]) -> R:
    async with asyncio.timeout(PROMPT):
        return await work


def succeeded(*jobs: ClaimedJob) -> Iterator[Ending]:
    return (Finished(job.id, job.fence, JobState.SUCCEEDED) for job in jobs)


def failed(*jobs: ClaimedJob) -> Iterator[Ending]:
    return (Finished(job.id, job.fence, JobState.FAILED) for job in jobs)


# --------------------------------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_claim_skips_a_job_that_is_being_replaced(world: World, ends: str) -> None:
    world.rule(api=PLENTY)
    job = await world.add(draws=[("api", "a")], payload='"old"')
    async with world.user.holding(world.unique(draws=[("api", "a")], payload='"new"'), ends=ends):
        # Behind it in its own lane, in another lane, and in none.
        others = [
            await world.left.add_one(draws=[("api", "a")]),
            await world.left.add_one(draws=[("api", "b")]),
            await world.left.add_one(),
        ]
        assert sorted(await promptly(world.right.take_ids())) == sorted(others)
        # Nobody asks for it all the time, and nobody forgets its lane.
        claimed = await promptly(world.right.claim())
        assert not claimed.jobs
        assert not claimed.more
        await world.check()
    world.clock.advance(0 if ends == "commit" else 1)
    (started,) = await world.right.take()
    assert (started.id, started.payload) == (job, '"new"' if ends == "commit" else '"old"')
    await world.check()


async def test_a_lane_whose_only_job_is_being_replaced_blocks_no_other_lane(world: World) -> None:
    world.rule(api=PLENTY)
    for number in range(20):
        await world.add(f"key-{number}", draws=[("api", f"held-{number}")])
    replacing = [world.unique(f"key-{number}", draws=[("api", f"held-{number}")]) for number in range(20)]
    async with world.user.holding(*replacing):
        others = [await world.left.add_one(draws=[("api", f"free-{number}")]) for number in range(5)]
        for _ in range(5):
            # One slot only, so that what is held comes first each time.
            taken = await promptly(world.right.take_ids(1))
            assert len(taken) == 1
            others.remove(taken[0])
        assert others == []
        await world.check()
    assert len(await world.right.take_ids()) == 20
    await world.check()


async def test_a_late_job_that_is_being_replaced_does_not_block_its_lane(world: World) -> None:
    world.rule(api=PLENTY)
    await world.add(draws=[("api", "a")], expires_in=5)
    world.clock.advance(10)
    async with world.user.holding(world.unique(draws=[("api", "a")]), ends="rollback"):
        others = [await world.left.add_one(draws=[("api", "a")]), await world.left.add_one(draws=[("api", "b")])]
        assert sorted(await promptly(world.right.take_ids())) == sorted(others)
    world.clock.advance(1)
    assert len((await world.right.claim()).dropped) == 1
    await world.check()


async def test_replacing_a_job_with_a_cost_locks_no_bucket(world: World) -> None:
    world.rule(shared=strict(10))
    await world.left.succeed(*await _started(world, [("shared", "")], 1))
    job = await world.add(draws=[("shared", "")], costs=(7,), delay=86_400)
    async with world.user.holding(world.unique(draws=[("shared", "")], delay=86_400)):
        other = await world.left.add_one(draws=[("shared", "")])
        assert await promptly(world.right.take_ids()) == [other]
        assert (await world.left.record(job)).costs == (7,)
    assert (await world.left.record(job)).costs is None
    await world.check()


async def test_a_bucket_that_is_closed_for_a_cost_opens_when_the_costly_job_was_replaced(world: World) -> None:
    world.rule(shared=strict(10))
    await world.left.succeed(*await _started(world, [("shared", "")], 5))
    job = await world.add(draws=[("shared", "")], costs=(8,))
    assert await world.left.take_ids() == []
    assert (await world.left.bucket("shared")).opens_at is not None
    async with world.user.holding(world.unique(draws=[("shared", "")])):
        assert await promptly(world.right.take_ids()) == []
    assert await promptly(world.right.take_ids()) == [job]
    await world.check()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_the_permit_of_a_replaced_job_is_returned_with_the_commit(world: World, ends: str) -> None:
    world.rule(mutex=at_once(), api=PLENTY)
    job = await world.add(draws=[("mutex", "a"), ("api", "x")], hold="until_final")
    await world.left.retry_later(await world.left.take_one(), 3600)
    waiting = await world.left.add_one(draws=[("mutex", "a")])
    async with world.user.holding(world.unique(draws=[("mutex", "b"), ("api", "x")], hold="until_final"), ends=ends):
        # Nothing of a bucket is locked, and nobody else gets what the job may still hold.
        assert await promptly(world.right.take_ids()) == []
        assert await promptly(world.right.storage.reset(Draw("api", "x"))) == 0
        assert await world.left.permits("mutex", "a") == {job: 1}
    await world.check()
    if ends == "commit":
        taken = await world.right.take()
        assert {each.id for each in taken} == {waiting, job}
        assert await world.left.permits("mutex", "a") == {waiting: 1}
        assert await world.left.permits("mutex", "b") == {job: 1}
        await world.right.succeed(*taken)
        assert await world.left.permits("mutex", "a") == {}
    else:
        assert await world.right.take_ids() == []
        assert await world.left.permits("mutex", "a") == {job: 1}
    await world.check()


async def _started(world: World, draws: list[tuple[str, str]], count: int) -> list[ClaimedJob]:
    await world.left.add(count, draws=draws)
    jobs = await world.left.take()
    assert len(jobs) == count
    return jobs


# -------------------------------------------------------------------------------------------------------------- endings


async def test_a_unique_job_that_gets_a_successor_delays_no_other_ending(world: World) -> None:
    """The fault: the first time, everything that had ended was waited for with it for 5 s."""
    await world.add()
    await world.left.add_one()
    held, other = await world.left.take()
    async with world.user.holding(world.unique()):
        told = await promptly(world.left.storage.finish(world.left.node, list(succeeded(held, other))))
        assert list(told) == [None, True]
    await world.left.succeed(held)
    assert len(await world.right.take_ids()) == 1
    await world.check()


async def test_an_ending_whose_successor_is_being_replaced_delays_no_other(world: World) -> None:
    world.rule(mutex=at_once())
    await world.add(payload='"first"')
    await world.left.add(2)
    await world.left.add_one(draws=[("mutex", "a")])
    jobs = await world.left.take()
    (held,) = [job for job in jobs if job.payload == '"first"']
    running = [job for job in jobs if job is not held]
    successor = await world.add(payload='"second"')
    waiting = await world.left.add_one(draws=[("mutex", "a")])
    async with world.user.holding(world.unique(payload='"third"')):
        endings = [*failed(held), *failed(*running)]
        told = await promptly(world.left.storage.finish(world.left.node, endings))
        assert list(told) == [None, *[True] * len(running)]
        assert await promptly(world.right.take_ids()) == [waiting]
        await world.check()
    assert await world.left.finish(*failed(held)) == [True]
    (started,) = await world.right.take()
    assert (started.id, started.payload) == (successor, '"third"')
    await world.check()


async def test_a_retry_does_not_wait_for_a_job_that_was_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for who stands under the key and the insertion somebody came and began to run."""
    fetch = Session.fetch
    came: list[ClaimedJob] = []

    async def meanwhile(session: Session, statement: str, /, **values: Any) -> list[Any]:
        rows = await fetch(session, statement, **values)
        if statement == "jobs_under_keys" and session._connection is world.user.connection and not came:
            await world.left.storage.add([replace(world.unique(), on_conflict="keep")])
            came.append(await world.left.take_one())
        return rows

    monkeypatch.setattr(Session, "fetch", meanwhile)
    async with world.user.holding(replace(world.unique(), on_conflict="keep")):
        (job,) = came
        ending = Returned(job.id, job.fence, "failed", spent=True, run_at=None)
        assert list(await promptly(world.left.storage.finish(world.left.node, [ending]))) == [True]
    assert await world.right.take_ids() == [job.id]
    await world.check()


# ------------------------------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("successor", ["added", "replaced"])
@pytest.mark.parametrize("lost", [0, 2])
async def test_the_other_jobs_of_a_dead_node_are_recovered_immediately(world: World, successor: str, lost: int) -> None:
    world.rule(mutex=at_once())
    held = await world.add()
    others = [await world.left.add_one(draws=[("mutex", "a")]), await world.left.add_one()]
    for _ in range(lost):
        await world.left.take()
        await world.left.storage.beat("node-b")
        assert await world.right.storage.recover(world.left.node, 0) is not None
        await world.left.storage.join(world.left.node, "a")
    assert len(await world.left.take()) == 3
    if successor == "replaced":
        await world.add()
    async with world.user.holding(world.unique()):
        recovered = await promptly(world.right.storage.recover(world.left.node, 0))
        assert recovered is not None
        assert sorted([*recovered.returned, *recovered.poisonous]) == sorted(others)
        assert len(recovered.poisonous) == (2 if lost else 0)
        # It is dead for itself and for all others, and what is left is not told of again.
        assert not (await promptly(world.left.storage.beat(world.left.node))).known
        (left,) = [node for node in await world.right.storage.nodes() if node.id == world.left.node]
        assert left.is_gone
        assert left.running == 1
        assert await promptly(world.right.storage.recover(world.left.node, 0)) is None
        assert (await promptly(world.left.claim())).jobs == ()
        await world.check()
    last = await world.right.storage.recover(world.left.node, 0)
    assert last is not None
    # Its successor runs instead of it.
    assert [*last.returned] == []
    assert (await world.left.record(held)).state is (JobState.FAILED if lost else JobState.CANCELLED)
    assert [node.id for node in await world.right.storage.nodes()] == [world.right.node]
    await world.check()


async def test_a_node_leaves_without_a_locked_job_which_is_recovered_without_spending_an_attempt(world: World) -> None:
    held = await world.add()
    other = await world.left.add_one()
    await world.left.take()
    async with world.user.holding(world.unique(), ends="rollback"):
        left = await promptly(world.left.storage.leave(world.left.node))
        assert list(left.returned) == [other]
    recovered = await world.right.storage.recover(world.left.node, 0)
    assert recovered is not None
    assert list(recovered.returned) == [held]
    record = await world.left.record(held)
    assert (record.attempt, record.lost) == (0, 0)
    await world.check()


# ------------------------------------------------------------------------------ jobs whose followers are being replaced


async def _followed(world: World, **options: Any) -> tuple[str, NewJob]:
    """A waiting job that another one follows under a unique key; and one that would replace that."""
    leader = await world.left.add_one(**options)
    follower = replace(world.unique(), origin=Origin(follows=leader))
    await world.left.storage.add([follower])
    return leader, world.unique(payload='"new"')


@pytest.mark.parametrize("how", ["expire", "claim"])
async def test_a_late_job_whose_follower_is_being_replaced_delays_no_other_ending(world: World, how: str) -> None:
    world.rule(api=PLENTY)
    leader, new = await _followed(world, draws=[("api", "a")], expires_in=5)
    other = await world.left.add_one(draws=[("api", "a")], expires_in=5)
    world.clock.advance(10)

    async def end() -> list[str]:
        if how == "expire":
            return [dropped.id for dropped in await promptly(world.right.storage.expire())]
        return [dropped.id for dropped in (await promptly(world.right.claim())).dropped]

    async with world.user.holding(new):
        assert await end() == [other]
        assert await end() == []
        await world.check()
    world.clock.advance(1)
    assert await end() == [leader]
    (record,) = [job for job in await world.left.storage.jobs(JobFilter()) if job.unique_key is not None]
    assert record.state is JobState.CANCELLED
    await world.check()


async def test_a_job_is_cancelled_once_its_follower_is_unlocked_and_locks_nothing_meanwhile(world: World) -> None:
    world.rule(shared=strict(10))
    leader, new = await _followed(world, draws=[("shared", "")], costs=(2,))
    async with world.user.holding(new):
        cancelling = asyncio.create_task(world.left.storage.cancel(leader))
        other = await world.left.add_one(draws=[("shared", "")])
        assert sorted(await promptly(world.right.take_ids())) == sorted([leader, other])
        assert not cancelling.done()
    await _until_done(world, cancelling)
    # It runs by now, and its node is told.
    assert await cancelling is JobState.RUNNING
    await world.check()


# ------------------------------------------------------------------------------------------------- operators, upkeep


async def test_however_many_late_jobs_are_being_replaced_the_others_expire(world: World) -> None:
    """The fault: the same hundred were looked at each time, and had in vain."""
    keys = [f"key-{number}" for number in range(120)]
    await world.left.storage.add([world.unique(key, expires_in=5) for key in keys])
    last = await world.left.add_one(expires_in=6)
    world.clock.advance(10)
    async with world.user.holding(*(world.unique(key, expires_in=60) for key in keys)):
        assert [dropped.id for dropped in await promptly(world.right.storage.expire())] == [last]
        assert list(await promptly(world.right.storage.expire())) == []
    assert list(await world.right.storage.expire()) == []
    await world.check()


@pytest.mark.parametrize("verb", ["cancel", "run_now", "reschedule"])
async def test_an_operator_who_waits_for_a_locked_job_delays_no_other(world: World, verb: str) -> None:
    world.rule(shared=strict(10))
    await world.left.succeed(*await _started(world, [("shared", "")], 1))
    job = await world.add(draws=[("shared", "")], costs=(2,), delay=3600)
    async with world.user.holding(world.unique(draws=[("shared", "")], costs=(2,), delay=3600)):
        options = {"priority": 1} if verb == "reschedule" else {}
        waiting = asyncio.create_task(getattr(world.left.storage, verb)(job, **options))
        await becomes(lambda: _waiters(world), 1)
        other = await world.left.add_one(draws=[("shared", "")])
        assert await promptly(world.right.take_ids()) == [other]
    # It waits for a second.
    with contextlib.suppress(JobHeld):
        assert await waiting is JobState.WAITING
    await world.check()


async def test_an_operator_who_waits_for_a_unique_key_locks_no_bucket(world: World) -> None:
    world.rule(mutex=at_once(), shared=strict(10))
    draws = [("mutex", "a"), ("shared", "")]
    job = await world.add(draws=draws, hold="until_success", costs=(1, 1))
    await world.left.fail(await world.left.take_one())
    async with world.user.holding(world.unique(draws=[("shared", "")])):
        waiting = asyncio.create_task(world.left.storage.retry(job))
        await becomes(lambda: _waiters(world), 1)
        other = await world.left.add_one(draws=[("shared", "")])
        assert await promptly(world.right.take_ids()) == [other]
        assert await promptly(world.right.storage.reset(Draw("mutex", "b"))) == 0
    await _until_done(world, waiting)
    with pytest.raises((IllegalTransition, JobHeld)):
        await waiting
    await world.check()


@pytest.mark.parametrize("verb", ["cancel", "run_now", "reschedule", "retry"])
async def test_the_error_of_a_locked_job_names_the_session_that_locks_it(world: World, verb: str) -> None:
    job = await world.add(delay=3600)
    if verb == "retry":
        await world.left.storage.cancel(job)
    async with world.user.holding(world.unique(delay=3600), ends="rollback"):
        options = {"priority": 1} if verb == "reschedule" else {}
        with pytest.raises(JobHeld, match=job):
            await promptly(getattr(world.left.storage, verb)(job, **options))
    await getattr(world.left.storage, verb)(job, **({"priority": 1} if verb == "reschedule" else {}))
    await world.check()


async def test_of_many_jobs_those_that_are_being_replaced_are_left_and_counted(world: World) -> None:
    held = await world.add()
    others = await world.left.add(3)
    async with world.user.holding(world.unique(), ends="rollback"):
        result = await change_many(
            world.left.storage,
            JobQuery(),
            CANCEL,
            world.left.storage.cancel,
            most=100,
            dry_run=False,
            on_progress=None,
        )
        assert result.changed == 3
        assert list(result.refused.values()) == [1]
    assert await world.left.states([held, *others]) == [JobState.WAITING] + [JobState.CANCELLED] * 3
    await world.check()


async def _waiters(world: World) -> Any:
    return await world.other.connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate' AND wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )


async def test_a_backlog_is_moved_except_jobs_that_are_being_replaced(world: World) -> None:
    world.rule(api=PLENTY)
    held = await world.add(draws=[("api", "a")])
    other = await world.left.add_one(draws=[("api", "a")])
    gated = {job.id: job for job in await world.left.storage.gated_jobs(frozenset({"work"}))}
    moves = [GateChange(id, gated[id].draws, (Draw("api", "b"),), None, None) for id in (held, other)]
    async with world.user.holding(world.unique(draws=[("api", "a")]), ends="rollback"):
        assert await promptly(world.right.storage.change_gates(moves)) == 1
        assert (await world.left.record(other)).draws == (Draw("api", "b"),)
    assert await world.right.storage.change_gates(moves) == 1
    await world.check()


async def test_a_reset_does_not_wait_for_permits_of_a_job_that_is_being_replaced(world: World) -> None:
    world.rule(slots=at_once(2))
    held = await world.add(draws=[("slots", "")], hold="until_final")
    other = await world.left.add_one(draws=[("slots", "")], hold="until_final")
    for job in await world.left.take():
        await world.left.retry_later(job, 3600)
    async with world.user.holding(world.unique(draws=[("slots", "")], hold="until_final", delay=60)):
        assert await promptly(world.right.storage.reset(Draw("slots", ""))) == 1
        assert await world.left.permits("slots") == {held: 1}
    assert await world.right.storage.reset(Draw("slots", "")) == 0
    assert (await world.left.record(other)).held == 0
    await world.check()


async def test_waiting_for_a_unique_key_does_not_block_other_keys(world: World) -> None:
    """The fault: each had a connection for as long as it waited, and when half of them had none was left for others."""
    keys = [f"key-{number}" for number in range(6)]
    async with world.user.holding(*(world.unique(key) for key in keys)):
        waiting = [asyncio.create_task(world.right.storage.add([world.unique(key)])) for key in keys]
        await becomes(lambda: _is_waited_for(world), True)
        for number in range(3):
            other = world.unique(f"other-{number}")
            assert await promptly(world.right.storage.add([other])) == {}
        assert not any(task.done() for task in waiting)
    for task in waiting:
        await _until_done(world, task)
        assert len(await task) == 1
    await world.check()


async def _until_done(world: World, task: asyncio.Task[Any]) -> None:
    """The time of the store stands still unless it is told to go on; so does the pause of who tries again."""
    while not task.done():
        world.clock.advance(0.05)
        await asyncio.sleep(0.01)


async def _is_waited_for(world: World) -> bool:
    return bool(await _waiters(world))


async def test_an_enqueue_with_a_locked_key_fails_in_time_with_the_reason(world: World) -> None:
    async with world.user.holding(world.unique()):
        adding = asyncio.create_task(world.right.storage.add([world.unique()]))
        await _until_done(world, adding)
        with pytest.raises(StorageUnavailable, match="lock"):
            await adding
