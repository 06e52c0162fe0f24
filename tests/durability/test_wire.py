"""The wire between a test and its server breaks as it is told, and where it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from tests.durability.wire import Wire
from tests.postgres_server import PostgresServer, server_in

CUT = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[PostgresServer]:
    with server_in(tmp_path) as server:
        direct = await asyncpg.connect(server.url)
        await direct.execute("CREATE TABLE told (word text)")
        await direct.close()
        yield server


async def tell(connection: asyncpg.Connection, word: str) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO told VALUES ($1)", word)


async def told(server: PostgresServer) -> list[str]:
    connection = await asyncpg.connect(server.url)
    try:
        return [row["word"] for row in await connection.fetch("SELECT word FROM told ORDER BY word")]
    finally:
        await connection.close()


async def test_a_break_after_a_commit_loses_the_answer_of_that_transaction_only(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        one = await asyncpg.connect(server.url_at(wire.port))
        two = await asyncpg.connect(server.url_at(wire.port))
        lost = wire.break_after(b"COMMIT", within=b"unheard")
        await tell(two, "heard")
        assert not lost.happened.is_set()
        with pytest.raises(CUT):
            await tell(one, "unheard")
        assert lost.happened.is_set()
        assert one.is_closed()
        await tell(two, "unheard too")
        assert await told(server) == ["heard", "unheard", "unheard too"]
        await two.close()


async def test_a_break_before_a_commit_keeps_it_from_arriving(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connection = await asyncpg.connect(server.url_at(wire.port))
        lost = wire.break_before(b"COMMIT")
        with pytest.raises(CUT):
            await tell(connection, "never")
        assert lost.happened.is_set()
        assert await told(server) == []


async def test_a_reply_can_be_lost_by_its_content(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connection = await asyncpg.connect(server.url_at(wire.port))
        lost = wire.break_at_answer(b"4242")
        assert await connection.fetchval("SELECT (41 * 100 + 1)::text") == "4101"
        with pytest.raises(CUT):
            await connection.fetchval("SELECT (42 * 100 + 42)::text")
        assert lost.happened.is_set()


async def test_a_connection_that_stalls_before_a_commit_continues_when_released(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connection = await asyncpg.connect(server.url_at(wire.port))
        stalled = wire.stall_before(b"COMMIT")
        telling = asyncio.ensure_future(tell(connection, "late"))
        await asyncio.wait_for(stalled.happened.wait(), 5)
        assert await told(server) == []
        assert not telling.done()
        stalled.goes_on.set()
        await asyncio.wait_for(telling, 5)
        assert await told(server) == ["late"]
        await connection.close()


async def test_a_held_connection_is_silent_and_continues_when_released(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connection = await asyncpg.connect(server.url_at(wire.port))
        wire.hold()
        answer = asyncio.ensure_future(connection.fetchval("SELECT 42"))
        newcomer = asyncio.ensure_future(asyncpg.connect(server.url_at(wire.port)))
        done, _ = await asyncio.wait([answer, newcomer], timeout=0.3)
        assert not done
        wire.release()
        assert await asyncio.wait_for(answer, 5) == 42
        await (await asyncio.wait_for(newcomer, 5)).close()
        await connection.close()


async def test_a_held_connection_can_be_cut(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connection = await asyncpg.connect(server.url_at(wire.port))
        wire.hold()
        answer = asyncio.ensure_future(connection.fetchval("SELECT 42"))
        await asyncio.wait([answer], timeout=0.05)
        wire.cut()
        with pytest.raises(CUT):
            await asyncio.wait_for(answer, 5)


async def test_a_reset_reaches_every_connection(server: PostgresServer) -> None:
    async with Wire.to(server.port) as wire:
        connections = [await asyncpg.connect(server.url_at(wire.port)) for _ in range(3)]
        answers = [asyncio.ensure_future(each.fetchval("SELECT pg_sleep(30)")) for each in connections]
        await asyncio.wait(answers, timeout=0.1)
        wire.reset()
        results = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 5)
        assert all(isinstance(result, CUT) for result in results), results
        again = await asyncpg.connect(server.url_at(wire.port))
        assert await again.fetchval("SELECT 42") == 42
        await again.close()
