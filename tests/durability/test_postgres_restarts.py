"""A server that is shut down, stopped, or read-only: workers wait for it, continue, and declare no node dead."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import AsyncExitStack

import asyncpg
import pytest

from headgate import StorageUnavailable, UnfitConnection
from headgate.admin.findings import findings_of
from headgate.cli import worker
from headgate.clock import SECOND, SystemClock
from headgate.jobs.event import NodeDeclaredDead, NodeLost
from headgate.storage.postgres import database, storage
from headgate.storage.postgres.server_time import FOLLOW_EVERY
from headgate.storage.postgres.storage import PostgresStorage
from tests.durability.postgres import Endings, ask, count_endings, session_at
from tests.durability.work import Work
from tests.internals import node_of, store_of
from tests.postgres_server import PostgresServer
from tests.until import result_within, until

pytestmark = pytest.mark.nightly

BACK = 5.0


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGKILL, signal.SIGINT])
async def test_workers_continue_within_five_seconds_of_a_restart_and_lose_no_job(
    postgres: PostgresServer, how: signal.Signals
) -> None:
    local, remote = Work(postgres.url), Work(postgres.url)
    async with local.app, remote.app:
        await count_endings(postgres.url)
        held = await local.patient.enqueue("acme")
        await until(lambda: held.id in local.runs + remote.runs, 5)
        waiting = [await local.gated.using(delay=1).enqueue("globex") for _ in range(20)]
        if how is signal.SIGKILL:
            await asyncio.to_thread(postgres.kill)
        else:
            await asyncio.to_thread(postgres.stop, how)
        # It ends while the store is unavailable.
        local.proceed.set()
        remote.proceed.set()
        with pytest.raises(StorageUnavailable):
            await local.gated.enqueue("nobody is there")
        await asyncio.to_thread(postgres.start)
        job = await local.gated.enqueue("acme")
        jobs = {job.id, *(each.id for each in waiting)}
        await until(lambda: jobs <= {*local.runs, *remote.runs}, BACK)
        assert await result_within(held, BACK) == "acme"
        assert await store_of(local.app).check() == []
    endings = await Endings.of(postgres.url)
    assert {state for id, state in endings.states.items() if id in jobs} == {"succeeded"}
    assert set(endings.times.values()) == {1}
    assert sorted(local.runs + remote.runs) == sorted({*local.runs, *remote.runs}), "a job ran twice"


async def test_a_stopped_server_makes_no_node_declare_another_dead(postgres: PostgresServer) -> None:
    lease = 2
    local, remote = (Work(postgres.url, lease=lease, heartbeat=0.2) for _ in range(2))
    async with local.app, remote.app:
        await count_endings(postgres.url)
        held = await local.patient.enqueue("acme")
        await until(lambda: held.id in local.runs + remote.runs, 5)
        postgres.freeze()
        # Longer than a lease no node can send a heartbeat.
        await asyncio.sleep(1.5 * lease)
        postgres.thaw()
        job = await local.gated.enqueue("acme")
        await until(lambda: job.id in local.runs + remote.runs, BACK)
        # And both look at each other, once a second, until a lease that began before the freeze has run out.
        for work in (local, remote):
            await work.looks_at_others(lease + 1)
        local.proceed.set()
        remote.proceed.set()
        assert await result_within(held, BACK) == "acme"
        for work in (local, remote):
            assert not work.has_event(NodeLost)
            assert not work.has_event(NodeDeclaredDead)
    assert len(local.runs + remote.runs) == 2
    assert set((await Endings.of(postgres.url)).times.values()) == {1}


async def test_a_server_that_became_read_only_is_waited_for(postgres: PostgresServer) -> None:
    work = Work(postgres.url)
    async with work.app, session_at(postgres.url) as operator:
        await work.has_run(await work.gated.enqueue("acme"))
        held = await work.patient.enqueue("acme")
        await work.has_run(held)
        await operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await operator.execute("SELECT pg_reload_conf()")
        await until(lambda: bool(work.failures), 15)
        with pytest.raises(StorageUnavailable):
            await work.gated.enqueue("acme")
        work.proceed.set()
        # What can be read is still read.
        assert (await held.status()).attempt == 1
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await operator.execute("SELECT pg_reload_conf()")

        async def takes_it() -> bool:
            try:
                await work.has_run(await work.gated.enqueue("acme"), seconds=BACK)
            except StorageUnavailable:
                return False
            return True

        await until(takes_it, BACK + 5)
        assert await result_within(held, BACK) == "acme"
        assert work.again == []


async def test_a_process_that_starts_beside_a_read_only_server_can_read(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: each process wrote when it opened its app, so `headgate status` and `doctor` failed on a replica.

    Later they failed there if its clock was behind.
    """
    work = Work(postgres.url)
    async with work.app:
        job = await work.gated.enqueue("acme")
        await result_within(job)
    # As on a replica whose clock is behind that of the primary.
    await ask(postgres.url, "UPDATE headgate.limit_time SET last_used = last_used + 3600000000")
    await ask(postgres.url, "ALTER DATABASE postgres SET default_transaction_read_only = on")
    monkeypatch.setattr(database, "PATIENCE", SECOND // 2)
    work = Work(postgres.url)
    async with work.app.open():
        assert (await work.app.job(job.id).status()).state == "succeeded"
        assert len(await work.app.admin.queues.list()) == 1
        found = [each for each in findings_of(await work.app.admin.checkup()) if each.level == "problem"]
        assert any("default_transaction_read_only is set" in each.seen for each in found)
        with pytest.raises(StorageUnavailable, match=r"is read-only: .*it is a replica, or .*target_session_attrs=pr"):
            await work.gated.enqueue("acme")
    async with AsyncExitStack() as stack:
        with pytest.raises(StorageUnavailable, match="is read-only"):
            await worker._open(work.app, 0.5, asyncio.Event(), stack)


async def raise_floor(work: Work) -> None:
    """Let the worker know of ids of arrivals that tables with lower ones do not have."""

    async def has_risen() -> bool:
        await work.has_run(*[await work.gated.enqueue(f"key-{number}") for number in range(10)])
        return store_of(work.app).arrival_floor > 10

    await until(has_risen, 10)


async def test_a_worker_continues_in_tables_that_were_made_anew(postgres: PostgresServer) -> None:
    """The fault: it read only arrivals with ids above those that it had seen in the tables before."""
    work = Work(postgres.url)

    async def drop() -> bool:
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            await ask(postgres.url, "DROP SCHEMA headgate CASCADE")
            return True
        return False

    async with work.app:
        await raise_floor(work)
        await until(drop, 10)
        await PostgresStorage(postgres.url, SystemClock()).migrate()
        await work.has_run(await work.gated.enqueue("acme"), seconds=BACK)
        async with session_at(postgres.url) as caller, caller.transaction():
            job = await work.plain.using(connection=caller).enqueue("acme")
        await work.has_run(job, seconds=BACK)


async def test_a_worker_continues_in_tables_that_were_emptied(postgres: PostgresServer) -> None:
    """The fault: as they are the same tables, it read only arrivals above ids that it had seen, and jobs waited."""
    work = Work(postgres.url)
    async with work.app:
        await raise_floor(work)
        joined = node_of(work.app).id
        async with session_at(postgres.url) as operator:
            await operator.execute("TRUNCATE headgate.arrival RESTART IDENTITY; DELETE FROM headgate.node")
        await until(lambda: node_of(work.app).id != joined, BACK)
        await work.has_run(await work.gated.enqueue("acme"), seconds=BACK)


async def test_a_worker_continues_in_older_tables_that_have_its_row(postgres: PostgresServer) -> None:
    """The fault: restored under it, they had its row, so it did not join again, and jobs with limits waited."""
    work = Work(postgres.url)
    async with work.app:
        await raise_floor(work)
        await PostgresStorage(postgres.url, SystemClock(), schema="older").migrate()
        async with session_at(postgres.url) as operator:
            await operator.execute(
                "BEGIN; INSERT INTO older.node SELECT * FROM headgate.node;"
                "UPDATE older.identity SET id = (SELECT id FROM headgate.identity);"
                "ALTER SCHEMA headgate RENAME TO newer; ALTER SCHEMA older RENAME TO headgate; COMMIT"
            )
        await work.has_run(await work.gated.enqueue("acme"), seconds=FOLLOW_EVERY + BACK)
        assert not work.has_event(NodeDeclaredDead)


async def test_a_process_that_only_enqueues_finds_tables_that_were_made_anew(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: until its restart, connection= said that the database did not have the jobs of the app."""
    monkeypatch.setattr(storage, "FOLLOW_EVERY", 0.1)
    work = Work(postgres.url)

    async def takes_it() -> bool:
        async with session_at(postgres.url) as caller, caller.transaction():
            with contextlib.suppress(UnfitConnection):
                await work.plain.using(connection=caller).enqueue("acme")
                return True
        return False

    async with work.app.open():
        assert await takes_it()
        await ask(postgres.url, "DROP SCHEMA headgate CASCADE")
        await PostgresStorage(postgres.url, SystemClock()).migrate()
        await until(takes_it, 10)
