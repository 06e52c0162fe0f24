"""Connections that go silent, are reset, terminated or refused: the work continues afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate import Headgate, RetryPolicy, StorageUnavailable, StorageUnusable, current_job
from headgate.clock import SystemClock
from headgate.engine import attempt
from headgate.storage.postgres import database, wake_ups
from headgate.storage.postgres import storage as postgres_storage
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import Endings, Polling, ask, count_endings, session_at
from tests.durability.tcp_proxy import TcpProxy
from tests.durability.work import Work
from tests.internals import store_of
from tests.postgres_server import PostgresServer, server_in
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

BACK = 5.0
"""Seconds after a fault within which the work continues."""

MANY = 40
"""Faults of a test that goes on while they happen."""

MOST_SESSIONS = 10
"""What an app may have open: its pool, and a line to listen on."""


async def enqueue_until(work: Work, enough: Callable[[], bool]) -> list[Any]:
    """Enqueue all the while until there was enough of something, and more than 20 are acknowledged; return these."""
    acknowledged: list[Any] = []

    async def is_enough() -> bool:
        with contextlib.suppress(StorageUnavailable):
            acknowledged.extend(await work.gated.enqueue_many([(f"key-{len(acknowledged) % 7}",)] * 3))
        await asyncio.sleep(0.02)
        return len(acknowledged) > 20 and enough()

    await until(is_enough, 30, lambda: f"{len(acknowledged)} acknowledged; {work.failures[-3:]}")
    return acknowledged


async def enqueue_beside_faults(work: Work, fault: Callable[[], Awaitable[int]]) -> list[Any]:
    """Enqueue while a fault comes again and again, until it has befallen MANY connections; the acknowledged jobs.

    The faults come twenty times a second, as long as something is acknowledged between two of them. On a busy machine
    they come as often as it takes.
    """
    acknowledged: list[Any] = []
    befallen = 0

    async def storm() -> None:
        nonlocal befallen
        pause, before = 0.05, 0
        while True:
            befallen += await fault()
            await asyncio.sleep(pause)
            pause = 0.05 if len(work.runs) > before else min(1.5 * pause, 2)
            before = len(work.runs)

    raging = asyncio.ensure_future(storm())
    acknowledged += await enqueue_until(work, lambda: befallen > MANY or raging.done())
    raging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await raging
    return acknowledged + await enqueue_until(work, lambda: True)


async def all_ended_once(postgres: PostgresServer, acknowledged: list[Any]) -> None:
    endings = await Endings.of(postgres.url)
    assert {job.id for job in acknowledged} <= {id for id, state in endings.states.items() if state == "succeeded"}
    assert set(endings.times.values()) == {1}


async def has_few_sessions(postgres: PostgresServer) -> None:
    """Those that were cut end as soon as the server notices it, and no others are left."""

    async def are_few() -> bool:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headgate'"
        return bool(await ask(postgres.url, sessions) <= MOST_SESSIONS)

    await until(are_few, 10)


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


@pytest.mark.parametrize("words", ["'stuck'", "COMMIT"])
async def test_a_handler_whose_transaction_goes_silent_ends_at_its_timeout(
    postgres: PostgresServer, words: str
) -> None:
    ended = asyncio.Event()
    async with TcpProxy.to(postgres.port) as proxy:
        app = Headgate(postgres.url_at(proxy.port))

        @app.task(timeout=0.5, retry=RetryPolicy(retries=0))
        async def pay() -> None:
            try:
                async with current_job().transaction() as connection:
                    await connection.execute("SELECT 'first'")
                    await connection.execute("SELECT 'stuck'")
            finally:
                ended.set()

        async with app:
            stalled = proxy.stall_before(words.encode(), within=b"'first'")
            await pay.enqueue()
            await asyncio.wait_for(stalled.happened.wait(), patient(5))
            await asyncio.wait_for(ended.wait(), patient(5))
            stalled.resumed.set()


@pytest.mark.parametrize("fault", ["lost", "silent"])
async def test_a_job_whose_transaction_cannot_begin_is_returned(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(postgres_storage, "COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr(attempt, "REFUSAL_PAUSE", 1)
    runs: list[int] = []
    async with TcpProxy.to(postgres.port) as proxy:
        app = Headgate(postgres.url_at(proxy.port))

        @app.task(retry=RetryPolicy(retries=0))
        async def pay() -> int:
            runs.append(current_job().attempt)
            async with current_job().transaction() as connection:
                return int(await connection.fetchval("SELECT 1"))

        async with app:
            # The transactions of the store begin in other words.
            broken = (proxy.break_before if fault == "lost" else proxy.stall_before)(b"BEGIN;")
            assert await result_within(await pay.enqueue()) == 1
            broken.resumed.set()
    assert broken.happened.is_set()
    assert runs == [1, 1]


async def test_a_silent_listener_is_detected_and_jobs_are_found_by_polling_meanwhile(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_ups, "WATCHDOG", 0.5)
    polling = Polling(monkeypatch)
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        remote = Work(postgres.url, listen_url=postgres.url_at(proxy.port))
        async with remote.app:

            async def is_found() -> None:
                await remote.has_run(await local.gated.enqueue("acme"), seconds=BACK)

            for _ in range(7):
                await is_found()
            connections = proxy.connections
            # The listener never receives an RST or FIN.
            proxy.hold()
            polling.is_on = True
            await is_found()
            await until(lambda: proxy.connections > connections, 10)
            await is_found()
            proxy.release()
            await until(lambda: is_listening(remote), 15)
            polling.is_on = False
            for _ in range(7):
                await is_found()


def is_listening(work: Work) -> bool:
    storage = store_of(work.app)
    assert isinstance(storage, PostgresStorage)
    assert storage._wake_ups is not None
    return storage._wake_ups.is_listening


async def test_many_connection_resets_lose_no_job_and_end_none_twice(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app:
            await count_endings(postgres.url)

            async def reset() -> int:
                befallen = len(proxy._ends) // 2
                proxy.reset()
                return befallen

            acknowledged = await enqueue_beside_faults(work, reset)
            await work.has_run(*acknowledged, seconds=BACK)
            await asyncio.gather(*(result_within(job, BACK) for job in acknowledged))
            assert await store_of(work.app).check() == []
            await has_few_sessions(postgres)
        await all_ended_once(postgres, acknowledged)


def count_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the turns of the event loop from now on."""
    turns = [0]
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once

    def counted() -> None:
        turns[0] += 1
        run_once()

    monkeypatch.setattr(loop, "_run_once", counted)
    return turns


async def test_a_server_that_refuses_connections_is_not_asked_in_a_busy_loop(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app:
            await work.has_run(await work.gated.enqueue("acme"))
            proxy.put_to(1)
            turns = count_turns(monkeypatch)
            before, began = proxy.connections, time.monotonic()
            await until(lambda: proxy.connections >= before + 30, 15)
            attempts = proxy.connections - before
            assert attempts / (time.monotonic() - began) < 40
            # And nothing else is done over and over. `until` itself takes a hundred turns a second.
            assert turns[0] < 100 * attempts + 200 * (time.monotonic() - began)
            proxy.put_to(postgres.port)
            await work.has_run(await work.gated.enqueue("acme"), seconds=BACK)


async def test_terminating_sessions_all_the_time_loses_no_job(postgres: PostgresServer) -> None:
    work = Work(postgres.url)
    async with work.app:
        await count_endings(postgres.url)
        async with session_at(postgres.url) as operator:
            await operator.execute("SET application_name = 'operator'")

            async def end_sessions() -> int:
                return int(
                    await operator.fetchval(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                        "WHERE application_name = 'headgate'"
                    )
                )

            acknowledged = await enqueue_beside_faults(work, end_sessions)
        await work.has_run(*acknowledged, seconds=BACK)
        await asyncio.gather(*(result_within(job, BACK) for job in acknowledged))
        assert await store_of(work.app).check() == []
        await has_few_sessions(postgres)
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

        async def are_stuck() -> bool:
            await operator.execute("SELECT pg_stat_clear_snapshot()")
            return bool(await operator.fetchval(f"SELECT count(*) {stuck}") >= 3)

        # The enqueues, the ending, a claim.
        await until(are_stuck, 10)
        assert await operator.fetchval(f"SELECT count(pg_terminate_backend(pid)) {stuck}") >= 3
        await operator.execute("ROLLBACK")
        jobs = await asyncio.gather(*enqueuing)
        await work.has_run(*jobs, seconds=BACK)
        assert await result_within(held, BACK) == "acme"
        assert work.again == []
        assert await store_of(work.app).check() == []


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
            # One is kept free, and one is the operator's.
            room = 8 - 2

            async def all_are_taken() -> bool:
                await operator.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headgate'"
                )
                with contextlib.suppress(asyncpg.PostgresError, OSError):
                    while len(taken) < room:
                        taken.append(await asyncpg.connect(url))
                return len(taken) == room

            await until(all_are_taken)
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
            acknowledged = await enqueue_until(work, lambda: len(work.runs) > 30)
            await work.has_run(*acknowledged, seconds=BACK)
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


@pytest.mark.parametrize("form", ["postgresql://postgres@{}/postgres", "postgresql://postgres@/postgres?host={}"])
async def test_a_host_that_does_not_answer_leaves_time_for_the_next(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The fault: the driver waited for a machine that was gone until no time was left, and never asked the other."""
    monkeypatch.setattr(database, "CONNECT_TIMEOUT", 2.0)
    with socket.socket() as silent:
        # Connections to it are taken by the kernel, and nobody answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        url = form.format(f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres.port}")
        storage = PostgresStorage(url, SystemClock(), is_watched=False)
        await storage.open()
        assert await storage.queues() == []
        async with storage.transaction() as connection:
            assert await connection.fetchval("SELECT 1") == 1
        await storage.close()


async def test_why_a_session_is_refused_is_said_when_the_app_opens(postgres: PostgresServer) -> None:
    """The fault: these were tracebacks of the driver, or did not say that the URL is to be changed."""
    for statement in (
        "CREATE DATABASE closed",
        "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
        "CREATE ROLE guest LOGIN",
    ):
        await ask(postgres.url, statement)
    for url, told in (
        (f"postgresql://guest@127.0.0.1:{postgres.port}/closed", 'permission denied for database "closed"'),
        (f"{postgres.url}?DateStyle=none", 'invalid value for parameter "DateStyle"'),
        (f"{postgres.url}?channel_binding=require", "channel_binding.*; remove it from the URL"),
        ("postgresql:///postgres?host=127.0.0.1&port=one", "invalid literal for int"),
    ):
        with pytest.raises(StorageUnusable, match=f"cannot be opened: .*{told}"):
            await PostgresStorage(url, SystemClock()).open()
