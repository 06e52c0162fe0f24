"""A user's open transaction has added, replaced or followed jobs: it delays no other jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate import Every, Headgate
from headgate.admin.bulk import CANCEL, BulkResult, cancel_batch, change_many
from headgate.clock import SECOND, Clock
from headgate.engine.running_attempts import Slots
from headgate.errors import IllegalTransition, JobHeld, StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import job_number
from headgate.jobs.job import BucketRef, ClaimedJob, JobState, NewJob, Origin, UniqueTerms
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.limit_sets import LimitSetChange
from headgate.jobs.query import JobQuery
from headgate.storage.postgres import storage as postgres_storage
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.procedures.claim import SOON
from headgate.storage.records import Claim, Claimed
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.schedules import ScheduleUser
from tests.conformance.storage_suite.store_user import StoreUser, at_once, rate, strict
from tests.durability.postgres import let_locks_be_waited_for, waiting_statements
from tests.postgres_server import connected
from tests.until import becomes, patient

R = TypeVar("R")

PROMPT = patient(2)
"""Seconds; a statement that waits for a lock of a user's waits as long as the transaction is open."""

PLENTY = rate(1000, burst=1000)


class User:
    """A user with an open transaction, who enqueues in it."""

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

    @contextlib.asynccontextmanager
    async def locking(self, job_id: str) -> AsyncIterator[None]:
        """This job is locked until the end of the block, as by another node that changes it."""
        await self.begin()
        try:
            table = f"{self._storage.schema}.job"
            await self.connection.execute(f"SELECT 1 FROM {table} WHERE id = $1 FOR UPDATE", job_number(job_id))
            yield
        finally:
            await self.end("rollback")


class StoresAndUsers:
    """Two nodes on one schema, each with a store of its own, and two users."""

    def __init__(self, clock: ManualClock, left: StoreUser, right: StoreUser, users: list[User]) -> None:
        self.clock = clock
        self.left = left
        self.right = right
        self.user, self.other = users

    def rule(self, **rules: Any) -> None:
        """Set the rules of both nodes."""
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
async def stores(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StoresAndUsers]:
    let_locks_be_waited_for(monkeypatch)
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
        yield StoresAndUsers(clock, left, right, [User(stores[0], connection) for connection in connections])
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
async def test_a_claim_skips_a_job_that_is_being_replaced(stores: StoresAndUsers, ends: str) -> None:
    stores.rule(api=PLENTY)
    job = await stores.add(buckets=[("api", "a")], payload='"old"')
    async with stores.user.holding(stores.unique(buckets=[("api", "a")], payload='"new"'), ends=ends):
        # Behind it in its own lane, in another lane, and in none.
        others = [
            await stores.left.add_one(buckets=[("api", "a")]),
            await stores.left.add_one(buckets=[("api", "b")]),
            await stores.left.add_one(),
        ]
        assert sorted(await promptly(stores.right.take_ids())) == sorted(others)
        # There is no polling for it, and its lane is not lost.
        claimed = await promptly(stores.right.claim())
        assert not claimed.jobs
        assert not claimed.more
        await stores.check()
    stores.clock.advance(0 if ends == "commit" else 1)
    (started,) = await stores.right.take()
    assert (started.id, started.payload) == (job, '"new"' if ends == "commit" else '"old"')
    await stores.check()


async def test_a_lane_whose_only_job_is_being_replaced_blocks_no_other_lane(stores: StoresAndUsers) -> None:
    stores.rule(api=PLENTY)
    for number in range(20):
        await stores.add(f"key-{number}", buckets=[("api", f"held-{number}")])
    replacing = [stores.unique(f"key-{number}", buckets=[("api", f"held-{number}")]) for number in range(20)]
    async with stores.user.holding(*replacing):
        others = [await stores.left.add_one(buckets=[("api", f"free-{number}")]) for number in range(5)]
        for _ in range(5):
            # One slot only, so that what is held comes first each time.
            taken = await promptly(stores.right.take_ids(1))
            assert len(taken) == 1
            others.remove(taken[0])
        assert others == []
        await stores.check()
    assert len(await stores.right.take_ids()) == 20
    await stores.check()


@pytest.mark.parametrize("most", [1, None], ids=["shared", "own"])
async def test_a_job_that_is_being_replaced_keeps_no_only_slot_from_others(
    stores: StoresAndUsers, most: int | None
) -> None:
    """The fault: it was given the slot. A worker started one job in 5 s, or none, until the transaction ended."""
    stores.rule(api=PLENTY)
    await stores.add(queue="held")
    async with stores.user.holding(stores.unique(queue="held"), ends="rollback"):
        waiting = [
            await stores.left.add_one(queue=queue, buckets=buckets)
            for queue, buckets in (("held", [("api", "a")]), ("other", [("api", "b")]), ("other", []))
            for _ in range(3)
        ]
        slots = Slots(dict.fromkeys(("held", "other"), 5 if most else 1), most)
        claimed = Claimed(jobs=(), next_in=0)
        for _ in range(60):
            # As a node does whose jobs end at once.
            if not (claimed.jobs or claimed.more):
                assert claimed.next_in is not None
                assert claimed.next_in <= SOON
            free = slots.free_slots()
            asked = Claim(
                stores.right.node, free, stores.right.rules, frozenset({"work"}), shared_slots=slots.shared_by(free)
            )
            claimed = await promptly(stores.right.storage.claim(asked))
            slots.note_claimed(free, Counter(job.queue for job in claimed.jobs))
            for job in claimed.jobs:
                waiting.remove(job.id)
            if not waiting:
                break
        assert not waiting
        await stores.check()


async def test_idle_nodes_seldom_claim_a_due_job_that_is_being_replaced(stores: StoresAndUsers) -> None:
    """The fault: each of them claimed every 20 ms for as long as the transaction was open."""
    waiting = await stores.left.add_one(delay=1)
    stores.clock.advance(1)
    async with stores.user.locking(waiting):
        began, claims = stores.clock.now(), 0
        while stores.clock.now() < began + 10 * SECOND:
            claimed = await promptly(stores.right.claim())
            claims += 1
            assert not claimed.jobs
            assert claimed.next_in
            assert claimed.next_in <= SECOND
            stores.clock.advance(claimed.next_in / SECOND)
        assert claims <= 20
    assert await stores.right.take_ids() == [waiting]
    await stores.check()


async def test_claims_of_other_queues_do_not_make_a_node_claim_a_held_job_often(stores: StoresAndUsers) -> None:
    """The fault: any job that they started ended the pause."""
    waiting = await stores.left.add_one(queue="held", delay=1)
    stores.clock.advance(1)
    async with stores.user.locking(waiting):
        for _ in range(8):
            await stores.left.add_one(queue="busy")
            claimed = await promptly(stores.right.claim(queues=("held", "busy")))
            assert [job.queue for job in claimed.jobs] == ["busy"]
            stores.clock.advance(0.02)
        assert claimed.next_in == SECOND


async def test_a_job_that_becomes_due_beside_a_held_one_and_is_locked_for_a_moment_is_claimed_again_soon(
    stores: StoresAndUsers,
) -> None:
    """The fault: another claim may lock more jobs than it takes, and the next one here came a second later."""
    held, later = await stores.left.add_one(delay=1), await stores.left.add_one(delay=10)
    stores.clock.advance(1)
    async with stores.user.locking(held):
        for _ in range(8):
            claimed = await promptly(stores.right.claim())
            assert not claimed.jobs
            assert claimed.next_in
            stores.clock.advance(min(1, claimed.next_in / SECOND))
        assert claimed.next_in == SECOND
        stores.clock.advance(8)
        async with stores.other.locking(later):
            claimed = await promptly(stores.right.claim())
            assert (list(claimed.jobs), claimed.next_in) == ([], SOON)
        assert await stores.right.take_ids() == [later]


async def test_a_job_that_was_held_as_a_slot_was_freed_is_claimed_a_second_later(stores: StoresAndUsers) -> None:
    """The fault: if the transaction was rolled back, nothing claimed the job but a sweep, after up to 30 s."""
    waiting = await stores.left.add_one()
    async with stores.user.locking(waiting):
        for _ in range(3):
            claimed = await promptly(stores.right.claim())
            assert (list(claimed.jobs), claimed.next_in) == ([], SECOND)
            stores.clock.advance(1)
    assert await stores.right.take_ids() == [waiting]
    assert (await stores.right.claim()).next_in is None


async def test_a_late_job_that_is_being_replaced_does_not_block_its_lane(stores: StoresAndUsers) -> None:
    stores.rule(api=PLENTY)
    await stores.add(buckets=[("api", "a")], expires_in=5)
    stores.clock.advance(10)
    async with stores.user.holding(stores.unique(buckets=[("api", "a")]), ends="rollback"):
        others = [await stores.left.add_one(buckets=[("api", "a")]), await stores.left.add_one(buckets=[("api", "b")])]
        assert sorted(await promptly(stores.right.take_ids())) == sorted(others)
    stores.clock.advance(1)
    assert len((await stores.right.claim()).dropped) == 1
    await stores.check()


@pytest.mark.parametrize("how", ["expires", "is rejected"])
async def test_a_job_that_is_replaced_as_a_claim_ends_it_waits_as_its_successor(
    stores: StoresAndUsers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The fault: the claim had read the job before, and ended the new one for what was wrong with the old one."""
    stores.rule(api=strict(1))
    await stores.left.succeed(*await _started(stores, [("api", "a")], 1))
    options: dict[str, Any] = {"expires_in": 5} if how == "expires" else {"patience": 0}
    job = await stores.add(buckets=[("api", "a")], **options)
    stores.clock.advance(10)
    fetch = Session.fetch
    replaced: list[str] = []

    async def meanwhile(session: Session, statement: str, /, **values: Any) -> list[Any]:
        if statement == "drop_waiting" and not replaced:
            replaced.append(job)
            assert await promptly(stores.add(buckets=[("api", "a")], delay=60, payload='"new"', **options)) == job
        return await fetch(session, statement, **values)

    monkeypatch.setattr(Session, "fetch", meanwhile)
    assert list((await promptly(stores.right.claim())).dropped) == []
    assert replaced
    record = await stores.left.record(job)
    assert (record.state, record.payload) == (JobState.WAITING, '"new"')
    await stores.check()


async def test_replacing_a_job_with_a_cost_locks_no_bucket(stores: StoresAndUsers) -> None:
    stores.rule(shared=strict(10))
    await stores.left.succeed(*await _started(stores, [("shared", "")], 1))
    job = await stores.add(buckets=[("shared", "")], costs=(7,), delay=86_400)
    async with stores.user.holding(stores.unique(buckets=[("shared", "")], delay=86_400)):
        other = await stores.left.add_one(buckets=[("shared", "")])
        assert await promptly(stores.right.take_ids()) == [other]
        assert (await stores.left.record(job)).costs == (7,)
    assert (await stores.left.record(job)).costs is None
    await stores.check()


async def test_a_bucket_that_is_closed_for_a_cost_opens_when_the_costly_job_was_replaced(
    stores: StoresAndUsers,
) -> None:
    stores.rule(shared=strict(10))
    await stores.left.succeed(*await _started(stores, [("shared", "")], 5))
    job = await stores.add(buckets=[("shared", "")], costs=(8,))
    assert await stores.left.take_ids() == []
    assert (await stores.left.bucket("shared")).opens_at is not None
    async with stores.user.holding(stores.unique(buckets=[("shared", "")])):
        assert await promptly(stores.right.take_ids()) == []
    assert await promptly(stores.right.take_ids()) == [job]
    await stores.check()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_the_permit_of_a_replaced_job_is_returned_with_the_commit(stores: StoresAndUsers, ends: str) -> None:
    stores.rule(mutex=at_once(), api=PLENTY)
    job = await stores.add(buckets=[("mutex", "a"), ("api", "x")], hold="until_final")
    await stores.left.retry_later(await stores.left.take_one(), 3600)
    waiting = await stores.left.add_one(buckets=[("mutex", "a")])
    async with stores.user.holding(
        stores.unique(buckets=[("mutex", "b"), ("api", "x")], hold="until_final"), ends=ends
    ):
        # No bucket is locked, and no other job gets the permit that the job may still hold.
        assert await promptly(stores.right.take_ids()) == []
        assert await promptly(stores.right.storage.reset(BucketRef("api", "x"))) == 0
        assert await stores.left.permits("mutex", "a") == {job: 1}
    await stores.check()
    if ends == "commit":
        taken = await stores.right.take()
        assert {each.id for each in taken} == {waiting, job}
        assert await stores.left.permits("mutex", "a") == {waiting: 1}
        assert await stores.left.permits("mutex", "b") == {job: 1}
        await stores.right.succeed(*taken)
        assert await stores.left.permits("mutex", "a") == {}
    else:
        assert await stores.right.take_ids() == []
        assert await stores.left.permits("mutex", "a") == {job: 1}
    await stores.check()


async def _started(stores: StoresAndUsers, buckets: list[tuple[str, str]], count: int) -> list[ClaimedJob]:
    await stores.left.add(count, buckets=buckets)
    jobs = await stores.left.take()
    assert len(jobs) == count
    return jobs


# -------------------------------------------------------------------------------------------------------------- endings


async def test_a_unique_job_that_gets_a_successor_delays_no_other_ending(stores: StoresAndUsers) -> None:
    """The fault: the first time, everything that had ended was waited for with it for 5 s."""
    await stores.add()
    await stores.left.add_one()
    held, other = await stores.left.take()
    async with stores.user.holding(stores.unique()):
        received = await promptly(stores.left.storage.finish(stores.left.node, list(succeeded(held, other))))
        assert list(received) == [None, True]
    await stores.left.succeed(held)
    assert len(await stores.right.take_ids()) == 1
    await stores.check()


async def test_an_ending_whose_successor_is_being_replaced_delays_no_other(stores: StoresAndUsers) -> None:
    stores.rule(mutex=at_once())
    await stores.add(payload='"first"')
    await stores.left.add(2)
    await stores.left.add_one(buckets=[("mutex", "a")])
    jobs = await stores.left.take()
    (held,) = [job for job in jobs if job.payload == '"first"']
    running = [job for job in jobs if job is not held]
    successor = await stores.add(payload='"second"')
    waiting = await stores.left.add_one(buckets=[("mutex", "a")])
    async with stores.user.holding(stores.unique(payload='"third"')):
        endings = [*failed(held), *failed(*running)]
        received = await promptly(stores.left.storage.finish(stores.left.node, endings))
        assert list(received) == [None, *[True] * len(running)]
        assert await promptly(stores.right.take_ids()) == [waiting]
        await stores.check()
    assert await stores.left.finish(*failed(held)) == [True]
    (started,) = await stores.right.take()
    assert (started.id, started.payload) == (successor, '"third"')
    await stores.check()


@pytest.mark.parametrize("how", ["finish", "recover"])
async def test_a_job_beside_which_another_is_added_delays_no_other_ending(stores: StoresAndUsers, how: str) -> None:
    """The fault: its retry waited for the transaction, and all that had ended, or the node's other jobs, with it."""
    await stores.add()
    await stores.left.add_one()
    held, other = await stores.left.take()
    beside = replace(stores.unique(), on_conflict="keep", unique_terms=UniqueTerms(while_running=False))
    again = Returned(held.id, held.fence, "failed", spent=True, run_at=None)
    async with stores.user.holding(beside):
        if how == "finish":
            received = await promptly(stores.left.storage.finish(stores.left.node, [again, *failed(other)]))
            assert list(received) == [None, True]
            with pytest.raises(JobHeld, match="to enqueue under its unique key"):
                await stores.left.storage.cancel(held.id)
        else:
            recovered = await promptly(stores.right.storage.recover(stores.left.node, 0))
            assert recovered is not None
            assert list(recovered.returned) == [other.id]
    if how == "finish":
        assert await stores.left.finish(again) == [True]
    else:
        await stores.right.storage.recover(stores.left.node, 0)
    assert (await stores.left.record(held.id)).state is JobState.CANCELLED
    assert beside.id in await stores.right.take_ids()
    await stores.check()


@pytest.mark.parametrize("while_running", [True, False])
async def test_a_retry_does_not_wait_for_a_job_that_was_rolled_back(
    stores: StoresAndUsers, monkeypatch: pytest.MonkeyPatch, while_running: bool
) -> None:
    """Between the check of the key and the insertion another job was added and started."""
    mine = replace(stores.unique(), on_conflict="keep", unique_terms=UniqueTerms(while_running=while_running))
    fetch = Session.fetch
    came: list[ClaimedJob] = []

    async def meanwhile(session: Session, statement: str, /, **values: Any) -> list[Any]:
        rows = await fetch(session, statement, **values)
        if statement == "jobs_under_keys" and session._connection is stores.user.connection and not came:
            await stores.left.storage.add([replace(stores.unique(), on_conflict="keep")])
            came.append(await stores.left.take_one())
        return rows

    monkeypatch.setattr(Session, "fetch", meanwhile)
    async with stores.user.holding(mine):
        (job,) = came
        ending = Returned(job.id, job.fence, "failed", spent=True, run_at=None)
        written = list(await promptly(stores.left.storage.finish(stores.left.node, [ending])))
        assert written == [True if while_running else None]
    assert await stores.right.take_ids() == [job.id if while_running else mine.id]
    await stores.check()


# ------------------------------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("successor", ["added", "replaced"])
@pytest.mark.parametrize("lost", [0, 2])
async def test_the_other_jobs_of_a_dead_node_are_recovered_immediately(
    stores: StoresAndUsers, successor: str, lost: int
) -> None:
    stores.rule(mutex=at_once())
    held = await stores.add()
    others = [await stores.left.add_one(buckets=[("mutex", "a")]), await stores.left.add_one()]
    for _ in range(lost):
        await stores.left.take()
        await stores.left.storage.beat("node-b")
        assert await stores.right.storage.recover(stores.left.node, 0) is not None
        await stores.left.storage.join(stores.left.node, "a")
    assert len(await stores.left.take()) == 3
    if successor == "replaced":
        await stores.add()
    async with stores.user.holding(stores.unique()):
        recovered = await promptly(stores.right.storage.recover(stores.left.node, 0))
        assert recovered is not None
        assert sorted([*recovered.returned, *recovered.poisonous]) == sorted(others)
        assert len(recovered.poisonous) == (2 if lost else 0)
        # It is dead for itself and for all others, and the remaining jobs are not reported again.
        assert not (await promptly(stores.left.storage.beat(stores.left.node))).known
        (left,) = [node for node in await stores.right.storage.nodes() if node.id == stores.left.node]
        assert left.is_gone
        assert left.running == 1
        assert await promptly(stores.right.storage.recover(stores.left.node, 0)) is None
        assert (await promptly(stores.left.claim())).jobs == ()
        await stores.check()
    last = await stores.right.storage.recover(stores.left.node, 0)
    assert last is not None
    # Its successor runs instead of it.
    assert [*last.returned] == []
    assert (await stores.left.record(held)).state is (JobState.FAILED if lost else JobState.CANCELLED)
    assert [node.id for node in await stores.right.storage.nodes()] == [stores.right.node]
    await stores.check()


async def test_a_node_leaves_without_a_locked_job_which_is_recovered_without_spending_an_attempt(
    stores: StoresAndUsers,
) -> None:
    held = await stores.add()
    other = await stores.left.add_one()
    await stores.left.take()
    async with stores.user.holding(stores.unique(), ends="rollback"):
        left = await promptly(stores.left.storage.leave(stores.left.node))
        assert list(left.returned) == [other]
    recovered = await stores.right.storage.recover(stores.left.node, 0)
    assert recovered is not None
    assert list(recovered.returned) == [held]
    record = await stores.left.record(held)
    assert (record.attempt, record.lost) == (0, 0)
    assert await stores.left.storage.lost_nodes(20) == []
    await stores.check()


async def test_a_dead_node_is_listed_with_the_jobs_that_were_returned_later(stores: StoresAndUsers) -> None:
    await stores.add()
    await stores.left.add_one()
    await stores.left.take()
    await stores.left.storage.beat("node-b")
    async with stores.user.holding(stores.unique(), ends="rollback"):
        assert await promptly(stores.right.storage.recover(stores.left.node, 0)) is not None
        assert [node.returned for node in await stores.right.storage.lost_nodes(20)] == [1]
    assert await stores.right.storage.recover(stores.left.node, 0) is not None
    assert [node.returned for node in await stores.right.storage.lost_nodes(20)] == [2]


# -------------------------------------------------------------------------------------- jobs whose followers are locked


async def _followed(stores: StoresAndUsers, **options: Any) -> tuple[str, str]:
    """A waiting job, and one that follows it."""
    leader = await stores.left.add_one(**options)
    follower = replace(stores.left.new(), origin=Origin(follows=leader))
    await stores.left.storage.add([follower])
    return leader, follower.id


@pytest.mark.parametrize("how", ["expire", "claim"])
async def test_a_late_job_whose_follower_is_locked_delays_no_other_ending(stores: StoresAndUsers, how: str) -> None:
    stores.rule(api=PLENTY)
    leader, follower = await _followed(stores, buckets=[("api", "a")], expires_in=5)
    other = await stores.left.add_one(buckets=[("api", "a")], expires_in=5)
    stores.clock.advance(10)

    async def end() -> list[str]:
        if how == "expire":
            return [dropped.id for dropped in await promptly(stores.right.storage.expire())]
        return [dropped.id for dropped in (await promptly(stores.right.claim())).dropped]

    async with stores.user.locking(follower):
        assert await end() == [other]
        assert await end() == []
        await stores.check()
    stores.clock.advance(1)
    assert await end() == [leader]
    assert (await stores.left.record(follower)).state is JobState.CANCELLED
    await stores.check()


@pytest.mark.parametrize("locked", ["the job", "its follower"])
async def test_a_rejected_job_that_is_locked_delays_no_other(stores: StoresAndUsers, locked: str) -> None:
    """The fault: each claim met it again, and started nothing as long as the transaction was open."""
    stores.rule(api=strict(1), plenty=PLENTY)
    await _started(stores, [("api", "a")], 1)
    if locked == "the job":
        job = await stores.add(buckets=[("api", "a")], patience=0)
        holding = stores.user.holding(stores.unique(buckets=[("api", "a")], patience=0), ends="rollback")
    else:
        job, follower = await _followed(stores, buckets=[("api", "a")], patience=0)
        holding = stores.user.locking(follower)
    async with holding:
        other = await stores.left.add_one(buckets=[("plenty", "b")])
        assert await promptly(stores.right.take_ids()) == [other]
        await stores.check()
    stores.clock.advance(1)
    assert [dropped.id for dropped in (await stores.right.claim()).dropped] == [job]
    await stores.check()


async def test_a_job_is_cancelled_once_its_follower_is_unlocked_and_locks_nothing_meanwhile(
    stores: StoresAndUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing, is_over = asyncio.Event(), asyncio.Event()

    async def pause(clock: Clock, seconds: float) -> None:
        pausing.set()
        await is_over.wait()

    monkeypatch.setattr(postgres_storage, "sleep", pause)
    stores.rule(shared=strict(10))
    leader, follower = await _followed(stores, buckets=[("shared", "")], costs=(2,))
    async with stores.user.locking(follower):
        cancelling = asyncio.create_task(stores.left.storage.cancel(leader))
        # Before that it has locked the leader for a moment, and a claim would skip that job for a second.
        await promptly(pausing.wait())
        other = await stores.left.add_one(buckets=[("shared", "")])
        assert set(await promptly(stores.right.take_ids())) == {leader, other}
        assert not cancelling.done()
    is_over.set()
    # It runs by now, and its node gets the cancellation.
    assert await cancelling is JobState.RUNNING
    await stores.check()


# ------------------------------------------------------------------------------------------------- operators, upkeep


async def test_however_many_late_jobs_are_being_replaced_the_others_expire(stores: StoresAndUsers) -> None:
    """The fault: the same hundred were looked at each time, and had in vain."""
    keys = [f"key-{number}" for number in range(120)]
    await stores.left.storage.add([stores.unique(key, expires_in=5) for key in keys])
    last = await stores.left.add_one(expires_in=6)
    stores.clock.advance(10)
    async with stores.user.holding(*(stores.unique(key, expires_in=60) for key in keys)):
        assert [dropped.id for dropped in await promptly(stores.right.storage.expire())] == [last]
        assert list(await promptly(stores.right.storage.expire())) == []
    assert list(await stores.right.storage.expire()) == []
    await stores.check()


@pytest.mark.parametrize("verb", ["cancel", "run_now", "reschedule"])
async def test_an_operator_who_waits_for_a_locked_job_delays_no_other(stores: StoresAndUsers, verb: str) -> None:
    stores.rule(shared=strict(10))
    await stores.left.succeed(*await _started(stores, [("shared", "")], 1))
    job = await stores.add(buckets=[("shared", "")], costs=(2,), delay=3600)
    async with stores.user.holding(stores.unique(buckets=[("shared", "")], costs=(2,), delay=3600)):
        options = {"priority": 1} if verb == "reschedule" else {}
        waiting = asyncio.create_task(getattr(stores.left.storage, verb)(job, **options))
        await becomes(lambda: _waiters(stores), 1)
        other = await stores.left.add_one(buckets=[("shared", "")])
        assert await promptly(stores.right.take_ids()) == [other]
    # It waits for a second.
    with contextlib.suppress(JobHeld):
        assert await waiting is JobState.WAITING
    await stores.check()


async def test_an_operator_who_waits_for_a_unique_key_locks_no_bucket(stores: StoresAndUsers) -> None:
    stores.rule(mutex=at_once(), shared=strict(10))
    buckets = [("mutex", "a"), ("shared", "")]
    job = await stores.add(buckets=buckets, hold="until_success", costs=(1, 1))
    await stores.left.fail(await stores.left.take_one())
    async with stores.user.holding(stores.unique(buckets=[("shared", "")])):
        waiting = asyncio.create_task(stores.left.storage.retry(job))
        await becomes(lambda: _waiters(stores), 1)
        other = await stores.left.add_one(buckets=[("shared", "")])
        assert await promptly(stores.right.take_ids()) == [other]
        assert await promptly(stores.right.storage.reset(BucketRef("mutex", "b"))) == 0
    await _until_done(stores, waiting)
    with pytest.raises((IllegalTransition, JobHeld)):
        await waiting
    await stores.check()


async def test_jobs_are_retried_together_without_those_that_are_locked(
    stores: StoresAndUsers, postgres_schema: str
) -> None:
    ids = await stores.left.add(3)
    for id in ids:
        await stores.left.storage.cancel(id)
    user = stores.user.connection
    async with user.transaction():
        await user.execute(f"SELECT 1 FROM {postgres_schema}.job WHERE id = $1 FOR UPDATE", job_number(ids[1]))
        assert await promptly(stores.right.storage.retry_lone(ids)) == [ids[0], ids[2]]
    assert await stores.right.storage.retry_lone(ids) == [ids[1]]
    assert sorted(await stores.left.take_ids()) == ids
    await stores.check()


@pytest.mark.parametrize("verb", ["cancel", "run_now", "reschedule", "retry"])
async def test_the_error_of_a_locked_job_names_the_session_that_locks_it(stores: StoresAndUsers, verb: str) -> None:
    job = await stores.add(delay=3600)
    if verb == "retry":
        await stores.left.storage.cancel(job)
    async with stores.user.holding(stores.unique(delay=3600), ends="rollback"):
        options = {"priority": 1} if verb == "reschedule" else {}
        with pytest.raises(JobHeld, match=job):
            await promptly(getattr(stores.left.storage, verb)(job, **options))
    await getattr(stores.left.storage, verb)(job, **({"priority": 1} if verb == "reschedule" else {}))
    await stores.check()


async def test_of_many_jobs_those_that_are_being_replaced_are_left_and_counted(stores: StoresAndUsers) -> None:
    held = await stores.add()
    others = await stores.left.add(3)
    async with stores.user.holding(stores.unique(), ends="rollback"):
        result = await change_many(
            stores.left.storage,
            JobQuery(),
            CANCEL,
            stores.left.storage.cancel,
            most=100,
            dry_run=False,
            on_progress=None,
        )
        assert result.changed == 3
        assert list(result.refused.values()) == [1]
    assert await stores.left.states([held, *others]) == [JobState.WAITING] + [JobState.CANCELLED] * 3
    await stores.check()


async def test_a_batch_is_cancelled_except_jobs_that_are_locked(stores: StoresAndUsers) -> None:
    """The fault: the first of them raised, and nothing after it was cancelled, however often it was tried."""
    in_batch = Origin(batch="batch-1")
    jobs = [replace(stores.left.new(), origin=in_batch) for _ in range(50)]
    await stores.left.storage.add(jobs, [NewBatch("batch-1", len(jobs), stores.clock.now())])
    async with stores.user.locking(jobs[5].id):
        result = await _cancel_batch(stores)
        assert (result.matched, result.changed) == (50, 49)
        assert result.refused == {"another open transaction has locked it": 1}
        await stores.check()
    result = await _cancel_batch(stores)
    assert (result.changed, result.refused) == (1, {})
    assert set(await stores.left.states([job.id for job in jobs])) == {JobState.CANCELLED}
    await stores.check()


async def test_a_step_that_is_locked_is_left_with_what_its_cancellation_waits_for(
    stores: StoresAndUsers,
) -> None:
    in_batch = Origin(batch="batch-1")
    leader = replace(stores.left.new(), origin=in_batch)
    step = replace(stores.left.new(), origin=replace(in_batch, follows=leader.id, on="final"))
    other = replace(stores.left.new(), origin=in_batch)
    other_step = replace(stores.left.new(), origin=replace(in_batch, follows=other.id, on="final"))
    jobs = [leader, step, other, other_step]
    await stores.left.storage.add(jobs, [NewBatch("batch-1", 4, stores.clock.now())])
    async with stores.user.locking(step.id):
        cancelling = asyncio.create_task(_cancel_batch(stores))
        await _until_done(stores, cancelling)
        result = await cancelling
        assert (result.changed, result.refused) == (2, {"another open transaction has locked it": 2})
        states = [JobState.WAITING, JobState.WAITING, JobState.CANCELLED, JobState.CANCELLED]
        assert await stores.left.states([job.id for job in jobs]) == states
        assert (await stores.left.record(step.id)).is_blocked
        await stores.check()
    assert (await _cancel_batch(stores)).changed == 2
    assert set(await stores.left.states([job.id for job in jobs])) == {JobState.CANCELLED}
    await stores.check()


async def _cancel_batch(stores: StoresAndUsers) -> BulkResult:
    storage = stores.left.storage
    return await cancel_batch(
        storage, "batch-1", storage.cancel, lambda job_id: AuditRecord("test", "cancel", "job", job_id)
    )


async def _waiters(stores: StoresAndUsers) -> int:
    return await waiting_statements(stores.other.connection)


async def test_a_backlog_is_moved_except_jobs_that_are_being_replaced(stores: StoresAndUsers) -> None:
    stores.rule(api=PLENTY)
    held = await stores.add(buckets=[("api", "a")])
    other = await stores.left.add_one(buckets=[("api", "a")])
    gated = {job.id: job for job in await stores.left.storage.gated_jobs(frozenset({"work"}))}
    moves = [LimitSetChange(id, gated[id].buckets, (BucketRef("api", "b"),), None, None) for id in (held, other)]
    async with stores.user.holding(stores.unique(buckets=[("api", "a")]), ends="rollback"):
        assert await promptly(stores.right.storage.change_limit_sets(moves)) == 1
        assert (await stores.left.record(other)).buckets == (BucketRef("api", "b"),)
    assert await stores.right.storage.change_limit_sets(moves) == 1
    await stores.check()


async def test_a_reset_does_not_wait_for_permits_of_a_job_that_is_being_replaced(stores: StoresAndUsers) -> None:
    stores.rule(slots=at_once(2))
    held = await stores.add(buckets=[("slots", "")], hold="until_final")
    other = await stores.left.add_one(buckets=[("slots", "")], hold="until_final")
    for job in await stores.left.take():
        await stores.left.retry_later(job, 3600)
    async with stores.user.holding(stores.unique(buckets=[("slots", "")], hold="until_final", delay=60)):
        assert await promptly(stores.right.storage.reset(BucketRef("slots", ""))) == 1
        assert await stores.left.permits("slots") == {held: 1}
    assert await stores.right.storage.reset(BucketRef("slots", "")) == 0
    assert (await stores.left.record(other)).held == 0
    await stores.check()


async def test_waiting_for_a_unique_key_does_not_block_other_keys(stores: StoresAndUsers) -> None:
    """The fault: each had a connection for as long as it waited, and when half of them had none was left for others."""
    keys = [f"key-{number}" for number in range(6)]
    async with stores.user.holding(*(stores.unique(key) for key in keys)):
        waiting = [asyncio.create_task(stores.right.storage.add([stores.unique(key)])) for key in keys]
        await becomes(lambda: _is_waited_for(stores), True)
        for number in range(3):
            other = stores.unique(f"other-{number}")
            assert await promptly(stores.right.storage.add([other])) == {}
        assert not any(task.done() for task in waiting)
    for task in waiting:
        await _until_done(stores, task)
        assert len(await task) == 1
    await stores.check()


async def _until_done(stores: StoresAndUsers, task: asyncio.Task[Any]) -> None:
    """The time of the store advances only on request, and so does the pause before a retry."""
    while not task.done():
        stores.clock.advance(0.05)
        await asyncio.sleep(0.01)


async def _is_waited_for(stores: StoresAndUsers) -> bool:
    return bool(await _waiters(stores))


async def test_an_enqueue_with_a_locked_key_fails_in_time_with_the_reason(stores: StoresAndUsers) -> None:
    async with stores.user.holding(stores.unique()):
        adding = asyncio.create_task(stores.right.storage.add([stores.unique()]))
        await _until_done(stores, adding)
        with pytest.raises(StorageUnavailable, match="lock"):
            await adding


async def test_an_occurrence_after_a_job_that_is_locked_delays_no_other_schedule(stores: StoresAndUsers) -> None:
    """The fault: while a handler's transaction that completes its job was open, no schedule was fired."""
    own = ScheduleUser(stores.left, stores.clock)
    await own.put("queue", overlap="queue")
    await own.put("other")
    (first,) = await own.fire("queue", next_in=0)
    (running,) = await stores.left.take()
    await stores.user.begin()
    assert await stores.left.storage.complete_in(stores.user.connection, running.id, running.fence)
    held, other = own.fired(await own.read("queue")), own.fired(await own.read("other"))
    job = replace(held.jobs[0], origin=Origin(follows=first.id, on="final", schedule="queue"))
    held = replace(held, jobs=[job])
    assert await promptly(stores.left.storage.fire([held, other])) == [False, True]
    await stores.user.end()
    assert await promptly(stores.left.storage.fire([held])) == [True]
    await stores.check()


async def test_a_schedule_is_not_triggered_while_the_job_that_it_would_follow_is_locked(
    postgres_url: str, postgres_schema: str
) -> None:
    """The fault: `trigger` tried again without a pause, as long as a handler's transaction had completed that job."""
    app = Headgate(postgres_url, schema=postgres_schema)

    @app.task
    async def work() -> None: ...

    async with app.open(), connected(postgres_url) as connection:
        schedule = await work.schedule("nightly", Every(hours=24), overlap="queue").enqueue()
        first = await schedule.trigger()
        table = f'"{postgres_schema}".job'
        async with connection.transaction():
            await connection.execute(f"SELECT 1 FROM {table} WHERE id = $1 FOR UPDATE", job_number(first.id))
            with pytest.raises(JobHeld, match=f"'nightly' was not triggered.* locked its job {first.id}"):
                async with asyncio.timeout(patient(10)):
                    await schedule.trigger()
        second = await schedule.trigger()
        assert (await second.status()).follows == first.id
        assert (await schedule.status()).open == 2


async def test_pruning_deletes_other_jobs_than_those_that_another_node_deletes(stores: StoresAndUsers) -> None:
    """The fault: all nodes chose the same jobs, so that all but one deleted nothing, as if none were left."""
    for _ in range(6):
        await stores.left.add_one()
    jobs = await stores.left.take()
    assert await stores.left.finish(*succeeded(*jobs)) == [True] * 6
    stores.clock.advance(60)
    before = stores.clock.now()
    async with stores.user.locking(jobs[0].id), stores.other.locking(jobs[3].id):
        assert [await stores.left.storage.prune(before, 2) for _ in range(3)] == [2, 2, 0]
    assert await stores.right.storage.prune(before, 6) == 2
    await stores.check()
