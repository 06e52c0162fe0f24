"""The servers that tests are given are real ones, and do what is asked of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import asyncpg
import pytest

from tests.pgbouncer import bouncer_before
from tests.postgres_server import URL, server_in
from tests.until import patient


async def test_tests_that_share_a_server_have_schemas_of_their_own(postgres_url: str, absent_schema: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert connection.get_server_version().major >= 14
    await connection.execute(f"CREATE SCHEMA {absent_schema}; CREATE TABLE {absent_schema}.job (id text)")
    assert await connection.fetchval(f"SELECT count(*) FROM {absent_schema}.job") == 0
    await connection.close()


@pytest.mark.skipif(URL in os.environ, reason="the server is somebody else's")
async def test_a_test_server_that_is_not_killed_does_not_sync_to_disk(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SHOW fsync") == "off"
    await connection.close()


@pytest.mark.nightly
async def test_a_durable_server_still_has_what_it_committed_when_all_its_processes_were_killed(tmp_path: Path) -> None:
    with server_in(tmp_path, "max_connections=10", durable=True) as server:
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW max_connections") == "10"
        await connection.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
        port = server.port
        server.kill()
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await connection.fetchval("SELECT 1")
        server.start()
        assert server.port == port
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SELECT n FROM kept") == 42
        server.stop(signal.SIGQUIT)
        server.start()
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SELECT n FROM kept") == 42
        await connection.close()


async def test_a_stopped_server_answers_only_after_it_resumes(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        connection = await asyncpg.connect(server.url)
        server.freeze()
        answer = asyncio.ensure_future(connection.fetchval("SELECT 42"))
        done, _ = await asyncio.wait([answer], timeout=0.3)
        assert not done
        server.thaw()
        assert await asyncio.wait_for(answer, patient(5)) == 42
        await connection.close()


async def test_pgbouncer_runs_two_transactions_of_a_client_in_any_two_sessions(tmp_path: Path) -> None:
    with server_in(tmp_path) as server, bouncer_before(server.url, tmp_path) as url:
        one = await asyncpg.connect(url, statement_cache_size=0)
        two = await asyncpg.connect(url, statement_cache_size=0)
        first = await one.fetchval("SELECT pg_backend_pid()")
        async with two.transaction():
            assert await two.fetchval("SELECT pg_backend_pid()") == first
            assert await one.fetchval("SELECT pg_backend_pid()") != first
        await one.close()
        await two.close()
