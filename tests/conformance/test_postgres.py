"""PostgreSQL keeps the promises of every store, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headgate.errors import StorageLost
from headgate.jobs.job import NewJob
from headgate.storage.driver import Transaction
from headgate.storage.postgres import claimer, low_watermarks
from headgate.storage.postgres import storage as postgres_storage
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite import StorageConformance
from tests.conformance.storage_suite.fair_queues import ORDER, turns
from tests.conformance.storage_suite.schedules import ScheduleUser
from tests.conformance.storage_suite.store_user import StoreUser, beat_of, rate
from tests.kept_pools import KeptPools


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def kept_pools() -> AsyncIterator[KeptPools]:
    pools = KeptPools()
    yield pools
    await pools.close()


@pytest.mark.slow
class TestPostgresStorage(StorageConformance):
    @pytest_asyncio.fixture(loop_scope="class")
    async def storage(  # type: ignore[override]  # a fixture takes what it needs
        self,
        clock: ManualClock,
        postgres_url: str,
        postgres_schema: str,
        kept_pools: KeptPools,
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncIterator[Store]:
        monkeypatch.setattr(asyncpg, "create_pool", kept_pools.create)
        storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
        await storage.open()
        yield storage
        await storage.close()

    @pytest.mark.parametrize("limits", [(), (ORDER,)], ids=["plain", "fair"])
    async def test_no_lane_is_put_where_claims_on_a_slow_server_do_not_read(
        self, store_user: StoreUser, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, limits: tuple[str, ...]
    ) -> None:
        """The fault: a key of a fair queue that came back got a place that claims had passed, and waited a second."""
        monkeypatch.setattr(low_watermarks, "SLOW", -1)
        store_user.rules = {**(turns() if limits else {}), "calls": rate(1, per=0.2, burst=1)}
        others = [(limit, "a") for limit in limits]

        taken = 0
        for _ in range(10):
            clock.advance(0.3)
            # Its line was empty. The second job waits for the budget, and the third one for its time.
            await store_user.add(2, buckets=[("calls", "a"), *others])
            await store_user.add(buckets=[("calls", "later"), *others], delay=0.2)
            taken += len(jobs := await store_user.take(5))
            await store_user.succeed(*jobs)
            clock.advance(0.3)
            taken += len(jobs := await store_user.take(5))
            await store_user.succeed(*jobs)
            assert len(jobs) == 2
        assert taken == 30

    async def test_claims_of_a_fair_queue_share_a_snapshot_until_a_key_comes_again(
        self, store_user: StoreUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = 0
        read = claimer.Claimer._try_read_snapshot

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*args, **options)

        monkeypatch.setattr(claimer.Claimer, "_try_read_snapshot", counted)
        store_user.rules = turns()
        keys = [str(number) for number in range(40)]
        for key in keys * 3:
            await store_user.add(1, buckets=[(ORDER, key)])
        found = [(await store_user.take_one()).buckets[-1].key for _ in range(120)]
        assert [sorted(found[each : each + 40]) for each in (0, 40, 80)] == [sorted(keys)] * 3
        assert reads < 15

    async def test_a_process_asks_once_about_the_types_of_a_server(
        self, clock: ManualClock, postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fault: each session asked about bigint[] and others, in three statements for each set of them."""
        asked: list[Any] = []
        ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]  # not in the stubs

        async def noted(connection: Any, types: Any, timeout: float | None) -> Any:
            asked.append(types)
            return await ask(connection, types, timeout)

        async def use() -> None:
            storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True)
            await storage.open()
            user = StoreUser(storage, clock)
            user.rules = {"calls": rate(10, burst=10)}
            await user.add(3, buckets=[("calls", "a")])
            await user.succeed(*await user.take(3))
            await storage.close()

        await use()
        monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
        await use()
        assert asked == []

    async def test_a_backlog_on_many_keys_starts_while_its_arrivals_are_merged(
        self, store_user: StoreUser, postgres_url: str, postgres_schema: str
    ) -> None:
        """The fault: each claim first merged 10,000 arrivals, which took seconds, for the 100 jobs that it started."""
        keys = 2000
        store_user.rules = {"calls": rate(10_000, burst=10_000)}
        await store_user.storage.add([store_user.new(buckets=[("calls", f"{number}")]) for number in range(keys)])
        lone = await store_user.add_one(buckets=[("calls", "lone")], queue="other")
        connection = await asyncpg.connect(postgres_url)
        try:
            unmerged = f'SELECT count(*) FROM "{postgres_schema}".arrival'
            started = [*(await store_user.claim(10)).jobs]
            assert len(started) == 10
            assert await connection.fetchval(unmerged) == keys + 1 - claimer.FIRST_PORTION
            # A job of another queue does not wait until all arrivals before it are merged.
            started += (await store_user.claim(10, queues=("default", "other"))).jobs
            assert lone in {job.id for job in started}
            assert await connection.fetchval(unmerged) > 0
        finally:
            await connection.close()
        while jobs := await store_user.take(200):
            started += jobs
        await store_user.succeed(*started)
        assert len({job.id for job in started}) == len(started) == keys + 1

    async def test_a_merge_writes_a_lane_once_for_all_its_jobs(
        self, store_user: StoreUser, postgres_url: str, postgres_schema: str
    ) -> None:
        """The fault: where keys take turns in a backlog, each merge wrote as many lanes as it merged jobs."""
        keys, each = 600, 5
        store_user.rules = {"calls": rate(10_000, burst=10_000)}
        for _ in range(each):
            await store_user.storage.add([store_user.new(buckets=[("calls", f"{key}")]) for key in range(keys)])
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute(
                f"""
                SET search_path = "{postgres_schema}";
                CREATE TABLE written (lane text);
                CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN INSERT INTO "{postgres_schema}".written VALUES (new.id); RETURN NULL; END $$;
                CREATE TRIGGER note_write AFTER INSERT OR UPDATE ON lane FOR EACH ROW EXECUTE FUNCTION note_write();
                """
            )
            started = [*(await store_user.claim(10)).jobs]
            assert len(started) == 10
            assert await connection.fetchval("SELECT count(*) FROM arrival") == (keys - claimer.FIRST_PORTION) * each
            visited = len({job.buckets for job in started})
            assert await connection.fetchval("SELECT count(*) FROM written") == claimer.FIRST_PORTION + visited
            while jobs := await store_user.take(1000):
                started += jobs
            await store_user.succeed(*started)
            assert len({job.id for job in started}) == len(started) == keys * each
            # A merge, and a claim for every four jobs that start.
            assert await connection.fetchval("SELECT count(*) FROM written") <= keys * (1 + each)
        finally:
            await connection.close()

    async def test_a_claim_is_kept_while_one_of_its_jobs_runs(
        self, store_user: StoreUser, clock: ManualClock, postgres_url: str, postgres_schema: str
    ) -> None:
        connection = await asyncpg.connect(postgres_url)
        storage = store_user.storage

        async def kept(started_since: int = 0) -> list[int]:
            """How many jobs each claim has that is kept after a heartbeat."""
            await storage.beat(store_user.node, started_since=started_since)
            return [
                len(row["jobs"])
                for row in await connection.fetch(f'SELECT jobs FROM "{postgres_schema}".claim ORDER BY id')
            ]

        try:
            await store_user.add(3)
            first, second, third = await store_user.take()
            assert await kept() == [3]
            await store_user.succeed(first)
            await store_user.retry_later(second)
            assert await kept() == [3]
            # Two claims have the job that starts again; it is counted once.
            clock.advance(10)
            again = await store_user.take_one()
            assert again.id == second.id
            assert await kept() == [3, 1]
            assert (await store_user.counts()).running == 2
            assert set((await storage.beat(store_user.node)).owned) == {second.id, third.id}
            await store_user.succeed(third)
            # It runs, though not since the first claim: a claim does not say by which of its starts.
            assert await kept() == [3, 1]
            await store_user.succeed(again)
            assert await kept(clock.now()) == [3]
            assert await kept() == []
            # A claim that starts no job keeps none.
            assert await store_user.take() == []
            assert await kept() == []
        finally:
            await connection.close()

    async def test_the_claims_of_a_node_go_with_it(
        self, store_user: StoreUser, postgres_url: str, postgres_schema: str
    ) -> None:
        storage = store_user.storage
        connection = await asyncpg.connect(postgres_url)
        claims = f'SELECT count(*) FROM "{postgres_schema}".claim'
        try:
            await storage.join("node-b", "b")
            await store_user.add(2)
            (job,) = await store_user.take(1)
            await store_user.succeed(job)
            await store_user.take(1, node="node-b")
            assert await connection.fetchval(claims) == 2
            await storage.leave("node-b")
            assert await connection.fetchval(claims) == 1
            # What is left of a node that somebody has deleted is no contradiction, and goes at the next look.
            await connection.execute(f"DELETE FROM \"{postgres_schema}\".node WHERE id = '{store_user.node}'")
            assert await storage.check() == []
            await storage.join("node-c", "c")
            assert await storage.add_missing_nodes() == 1
            (dead,) = [peer for peer in (await storage.node_update("node-c")).peers if peer.is_gone]
            await storage.recover(dead.id, dead.beat)
            assert await connection.fetchval(claims) == 0
            assert await storage.add_missing_nodes() == 0
        finally:
            await connection.close()

    @pytest.mark.parametrize("known", ["left", "dead"])
    async def test_jobs_that_were_locked_when_their_node_went_are_not_those_of_a_node_that_dies_now(
        self, store_user: StoreUser, postgres_url: str, postgres_schema: str, known: str
    ) -> None:
        """The fault: a worker that had left was counted as dead, and one that had died was counted twice."""
        storage = store_user.storage
        await storage.join("node-b", "b")
        await store_user.add()
        job = await store_user.take_one(node="node-b")
        beat = await beat_of(store_user, "node-b")
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await connection.execute(f"SELECT FROM \"{postgres_schema}\".job WHERE state = 'running' FOR UPDATE")
                if known == "left":
                    assert not (await storage.leave("node-b")).returned
                else:
                    died = await storage.recover("node-b", beat)
                    assert died is not None
                    assert (died.known, list(died.returned)) == (None, [])
        finally:
            await connection.close()
        recovered = await storage.recover("node-b", beat)
        assert recovered is not None
        assert (recovered.known, list(recovered.returned)) == (known, [job.id])

    async def test_each_of_several_enqueues_that_fail_together_raises_its_own_error(
        self, store_user: StoreUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fails(tx: Transaction, jobs: Sequence[NewJob]) -> None:
            raise StorageLost("gone")

        monkeypatch.setattr(postgres_storage, "add_new_jobs", fails)
        adds = (store_user.storage.add([store_user.new()]) for _ in range(5))
        errors = await asyncio.gather(*adds, return_exceptions=True)
        assert {str(error) for error in errors} == {"gone"}
        assert len({id(error) for error in errors}) == 5

    async def test_arrivals_wake_nodes_until_they_are_merged(self, store_user: StoreUser) -> None:
        """The fault: where a notification was lost, a job was found by the next poll, which is five seconds apart."""
        assert not (await store_user.storage.node_update()).has_arrived
        await store_user.add()
        assert (await store_user.storage.node_update()).has_arrived
        job = await store_user.take_one()
        assert not (await store_user.storage.node_update()).has_arrived
        await store_user.succeed(job)

    async def test_rows_about_removed_schedules_are_deleted(
        self, store_user: StoreUser, clock: ManualClock, postgres_url: str, postgres_schema: str
    ) -> None:
        """The fault: jobs that ended after their schedule was removed left a row each that nobody ever deleted."""
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire(jobs=3)
        await store_user.storage.remove_schedule("s")
        await own.put("kept")
        await own.fire("kept", jobs=2)
        await store_user.succeed(*await store_user.take())
        connection = await asyncpg.connect(postgres_url)
        try:
            count = f'SELECT count(*) FROM "{postgres_schema}".schedule_note'
            assert await connection.fetchval(count) == 5
            table = f"'\"{postgres_schema}\".schedule'::regclass::oid::integer"
            # A schedule is not stored while they are forgotten,
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({table}, 0)")
                putting = asyncio.create_task(own.put("new"))
                asking = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                while not await connection.fetchval(f"{asking} AND classid::integer = {table}"):
                    assert not putting.done()
            await putting
            # and they are not forgotten while one is stored.
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock_shared({table}, 0)")
                await store_user.storage.evict()
                assert await connection.fetchval(count) == 5
            await store_user.storage.evict()
            assert await connection.fetchval(count) == 2
        finally:
            await connection.close()
