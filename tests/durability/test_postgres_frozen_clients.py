"""Clients that stop while they hold locks: others continue within five seconds, no job is lost or runs twice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate import RetryPolicy, current_job
from headgate.clock import SECOND
from headgate.errors import StorageUnavailable
from headgate.storage.postgres.database import Database, Session
from headgate.storage.postgres.silent_clients import SILENT_FOR
from tests import postgres_server
from tests.durability.postgres import Endings, count_endings, sent_id, session_at
from tests.durability.processes import Children
from tests.durability.tcp_proxy import Break, TcpProxy
from tests.durability.work import Work
from tests.internals import store_of
from tests.pgbouncer import running_bouncer
from tests.postgres_server import PostgresServer, server_in
from tests.until import patient, result_within, until

pytestmark = pytest.mark.nightly

BOUND = 5.0
"""Seconds after which no other client waits for a stopped client."""

SLACK = patient(1.5)
"""Seconds that a busy machine may add to it. Where nothing ended the wait, it would last 15 s and more."""

OLD_SERVERS = sorted(Path("/usr/lib/postgresql").glob("1[3-6]/bin"))


@pytest.fixture(params=["newest", "before 17"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server that ends long transactions by itself, and one that does not."""
    if request.param == "before 17":
        if not OLD_SERVERS:
            pytest.skip("no PostgreSQL before 17: Debian's package is called postgresql-15")
        monkeypatch.setattr(postgres_server, "programs", lambda: OLD_SERVERS[-1])
    with server_in(tmp_path, durable=True) as server:
        yield server


async def has_stalled(stall: Break) -> None:
    await until(stall.happened.is_set, 10)


class Wait(NamedTuple):
    """A statement in which the client freezes: before the words are sent, or when the answer comes."""

    sql: str
    values: tuple[str, ...] = ()
    words: bytes = b""


WAITS = {
    "between two statements": Wait("SELECT 'a-word'", words=b"a-word"),
    "after a statement was parsed": Wait("SELECT $1::text", ("a-word",), b"a-word"),
    "in the middle of a message": Wait("SELECT length($1::text)", ("x" * 300_000 + "a-word",), b"a-word"),
    "while a large answer comes": Wait("SELECT repeat($1::text, 1000) FROM generate_series(1, 1000)", ("x" * 1000,)),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_client_that_freezes_in_a_transaction_holds_its_locks_for_five_seconds_at_most(
    server: PostgresServer, wait: str
) -> None:
    sql, values, words = WAITS[wait]
    other = Work(server.url)
    async with TcpProxy.to(server.port) as proxy, other.app:
        await other.has_run(await other.gated.enqueue("acme"))
        data = Database(server.url_at(proxy.port), "headgate", size=1)
        await data.open()
        holding = asyncio.Event()

        async def hold(session: Session) -> None:
            await session.script("SELECT * FROM headgate.bucket FOR UPDATE")
            if not words:
                # So that it is the answer that waits, and not the preparation.
                await session._connection.fetch(sql, "")
                proxy.hold_answers()
            holding.set()
            await session._connection.fetch(sql, *values)

        stall = proxy.stall_before(words, within=b"FOR UPDATE") if words else None
        frozen = asyncio.ensure_future(data.transact(hold))
        await holding.wait()
        if stall is not None:
            await has_stalled(stall)
        froze_at = time.monotonic()
        async with session_at(server.url) as session:
            await session.execute("SET lock_timeout = '15s'; SELECT * FROM headgate.bucket FOR UPDATE")
        assert time.monotonic() - froze_at < BOUND + SLACK
        await other.has_run(await other.gated.enqueue("acme"))
        proxy.release()
        if stall is not None:
            stall.resumed.set()
        with pytest.raises(StorageUnavailable):
            await frozen
        # After it resumes, it continues with another connection.
        await data.repeat(lambda session: session.script("SELECT 1"))
        await data.close()


async def test_a_worker_that_is_stopped_during_its_first_claim_delays_no_other(
    server: PostgresServer, children: Children
) -> None:
    local = Work(server.url, lease=30)
    async with TcpProxy.to(server.port) as proxy, local.app:
        await count_endings(server.url)
        # Its first claim, in the middle of its locks: lanes are locked after buckets.
        stall = proxy.stall_before(b"wakes_at, opened_at, virtual_time, front\nFROM")
        jobs = [await local.gated.enqueue("acme")]
        fresh = await children.start(
            "postgres_worker.py", url=server.url_at(proxy.port), settings={"lease": 30, "heartbeat": 1}
        )

        async def has_stalled_by_now() -> bool:
            jobs.append(await local.gated.enqueue("acme"))
            return stall.happened.is_set()

        await until(has_stalled_by_now)
        os.kill(fresh.pid, signal.SIGSTOP)
        stall.resumed.set()
        stopped_at = time.monotonic()
        await local.has_run(*[await local.gated.enqueue("acme") for _ in range(5)])
        assert time.monotonic() - stopped_at < BOUND + SLACK
        os.kill(fresh.pid, signal.SIGCONT)
        jobs += await local.gated.enqueue_many([("acme",)] * 200)
        await asyncio.gather(*(result_within(job, 20) for job in jobs))
        assert await store_of(local.app).check() == []
    endings = await Endings.of(server.url)
    assert set(endings.states.values()) == {"succeeded"}
    assert set(endings.times.values()) == {1}


async def test_a_pooler_that_is_stopped_during_a_claim_delays_no_other(server: PostgresServer, tmp_path: Path) -> None:
    direct = Work(server.url, lease=30)
    with running_bouncer(server.url, tmp_path) as bouncer:
        async with TcpProxy.to(bouncer.port) as proxy, direct.app.open():
            pooled = Work(bouncer.url_at(proxy.port), lease=30)
            await count_endings(server.url)
            async with pooled.app:
                await pooled.has_run(await direct.gated.enqueue("acme"))
                job = await direct.gated.using(delay=0.5).enqueue("acme")
                # Its buckets and lanes are locked, and the values of the next statement do not arrive.
                stall = proxy.stall_before(sent_id(job.id), within=b"BEGIN")
                await has_stalled(stall)
                os.kill(bouncer.pid, signal.SIGSTOP)
                try:
                    stall.resumed.set()
                    stopped_at = time.monotonic()
                    other = Work(server.url, lease=30)
                    async with other.app:
                        await other.has_run(job, await direct.gated.enqueue("acme"))
                        assert time.monotonic() - stopped_at < BOUND + SLACK
                        os.kill(bouncer.pid, signal.SIGCONT)
                        jobs = await direct.gated.enqueue_many([("acme",)] * 200)
                        await asyncio.gather(*(result_within(job, 20) for job in jobs))
                finally:
                    os.kill(bouncer.pid, signal.SIGCONT)
                await pooled.has_run(await direct.gated.enqueue("acme"), seconds=15)
            assert await store_of(direct.app).check() == []
    endings = await Endings.of(server.url)
    assert set(endings.states.values()) == {"succeeded"}
    assert set(endings.times.values()) == {1}


async def test_a_process_that_stops_while_it_creates_the_tables_does_not_block_the_next_one(
    server: PostgresServer,
) -> None:
    async with TcpProxy.to(server.port) as proxy:
        stall = proxy.stall_before(b"INSERT INTO", within=b"LOCK TABLE")
        frozen = Work(server.url_at(proxy.port))
        opening = asyncio.ensure_future(store_of(frozen.app).open())
        await has_stalled(stall)
        proxy.hold()
        froze_at = time.monotonic()
        other = Work(server.url)
        async with other.app:
            assert time.monotonic() - froze_at < BOUND + SLACK
            await other.has_run(await other.gated.enqueue("acme"))
        proxy.release()
        stall.resumed.set()
        # Thawed, it finds them made.
        await opening
        await store_of(frozen.app).close()


LOGGED = re.compile(r"^(\d+) LOG:  duration: [\d.]+ ms  (parse|execute|statement)[^:]*: (.*)", re.MULTILINE)


async def test_a_fresh_worker_prepares_no_statement_while_it_holds_locks(tmp_path: Path) -> None:
    with server_in(tmp_path, "log_min_duration_statement=0", "log_line_prefix=%p ") as server:
        work = Work(server.url)
        async with work.app:
            jobs = [
                await work.gated.enqueue("acme"),
                await work.plain.enqueue("acme"),
                await work.exclusive.enqueue("acme"),
            ]
            jobs.append(await work.gated.using(delay=0.3).enqueue("acme"))
            await asyncio.gather(*(result_within(job) for job in jobs))
        log = (tmp_path / "postgres.log").read_text()
    holds: set[str] = set()
    prepared: list[str] = []
    lines = log.replace("\n\t", " ")
    assert "FOR UPDATE" in lines
    for pid, kind, sql in LOGGED.findall(lines):
        if sql.startswith(("COMMIT", "ROLLBACK")):
            holds.discard(pid)
        elif kind == "execute" and "FOR UPDATE" in sql and "headgate.bucket" in sql:
            holds.add(pid)
        elif kind == "parse" and pid in holds:
            prepared.append(sql)
    assert prepared == []


async def test_an_idle_session_of_another_program_is_not_terminated(server: PostgresServer) -> None:
    local = Work(server.url)
    async with local.app, session_at(server.url) as theirs:
        await local.has_run(await local.gated.enqueue("acme"))
        await theirs.execute("BEGIN; SELECT * FROM headgate.bucket WHERE key = 'nobody' FOR UPDATE")
        # Parsed, and its values do not come.
        waiting = await theirs.prepare("SELECT $1::text")
        await asyncio.sleep(SILENT_FOR / SECOND + 2)
        assert await waiting.fetchval("still here") == "still here"
        await local.has_run(await local.gated.enqueue("acme"))


async def test_a_transaction_of_a_handler_that_streams_rows_slowly_is_not_terminated(server: PostgresServer) -> None:
    local = Work(server.url)

    @local.app.task(retry=RetryPolicy(retries=0))
    async def load() -> str:
        async def rows() -> AsyncIterator[tuple[int]]:
            for number in range(3):
                await asyncio.sleep(SILENT_FOR / SECOND / 2)
                yield (number,)

        async with current_job().transaction() as connection:
            await connection.execute("CREATE TABLE public.loaded (number integer)")
            await local.gated.using(connection=connection).enqueue("acme")
            return str(await connection.copy_records_to_table("loaded", records=rows()))

    async with local.app:
        assert await result_within(await load.enqueue(), 10) == "COPY 3"
