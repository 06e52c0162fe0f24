"""Through a PgBouncer in transaction mode: nothing is kept in a session, and jobs are found by looking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from headgate.storage.facts import PostgresFacts
from headgate.storage.postgres import wake_ups
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import Endings, Polling, ask, count_endings, without_sweeps
from tests.durability.work import Work
from tests.internals import store_of
from tests.pgbouncer import bouncer_before
from tests.postgres_server import PostgresServer
from tests.until import result_within, until

pytestmark = pytest.mark.nightly


@pytest.fixture
def pooled(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    with bouncer_before(postgres.url, tmp_path) as url:
        yield url


async def test_jobs_run_through_a_pooler_that_gives_each_transaction_another_session(
    postgres: PostgresServer, pooled: str
) -> None:
    local, remote = Work(pooled), Work(pooled)
    async with local.app, remote.app:
        await count_endings(postgres.url)
        jobs = []
        for number in range(20):
            jobs += await local.gated.enqueue_many([(f"key-{number % 5}",)] * 10)
            jobs += await local.plain.enqueue_many([("none",)] * 10)
        await asyncio.gather(*(result_within(job, 20) for job in jobs))
        assert sorted(local.runs + remote.runs) == sorted(job.id for job in jobs)
        assert await store_of(local.app).check() == []
    assert set((await Endings.of(postgres.url)).times.values()) == {1}


@pytest.mark.parametrize("by", ["sessions", "a pooler"])
async def test_the_isolation_level_of_the_database_is_not_that_of_the_store(
    postgres: PostgresServer, pooled: str, by: str
) -> None:
    """The fault: with another default, claims of several nodes failed, as rows had changed since their snapshots."""
    await ask(postgres.url, "ALTER ROLE ALL SET default_transaction_isolation = 'repeatable read'")
    url = postgres.url if by == "sessions" else pooled
    local, remote = Work(url), Work(url)
    async with local.app, remote.app:
        storage = store_of(local.app)
        assert isinstance(storage, PostgresStorage)
        levels = [
            await storage._database.run(lambda session: session.row("enlisted_at")),
            await storage._database.transact(lambda session: session.row("enlisted_at")),
        ]
        assert [level for _, level, _ in levels] == ["read committed"] * 2
        jobs = [
            job
            for number in range(20)
            for work in (local, remote)
            for job in await work.gated.enqueue_many([(f"key-{number % 3}",)] * 20)
        ]
        await asyncio.gather(*(result_within(job, 20) for job in jobs))
        assert local.failures + remote.failures == []


async def test_no_session_state_is_left_in_the_sessions_of_a_pooler(postgres: PostgresServer, pooled: str) -> None:
    work = Work(pooled)
    async with work.app:
        jobs = await work.gated.enqueue_many([("acme",)] * 50)
        await work.has_run(*jobs)
        # The sessions that a stranger gets are those that the work had.
        other_sessions = [await asyncpg.connect(pooled, statement_cache_size=0) for _ in range(5)]
        for other_session in other_sessions:
            async with other_session.transaction():
                assert await other_session.fetchval("SELECT count(*) FROM pg_prepared_statements") <= 1
                assert await other_session.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
                assert await other_session.fetchval("SHOW lock_timeout") == "0"
                assert await other_session.fetchval("SHOW idle_in_transaction_session_timeout") == "0"
                assert await other_session.fetchval("SHOW search_path") == '"$user", public'
        for other_session in other_sessions:
            await other_session.close()
        assert await ask(postgres.url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


async def test_without_a_direct_connection_jobs_are_found_by_polling(
    pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sweeps(monkeypatch)
    local, remote = Work(pooled), Work(pooled)
    async with local.app.open(), remote.app:
        for _ in range(8):
            await remote.has_run(await local.gated.enqueue("acme"), seconds=3)


async def test_with_a_direct_connection_jobs_start_immediately(
    postgres: PostgresServer, pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notification: there is no polling that would find them."""
    Polling(monkeypatch)
    local, remote = Work(pooled), Work(pooled, listen_url=postgres.url)
    async with local.app.open(), remote.app:
        for _ in range(16):
            await remote.has_run(await local.gated.enqueue("acme"))


@pytest.mark.parametrize("leads_to", ["a pooler", "another database"])
async def test_a_listen_url_that_receives_nothing_is_named_and_jobs_are_found_by_polling(
    postgres: PostgresServer,
    pooled: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    leads_to: str,
) -> None:
    """The fault: it was taken for one that wakes, so jobs of other processes started up to a second late."""
    monkeypatch.setattr(wake_ups, "WATCHDOG", 0.5)
    await ask(postgres.url, "CREATE DATABASE other")
    url = pooled if leads_to == "a pooler" else postgres.url.replace("/postgres", "/other")
    without_sweeps(monkeypatch)
    local, remote = Work(pooled), Work(pooled, listen_url=url)
    async with local.app.open(), remote.app:
        await until(lambda: f"not listening to {url}, polling instead: " in caplog.text, 10)
        facts = await store_of(remote.app).facts()
        assert isinstance(facts, PostgresFacts)
        assert not facts.listens
        for _ in range(8):
            await remote.has_run(await local.gated.enqueue("acme"), seconds=3)
