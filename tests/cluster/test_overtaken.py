"""Other transactions commit or hold locks between two statements of a claim, without harm."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate.clock import SECOND, SystemClock
from headgate.errors import LimitInUse
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import BucketRef, JobOptions, JobState, NewJob, Origin, RetentionTerms
from headgate.jobs.lifecycle import Finished
from headgate.jobs.limit_sets import LimitSetChange
from headgate.limits.key import BETWEEN_LEVELS
from headgate.storage.postgres import claimer, low_watermarks
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.dialect import statements_of
from headgate.storage.postgres.low_watermarks import SWEEP_EVERY
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.claim import SOON
from headgate.storage.procedures.following import FOLLOWERS_AT_ONCE
from headgate.storage.records import Claim, FreeSlots
from headgate.storage.stored_rows import bucket_id
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import add_batch, batch_of, follow, following
from tests.conformance.storage_suite.fair_queues import ORDER, key_of, turns
from tests.conformance.storage_suite.joins import joined
from tests.conformance.storage_suite.store_user import StoreUser, at_once, rate, recover
from tests.durability.postgres import session_at, waiting_statements
from tests.until import patient, until

R = TypeVar("R")

PLENTY = rate(1000, burst=1000)


class TwoStores:
    """Two nodes on one schema, each with its own store, and a connection of another client."""

    def __init__(self, clock: ManualClock, schema: str, left: StoreUser, right: StoreUser, connection: Any) -> None:
        self.clock = clock
        self.schema = schema
        self.left = left
        self.right = right
        self.connection = connection
        self._moments: dict[str, tuple[asyncio.Event, asyncio.Task[Any]]] = {}
        self._skips = 0

    def set_rules(self, **rules: Any) -> None:
        """Set the rules of both nodes."""
        self.left.rules = self.right.rules = rules

    def after(self, statement: str, work: Callable[[], Awaitable[R]]) -> asyncio.Task[R]:
        """Do `work` after the next run of `statement`, which continues when `work` is done or waits for a lock."""
        moment = asyncio.Event()

        async def do() -> R:
            await moment.wait()
            return await work()

        task = asyncio.create_task(do())
        self._moments[statement] = moment, task
        return task

    def count_skips(self, statement: str, values: dict[str, Any], found: Any) -> None:
        """Count statements that skipped a locked row: they wait for its lock by running again."""
        if (statement == "lock_running" and len(found) < len(values["ids"])) or (
            statement == "followers" and any(row["is_locked"] for row in found)
        ):
            self._skips += 1

    async def run_planned_work(self, statement: str) -> None:
        """Do the work that is planned after that statement."""
        if statement in self._moments:
            moment, task = self._moments.pop(statement)
            moment.set()
            async with asyncio.timeout(patient(10)):
                skips = self._skips
                while self._skips == skips and not await self.is_waited_for():
                    if (await asyncio.wait([task], timeout=0.005))[0]:
                        return

    async def is_waited_for(self) -> bool:
        """Whether a statement on these tables waits for a transaction that stays open."""
        return await waiting_statements(self.connection, self.schema) > 0

    @contextlib.asynccontextmanager
    async def holding(self, sql: str) -> AsyncIterator[None]:
        """Run `sql` in a transaction of another client, which is rolled back at the end."""
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(sql)
            yield
        finally:
            await transaction.rollback()

    def check_all_ran(self) -> None:
        """Check that all planned work was done."""
        unused = list(self._moments)
        for _, task in self._moments.values():
            task.cancel()
        assert unused == [], f"no store has run {unused}"


@pytest_asyncio.fixture
async def stores(postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoStores]:
    clock = ManualClock()
    storages = [
        PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True, connections=3, is_watched=False)
        for _ in range(2)
    ]
    left, right = (StoreUser(store, clock) for store in storages)
    right.node = "node-b"
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": postgres_schema})
    stores = TwoStores(clock, postgres_schema, left, right, connection)
    try:
        for store_user, name in ((left, "a"), (right, "b")):
            await store_user.storage.open()
            await store_user.storage.join(store_user.node, name)
        for method in ("fetch", "execute"):
            monkeypatch.setattr(Session, method, _with_hooks(stores, getattr(Session, method)))
        yield stores
        stores.check_all_ran()
        assert list(await left.storage.check()) == []
    finally:
        await connection.close()
        for store in storages:
            await store.close()


def _with_hooks(stores: TwoStores, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a method of a session: report what it has run, and fail where the store would retry."""

    async def watched(session: Session, statement: str, /, **values: Any) -> Any:
        try:
            found = await run(session, statement, **values)
        except asyncpg.DeadlockDetectedError as error:
            raise AssertionError(f"{statement} was undone: {error}") from error
        stores.count_skips(statement, values, found)
        await stores.run_planned_work(statement)
        return found

    return watched


async def test_a_statement_that_waits_for_another_statement_goes_on_by_itself(
    stores: TwoStores, postgres_url: str
) -> None:
    """The fault: what waited for a vacuum that shortened its table, for milliseconds, was not waited for."""
    async with session_at(postgres_url) as holder, session_at(postgres_url) as waiter:
        await waiter.execute("SET application_name = 'headgate'")
        lock = "SELECT pg_advisory_xact_lock(7)"
        holding = asyncio.create_task(holder.execute(f"{lock}, pg_sleep({patient(60)})"))
        await until(lambda: _is_locked(stores.connection))
        waiting = asyncio.create_task(waiter.execute(f"{lock} -- {stores.schema}"))
        await until(lambda: _is_locked(stores.connection, "NOT granted"))
        assert not await stores.is_waited_for()
        await stores.connection.execute("SELECT pg_cancel_backend($1)", holder.get_server_pid())
        with pytest.raises(asyncpg.QueryCanceledError):
            await holding
        await waiting
        async with holder.transaction():
            await holder.execute(lock)
            waiting = asyncio.create_task(waiter.execute(f"{lock} -- {stores.schema}"))
            await until(stores.is_waited_for)
        await waiting


async def _is_locked(connection: Any, how: str = "granted") -> bool:
    found = await connection.fetchval(
        f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND {how}"
    )
    return bool(found)


def take_one(visit: Any) -> bool:
    """Take one start of a bucket, as plain code does, if it is open."""
    opens_at, state = visit.view.take(visit.now, 1)
    visit.view.set_state(state)
    return bool(opens_at <= visit.now)


# ------------------------------------------------------------------------------------- jobs that go elsewhere meanwhile


async def limit_set_changes(store_user: StoreUser, job: str, *buckets: BucketRef) -> list[LimitSetChange]:
    """Return the change of a job, as it was read now, to these buckets."""
    (found,) = [gated for gated in await store_user.storage.gated_jobs(frozenset({"work"})) if gated.id == job]
    return [LimitSetChange(job, found.buckets, buckets, None, found.terms)]


async def test_a_job_whose_bucket_changes_during_its_claim_starts_with_the_new_permit(stores: TwoStores) -> None:
    stores.set_rules(mutex=at_once())
    job = await stores.left.add_one(buckets=[("mutex", "a")])
    moved = await limit_set_changes(stores.right, job, BucketRef("mutex", "b"))
    moving = stores.after("heads", lambda: stores.right.storage.change_limit_sets(moved))
    claimed = await stores.left.claim()
    assert await moving == 1
    (started,) = [*claimed.jobs, *await stores.left.take()]
    assert started.buckets == (await stores.left.record(job)).buckets == (BucketRef("mutex", "b"),)
    assert await stores.left.permits("mutex", "a") == {}
    assert await stores.left.permits("mutex", "b") == {job: 1}
    assert list(await stores.left.storage.check()) == []
    await stores.left.succeed(started)
    other = await stores.left.add_one(buckets=[("mutex", "a")])
    assert await stores.left.take_ids() == [other]


async def test_a_late_job_whose_permit_is_reset_while_a_claim_drops_it_is_counted_once(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY, slots=at_once())
    job = await stores.left.add_one(buckets=[("r", "a"), ("slots", "s")], hold="until_final", expires_in=5)
    await stores.left.retry_later(await stores.left.take_one(), 1)
    stores.clock.advance(10)
    resetting = stores.after("heads_ready", lambda: stores.right.storage.reset(BucketRef("slots", "s")))
    claimed = await stores.left.claim()
    assert await resetting == 0
    assert list(await stores.left.storage.check()) == []
    again = await stores.left.claim()
    assert [each.id for each in (*claimed.dropped, *again.dropped)] == [job]
    assert [*claimed.jobs, *again.jobs] == []
    assert (await stores.left.record(job)).state is JobState.FAILED


async def test_a_permit_reset_while_its_job_is_claimed_is_held_by_one_job(stores: TwoStores) -> None:
    stores.set_rules(mutex=at_once(), r=PLENTY)
    buckets = [("r", "x"), ("mutex", "a")]
    first = await stores.left.add_one(buckets=buckets, hold="until_final")
    await stores.left.retry_later(await stores.left.take_one(), 1)
    stores.clock.advance(2)
    resetting = stores.after("heads_ready", lambda: stores.right.storage.reset(BucketRef("mutex", "a")))
    claimed = await stores.left.claim()
    await resetting
    second = await stores.left.add_one(buckets=buckets, hold="until_final")
    started = [*claimed.jobs, *await stores.left.take(), *await stores.right.take()]
    assert len(started) == 1
    states = await stores.left.states([first, second])
    assert sorted(states) == [JobState.RUNNING, JobState.WAITING]
    assert await stores.left.permits("mutex", "a") == {started[0].id: 1}


async def test_a_late_job_is_not_moved_to_another_lane_while_it_expires(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    job = await stores.left.add_one(buckets=[("r", "a")], expires_in=1)
    await stores.left.add_one(buckets=[("r", "a")])
    await stores.left.add_one(buckets=[("r", "b")])
    moved = await limit_set_changes(stores.right, job, BucketRef("r", "b"))
    stores.clock.advance(2)
    moving = stores.after("expired", lambda: stores.right.storage.change_limit_sets(moved))
    dropped = list(await stores.left.storage.expire())
    assert await moving == 0
    assert list(await stores.left.storage.check()) == []
    dropped += await stores.left.storage.expire()
    assert [each.id for each in dropped] == [job]
    assert len(await stores.left.take()) == 2


# ---------------------------------------------------------------------------------- jobs that follow others meanwhile


async def test_a_follower_added_while_its_leader_ends_is_released(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    job = await stores.left.take_one()
    adding = stores.after("finish_plain", lambda: follow(stores.right, leader))
    await stores.left.succeed(job)
    assert await stores.right.take_ids() == [await adding]


async def test_an_end_counts_as_written_if_its_job_is_pruned_before_other_ends_are_written(stores: TwoStores) -> None:
    at_once = JobOptions(retention=RetentionTerms(succeeded=0, failed=0, cancelled=0, skipped=0))
    pruned = await stores.left.add_one(options=at_once)
    leader = await stores.left.add_one()
    await follow(stores.left, leader)
    jobs = [await stores.left.take_one(), await stores.left.take_one()]
    pruning = stores.after("finish_plain", stores.right.storage.prune_by_own_retention)
    endings = [Finished(job.id, job.fence, JobState.SUCCEEDED, result="1") for job in jobs]
    assert await stores.left.finish(*endings) == [True, True]
    assert await pruning == 1
    assert await stores.right.storage.stored_ids([pruned, leader]) == [leader]


async def test_a_job_that_ran_again_since_it_was_chosen_is_not_pruned_by_its_last_retention(stores: TwoStores) -> None:
    """The fault: it was, if the clock was set back meanwhile, as its new end was before the choice."""
    retention = JobOptions(retention=RetentionTerms(succeeded=60, failed=10, cancelled=10, skipped=10))
    job = await stores.left.add_one(options=retention)
    await stores.left.fail(await stores.left.take_one())
    stores.clock.advance(10)

    async def run_again() -> None:
        stores.clock.step_wall(-1)
        await stores.right.storage.retry(job)
        stores.clock.step_wall(0.5)
        await stores.right.succeed(await stores.right.take_one())
        stores.clock.step_wall(0.5)

    again = stores.after("ended_retentions", run_again)
    assert await stores.left.storage.prune_by_own_retention() == 0
    await again
    assert (await stores.left.record(job)).state is JobState.SUCCEEDED
    stores.clock.advance(60)
    assert await stores.left.storage.prune_by_own_retention() == 1


async def test_a_leader_that_ends_while_its_first_follower_is_added_releases_it(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    job = await stores.left.take_one()
    ending = stores.after("states_of_leaders", lambda: stores.left.succeed(job))
    follower = await follow(stores.right, leader)
    await ending
    assert await stores.right.take_ids() == [follower]


async def test_a_follower_is_added_while_its_leader_ends_in_several_statements(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    job = await stores.left.take_one()
    adding = stores.after("lock_running", lambda: follow(stores.right, leader))
    await stores.left.fail(job)
    assert (await stores.right.record(await adding)).state is JobState.CANCELLED


async def test_a_follower_that_is_cancelled_while_its_leader_ends_is_cancelled_once(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    follower = await follow(stores.right, leader)
    last = await follow(stores.right, follower, "final")
    job = await stores.left.take_one()
    cancelling = stores.after("followers", lambda: stores.right.storage.cancel(follower))
    await stores.left.succeed(job)
    assert await cancelling is JobState.WAITING
    assert (await stores.right.record(follower)).state is JobState.CANCELLED
    assert await stores.right.take_ids() == [last]


async def test_a_leader_that_ends_while_its_follower_is_cancelled_leaves_it_cancelled(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    follower = await follow(stores.right, leader)
    job = await stores.left.take_one()
    ending = stores.after("lock_job", lambda: stores.left.succeed(job))
    assert await stores.right.storage.cancel(follower) is JobState.WAITING
    await ending
    assert (await stores.right.record(follower)).state is JobState.CANCELLED
    assert await stores.right.take() == []


async def test_a_follower_that_is_retried_while_its_leader_ends_is_not_left_blocked(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    follower = await follow(stores.right, leader)
    await stores.right.storage.cancel(follower)
    job = await stores.left.take_one()
    ending = stores.after("find_job", lambda: stores.left.succeed(job))
    await stores.right.storage.retry(follower)
    await ending
    assert await stores.right.take_ids() == [follower]


async def test_a_retried_follower_is_blocked_until_the_end_of_its_leader_releases_it(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    follower = await follow(stores.right, leader)
    await stores.right.storage.cancel(follower)
    job = await stores.left.take_one()
    ending = stores.after("lock_job", lambda: stores.left.succeed(job))
    await stores.right.storage.retry(follower)
    await ending
    assert await stores.right.take_ids() == [follower]


async def test_the_last_two_jobs_of_a_batch_that_end_at_once_release_what_follows_it_once(stores: TwoStores) -> None:
    batch, _ = await add_batch(stores.left, 2)
    after = await follow(stores.left, batch)
    first, second = await stores.left.take()
    ending = stores.after("lock_running", lambda: stores.left.succeed(second))
    await stores.left.succeed(first)
    await ending
    assert await stores.left.take_ids() == [after]


async def test_the_end_of_an_attempt_whose_node_was_declared_dead_releases_no_follower(stores: TwoStores) -> None:
    leader = await stores.left.add_one()
    follower = await follow(stores.right, leader)
    job = await stores.left.take_one()
    recovering = stores.after("finish_plain", lambda: recover(stores.left))
    ending = Finished(job.id, job.fence, JobState.SUCCEEDED, result="1")
    assert await stores.left.finish(ending) == [False]
    assert list((await recovering).returned) == [leader]
    assert (await stores.right.record(follower)).is_blocked


async def test_a_leader_that_is_retried_while_more_of_its_followers_are_cancelled_blocks_all_of_them(
    stores: TwoStores,
) -> None:
    """The fault: the note of those that were left was stored again, so they were cancelled while their leader ran."""
    leader = await stores.left.add_one()
    followers = [following(stores.left, leader) for _ in range(2 * FOLLOWERS_AT_ONCE + 100)]
    await stores.left.storage.add(followers)
    await stores.left.fail(await stores.left.take_one())
    retrying = stores.after("followers", lambda: stores.right.storage.retry(leader))
    assert await stores.left.storage.release_followers() == 1
    assert await retrying is JobState.FAILED
    assert await stores.left.storage.release_followers() == 0
    assert (await stores.left.counts()).cancelled == 0
    await stores.left.succeed(await stores.left.take_one())
    while await stores.left.storage.release_followers():
        pass
    assert len(await stores.left.take(5000)) == len(followers)


async def test_a_leader_that_is_retried_while_more_joins_count_it_is_counted_by_none(stores: TwoStores) -> None:
    """The fault: these joins kept the first end of the leader, so what follows them was cancelled after its success."""
    leader = await stores.left.add_one()
    joined_by = [joined(stores.left, [leader]) for _ in range(FOLLOWERS_AT_ONCE + 100)]
    await stores.left.storage.add([jobs[0] for jobs, _ in joined_by], [join for _, join in joined_by])
    await stores.left.fail(await stores.left.take_one())
    retrying = stores.after("followers", lambda: stores.right.storage.retry(leader))
    assert await stores.left.storage.release_followers() > 0
    assert await retrying is JobState.FAILED
    assert list(await stores.left.storage.check()) == []
    await stores.left.succeed(await stores.left.take_one())
    while await stores.left.storage.release_followers():
        pass
    assert len(await stores.left.take(5000)) == len(joined_by)


async def test_jobs_that_are_added_to_a_batch_again_while_the_first_addition_commits_are_counted_once(
    stores: TwoStores,
) -> None:
    """As after a lost reply. The fault: the batch counted these jobs twice, so it was never final."""
    batch, _ = await add_batch(stores.left, 1)
    new = replace(stores.left.new(), origin=Origin(batch=batch))
    grown = [NewBatch(batch, 1, stores.clock.now(), grows=True)]
    adding = stores.after("stored_ids", lambda: stores.right.storage.add([new], grown))
    await stores.left.storage.add([new], grown)
    await adding
    record = await batch_of(stores.left, batch)
    assert (record.total, record.pending) == (2, 2)


# --------------------------------------------------------------------------------------- buckets that change meanwhile


async def wait_behind_two(stores: TwoStores) -> None:
    """A job waits behind each of two buckets, x and y, and x opens first."""
    stores.set_rules(r=rate(1, per=10, burst=1))
    for key in "xy":
        await stores.left.add(2, buckets=[("r", key)])
        assert len(await stores.left.take()) == 1
        stores.clock.advance(0.5)


async def test_a_penalized_bucket_on_the_page_leaves_room_for_one_that_is_open(stores: TwoStores) -> None:
    await wait_behind_two(stores)
    await stores.left.storage.penalize(BucketRef("r", "x"), stores.left.storage.limit_now() + 600 * SECOND)
    stores.clock.advance(30)
    job = await stores.left.take_one()
    assert job.buckets == (BucketRef("r", "y"),)


async def test_a_bucket_that_plain_code_has_emptied_leaves_room_for_one_that_is_open(stores: TwoStores) -> None:
    await wait_behind_two(stores)
    stores.clock.advance(30)
    assert await stores.left.storage.visit(BucketRef("r", "x"), stores.left.rules, take_one)
    job = await stores.left.take_one()
    assert job.buckets == (BucketRef("r", "y"),)


async def test_a_bucket_closed_for_a_costly_job_that_is_cancelled_meanwhile_opens_for_cheaper_ones(
    stores: TwoStores,
) -> None:
    stores.set_rules(r=rate(10, per=3600, burst=10))
    await stores.left.add(5, buckets=[("r", "a")], costs=(1,))
    assert len(await stores.left.take()) == 5
    costly = await stores.left.add_one(buckets=[("r", "a")], costs=(10,))
    cheap = await stores.left.add_one(buckets=[("r", "a")], costs=(1,))
    cancelling = stores.after("heads", lambda: stores.right.storage.cancel(costly))
    claimed = await stores.left.claim()
    assert await cancelling is JobState.WAITING
    assert [job.id for job in (*claimed.jobs, *await stores.left.take())] == [cheap]


async def test_a_bucket_that_is_evicted_while_plain_code_uses_it_is_created_again(stores: TwoStores) -> None:
    stores.set_rules(r=rate(1))
    ref, rules = BucketRef("r", "x"), stores.left.rules

    async def come_and_go() -> asyncio.Task[int]:
        assert await stores.right.storage.visit(ref, rules, take_one)
        stores.clock.advance(3600)
        return stores.after("missing_buckets", stores.right.storage.evict)

    coming = stores.after("buckets_for_update", come_and_go)
    assert await stores.left.storage.visit(ref, rules, take_one)
    assert await (await coming) == 1
    assert not await stores.left.storage.visit(ref, rules, take_one)


async def test_a_limit_removed_while_jobs_are_added_for_it_leaves_no_job_stuck(stores: TwoStores) -> None:
    stores.set_rules(r=rate(1, per=10, burst=1))
    await stores.left.add_one(buckets=[("r", "a")])
    await stores.left.succeed(await stores.left.take_one())

    async def come() -> list[str]:
        await stores.right.add(2, buckets=[("r", "a")])
        return await stores.right.take_ids()

    coming = stores.after("permits_of_limit", come)
    await stores.left.storage.forget("r")
    assert len(await coming) == 1
    assert list(await stores.left.storage.check()) == []
    stores.clock.advance(10)
    assert len(await stores.left.take()) == 1


async def test_a_limit_is_not_removed_during_a_claim_of_its_jobs(stores: TwoStores) -> None:
    stores.set_rules(r=rate(1, per=10, burst=1))
    await stores.left.add(2, buckets=[("r", "a")])
    forgetting = stores.after("heads", lambda: stores.right.storage.forget("r"))
    assert len(await stores.left.take()) == 1
    with pytest.raises(LimitInUse):
        await forgetting
    stores.clock.advance(10)
    assert len(await stores.left.take()) == 1


# ------------------------------------------------------------------------------------------- what stands before others


async def test_lanes_of_another_release_delay_no_limited_job_while_more_are_added(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    for key in "pqrs":
        await stores.left.add_one(buckets=[("r", key)], task="of another release")
    await stores.left.add(2, buckets=[("r", "z")])
    await stores.left.add(40)
    started = 0
    for _ in range(4):
        claimed = await stores.left.claim(2)
        started += sum(1 for job in claimed.jobs if job.buckets)
        stores.clock.advance(0.2)
    assert started == 2


async def test_a_claim_that_reads_twice_returns_the_late_jobs_of_both_reads(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    for key in "pq":
        await stores.left.add_one(buckets=[("r", key)], task="of another release")
    stores.clock.advance(0.1)
    late = await stores.left.add_one(buckets=[("r", "e")], expires_in=1)
    stores.clock.advance(2)
    job = await stores.left.add_one(buckets=[("r", "z")])
    claimed = await stores.left.claim(3)
    assert [each.id for each in claimed.dropped] == [late]
    assert [each.id for each in claimed.jobs] == [job]


async def test_a_claim_that_reads_twice_returns_when_the_bucket_closed_first_opens(stores: TwoStores) -> None:
    stores.set_rules(r=rate(1, per=4, burst=1), free=PLENTY)
    await stores.left.add_one(buckets=[("r", "z")])
    await stores.left.take_one()
    await stores.left.add_one(buckets=[("free", "p")], task="of another release")
    stores.clock.advance(0.1)
    await stores.left.add_one(buckets=[("r", "z")])
    stores.clock.advance(0.1)
    job = await stores.left.add_one(buckets=[("free", "q")])
    claimed = await stores.left.claim(2)
    assert [each.id for each in claimed.jobs] == [job]
    assert len(claimed.throttled) == 1
    assert claimed.next_in == 38 * SECOND // 10


@pytest.mark.parametrize("delay", [None, 1], ids=["plain", "delayed"])
async def test_jobs_without_limits_get_half_of_the_slots_delayed_or_not(stores: TwoStores, delay: float | None) -> None:
    stores.set_rules(r=PLENTY)
    await stores.left.add(20, delay=delay)
    stores.clock.advance(5)
    for key in range(10):
        await stores.left.add(2, buckets=[("r", str(key))])
    claimed = await stores.left.claim(16)
    assert sorted(bool(job.buckets) for job in claimed.jobs) == [False] * 8 + [True] * 8


# -------------------------------------------------------------------------------------- arrivals, and who merges them


async def test_more_arrivals_than_one_merge_takes_are_all_merged(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "LEAST_PORTION", 3)
    for each in claimers_of(stores):
        each._portion = 3
    stores.set_rules(r=rate(1, per=3600, burst=1))
    added = [await stores.right.add_one(buckets=[("r", str(key))]) for key in range(14)]
    assert sorted(await stores.left.take_ids()) == sorted(added)


async def test_arrivals_locked_by_a_dead_node_are_polled_soon_and_not_in_a_busy_loop(stores: TwoStores) -> None:
    stores.set_rules(r=rate(10))
    job = await stores.left.add_one(buckets=[("r", "a")])
    async with stores.holding("SELECT FROM arrival FOR UPDATE"):
        claimed = await stores.left.claim()
    assert claimed.jobs == []
    assert not claimed.more
    assert claimed.next_in is not None
    assert 0 < claimed.next_in <= SOON
    assert await stores.left.take_ids() == [job]


async def test_a_fair_claim_takes_the_next_keys_instead_of_those_that_another_claim_has_locked(
    stores: TwoStores,
) -> None:
    await add_of_keys(stores, 30)
    async with stores.holding("SELECT FROM lane ORDER BY virtual_time, since, id LIMIT 9 FOR UPDATE"):
        started = await stores.left.take(10)
    assert len({key_of(job) for job in started}) == 10


async def test_a_fair_claim_takes_the_next_keys_instead_of_those_that_another_claim_has_visited_since_its_snapshot(
    stores: TwoStores,
) -> None:
    await add_of_keys(stores, 40)
    started = await stores.left.take(10)
    # The snapshot of the left one has the next ten as well.
    started += await stores.right.take(9)
    started += await stores.left.take(10)
    assert len({key_of(job) for job in started}) == 29


async def test_a_fair_claim_reads_a_new_snapshot_if_others_have_visited_nearly_all_keys_of_its_last_one(
    stores: TwoStores,
) -> None:
    """The fault: one of the keys that were left filled all slots."""
    await add_of_keys(stores, 80)
    started = await stores.left.take(10)
    for _ in range(5):
        started += await stores.right.take(10)
    started += await stores.left.take(10)
    assert len({key_of(job) for job in started}) == 70


async def test_keys_that_two_claims_merge_at_once_begin_a_fair_line_at_the_same_turn(stores: TwoStores) -> None:
    """The fault: those of the later merge came after as many turns as it was hundredths of a second later."""
    stores.set_rules(**turns())
    session = Session(stores.connection, statements_of(stores.schema), is_pooled=False)
    await stores.left.add(20, buckets=[(ORDER, "a")])
    async with stores.connection.transaction():
        await claimers_of(stores)[0].merge(transaction_of(stores, session))
        stores.clock.advance(0.2)
        await stores.right.add(20, buckets=[(ORDER, "b")])
        assert (await stores.right.claim(queues=["other"])).jobs == []
    started = Counter([key_of(job) for _ in range(10) for job in await stores.right.take(1)])
    assert started["a"] == started["b"] == 5


async def test_a_fair_claim_takes_the_next_keys_of_the_same_queue_instead_of_locked_ones(stores: TwoStores) -> None:
    """The fault: it locked those of another fair queue, which were before them, and one key filled all slots."""
    for key in range(30):
        await stores.left.add(12, queue="early", buckets=[("fair:early", f"k{key}")])
    await add_of_keys(stores, 30)
    stores.set_rules(**turns(), **{"fair:early": turns()[ORDER]})
    locked = "SELECT FROM lane WHERE queue = 'default' ORDER BY virtual_time, since, id LIMIT 9 FOR UPDATE"
    async with stores.holding(locked):
        started = await stores.left.take(10, queues=("default", "early"))
    assert len({key_of(job) for job in started if job.queue == "default"}) == 10


async def test_a_fair_claim_reads_a_locked_key_again_soon_if_it_can_run_no_job_of_the_next_one(
    stores: TwoStores,
) -> None:
    """The fault: beside jobs of another release, the key waited until something woke the node."""
    stores.set_rules(**turns())
    for task in ("work", "unknown"):
        await stores.left.add(task=task, buckets=[(ORDER, task)])
    assert (await stores.left.claim(queues=["other"])).jobs == []
    async with stores.holding("SELECT FROM lane ORDER BY virtual_time, since, id LIMIT 1 FOR UPDATE"):
        claimed = await stores.left.claim(1)
    assert (list(claimed.jobs), claimed.more, claimed.next_in) == ([], False, SOON)


async def add_of_keys(stores: TwoStores, keys: int) -> None:
    """Add jobs of so many keys to a fair queue, and let them join the line."""
    stores.set_rules(**turns())
    for key in range(keys):
        await stores.left.add(12, buckets=[(ORDER, f"k{key}")])
    for _ in range(4):
        assert (await stores.left.claim(queues=["other"])).jobs == []


async def test_a_claim_starts_again_if_a_tenant_that_it_has_read_was_evicted_meanwhile(stores: TwoStores) -> None:
    stores.set_rules(**turns())

    async def start_and_evict() -> list[str]:
        started = await stores.right.take_ids(1)
        await stores.right.storage.evict()
        return started

    first = await stores.left.add_one(buckets=[(ORDER, f"a{BETWEEN_LEVELS}x")])
    second = await stores.left.add_one(buckets=[(ORDER, f"b{BETWEEN_LEVELS}y")])
    overtaking = stores.after("claim_snapshot", start_and_evict)
    assert await stores.left.take_ids() == [second]
    assert await overtaking == [first]


async def test_a_due_lane_that_is_locked_is_read_again_soon(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    job = await stores.left.add_one(buckets=[("r", "z")])
    # A claim for another queue merges it.
    assert (await stores.left.claim(queues=["other"])).jobs == []
    async with stores.holding("UPDATE lane SET waiting = waiting"):
        claimed = await stores.left.claim()
    assert claimed.jobs == []
    assert not claimed.more
    assert claimed.next_in is not None
    assert 0 < claimed.next_in <= SOON
    assert await stores.left.take_ids() == [job]


async def test_jobs_that_a_claim_has_locked_and_does_not_take_are_read_again_soon(stores: TwoStores) -> None:
    """Beside delayed jobs that are due, it locks as many of each priority as it takes in all."""
    await stores.left.add(5, delay=1)
    await stores.left.add(5)
    stores.clock.advance(2)
    async with stores.holding("SELECT FROM job FOR UPDATE"):
        claimed = await stores.left.claim(5)
        assert (list(claimed.jobs), claimed.next_in) == ([], SOON)
    assert len(await stores.left.take_ids(5)) == 5
    assert len(await stores.left.take_ids(10)) == 5
    assert (await stores.left.claim()).next_in is None


async def test_a_job_committed_long_after_it_was_added_is_found_by_the_next_claim(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if every snapshot were: floors are used from the first one on.
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    stores.set_rules(r=PLENTY)
    job = stores.left.new(buckets=[("r", "z")])
    session = Session(stores.connection, statements_of(stores.schema), is_pooled=False)
    async with stores.connection.transaction():
        await add_jobs(transaction_of(stores, session), [job])
        stores.clock.advance(2)
        assert (await stores.left.claim()).jobs == []
    stores.clock.advance(0.5)
    assert await stores.left.take_ids() == [job.id]


async def test_a_lane_committed_below_the_low_watermark_is_found_by_the_next_sweep(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    stores.set_rules(r=PLENTY)
    job = await stores.left.add_one(buckets=[("r", "z")])
    assert (await stores.left.claim(queues=["other"])).jobs == []
    since = await stores.connection.fetchval("SELECT since FROM lane")
    # As if a claim that put it in line were not committed yet.
    await stores.connection.execute("UPDATE lane SET since = NULL")
    stores.clock.advance(2)
    assert (await stores.left.claim()).jobs == []
    await stores.connection.execute("UPDATE lane SET since = $1", since)
    stores.clock.advance(0.5)
    claimed = await stores.left.claim()
    assert claimed.jobs == []
    assert claimed.next_in == SWEEP_EVERY // 2
    stores.clock.advance(0.5)
    assert await stores.left.take_ids() == [job]


@pytest.mark.parametrize("is_behind", [False, True], ids=["in line", "behind an opened bucket"])
async def test_a_lane_that_was_ready_while_its_queue_had_no_slot_is_found_at_once(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """The fault: claims of other queues passed it, and it waited for a whole sweep."""
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    stores.set_rules(r=rate(1, per=1, burst=1))
    await stores.left.add(2, buckets=[("r", "z")])
    if is_behind:
        assert len(await stores.left.take_ids()) == 1
    for _ in range(20):
        stores.clock.advance(1)
        assert await stores.left.take_ids(queues=["other"]) == []
    assert len((await stores.left.claim(queues=["default", "other"])).jobs) == 1


async def test_a_job_in_a_lane_that_begins_with_jobs_of_other_workers_is_found_at_once(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the read without such lanes raised the low watermark above them."""
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    stores.set_rules(r=PLENTY)
    for key in "abc":
        await stores.left.add(buckets=[("r", key)], task="unknown")
    for _ in range(20):
        stores.clock.advance(1)
        assert await stores.left.take_ids(1) == []
    job = await stores.left.add_one(buckets=[("r", "c")])
    assert await stores.left.take_ids(1) == [job]


async def test_evictions_at_once_keep_one_of_the_last_lanes_of_a_fair_queue(
    stores: TwoStores, postgres_url: str
) -> None:
    """The fault: if the one that the first kept was written anew meanwhile, the second deleted it and kept another."""
    stores.set_rules(**turns())
    for key in range(40):
        await stores.left.add(buckets=[(ORDER, f"k{key}")])
    await stores.left.succeed(*await stores.left.take(100))
    other = await asyncpg.connect(postgres_url, server_settings={"search_path": stores.schema})
    await other.execute("UPDATE lane SET virtual_time = 10080, version = version + 1 WHERE gated")
    last = "SELECT id FROM lane WHERE gated ORDER BY ctid DESC LIMIT 2"
    await other.execute(f"DELETE FROM lane WHERE gated AND id NOT IN ({last})")
    await other.execute("DELETE FROM known_lane WHERE id NOT IN (SELECT id FROM lane)")
    # What is written anew comes before them in the table.
    await other.execute("VACUUM lane")
    async with stores.holding("SELECT FROM known_lane FOR UPDATE"), asyncio.timeout(patient(30)):
        first = asyncio.create_task(stores.left.storage.evict())
        while not await stores.is_waited_for():
            await asyncio.wait([first], timeout=0.005)
        await other.execute(
            "UPDATE lane SET version = version + 1 "
            "WHERE id IN (SELECT id FROM lane WHERE gated ORDER BY id FOR UPDATE SKIP LOCKED)"
        )
        second = asyncio.create_task(stores.right.storage.evict())
        while not second.done() and await waiting_statements(stores.connection, stores.schema) < 2:
            await asyncio.wait([second], timeout=0.005)
    assert await first + await second == 1
    assert await other.fetchval("SELECT count(*) FROM lane WHERE gated") == 1
    await other.close()


async def test_claims_on_a_slow_server_go_on_while_all_their_queues_are_paused(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    job = await stores.left.add_one()
    assert (await stores.left.claim(queues=["other"])).jobs == []
    await stores.right.storage.pause_queue("default")
    assert await stores.left.take_ids() == await stores.left.take_ids() == []
    await stores.right.storage.resume_queue("default")
    assert await stores.left.take_ids() == [job]


async def test_a_merge_leaves_the_arrivals_of_a_lane_that_another_merge_inserts_concurrently(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    job = await stores.left.add_one(buckets=[("r", "z")])
    async with stores.connection.transaction():
        await stores.connection.execute("INSERT INTO known_lane (id, queue) SELECT lane, queue FROM arrival")
        await stores.connection.execute(
            "INSERT INTO lane (id, queue, buckets) SELECT lane, queue, buckets FROM arrival"
        )
        merging = asyncio.create_task(stores.left.claim(queues=["other"]))
        await until(stores.is_waited_for)
    await merging
    assert await stores.connection.fetchval("SELECT count(*) FROM arrival") == 1
    assert await stores.left.take_ids() == [job]


async def test_concurrent_merges_insert_each_lane_once(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    jobs: list[str] = []
    for number in range(20):
        jobs += [await store_user.add_one(buckets=[("r", str(number))]) for store_user in (stores.left, stores.right)]
        await asyncio.gather(*(store_user.claim(queues=["other"]) for store_user in (stores.left, stores.right)))
    assert list(await stores.left.storage.check()) == []
    found = [await stores.left.take_ids(100), await stores.right.take_ids(100)]
    assert sorted(chain(*found)) == sorted(jobs)


@pytest.mark.parametrize("buckets", [[], [("r", "z")]], ids=["plain", "gated"])
async def test_a_job_committed_below_the_front_of_its_lane_is_found_once_its_arrival_is_merged(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch, buckets: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(low_watermarks, "SLOW", -1)
    stores.set_rules(r=PLENTY)
    job = stores.left.new(buckets=buckets)
    session = Session(stores.connection, statements_of(stores.schema), is_pooled=False)
    async with stores.connection.transaction():
        await add_jobs(transaction_of(stores, session), [job])
        for _ in range(2):
            stores.clock.advance(0.5)
            newer = await stores.right.add_one(buckets=buckets)
            assert await stores.left.take_ids() == [newer]
    stores.clock.advance(1)
    assert await stores.left.take_ids() == [job.id]


async def test_older_jobs_behind_locked_ones_of_a_higher_priority_are_not_skipped(stores: TwoStores) -> None:
    older = await stores.right.add(2)
    stores.clock.advance(1)
    await stores.right.add(2, priority=5)
    async with stores.holding("SELECT FROM job WHERE priority = 5 FOR UPDATE"):
        assert sorted(await stores.left.take_ids(2)) == sorted(older)


async def merge_some(stores: TwoStores) -> None:
    """Others come and are merged, more often than it takes to prove a floor."""
    for _ in range(4):
        await stores.right.add_one(buckets=[("r", "y")])
        assert len(await stores.left.take()) == 1


def claimers_of(stores: TwoStores) -> list[claimer.Claimer]:
    assert isinstance(stores.left.storage, PostgresStorage)
    return stores.left.storage._claimers


def transaction_of(stores: TwoStores, session: Session) -> PostgresTransaction:
    assert isinstance(stores.left.storage, PostgresStorage)
    return stores.left.storage._tx(session)


def low_watermark_of_arrivals(stores: TwoStores) -> int:
    return max(each.low_watermarks.arrivals for each in claimers_of(stores))


async def test_an_arrival_committed_after_later_ones_were_merged_is_merged_by_the_next_claim(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    job = stores.left.new(buckets=[("r", "z")])
    session = Session(stores.connection, statements_of(stores.schema), is_pooled=False)
    async with stores.connection.transaction():
        await add_jobs(transaction_of(stores, session), [job])
        floor = await stores.connection.fetchval("SELECT id FROM arrival")
        await merge_some(stores)
        assert low_watermark_of_arrivals(stores) <= floor
    assert await stores.left.take_ids() == [job.id]
    await merge_some(stores)
    assert low_watermark_of_arrivals(stores) > floor


async def test_an_arrival_locked_while_later_ones_were_merged_is_merged_by_the_next_claim(
    stores: TwoStores,
) -> None:
    stores.set_rules(r=PLENTY)
    job = await stores.right.add_one(buckets=[("r", "z")])
    async with stores.holding("SELECT FROM arrival FOR UPDATE"):
        await merge_some(stores)
    assert await stores.left.take_ids() == [job]


async def test_the_low_watermark_of_arrivals_rises_while_a_transaction_only_reads(stores: TwoStores) -> None:
    stores.set_rules(r=PLENTY)
    async with stores.connection.transaction(isolation="repeatable_read"):
        await stores.connection.fetchval("SELECT count(*) FROM arrival")
        await merge_some(stores)
        floor = low_watermark_of_arrivals(stores)
        await merge_some(stores)
        assert 0 < floor < low_watermark_of_arrivals(stores)


# ------------------------------------------------------------------------------------------------- nobody is deadlocked


async def test_a_claim_that_drops_a_late_job_and_a_claim_of_the_same_limits_do_not_deadlock(stores: TwoStores) -> None:
    stores.set_rules(slots=at_once(2), r=PLENTY)
    # The permit that the late job holds comes first in the order of locks, and its lane uses only the second.
    key = next(
        key for key in map(str, range(100)) if bucket_id(BucketRef("slots", key)) < bucket_id(BucketRef("r", key))
    )
    buckets = [("r", key), ("slots", key)]
    await stores.left.add_one(buckets=buckets, hold="until_final", expires_in=3)
    await stores.left.retry_later(await stores.left.take_one(), 1)
    stores.clock.advance(5)
    job = await stores.right.add_one(buckets=buckets, queue="other")
    claiming = stores.after("lock_lanes", lambda: stores.right.take(queues=["other"]))
    claimed = await stores.left.claim()
    assert len(claimed.dropped) == 1
    assert [each.id for each in await claiming] == [job]


async def test_late_jobs_that_a_bucket_was_closed_for_end_beside_a_claim_without_a_deadlock(stores: TwoStores) -> None:
    stores.set_rules(r=rate(10, per=3600, burst=10), q=PLENTY)
    await stores.left.add_one(buckets=[("r", "x")], costs=(10,))
    await stores.left.take_one()
    await stores.left.add_one(buckets=[("r", "x")], costs=(2,), expires_in=1)
    assert await stores.left.take() == []
    await stores.left.add_one(buckets=[("q", "y")], costs=(1,), expires_in=1, queue="one")
    await stores.left.add_one(buckets=[("r", "x")], costs=(1,), queue="one")
    stores.clock.advance(2)
    expiring = stores.after("lock_lanes", lambda: stores.right.storage.expire())
    claimed = await stores.left.claim(queues=["one"])
    assert len([*claimed.dropped, *await expiring]) == 2


@pytest.mark.parametrize(("statement", "held"), [("prunable", 1), ("lock_prunable", 0)])
async def test_pruning_a_job_that_holds_a_permit_and_resetting_its_bucket_do_not_deadlock(
    stores: TwoStores, statement: str, held: int
) -> None:
    stores.set_rules(slots=at_once(2))
    await stores.left.add_one(buckets=[("slots", "x")], hold="until_success")
    await stores.left.fail(await stores.left.take_one())
    stores.clock.advance(100)
    resetting = stores.after(statement, lambda: stores.right.storage.reset(BucketRef("slots", "x")))
    assert await stores.left.storage.prune(stores.left.storage.now()) == 1
    # The job that is about to be deleted holds it until then.
    assert await resetting == held
    assert await stores.left.permits("slots", "x") == {}


async def test_a_node_that_is_declared_dead_during_its_claim_leaves_no_job_without_an_owner(stores: TwoStores) -> None:
    stores.set_rules(api=PLENTY)
    (id,) = await stores.left.add(buckets=[("api", "acme")])
    (beat,) = [node.beat for node in await stores.right.storage.nodes() if node.id == stores.left.node]
    burial = stores.after("heads", lambda: stores.right.storage.recover(stores.left.node, beat))
    await stores.left.claim()
    recovered = await burial
    assert recovered is not None
    # What the claim took was taken back, for the burial had to wait for it.
    assert list(recovered.returned) == [id]
    assert await stores.right.take_ids() == [id]


async def test_a_claim_that_was_started_again_returns_the_expired_jobs(stores: TwoStores) -> None:
    stores.set_rules(api=PLENTY)
    (late,) = await stores.left.add(expires_in=5)
    (gone, next) = await stores.left.add(2, buckets=[("api", "acme")])
    stores.clock.advance(5)
    cancelling = stores.after("heads", lambda: stores.right.storage.cancel(gone))
    claimed = await stores.left.claim()
    assert await cancelling is JobState.WAITING
    assert [job.id for job in (*claimed.jobs, *await stores.left.take())] == [next]
    assert [dropped.id for dropped in claimed.dropped] == [late]
    assert claimed.more or claimed.jobs


async def test_a_job_that_was_locked_and_then_replaced_is_not_forgotten_in_its_new_lane(stores: TwoStores) -> None:
    """The fault: for a second, the claims of a process that had found it locked overlooked it in every lane.

    The one that took the job before it let its lane sleep for good.
    """
    stores.set_rules(r=PLENTY)
    user = stores.left

    def under_one_key(key: str, **options: Any) -> NewJob:
        return replace(user.new(buckets=[("r", key)], **options), unique_key="one", on_conflict="replace")

    first = under_one_key("before")
    await user.storage.add([first])
    async with stores.holding("SELECT id FROM job FOR UPDATE"):
        assert await user.take_ids() == []
    await user.add_one(buckets=[("r", "after")], delay=0.2)
    assert [*(await user.storage.add([under_one_key("after", delay=0.5)])).values()] == [first.id]
    stores.clock.advance(0.25)
    claimed = await user.claim()
    assert len(claimed.jobs) == 1
    assert claimed.next_in is not None
    stores.clock.advance(0.25)
    assert await user.take_ids() == [first.id]


# ------------------------------------------------------------------------------------------- claims at the same time


async def test_two_claims_that_add_the_same_buckets_start_no_more_than_these_grant(stores: TwoStores) -> None:
    stores.set_rules(r=rate(1, burst=3))
    for _ in range(5):
        for key in "abc":
            await stores.left.add_one(buckets=[("r", key)])
    other = stores.after("lock_for_claim", lambda: stores.right.take_ids(20))
    started = [*await stores.left.take_ids(20), *await other]
    assert len({*started}) == len(started) == 9
    assert await stores.left.take_ids(20) == await stores.right.take_ids(20) == []
    assert list(await stores.left.storage.check()) == []


async def test_a_claim_of_a_backlog_does_not_hide_the_lanes_of_other_queues(stores: TwoStores) -> None:
    """The reader of one claim knows nothing about the queues of another one: each begins where it has read."""
    stores.set_rules(r=PLENTY)
    waiting = [await stores.left.add_one(queue="quiet", buckets=[("r", "quiet")])]
    for number in range(30):
        await stores.left.add_one(queue="busy", buckets=[("r", str(number))])
    for _ in range(5):
        stores.clock.advance(1.0)
        busy, quiet = await asyncio.gather(claim(stores.left, "busy", 4), claim(stores.left, "quiet", 1))
        assert len(busy) == 4
        assert quiet == waiting
        waiting = [await stores.right.add_one(queue="quiet", buckets=[("r", "quiet")])]
    assert await claim(stores.left, "quiet", 1) == waiting


async def test_a_claim_beside_that_of_a_backlog_merges_the_newest_arrivals_of_its_queues(
    stores: TwoStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "RECENT", 50)
    stores.set_rules(r=PLENTY)
    user = stores.left
    await user.storage.add([user.new(queue="busy", buckets=[("r", str(number))]) for number in range(400)])
    old = await user.add_one(queue="quiet", buckets=[("r", "old")])
    await user.storage.add([user.new(queue="busy", buckets=[("r", str(number))]) for number in range(400, 900)])
    # The claim of the backlog merges a portion of the arrivals, and more are left.
    assert len(await claim(user, "busy", 1)) == 1
    new = await user.add_one(queue="quiet", buckets=[("r", "new")])
    assert await claim(user, "quiet", 2) == [new]
    assert await stores.connection.fetchval("SELECT count(*) FROM arrival") > 500
    # What is older is merged by the claims of the backlog.
    woken: list[str] = []
    user.storage.watch_queues(lambda queues: woken.extend(queues or ()))
    while "quiet" not in woken:
        assert await claim(user, "quiet", 2) == []
        stores.clock.advance(0.05)
        assert len(await claim(user, "busy", 1)) == 1
    assert await claim(user, "quiet", 2) == [old]


async def claim(user: StoreUser, queue: str, slots: int) -> list[str]:
    """One of the two claims that a node makes at the same time: that of the queue "busy", or of another one."""
    rules, tasks = user.rules, frozenset(user.tasks)
    asked = Claim(user.node, {queue: FreeSlots(slots)}, rules, tasks, has_backlog=queue == "busy")
    return [job.id for job in (await user.storage.claim(asked)).jobs]


async def test_a_new_job_wakes_other_processes_for_its_queue(postgres_url: str, postgres_schema: str) -> None:
    told: list[list[str] | None] = []
    left, right = (PostgresStorage(postgres_url, SystemClock(), schema=postgres_schema) for _ in range(2))
    for store in (left, right):
        await store.open()
    right.watch_queues(lambda queues: told.append(None if queues is None else sorted(queues)))
    await left.add([StoreUser(left, ManualClock()).new(queue="mail")])
    await until(lambda: ["mail"] in told)
    for store in (left, right):
        await store.close()
