"""The proxy between a test and its server breaks, stalls and cuts connections as requested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from tests.durability.tcp_proxy import TcpProxy
from tests.postgres_server import PostgresServer, server_in
from tests.until import patient

CUT = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[PostgresServer]:
    with server_in(tmp_path) as server:
        direct = await asyncpg.connect(server.url)
        await direct.execute("CREATE TABLE words_of (word text)")
        await direct.close()
        yield server


async def insert_word(connection: asyncpg.Connection, word: str) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO words_of VALUES ($1)", word)


async def words_of(server: PostgresServer) -> list[str]:
    connection = await asyncpg.connect(server.url)
    try:
        return [row["word"] for row in await connection.fetch("SELECT word FROM words_of ORDER BY word")]
    finally:
        await connection.close()


async def test_a_break_after_a_commit_loses_the_answer_of_that_transaction_only(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        one = await asyncpg.connect(server.url_at(proxy.port))
        two = await asyncpg.connect(server.url_at(proxy.port))
        lost = proxy.break_after(b"COMMIT", within=b"unheard")
        await insert_word(two, "heard")
        assert not lost.happened.is_set()
        with pytest.raises(CUT):
            await insert_word(one, "unheard")
        assert lost.happened.is_set()
        assert one.is_closed()
        await insert_word(two, "unheard too")
        assert await words_of(server) == ["heard", "unheard", "unheard too"]
        await two.close()


async def test_a_break_before_a_commit_keeps_it_from_arriving(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connection = await asyncpg.connect(server.url_at(proxy.port))
        lost = proxy.break_before(b"COMMIT")
        with pytest.raises(CUT):
            await insert_word(connection, "never")
        assert lost.happened.is_set()
        assert await words_of(server) == []


async def test_a_reply_can_be_lost_by_its_content(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connection = await asyncpg.connect(server.url_at(proxy.port))
        lost = proxy.break_at_answer(b"4242")
        assert await connection.fetchval("SELECT (41 * 100 + 1)::text") == "4101"
        with pytest.raises(CUT):
            await connection.fetchval("SELECT (42 * 100 + 42)::text")
        assert lost.happened.is_set()


async def test_a_connection_that_stalls_before_a_commit_continues_when_released(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connection = await asyncpg.connect(server.url_at(proxy.port))
        stalled = proxy.stall_before(b"COMMIT")
        telling = asyncio.ensure_future(insert_word(connection, "late"))
        await asyncio.wait_for(stalled.happened.wait(), patient(5))
        assert await words_of(server) == []
        assert not telling.done()
        stalled.resumed.set()
        await asyncio.wait_for(telling, patient(5))
        assert await words_of(server) == ["late"]
        await connection.close()


async def test_a_held_connection_is_silent_and_continues_when_released(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connection = await asyncpg.connect(server.url_at(proxy.port))
        proxy.hold()
        answer = asyncio.ensure_future(connection.fetchval("SELECT 42"))
        third = asyncio.ensure_future(asyncpg.connect(server.url_at(proxy.port)))
        done, _ = await asyncio.wait([answer, third], timeout=0.3)
        assert not done
        proxy.release()
        assert await asyncio.wait_for(answer, patient(5)) == 42
        await (await asyncio.wait_for(third, patient(5))).close()
        await connection.close()


async def test_a_held_connection_can_be_cut(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connection = await asyncpg.connect(server.url_at(proxy.port))
        proxy.hold()
        answer = asyncio.ensure_future(connection.fetchval("SELECT 42"))
        await asyncio.wait([answer], timeout=0.05)
        proxy.cut()
        with pytest.raises(CUT):
            await asyncio.wait_for(answer, patient(5))


async def test_a_reset_reaches_every_connection(server: PostgresServer) -> None:
    async with TcpProxy.to(server.port) as proxy:
        connections = [await asyncpg.connect(server.url_at(proxy.port)) for _ in range(3)]
        answers = [asyncio.ensure_future(each.fetchval("SELECT pg_sleep(30)")) for each in connections]
        await asyncio.wait(answers, timeout=0.1)
        proxy.reset()
        results = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), patient(5))
        assert all(isinstance(result, CUT) for result in results), results
        again = await asyncpg.connect(server.url_at(proxy.port))
        assert await again.fetchval("SELECT 42") == 42
        await again.close()
