"""Other clients of the database: locks, long transactions, stopped claimers. No worker waits for long."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from headgate.jobs.job import BucketRef
from headgate.storage.postgres import database
from headgate.storage.postgres.dialect import CompiledStatement, statements_of
from headgate.storage.procedures.claim_snapshot import LOWEST_RANK, LaneRow
from headgate.storage.stored_rows import lane_id
from tests.durability.postgres import Endings, ask, count_endings, let_locks_be_waited_for, sent_id, session_at
from tests.durability.processes import Children
from tests.durability.tcp_proxy import TcpProxy
from tests.durability.work import Work
from tests.internals import store_of
from tests.postgres_server import PostgresServer
from tests.until import result_within, until

pytestmark = pytest.mark.nightly

BACK = 5.0


async def test_workers_wait_for_a_locked_table_and_lose_no_job(postgres: PostgresServer) -> None:
    work = Work(postgres.url)
    async with work.app, session_at(postgres.url) as side:
        await count_endings(postgres.url)
        held = await work.patient.enqueue("acme")
        await work.has_run(held)
        async with side.transaction():
            await side.execute("LOCK TABLE headgate.job, headgate.lane, headgate.bucket IN ACCESS EXCLUSIVE MODE")
            work.proceed.set()
            enqueuing = [asyncio.ensure_future(work.gated.enqueue("acme")) for _ in range(20)]
            # The blocking session is visible while it lasts.
            await until(lambda: is_named(work, side.get_server_pid()), 5)
            assert not any(task.done() for task in enqueuing)
        jobs = await asyncio.gather(*enqueuing)
        await work.has_run(*jobs, seconds=BACK)
        assert await result_within(held, BACK) == "acme"
        assert work.again == []
    assert set((await Endings.of(postgres.url)).times.values()) == {1}


async def is_named(work: Work, pid: int) -> bool:
    return pid in {blocker.pid for blocker in await work.app.admin.blockers()}


async def test_a_lock_held_too_long_is_reported_and_the_work_continues_after_it(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.SETTINGS, "lock_timeout", "300ms")
    work = Work(postgres.url)
    async with work.app, session_at(postgres.url) as side:
        await work.has_run(await work.gated.enqueue("acme"))
        async with side.transaction():
            await side.execute("LOCK TABLE headgate.job IN ACCESS EXCLUSIVE MODE")
            enqueuing = asyncio.ensure_future(work.gated.enqueue("acme"))
            await until(lambda: bool(work.failures), 15)
        job = await enqueuing
        await work.has_run(job, seconds=BACK)
        assert work.again == []


@pytest.fixture
def only_its_silence_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that stops in a transaction is ended because it is idle, or not at all."""
    let_locks_be_waited_for(monkeypatch)
    assert database.FROZEN_AFTER == "2s"


@pytest.mark.usefixtures("only_its_silence_ends_it")
async def test_a_claim_that_stops_before_its_commit_delays_others_by_about_two_seconds(
    postgres: PostgresServer,
) -> None:
    local, other = Work(postgres.url), Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        frozen = Work(postgres.url_at(proxy.port))
        async with frozen.app:
            held = await local.gated.using(delay=0.7).enqueue("acme")
            stalled = proxy.stall_before(b"COMMIT", within=sent_id(held.id))
            await until(stalled.happened.is_set, 10)
            async with other.app:
                jobs = [held, await local.gated.enqueue("acme"), await local.gated.enqueue("globex")]
                ids = {job.id for job in jobs}
                await until(lambda: ids <= {*other.runs, *frozen.runs}, BACK)
                stalled.resumed.set()
                await asyncio.gather(*(result_within(job, BACK) for job in jobs))
            assert await local.used("acme") == 2
            assert await store_of(local.app).check() == []


@pytest.mark.usefixtures("only_its_silence_ends_it")
async def test_a_process_stopped_before_the_commit_of_its_claim_claims_nothing_when_it_resumes(
    postgres: PostgresServer, children: Children
) -> None:
    local = Work(postgres.url)
    async with TcpProxy.to(postgres.port) as proxy, local.app.open():
        await count_endings(postgres.url)
        frozen = await children.start(
            "postgres_worker.py", url=postgres.url_at(proxy.port), settings={"heartbeat": 0.25, "lease": 30}
        )
        await frozen.wait_for_line("NodeStarted")
        job = await local.gated.using(delay=0.7).enqueue("acme")
        stalled = proxy.stall_before(b"COMMIT", within=sent_id(job.id))
        await until(stalled.happened.is_set, 10)
        frozen.signal(signal.SIGSTOP)
        other = Work(postgres.url)
        async with other.app:
            await other.has_run(job, seconds=BACK)
            await result_within(job, BACK)
            frozen.signal(signal.SIGCONT)
            stalled.resumed.set()
            frozen.signal(signal.SIGTERM)
            assert await frozen.end() == 0
        assert not frozen.has_line("JobStarted")
        assert await local.used("acme") == 1
    assert (await Endings.of(postgres.url)).times == {job.id: 1}


async def test_work_continues_while_a_transaction_stays_open_and_status_names_it(postgres: PostgresServer) -> None:
    work = Work(postgres.url, concurrency=50)
    async with work.app, session_at(postgres.url) as side:
        await churn(work, 300)
        async with side.transaction(isolation="repeatable_read"):
            await side.fetchval("SELECT count(*) FROM headgate.job")
            await churn(work, 2000)

            async def is_named_by_now() -> bool:
                await churn(work, 20)
                return await is_named(work, side.get_server_pid())

            await until(is_named_by_now, 8)
        assert await store_of(work.app).check() == []


async def test_claims_skip_dead_rows_that_a_transaction_keeps(
    postgres: PostgresServer,
) -> None:
    """The first jobs of a lane are read from its front on, where the last ones were found."""
    work = Work(postgres.url, concurrency=50)
    async with work.app, session_at(postgres.url) as side:
        await churn(work, 300)
        async with side.transaction(isolation="repeatable_read"):
            await side.fetchval("SELECT count(*) FROM headgate.job")
            for _ in range(12):
                await churn(work, 200)
            front = await ask(postgres.url, "SELECT front FROM headgate.lane WHERE id = $1", LANE)
            from_the_start, from_the_front = [await pages_of_heads(postgres, each) for each in (LOWEST_RANK, front)]
        assert from_the_front < from_the_start / 2, (from_the_front, from_the_start)


async def test_lanes_are_found_by_their_newest_versions_while_a_transaction_keeps_the_old_ones(
    postgres: PostgresServer,
) -> None:
    work = Work(postgres.url, concurrency=50)
    async with work.app, session_at(postgres.url) as side:
        await churn(work, 20)
        async with side.transaction(isolation="repeatable_read"):
            await side.fetchval("SELECT count(*) FROM headgate.job")
            for _ in range(100):
                await churn(work, 2)
            version = await ask(postgres.url, "SELECT max(version) FROM headgate.lane WHERE id = $1", LANE)
            seen = {"seen": [LaneRow(LANE, "default", (), 0, None, None, None, "", version=version)]}
            pages = await pages_of(
                postgres, "lock_lanes", {**seen, "most": [("default", 1)], "opened": [], "now": 0, "is_fresh": True}
            )
        assert pages < 20


LANE = lane_id("default", (BucketRef("monthly", "acme"),), "")


async def pages_of_heads(postgres: PostgresServer, front: int) -> int:
    """How many pages are read to find the first jobs of a lane from there on."""
    return await pages_of(postgres, "heads", {"visited": [(LANE, front)], "count": 50, "locked": []})


async def pages_of(postgres: PostgresServer, name: str, parameters: dict[str, Any]) -> int:
    """How many pages a statement reads."""
    statement = statements_of("headgate")[name]
    assert isinstance(statement, CompiledStatement)
    async with session_at(postgres.url) as session:
        for setting, value in database.SETTINGS.items():
            await session.execute(f"SET {setting} = '{value}'")
        sql = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.sql}"
        explained = await session.fetchval(sql, *statement.fit(parameters)[1])
    (plan,) = [each["Plan"] for each in json.loads(explained)]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def churn(work: Work, count: int) -> None:
    """Enqueue so many jobs, half of them with a budget, and wait for their ends."""
    jobs: list[Any] = await work.gated.enqueue_many([("acme",)] * (count // 2))
    jobs += await work.plain.enqueue_many([("acme",)] * (count // 2))
    await work.has_run(*jobs, seconds=30)
    await asyncio.gather(*(result_within(job, 30) for job in jobs))
