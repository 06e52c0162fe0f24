"""Connections that go silent, are reset, terminated or refused: the work continues afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate import StorageUnavailable
from headgate.storage.postgres import database, wake_ups
from tests.durability.postgres import Endings, ask, count_endings, session_at
from tests.durability.tcp_proxy import TcpProxy
from tests.durability.work import Work
from tests.postgres_server import PostgresServer, server_in
from tests.until import result_within, until

pytestmark = pytest.mark.slow

BACK = 5.0
"""Seconds after a fault within which the work continues."""

MOST_SESSIONS = 10
"""What an app may have open: its pool, and a line to listen on."""


async def enqueue_for(work: Work, seconds: float) -> list[Any]:
    """Enqueue all the while; the jobs that were acknowledged."""
    acknowledged: list[Any] = []
    until_then = time.monotonic() + seconds
    while time.monotonic() < until_then:
        with contextlib.suppress(StorageUnavailable):
            acknowledged += await work.gated.enqueue_many([(f"key-{len(acknowledged) % 7}",)] * 3)
        await asyncio.sleep(0.02)
    return acknowledged


async def all_ended_once(postgres: PostgresServer, acknowledged: list[Any]) -> None:
    assert len(acknowledged) > 20
    endings = await Endings.of(postgres.url)
    assert {job.id for job in acknowledged} <= {id for id, state in endings.states.items() if state == "succeeded"}
    assert set(endings.times.values()) == {1}


async def sessions_of_apps(postgres: PostgresServer) -> int:
    return int(await ask(postgres.url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate'"))


async def test_a_silent_connection_is_closed_in_time_and_the_work_continues(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", 1.0)
    monkeypatch.setattr(database, "CONNECT_TIMEOUT", 1.0)
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url_at(proxy.port))
        async with remote.app:
            await remote.has_run(await local.gated.enqueue("acme"))
            proxy.hold()
            job = await local.gated.enqueue("acme")
            await until(lambda: bool(remote.failures), 5)
            assert job.id not in remote.runs
            # The silent connections stay open: no RST or FIN is ever received.
            proxy.release()
            await remote.has_run(job, seconds=BACK)
            assert remote.again == []


async def test_a_silent_listener_is_detected_and_jobs_are_found_by_polling_meanwhile(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_ups, "WATCHDOG", 0.5)
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url, listen_url=postgres.url_at(proxy.port))
        async with remote.app:

            async def delay() -> float:
                job = await local.gated.enqueue("acme")
                began = time.monotonic()
                await remote.has_run(job, seconds=BACK)
                return time.monotonic() - began

            await delay()
            assert statistics.median([await delay() for _ in range(7)]) < 0.15
            connections = proxy.connections
            # The listener never receives an RST or FIN.
            proxy.hold()
            assert await delay() < 3
            await until(lambda: proxy.connections > connections, 10)
            assert await delay() < 3
            proxy.release()
            async with asyncio.timeout(15):
                while statistics.median([await delay() for _ in range(7)]) > 0.08:
                    pass


async def test_many_connection_resets_lose_no_job_and_end_none_twice(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app:
            await count_endings(postgres.url)

            async def storm() -> None:
                while True:
                    proxy.reset()
                    await asyncio.sleep(0.05)

            raging = asyncio.ensure_future(storm())
            acknowledged = await enqueue_for(work, 3)
            raging.cancel()
            acknowledged += await enqueue_for(work, 0.5)
            await work.has_run(*acknowledged, seconds=BACK)
            await asyncio.gather(*(result_within(job, BACK) for job in acknowledged))
            assert await work.app._storage.check() == []
            assert await sessions_of_apps(postgres) <= MOST_SESSIONS
        await all_ended_once(postgres, acknowledged)


async def test_a_server_that_refuses_connections_is_not_asked_in_a_busy_loop(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app:
            await work.has_run(await work.gated.enqueue("acme"))
            proxy.put_to(1)
            before, began, used = proxy.connections, time.monotonic(), time.process_time()
            await asyncio.sleep(3)
            rate = (proxy.connections - before) / (time.monotonic() - began)
            assert rate < 40, f"{rate} connections a second"
            assert time.process_time() - used < 1.5
            proxy.put_to(postgres.port)
            await work.has_run(await work.gated.enqueue("acme"), seconds=BACK)


async def test_terminating_sessions_all_the_time_loses_no_job(postgres: PostgresServer) -> None:
    work = Work(postgres.url)
    async with work.app:
        await count_endings(postgres.url)
        operator = await asyncpg.connect(postgres.url, server_settings={"application_name": "operator"})
        ended = 0

        async def end_sessions() -> None:
            nonlocal ended
            while True:
                ended += await operator.fetchval(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'headgate'"
                )
                await asyncio.sleep(0.05)

        ending = asyncio.ensure_future(end_sessions())
        acknowledged = await enqueue_for(work, 3)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending
        await operator.close()
        assert ended > 20
        acknowledged += await enqueue_for(work, 0.5)
        await work.has_run(*acknowledged, seconds=BACK)
        await asyncio.gather(*(result_within(job, BACK) for job in acknowledged))
        assert await work.app._storage.check() == []
        assert await sessions_of_apps(postgres) <= MOST_SESSIONS
    await all_ended_once(postgres, acknowledged)


async def test_a_session_that_is_ended_in_the_middle_of_a_statement_is_replaced(postgres: PostgresServer) -> None:
    work = Work(postgres.url)
    async with work.app, session_at(postgres.url) as operator:
        await work.has_run(await work.gated.enqueue("acme"))
        held = await work.patient.enqueue("acme")
        await work.has_run(held)
        await operator.execute("BEGIN; LOCK TABLE headgate.job IN ACCESS EXCLUSIVE MODE")
        enqueuing = [asyncio.ensure_future(work.gated.enqueue("acme")) for _ in range(3)]
        work.proceed.set()
        stuck = "FROM pg_stat_activity WHERE application_name = 'headgate' AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            # The enqueues, the ending, a claim.
            while await operator.fetchval(f"SELECT count(*) {stuck}") < 3:
                await operator.execute("SELECT pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)
        assert await operator.fetchval(f"SELECT count(pg_terminate_backend(pid)) {stuck}") >= 3
        await operator.execute("ROLLBACK")
        jobs = await asyncio.gather(*enqueuing)
        await work.has_run(*jobs, seconds=BACK)
        assert await result_within(held, BACK) == "acme"
        assert work.again == []
        assert await work.app._storage.check() == []


async def test_a_server_without_room_for_connections_is_waited_for(tmp_path: Path) -> None:
    with server_in(tmp_path, "max_connections=8", "superuser_reserved_connections=1") as server:
        operator = await asyncpg.connect(server.url)
        await operator.execute("CREATE ROLE guest LOGIN; GRANT ALL ON DATABASE postgres TO guest")
        url = server.url.replace("postgres@", "guest@")
        work = Work(url)
        async with work.app:
            await work.has_run(await work.gated.enqueue("acme"))
            # Everything that can be had is taken, and what the app has is ended.
            taken: list[Any] = []
            for _ in range(50):
                await operator.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headgate'"
                )
                with contextlib.suppress(asyncpg.PostgresError, OSError):
                    while True:
                        taken.append(await asyncpg.connect(url))
                if len(taken) >= 7:
                    break
            with pytest.raises(StorageUnavailable):
                await work.gated.enqueue("acme")
            for each in taken:
                await each.close()
            job = await work.gated.enqueue("acme")
            await work.has_run(job, seconds=BACK)
        await operator.close()


async def test_a_node_works_with_fewer_connections_than_configured(tmp_path: Path) -> None:
    with server_in(tmp_path, "max_connections=7", "superuser_reserved_connections=1") as server:
        operator = await asyncpg.connect(server.url)
        await operator.execute("CREATE ROLE guest LOGIN; GRANT ALL ON DATABASE postgres TO guest")
        url = server.url.replace("postgres@", "guest@")
        # One is kept free, one is the operator's, and another client has two: one to listen on, and two for the rest.
        others = [await asyncpg.connect(url) for _ in range(2)]
        work = Work(url)
        async with work.app:
            acknowledged = await enqueue_for(work, 1.5)
            await work.has_run(*acknowledged, seconds=BACK)
            assert len(acknowledged) > 30
            assert work.again == []
        for each in (operator, *others):
            await each.close()


async def test_a_notification_that_was_lost_delays_a_job_by_one_poll(postgres: PostgresServer) -> None:
    local = Work(postgres.url)
    async with local.app.open():
        remote = Work(postgres.url)
        async with remote.app:
            await remote.has_run(await local.gated.enqueue("acme"))
            # No session listens at the moment of the commit.
            await ask(
                postgres.url,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query ILIKE '%LISTEN%' "
                "AND pid <> pg_backend_pid()",
            )
            job = await local.gated.enqueue("acme")
            await remote.has_run(job, seconds=BACK)
