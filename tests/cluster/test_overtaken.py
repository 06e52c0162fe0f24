"""What happens between two statements of a claim: others commit, or hold what it wants, and nothing comes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio

from headgate.clock import SECOND
from headgate.errors import LimitInUse
from headgate.jobs.gating import GateChange
from headgate.jobs.job import Draw, JobState
from headgate.jobs.lifecycle import Finished
from headgate.storage.postgres import arrivals, low_watermarks
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.dialect import statements_of
from headgate.storage.postgres.low_watermarks import SWEEP_EVERY
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.claim import SOON
from headgate.storage.row_ids import bucket_id
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.store_user import StoreUser, at_once, rate, recover
from tests.conformance.storage_suite.ties import add_batch, follow
from tests.until import until

R = TypeVar("R")

PLENTY = rate(1000, burst=1000)


class World:
    """Two nodes on one schema, each with a store of its own, and a connection of somebody else's."""

    def __init__(self, clock: ManualClock, schema: str, left: StoreUser, right: StoreUser, connection: Any) -> None:
        self.clock = clock
        self.schema = schema
        self.left = left
        self.right = right
        self.connection = connection
        self._moments: dict[str, tuple[asyncio.Event, asyncio.Task[Any]]] = {}
        self._skips = 0

    def rule(self, **rules: Any) -> None:
        """What both nodes are told about limits."""
        self.left.rules = self.right.rules = rules

    def after(self, statement: str, work: Callable[[], Awaitable[R]]) -> asyncio.Task[R]:
        """Do this the next time a store has run that statement, which goes on when it is done or waits for a lock."""
        moment = asyncio.Event()

        async def do() -> R:
            await moment.wait()
            return await work()

        task = asyncio.create_task(do())
        self._moments[statement] = moment, task
        return task

    def noted(self, statement: str, values: dict[str, Any], found: Any) -> None:
        """An ending that somebody else holds waits for its lock by being written again."""
        if (statement == "lock_running" and len(found) < len(values["ids"])) or (
            statement == "followers" and any(row["is_locked"] for row in found)
        ):
            self._skips += 1

    async def passed(self, statement: str) -> None:
        """A store has run that statement."""
        if statement in self._moments:
            moment, task = self._moments.pop(statement)
            moment.set()
            async with asyncio.timeout(10):
                skips = self._skips
                while self._skips == skips and not await self.is_waited_for():
                    if (await asyncio.wait([task], timeout=0.005))[0]:
                        return

    async def is_waited_for(self) -> bool:
        """Whether a statement on these tables waits for a lock."""
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")
        waits = await self.connection.fetchval(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0)",
            self.schema,
        )
        return bool(waits)

    @contextlib.asynccontextmanager
    async def holding(self, sql: str) -> AsyncIterator[None]:
        """Somebody else has run that and has not committed yet, and never will."""
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(sql)
            yield
        finally:
            await transaction.rollback()

    def end(self) -> None:
        """Everything that was to happen has."""
        unused = list(self._moments)
        for _, task in self._moments.values():
            task.cancel()
        assert unused == [], f"no store has run {unused}"


@pytest_asyncio.fixture
async def world(postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    clock = ManualClock()
    stores = [
        PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True, connections=3, is_watched=False)
        for _ in range(2)
    ]
    left, right = (StoreUser(store, clock) for store in stores)
    right.node = "node-b"
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": postgres_schema})
    world = World(clock, postgres_schema, left, right, connection)
    try:
        for store_user, name in ((left, "a"), (right, "b")):
            await store_user.storage.open()
            await store_user.storage.join(store_user.node, name)
        for method in ("fetch", "execute"):
            monkeypatch.setattr(Session, method, _watched(world, getattr(Session, method)))
        yield world
        world.end()
        assert list(await left.storage.check()) == []
    finally:
        await connection.close()
        for store in stores:
            await store.close()


def _watched(world: World, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """As the method of a session, which tells what it has run, and fails where the store would try again."""

    async def watched(session: Session, statement: str, /, **values: Any) -> Any:
        try:
            found = await run(session, statement, **values)
        except asyncpg.DeadlockDetectedError as error:
            raise AssertionError(f"{statement} was undone: {error}") from error
        world.noted(statement, values, found)
        await world.passed(statement)
        return found

    return watched


def take_one(visit: Any) -> bool:
    """What plain code does with a bucket: one start, if it may start now."""
    opens_at, state = visit.view.take(visit.now, 1)
    visit.view.set_state(state)
    return bool(opens_at <= visit.now)


# ------------------------------------------------------------------------------------- jobs that go elsewhere meanwhile


async def gate_changes(store_user: StoreUser, job: str, *draws: Draw) -> list[GateChange]:
    """The job as it asks for these draws, and was read before."""
    (found,) = [gated for gated in await store_user.storage.gated_jobs(frozenset({"work"})) if gated.id == job]
    return [GateChange(job, found.draws, draws, None, found.terms)]


async def test_a_job_whose_draw_changes_during_its_claim_starts_with_the_new_permit(world: World) -> None:
    world.rule(mutex=at_once())
    job = await world.left.add_one(draws=[("mutex", "a")])
    moved = await gate_changes(world.right, job, Draw("mutex", "b"))
    moving = world.after("heads", lambda: world.right.storage.change_gates(moved))
    claimed = await world.left.claim()
    assert await moving == 1
    (started,) = [*claimed.jobs, *await world.left.take()]
    assert started.draws == (await world.left.record(job)).draws == (Draw("mutex", "b"),)
    assert await world.left.permits("mutex", "a") == {}
    assert await world.left.permits("mutex", "b") == {job: 1}
    assert list(await world.left.storage.check()) == []
    await world.left.succeed(started)
    other = await world.left.add_one(draws=[("mutex", "a")])
    assert await world.left.take_ids() == [other]


async def test_a_late_job_whose_permit_is_reset_while_a_claim_drops_it_is_counted_once(world: World) -> None:
    world.rule(r=PLENTY, slots=at_once())
    job = await world.left.add_one(draws=[("r", "a"), ("slots", "s")], hold="until_final", expires_in=5)
    await world.left.retry_later(await world.left.take_one(), 1)
    world.clock.advance(10)
    resetting = world.after("heads_ready", lambda: world.right.storage.reset(Draw("slots", "s")))
    claimed = await world.left.claim()
    assert await resetting == 0
    assert list(await world.left.storage.check()) == []
    again = await world.left.claim()
    assert [each.id for each in (*claimed.dropped, *again.dropped)] == [job]
    assert [*claimed.jobs, *again.jobs] == []
    assert (await world.left.record(job)).state is JobState.FAILED


async def test_a_permit_reset_while_its_job_is_claimed_is_held_by_one_job(world: World) -> None:
    world.rule(mutex=at_once(), r=PLENTY)
    draws = [("r", "x"), ("mutex", "a")]
    first = await world.left.add_one(draws=draws, hold="until_final")
    await world.left.retry_later(await world.left.take_one(), 1)
    world.clock.advance(2)
    resetting = world.after("heads_ready", lambda: world.right.storage.reset(Draw("mutex", "a")))
    claimed = await world.left.claim()
    await resetting
    second = await world.left.add_one(draws=draws, hold="until_final")
    started = [*claimed.jobs, *await world.left.take(), *await world.right.take()]
    assert len(started) == 1
    states = await world.left.states([first, second])
    assert sorted(states) == [JobState.RUNNING, JobState.WAITING]
    assert await world.left.permits("mutex", "a") == {started[0].id: 1}


async def test_a_late_job_is_not_moved_to_another_lane_while_it_expires(world: World) -> None:
    world.rule(r=PLENTY)
    job = await world.left.add_one(draws=[("r", "a")], expires_in=1)
    await world.left.add_one(draws=[("r", "a")])
    await world.left.add_one(draws=[("r", "b")])
    moved = await gate_changes(world.right, job, Draw("r", "b"))
    world.clock.advance(2)
    moving = world.after("expired", lambda: world.right.storage.change_gates(moved))
    dropped = list(await world.left.storage.expire())
    assert await moving == 0
    assert list(await world.left.storage.check()) == []
    dropped += await world.left.storage.expire()
    assert [each.id for each in dropped] == [job]
    assert len(await world.left.take()) == 2


# ---------------------------------------------------------------------------------- jobs that follow others meanwhile


async def test_a_follower_added_while_its_leader_ends_is_released(world: World) -> None:
    leader = await world.left.add_one()
    job = await world.left.take_one()
    adding = world.after("finish_plain", lambda: follow(world.right, leader))
    await world.left.succeed(job)
    assert await world.right.take_ids() == [await adding]


async def test_a_leader_that_ends_while_its_first_follower_is_added_releases_it(world: World) -> None:
    leader = await world.left.add_one()
    job = await world.left.take_one()
    ending = world.after("states_of_leaders", lambda: world.left.succeed(job))
    follower = await follow(world.right, leader)
    await ending
    assert await world.right.take_ids() == [follower]


async def test_a_follower_is_added_while_its_leader_ends_in_several_statements(world: World) -> None:
    leader = await world.left.add_one()
    job = await world.left.take_one()
    adding = world.after("lock_running", lambda: follow(world.right, leader))
    await world.left.fail(job)
    assert (await world.right.record(await adding)).state is JobState.CANCELLED


async def test_a_follower_that_is_cancelled_while_its_leader_ends_is_cancelled_once(world: World) -> None:
    leader = await world.left.add_one()
    follower = await follow(world.right, leader)
    last = await follow(world.right, follower, "any")
    job = await world.left.take_one()
    cancelling = world.after("followers", lambda: world.right.storage.cancel(follower))
    await world.left.succeed(job)
    assert await cancelling is JobState.WAITING
    assert (await world.right.record(follower)).state is JobState.CANCELLED
    assert await world.right.take_ids() == [last]


async def test_a_leader_that_ends_while_its_follower_is_cancelled_leaves_it_cancelled(world: World) -> None:
    leader = await world.left.add_one()
    follower = await follow(world.right, leader)
    job = await world.left.take_one()
    ending = world.after("lock_job", lambda: world.left.succeed(job))
    assert await world.right.storage.cancel(follower) is JobState.WAITING
    await ending
    assert (await world.right.record(follower)).state is JobState.CANCELLED
    assert await world.right.take() == []


async def test_a_follower_that_is_retried_while_its_leader_ends_is_not_left_blocked(world: World) -> None:
    leader = await world.left.add_one()
    follower = await follow(world.right, leader)
    await world.right.storage.cancel(follower)
    job = await world.left.take_one()
    ending = world.after("find_job", lambda: world.left.succeed(job))
    await world.right.storage.retry(follower)
    await ending
    assert await world.right.take_ids() == [follower]


async def test_a_retried_follower_is_blocked_until_the_end_of_its_leader_releases_it(world: World) -> None:
    leader = await world.left.add_one()
    follower = await follow(world.right, leader)
    await world.right.storage.cancel(follower)
    job = await world.left.take_one()
    ending = world.after("lock_job", lambda: world.left.succeed(job))
    await world.right.storage.retry(follower)
    await ending
    assert await world.right.take_ids() == [follower]


async def test_the_last_two_jobs_of_a_batch_that_end_at_once_release_what_follows_it_once(world: World) -> None:
    batch, _ = await add_batch(world.left, 2)
    after = await follow(world.left, batch)
    first, second = await world.left.take()
    ending = world.after("lock_running", lambda: world.left.succeed(second))
    await world.left.succeed(first)
    await ending
    assert await world.left.take_ids() == [after]


async def test_the_end_of_an_attempt_whose_node_was_declared_dead_releases_no_follower(world: World) -> None:
    leader = await world.left.add_one()
    follower = await follow(world.right, leader)
    job = await world.left.take_one()
    recovering = world.after("finish_plain", lambda: recover(world.left))
    ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
    assert await world.left.finish(ending) == [False]
    assert list((await recovering).returned) == [leader]
    assert (await world.right.record(follower)).is_blocked


# --------------------------------------------------------------------------------------- buckets that change meanwhile


async def wait_behind_two(world: World) -> None:
    """A job waits behind each of two buckets, x and y, and x opens first."""
    world.rule(r=rate(1, per=10, burst=1))
    for key in "xy":
        await world.left.add(2, draws=[("r", key)])
        assert len(await world.left.take()) == 1
        world.clock.advance(0.5)


async def test_a_penalized_bucket_on_the_page_leaves_room_for_one_that_is_open(world: World) -> None:
    await wait_behind_two(world)
    await world.left.storage.penalize(Draw("r", "x"), world.left.storage.limit_now() + 600 * SECOND)
    world.clock.advance(30)
    job = await world.left.take_one()
    assert job.draws == (Draw("r", "y"),)


async def test_a_bucket_that_plain_code_has_emptied_leaves_room_for_one_that_is_open(world: World) -> None:
    await wait_behind_two(world)
    world.clock.advance(30)
    assert await world.left.storage.visit(Draw("r", "x"), world.left.rules, take_one)
    job = await world.left.take_one()
    assert job.draws == (Draw("r", "y"),)


async def test_a_bucket_closed_for_a_costly_job_that_is_cancelled_meanwhile_opens_for_cheaper_ones(
    world: World,
) -> None:
    world.rule(r=rate(10, per=3600, burst=10))
    await world.left.add(5, draws=[("r", "a")], costs=(1,))
    assert len(await world.left.take()) == 5
    costly = await world.left.add_one(draws=[("r", "a")], costs=(10,))
    cheap = await world.left.add_one(draws=[("r", "a")], costs=(1,))
    cancelling = world.after("heads", lambda: world.right.storage.cancel(costly))
    claimed = await world.left.claim()
    assert await cancelling is JobState.WAITING
    assert [job.id for job in (*claimed.jobs, *await world.left.take())] == [cheap]


async def test_a_bucket_that_is_evicted_while_plain_code_draws_on_it_is_created_again(world: World) -> None:
    world.rule(r=rate(1))
    draw, rules = Draw("r", "x"), world.left.rules

    async def come_and_go() -> asyncio.Task[int]:
        assert await world.right.storage.visit(draw, rules, take_one)
        world.clock.advance(3600)
        return world.after("missing_buckets", world.right.storage.evict)

    coming = world.after("buckets_for_update", come_and_go)
    assert await world.left.storage.visit(draw, rules, take_one)
    assert await (await coming) == 1
    assert not await world.left.storage.visit(draw, rules, take_one)


async def test_a_limit_removed_while_jobs_are_added_for_it_leaves_no_job_stuck(world: World) -> None:
    world.rule(r=rate(1, per=10, burst=1))
    await world.left.add_one(draws=[("r", "a")])
    await world.left.succeed(await world.left.take_one())

    async def come() -> list[str]:
        await world.right.add(2, draws=[("r", "a")])
        return await world.right.take_ids()

    coming = world.after("permits_of_limit", come)
    await world.left.storage.forget("r")
    assert len(await coming) == 1
    assert list(await world.left.storage.check()) == []
    world.clock.advance(10)
    assert len(await world.left.take()) == 1


async def test_a_limit_is_not_removed_during_a_claim_of_its_jobs(world: World) -> None:
    world.rule(r=rate(1, per=10, burst=1))
    await world.left.add(2, draws=[("r", "a")])
    forgetting = world.after("heads", lambda: world.right.storage.forget("r"))
    assert len(await world.left.take()) == 1
    with pytest.raises(LimitInUse):
        await forgetting
    world.clock.advance(10)
    assert len(await world.left.take()) == 1


# ------------------------------------------------------------------------------------------- what stands before others


async def test_lanes_of_another_release_delay_no_limited_job_while_more_are_added(world: World) -> None:
    world.rule(r=PLENTY)
    for key in "pqrs":
        await world.left.add_one(draws=[("r", key)], task="of another release")
    await world.left.add(2, draws=[("r", "z")])
    await world.left.add(40)
    started = 0
    for _ in range(4):
        claimed = await world.left.claim(2)
        started += sum(1 for job in claimed.jobs if job.draws)
        world.clock.advance(0.2)
    assert started == 2


async def test_a_claim_that_reads_twice_returns_the_late_jobs_of_both_reads(world: World) -> None:
    world.rule(r=PLENTY)
    for key in "pq":
        await world.left.add_one(draws=[("r", key)], task="of another release")
    world.clock.advance(0.1)
    late = await world.left.add_one(draws=[("r", "e")], expires_in=1)
    world.clock.advance(2)
    job = await world.left.add_one(draws=[("r", "z")])
    claimed = await world.left.claim(3)
    assert [each.id for each in claimed.dropped] == [late]
    assert [each.id for each in claimed.jobs] == [job]


async def test_a_claim_that_reads_twice_returns_when_the_bucket_closed_first_opens(world: World) -> None:
    world.rule(r=rate(1, per=10, burst=1), free=PLENTY)
    await world.left.add_one(draws=[("r", "z")])
    await world.left.take_one()
    await world.left.add_one(draws=[("free", "p")], task="of another release")
    world.clock.advance(0.1)
    await world.left.add_one(draws=[("r", "z")])
    world.clock.advance(0.1)
    job = await world.left.add_one(draws=[("free", "q")])
    claimed = await world.left.claim(2)
    assert [each.id for each in claimed.jobs] == [job]
    assert len(claimed.throttled) == 1
    assert claimed.next_in == 98 * SECOND // 10


@pytest.mark.parametrize("delay", [None, 1], ids=["plain", "delayed"])
async def test_jobs_without_limits_get_half_of_the_slots_delayed_or_not(world: World, delay: float | None) -> None:
    world.rule(r=PLENTY)
    await world.left.add(20, delay=delay)
    world.clock.advance(5)
    for key in range(10):
        await world.left.add(2, draws=[("r", str(key))])
    claimed = await world.left.claim(16)
    assert sorted(bool(job.draws) for job in claimed.jobs) == [False] * 8 + [True] * 8


# -------------------------------------------------------------------------------------- arrivals, and who merges them


async def test_more_arrivals_than_one_merge_takes_are_all_merged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MERGED_AT_ONCE", 3)
    world.rule(r=rate(1, per=3600, burst=1))
    added = [await world.right.add_one(draws=[("r", str(key))]) for key in range(14)]
    assert sorted(await world.left.take_ids()) == sorted(added)


async def test_arrivals_locked_by_a_dead_node_are_polled_soon_and_not_in_a_busy_loop(world: World) -> None:
    world.rule(r=rate(10))
    job = await world.left.add_one(draws=[("r", "a")])
    async with world.holding("SELECT FROM arrival FOR UPDATE"):
        claimed = await world.left.claim()
    assert claimed.jobs == []
    assert not claimed.more
    assert claimed.next_in is not None
    assert 0 < claimed.next_in <= SOON
    assert await world.left.take_ids() == [job]


async def test_a_due_lane_that_is_locked_is_read_again_soon(world: World) -> None:
    world.rule(r=PLENTY)
    job = await world.left.add_one(draws=[("r", "z")])
    # A claim for another queue merges it.
    assert (await world.left.claim(queues=["other"])).jobs == []
    async with world.holding("UPDATE lane SET waiting = waiting"):
        claimed = await world.left.claim()
    assert claimed.jobs == []
    assert not claimed.more
    assert claimed.next_in is not None
    assert 0 < claimed.next_in <= SOON
    assert await world.left.take_ids() == [job]


async def test_a_job_committed_long_after_it_was_added_is_found_by_the_next_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if every snapshot were: floors are used from the first one on.
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    world.rule(r=PLENTY)
    job = world.left.new(draws=[("r", "z")])
    session = Session(world.connection, statements_of(world.schema), is_pooled=False)
    async with world.connection.transaction():
        await add_jobs(PostgresTransaction(session, 0, world.left.storage.limit_now()), [job])
        world.clock.advance(2)
        assert (await world.left.claim()).jobs == []
    world.clock.advance(0.5)
    assert await world.left.take_ids() == [job.id]


async def test_a_lane_committed_below_the_low_watermark_is_found_by_the_next_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    world.rule(r=PLENTY)
    job = await world.left.add_one(draws=[("r", "z")])
    assert (await world.left.claim(queues=["other"])).jobs == []
    since = await world.connection.fetchval("SELECT since FROM lane")
    # As if a claim that put it in line were not committed yet.
    await world.connection.execute("UPDATE lane SET since = NULL")
    world.clock.advance(2)
    assert (await world.left.claim()).jobs == []
    await world.connection.execute("UPDATE lane SET since = $1", since)
    world.clock.advance(0.5)
    claimed = await world.left.claim()
    assert claimed.jobs == []
    assert claimed.next_in == SWEEP_EVERY // 2
    world.clock.advance(0.5)
    assert await world.left.take_ids() == [job]


async def test_a_merge_leaves_the_arrivals_of_a_lane_that_another_merge_inserts_concurrently(world: World) -> None:
    world.rule(r=PLENTY)
    job = await world.left.add_one(draws=[("r", "z")])
    async with world.connection.transaction():
        await world.connection.execute("INSERT INTO known_lane (id) SELECT lane FROM arrival")
        await world.connection.execute("INSERT INTO lane (id, queue, draws) SELECT lane, queue, draws FROM arrival")
        merging = asyncio.create_task(world.left.claim(queues=["other"]))
        await until(world.is_waited_for)
    await merging
    assert await world.connection.fetchval("SELECT count(*) FROM arrival") == 1
    assert await world.left.take_ids() == [job]


async def test_concurrent_merges_insert_each_lane_once(world: World) -> None:
    world.rule(r=PLENTY)
    jobs: list[str] = []
    for number in range(20):
        jobs += [await store_user.add_one(draws=[("r", str(number))]) for store_user in (world.left, world.right)]
        await asyncio.gather(*(store_user.claim(queues=["other"]) for store_user in (world.left, world.right)))
    assert list(await world.left.storage.check()) == []
    found = [await world.left.take_ids(100), await world.right.take_ids(100)]
    assert sorted(chain(*found)) == sorted(jobs)


@pytest.mark.parametrize("draws", [[], [("r", "z")]], ids=["plain", "gated"])
async def test_a_job_committed_below_the_front_of_its_lane_is_found_once_its_arrival_is_merged(
    world: World, monkeypatch: pytest.MonkeyPatch, draws: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    world.rule(r=PLENTY)
    job = world.left.new(draws=draws)
    session = Session(world.connection, statements_of(world.schema), is_pooled=False)
    async with world.connection.transaction():
        await add_jobs(PostgresTransaction(session, 0, world.left.storage.limit_now()), [job])
        for _ in range(2):
            world.clock.advance(0.5)
            newer = await world.right.add_one(draws=draws)
            assert await world.left.take_ids() == [newer]
    world.clock.advance(1)
    assert await world.left.take_ids() == [job.id]


async def test_older_jobs_behind_locked_ones_of_a_higher_priority_are_not_skipped(world: World) -> None:
    older = await world.right.add(2)
    world.clock.advance(1)
    await world.right.add(2, priority=5)
    async with world.holding("SELECT FROM job WHERE priority = 5 FOR UPDATE"):
        assert sorted(await world.left.take_ids(2)) == sorted(older)


async def merge_some(world: World) -> None:
    """Others come and are merged, more often than it takes to prove a floor."""
    for _ in range(4):
        await world.right.add_one(draws=[("r", "y")])
        assert len(await world.left.take()) == 1


def floor_of_arrivals(world: World) -> int:
    assert isinstance(world.left.storage, PostgresStorage)
    return world.left.storage.driver._claimer.low_watermarks.arrivals


async def test_an_arrival_committed_after_later_ones_were_merged_is_merged_by_the_next_claim(world: World) -> None:
    world.rule(r=PLENTY)
    job = world.left.new(draws=[("r", "z")])
    session = Session(world.connection, statements_of(world.schema), is_pooled=False)
    async with world.connection.transaction():
        await add_jobs(PostgresTransaction(session, 0, world.left.storage.limit_now()), [job])
        floor = await world.connection.fetchval("SELECT id FROM arrival")
        await merge_some(world)
        assert floor_of_arrivals(world) <= floor
    assert await world.left.take_ids() == [job.id]
    await merge_some(world)
    assert floor_of_arrivals(world) > floor


async def test_an_arrival_locked_while_later_ones_were_merged_is_merged_by_the_next_claim(
    world: World,
) -> None:
    world.rule(r=PLENTY)
    job = await world.right.add_one(draws=[("r", "z")])
    async with world.holding("SELECT FROM arrival FOR UPDATE"):
        await merge_some(world)
    assert await world.left.take_ids() == [job]


async def test_the_low_watermark_of_arrivals_rises_while_a_transaction_only_reads(world: World) -> None:
    world.rule(r=PLENTY)
    async with world.connection.transaction(isolation="repeatable_read"):
        await world.connection.fetchval("SELECT count(*) FROM arrival")
        await merge_some(world)
        floor = floor_of_arrivals(world)
        await merge_some(world)
        assert 0 < floor < floor_of_arrivals(world)


# ------------------------------------------------------------------------------------------------- nobody is deadlocked


async def test_a_claim_that_drops_a_late_job_and_a_claim_of_the_same_limits_do_not_deadlock(world: World) -> None:
    world.rule(slots=at_once(2), r=PLENTY)
    # The permit that the late job holds comes first in the order of locks, and its lane draws only on the second.
    key = next(key for key in map(str, range(100)) if bucket_id(Draw("slots", key)) < bucket_id(Draw("r", key)))
    draws = [("r", key), ("slots", key)]
    await world.left.add_one(draws=draws, hold="until_final", expires_in=3)
    await world.left.retry_later(await world.left.take_one(), 1)
    world.clock.advance(5)
    job = await world.right.add_one(draws=draws, queue="other")
    claiming = world.after("lock_lanes", lambda: world.right.take(queues=["other"]))
    claimed = await world.left.claim()
    assert len(claimed.dropped) == 1
    assert [each.id for each in await claiming] == [job]


async def test_late_jobs_that_a_bucket_was_closed_for_end_beside_a_claim_without_a_deadlock(world: World) -> None:
    world.rule(r=rate(10, per=3600, burst=10), q=PLENTY)
    await world.left.add_one(draws=[("r", "x")], costs=(10,))
    await world.left.take_one()
    await world.left.add_one(draws=[("r", "x")], costs=(2,), expires_in=1)
    assert await world.left.take() == []
    await world.left.add_one(draws=[("q", "y")], costs=(1,), expires_in=1, queue="one")
    await world.left.add_one(draws=[("r", "x")], costs=(1,), queue="one")
    world.clock.advance(2)
    expiring = world.after("lock_lanes", lambda: world.right.storage.expire())
    claimed = await world.left.claim(queues=["one"])
    assert len([*claimed.dropped, *await expiring]) == 2


@pytest.mark.parametrize("statement", ["prunable", "lock_prunable"])
async def test_pruning_a_job_that_holds_a_permit_and_resetting_its_bucket_do_not_deadlock(
    world: World, statement: str
) -> None:
    world.rule(slots=at_once(2))
    await world.left.add_one(draws=[("slots", "x")], hold="until_success")
    await world.left.fail(await world.left.take_one())
    world.clock.advance(100)
    resetting = world.after(statement, lambda: world.right.storage.reset(Draw("slots", "x")))
    await world.left.storage.prune(world.left.storage.now())
    assert await resetting == 0
    assert await world.left.permits("slots", "x") == {}


async def test_a_node_that_is_declared_dead_during_its_claim_leaves_no_job_without_an_owner(world: World) -> None:
    world.rule(api=PLENTY)
    (id,) = await world.left.add(draws=[("api", "acme")])
    (beat,) = [node.beat for node in await world.right.storage.nodes() if node.id == world.left.node]
    burial = world.after("heads", lambda: world.right.storage.recover(world.left.node, beat))
    await world.left.claim()
    recovered = await burial
    assert recovered is not None
    # What the claim took was taken back, for the burial had to wait for it.
    assert list(recovered.returned) == [id]
    assert await world.right.take_ids() == [id]


async def test_a_claim_that_was_started_again_returns_the_expired_jobs(world: World) -> None:
    world.rule(api=PLENTY)
    (late,) = await world.left.add(expires_in=5)
    (gone, next) = await world.left.add(2, draws=[("api", "acme")])
    world.clock.advance(5)
    cancelling = world.after("heads", lambda: world.right.storage.cancel(gone))
    claimed = await world.left.claim()
    assert await cancelling is JobState.WAITING
    assert [job.id for job in (*claimed.jobs, *await world.left.take())] == [next]
    assert [dropped.id for dropped in claimed.dropped] == [late]
    assert claimed.more or claimed.jobs
