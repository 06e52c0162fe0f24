"""PostgreSQL on a pool of the user's: the same promises, and his connections stay as he made them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headgate import Headgate, StrictRate
from headgate.errors import DeclarationError, HeadgateError, StorageUnavailable, StorageUnusable
from headgate.jobs.event import Event, StorageFailed
from headgate.storage.postgres import database, lent_pool
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.store import Store
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.bounds import BoundsConformance
from tests.conformance.storage_suite.budgets import BudgetsConformance
from tests.conformance.storage_suite.following import FollowingConformance
from tests.conformance.storage_suite.nodes import NodesConformance
from tests.conformance.storage_suite.store_user import Conformance
from tests.internals import store_of
from tests.until import result_within, until

pytestmark = pytest.mark.slow  # the suite runs on a pool of our own in test_postgres


@contextlib.asynccontextmanager
async def new_pool(url: str) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with asyncpg.create_pool(url, min_size=0, max_size=6) as pool:
        yield pool


@pytest_asyncio.fixture
async def pool(postgres_url: str) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with new_pool(postgres_url) as pool:
        yield pool


class OnLentPool(Conformance):
    @pytest_asyncio.fixture(loop_scope="class")
    async def pool(self, postgres_url: str) -> AsyncIterator[asyncpg.Pool[Any]]:
        async with new_pool(postgres_url) as pool:
            yield pool

    @pytest_asyncio.fixture(loop_scope="class")
    async def storage(  # type: ignore[override]  # a fixture takes what it needs
        self, clock: ManualClock, postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any]
    ) -> AsyncIterator[Store]:
        storage = PostgresStorage(postgres_url, clock, schema=postgres_schema, own_time=True, pool=pool)
        await storage.open()
        yield storage
        await storage.close()


class TestPostgresStorageOnLentPool(OnLentPool):
    """What a lent pool changes: who gives connections, transactions, the types of values, several callers at once."""

    test_a_budget = BudgetsConformance.test_a_key_uses_its_budget_and_then_waits_for_its_next_slot
    test_several_limits = BudgetsConformance.test_several_limits_open_together_or_not_at_all
    test_large_values = BoundsConformance.test_a_job_may_be_of_the_last_instant
    test_options = BoundsConformance.test_a_job_keeps_the_longest_timeout_and_delays
    test_changes_at_once = NodesConformance.test_changes_of_a_node_at_the_same_time_are_all_kept
    test_recovery_at_once = NodesConformance.test_two_nodes_that_notice_a_death_recover_the_jobs_once
    test_a_refused_change = NodesConformance.test_a_change_that_is_refused_changes_nothing
    test_many_rows = (
        FollowingConformance.test_a_leader_with_more_followers_than_one_commit_releases_has_all_of_them_released
    )
    test_a_repeated_addition = FollowingConformance.test_an_addition_may_be_repeated
    test_a_refused_removal = FollowingConformance.test_a_limit_that_a_blocked_job_uses_is_in_use


@pytest.mark.nightly
class TestAllOfPostgresStorageOnLentPool(
    OnLentPool, BudgetsConformance, BoundsConformance, NodesConformance, FollowingConformance
):
    """The whole groups, which are the same statements as on a pool of our own."""


def app_on(url: str, schema: str, pool: object) -> tuple[Headgate, list[int]]:
    app, runs = Headgate(url, schema=schema, pool=pool, migrate=True), list[int]()

    @app.task(limits=[StrictRate("1000/s", key="{number}")])
    async def work(number: int) -> None:
        runs.append(number)

    return app, runs


async def test_jobs_run_on_a_lent_pool_which_stays_open_and_as_it_was(
    postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any]
) -> None:
    settings = "SELECT name, setting FROM pg_settings WHERE name IN ('enable_seqscan', 'jit', 'lock_timeout')"
    before = await pool.fetch(settings)
    app, runs = app_on(postgres_url, postgres_schema, pool)
    async with app:
        jobs = await app.tasks["work"].enqueue_many([(number,) for number in range(50)])
        await asyncio.gather(*(result_within(job, 20) for job in jobs))
        async with store_of(app).transaction() as connection:
            assert await connection.fetchval("SELECT 1") == 1
        facts = await store_of(app).facts()
        assert facts.connections == 6  # type: ignore[union-attr]
    assert sorted(runs) == list(range(50))
    assert not pool.is_closing()
    await until(lambda: pool.get_idle_size() == pool.get_size())
    held = [await pool.acquire() for _ in range(6)]
    for connection in held:
        assert await connection.fetch(settings) == before
        assert not await connection.fetch("SELECT * FROM pg_listening_channels()")
        await pool.release(connection)


async def test_changes_of_another_process_wake_a_node_on_a_lent_pool(
    postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any]
) -> None:
    app, runs = app_on(postgres_url, postgres_schema, pool)
    other, _ = app_on(postgres_url, postgres_schema, None)
    async with app, other.open():
        assert store_of(app)._wake_ups.is_listening  # type: ignore[attr-defined]
        await other.tasks["work"].enqueue(7)
        await until(lambda: runs == [7])


async def test_a_function_makes_the_pool_which_is_closed_with_the_app(postgres_url: str, absent_schema: str) -> None:
    made: list[asyncpg.Pool[Any]] = []

    async def make_pool() -> asyncpg.Pool[Any]:
        made.append(await asyncpg.create_pool(postgres_url, min_size=0, max_size=4))
        return made[-1]

    app, runs = app_on(postgres_url, absent_schema, make_pool)
    assert await app.migrate(dry_run=True)
    for number in range(2):
        async with app:
            await result_within(await app.tasks["work"].enqueue(number), 20)
        assert all(pool.is_closing() for pool in made)
    assert runs == [0, 1]


async def test_code_that_cannot_await_uses_a_function_that_makes_the_pool(
    postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any]
) -> None:
    def use(app: Headgate) -> str:
        with app.open():
            return app.tasks["work"].sync.enqueue(1).id

    async def make_pool() -> asyncpg.Pool[Any]:
        return await asyncpg.create_pool(postgres_url, min_size=0, max_size=4)

    assert await asyncio.to_thread(use, app_on(postgres_url, postgres_schema, make_pool)[0])
    with pytest.raises(StorageUnusable, match="belongs to another event loop"):
        await asyncio.to_thread(use, app_on(postgres_url, postgres_schema, pool)[0])


async def test_a_transaction_whose_server_does_not_answer_the_pool_is_refused(
    postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any]
) -> None:
    """The fault: it raised the error of the socket, so the job spent its attempt."""
    app, _ = app_on(postgres_url, postgres_schema, pool)
    async with app.open():
        pool.set_connect_args("postgresql://postgres@127.0.0.1:1/postgres")
        await pool.expire_connections()
        with pytest.raises(StorageUnavailable, match=r"the connection to .* was lost"):
            async with store_of(app).transaction():
                raise AssertionError
        pool.set_connect_args(postgres_url)
        async with store_of(app).transaction() as connection:
            assert await connection.fetchval("SELECT 1") == 1
        with pytest.raises(OSError, match="of the user"):
            async with store_of(app).transaction():
                raise OSError("of the user")


async def test_a_pool_that_is_fully_in_use_is_told_from_a_server_that_does_not_answer(
    postgres_url: str, postgres_schema: str, pool: asyncpg.Pool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a server that was silent was reported as a pool that is too small."""
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", 0.2)
    monkeypatch.setattr(database, "PATIENCE", 0)
    monkeypatch.setattr(lent_pool, "ACQUIRE_TIMEOUT", 0.2)
    app, _ = app_on(postgres_url, postgres_schema, pool)

    async def failures() -> AsyncIterator[str]:
        with pytest.raises(StorageUnavailable) as raised:
            await store_of(app).node_update()
        yield str(raised.value)
        with pytest.raises(StorageUnavailable) as raised:
            async with store_of(app).transaction():
                raise AssertionError
        yield str(raised.value)

    async with app.open(), contextlib.AsyncExitStack() as held:
        await until(lambda: pool.get_size() - pool.get_idle_size() == 1)
        for _ in range(5):
            await held.enter_async_context(pool.acquire())
        async for failure in failures():
            assert "had no free connection for 0.2 s: all 6 were in use; raise its max_size" in failure
        await held.aclose()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            pool.set_connect_args(f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/postgres")
            await pool.expire_connections()
            async for failure in failures():
                assert failure.endswith("does not answer")
        pool.set_connect_args(postgres_url)


@pytest.mark.nightly
async def test_a_pool_that_is_closed_under_the_app_is_reported_and_ends_no_node(
    postgres_url: str, postgres_schema: str
) -> None:
    pool = await asyncpg.create_pool(postgres_url, min_size=0, max_size=6)
    app, _ = app_on(postgres_url, postgres_schema, pool)
    failures: list[str] = []

    def note(event: Event) -> None:
        assert isinstance(event, StorageFailed)
        failures.append(event.error)

    app.subscribe(note, StorageFailed)
    async with app:
        await result_within(await app.tasks["work"].enqueue(0), 20)
        pool.terminate()
        with pytest.raises(StorageUnavailable, match="gives no connection: pool is closed; keep it open"):
            await app.tasks["work"].enqueue(1)
        await until(lambda: any("gives no connection" in failure for failure in failures))


async def refused(url: str, schema: str, pool: object) -> str:
    app, _ = app_on(url, schema, pool)
    with pytest.raises(HeadgateError) as raised:
        async with app.open():
            pass
    assert isinstance(raised.value, StorageUnusable)
    return str(raised.value)


async def test_a_pool_that_cannot_be_used_is_refused_with_what_to_change(
    postgres_url: str, postgres_schema: str
) -> None:
    async def decode(connection: asyncpg.Connection[Any]) -> None:
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=2) as small:
        assert "at most 2 connections, and Headgate needs at least 3" in await refused(
            postgres_url, postgres_schema, small
        )
    assert "is closed; open the app inside of the pool's block" in await refused(postgres_url, postgres_schema, small)
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=4, init=decode) as decoding:
        assert "sets its own codecs" in await refused(postgres_url, postgres_schema, decoding)
    serializable = {"default_transaction_isolation": "serializable"}
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=4, server_settings=serializable) as strict:
        assert "its transactions serializable, and Headgate needs read committed" in await refused(
            postgres_url, postgres_schema, strict
        )

    async def no_pool() -> int:
        return 5

    assert "returned 5, which is not an asyncpg pool" in await refused(postgres_url, postgres_schema, no_pool)


def test_a_pool_without_its_database_is_refused(postgres_url: str) -> None:
    async def make_pool() -> None: ...

    for url in ("memory://", "sqlite:///jobs.db"):
        with pytest.raises(DeclarationError, match="pool= is for PostgreSQL"):
            Headgate(url, pool=make_pool)
    with pytest.raises(DeclarationError, match="neither an asyncpg pool nor an async function"):
        Headgate(postgres_url, pool="pool")
