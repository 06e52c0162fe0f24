"""An event loop that is blocked inside a transaction: the server ends the session, and nothing is lost or done twice.

A transaction whose session was ended is repeated if and only if it is certain that it was not committed: its COMMIT was
not sent, or the server says that it has ended the session of a silent client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from headgate import Headgate, RetryPolicy, current_job
from headgate.errors import StorageUnavailable
from headgate.storage.postgres.database import Bounds, Database, Session
from headgate.storage.postgres.idle_in_transaction import SilentInTransaction, is_idle_timeout
from tests.durability.postgres import ask
from tests.durability.tcp_proxy import TcpProxy
from tests.until import result_within, until_now

LIMIT = "200ms"
"""The silence after which the server ends a session, instead of 2 s."""

SLOW = "SELECT pg_sleep(0.5)"

BLOCKED = "the event loop was blocked for"


class Notes:
    """A table in a schema of the test's own, and a database whose transactions may be silent for LIMIT only."""

    def __init__(self, url: str, schema: str, data: Database) -> None:
        self.url = url
        self.data = data
        self.insert = f"INSERT INTO {schema}.note VALUES ('once')"
        self._count = f"SELECT count(*) FROM {schema}.note"
        self.tries = 0

    async def count(self) -> int:
        return int(await ask(self.url, self._count))

    def block(self, pid: int, *, ends_by: str = "") -> None:
        """Block the loop, with all that runs on it, until the server has ended that session."""
        with psycopg.connect(self.url, autocommit=True) as other:
            if ends_by:
                other.execute(SLOW)
                other.execute(ends_by, (pid,))
            sql = "SELECT FROM pg_stat_activity WHERE pid = %s"
            until_now(lambda: other.execute(sql, (pid,)).rowcount == 0)

    async def pid(self, session: Session) -> int:
        self.tries += 1
        return int(await session._connection.fetchval("SELECT pg_backend_pid()"))


@pytest_asyncio.fixture
async def notes(postgres_url: str, absent_schema: str) -> AsyncIterator[Notes]:
    data = await opened(postgres_url)
    await data.run(
        lambda session: session.script(f"CREATE SCHEMA {absent_schema}; CREATE TABLE {absent_schema}.note (words text)")
    )
    yield Notes(postgres_url, absent_schema, data)
    await data.close()


async def opened(url: str) -> Database:
    data = Database(url, "headgate", size=2)
    await data.open()
    data.bounds = Bounds(of_transaction=MappingProxyType({"idle_in_transaction_session_timeout": LIMIT}))
    return data


class Unwanted(Exception):
    pass


async def between_statements(notes: Notes, session: Session) -> None:
    pid = await notes.pid(session)
    await session.script("SELECT 1")
    if notes.tries == 1:
        notes.block(pid)
    await session.script(notes.insert)


async def before_the_commit(notes: Notes, session: Session) -> None:
    pid = await notes.pid(session)
    await session.script(notes.insert)
    if notes.tries == 1:
        notes.block(pid)


async def before_the_commit_while_it_reads(notes: Notes, session: Session) -> None:
    """The loop has read the error of the server before the COMMIT is sent."""
    await before_the_commit(notes, session)
    for _ in range(10):
        await asyncio.sleep(0)


async def during_the_first_statement(notes: Notes, session: Session) -> None:
    pid = await notes.pid(session)
    if notes.tries == 1:
        # It runs as soon as the statement has been sent.
        asyncio.get_running_loop().call_soon(notes.block, pid)
    await session.script("SELECT 1")
    await session.script(notes.insert)


async def during_the_last_statement(notes: Notes, session: Session) -> None:
    pid = await notes.pid(session)
    if notes.tries == 1:
        asyncio.get_running_loop().call_soon(notes.block, pid)
    await session.script(notes.insert)


async def during_a_large_answer(notes: Notes, session: Session) -> None:
    """The answer is longer than what the driver reads at once, and the end of the session is behind it."""
    pid = await notes.pid(session)
    await session.script(notes.insert)
    if notes.tries == 1:
        asyncio.get_running_loop().call_soon(notes.block, pid)
    await session.script("SELECT repeat('x', 300000)")


async def between_the_parts_of_a_statement(notes: Notes, session: Session) -> None:
    """The server waits for the values of a statement. Another worker ends such a session, or `transaction_timeout`."""
    pid = await notes.pid(session)
    await session.script(notes.insert)
    if notes.tries == 1:
        asyncio.get_running_loop().call_soon(lambda: notes.block(pid, ends_by="SELECT pg_terminate_backend(%s, 5000)"))
    await session._answer(session._connection.fetch, "SELECT $1::text || 'a statement that is not prepared'", "")


async def before_the_rollback(notes: Notes, session: Session) -> None:
    pid = await notes.pid(session)
    await session.script(notes.insert)
    if notes.tries == 1:
        notes.block(pid)
        raise Unwanted


PLACES: list[Callable[[Notes, Session], Any]] = [
    between_statements,
    before_the_commit,
    before_the_commit_while_it_reads,
    during_the_first_statement,
    during_the_last_statement,
    during_a_large_answer,
    between_the_parts_of_a_statement,
    before_the_rollback,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place.__name__))
async def test_a_transaction_in_which_the_loop_was_blocked_is_repeated_and_the_log_names_the_cause(
    notes: Notes, place: Callable[[Notes, Session], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headgate.storage"):
        await notes.data.transact(lambda session: place(notes, session))
    assert notes.tries == 2
    assert await notes.count() == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert BLOCKED in line
    assert line.endswith("the transaction is repeated")
    # The connection that was lost is not in the pool any more.
    await notes.data.run(lambda session: session.script("SELECT 1"))


async def test_a_transaction_in_which_the_loop_is_always_blocked_fails_with_the_cause(notes: Notes) -> None:
    async def work(session: Session) -> None:
        pid = await notes.pid(session)
        await session.script(notes.insert)
        notes.block(pid)

    with pytest.raises(StorageUnavailable, match=f"{BLOCKED} .*nothing was committed"):
        await notes.data.transact(work)
    assert notes.tries == 5
    assert await notes.count() == 0


async def test_a_loop_that_is_blocked_after_the_commit_was_sent_repeats_nothing(notes: Notes) -> None:
    async def work(session: Session) -> None:
        await notes.pid(session)
        await session.script(notes.insert)
        # The COMMIT is the next statement that is sent; the session does not end, as it is in no transaction.
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(wait_for_commit))

    def wait_for_commit() -> None:
        with psycopg.connect(notes.url, autocommit=True) as other:
            until_now(lambda: other.execute(notes._count).fetchone() == (1,))
            other.execute("SELECT pg_sleep(0.5)")

    await notes.data.transact(work)
    assert notes.tries == 1
    assert await notes.count() == 1


async def test_a_slow_statement_is_no_blocked_loop(notes: Notes) -> None:
    async def work(session: Session) -> None:
        await notes.pid(session)
        await session.script(notes.insert)
        await session.script(SLOW)

    await notes.data.transact(work)
    assert notes.tries == 1
    assert await notes.count() == 1


@pytest.mark.parametrize("is_lost", ["answer", "request"])
async def test_a_commit_that_was_sent_and_not_answered_is_not_repeated_even_after_a_silence(
    notes: Notes, is_lost: str
) -> None:
    parts = urlsplit(notes.url)
    assert parts.port is not None
    async with TcpProxy.to(parts.port) as proxy:
        data = await opened(notes.url.replace(f":{parts.port}", f":{proxy.port}"))

        async def work(session: Session) -> None:
            await notes.pid(session)
            await session.script(notes.insert)
            await session.script(SLOW)

        cut = (proxy.break_after if is_lost == "answer" else proxy.break_before)(b"COMMIT", within=b"INSERT")
        with pytest.raises(StorageUnavailable, match="closed in the middle of operation") as raised:
            await data.transact(work)
        assert not isinstance(raised.value, SilentInTransaction)
        assert cut.happened.is_set()
        assert notes.tries == 1
        assert await notes.count() == (1 if is_lost == "answer" else 0)
        await data.close()


async def test_the_server_says_that_it_has_not_read_a_commit_that_was_sent_too_late(notes: Notes) -> None:
    """The process froze after it had measured its silence, and before it sent the COMMIT."""

    async def work(session: Session) -> None:
        pid = await notes.pid(session)
        await session.script(notes.insert)
        if notes.tries == 1:
            silence = session._silence
            assert silence is not None
            notes.block(pid)
            silence.note_answer()

            async def measure() -> None:
                silence._lasted = silence._limit

            silence.end_before_statement = measure  # type: ignore[method-assign]

    await notes.data.transact(work)
    assert notes.tries == 2
    assert await notes.count() == 1


def test_the_error_of_the_server_is_found_behind_the_error_of_the_driver() -> None:
    error = asyncpg.ConnectionDoesNotExistError("closed in the middle of operation")
    assert not is_idle_timeout(error)
    error.__cause__ = asyncpg.IdleInTransactionSessionTimeoutError("terminating connection")
    assert is_idle_timeout(error)


async def test_a_handler_that_blocks_the_loop_in_its_own_transaction_gets_a_plain_error(
    postgres_url: str, postgres_schema: str
) -> None:
    app = Headgate(postgres_url, schema=postgres_schema)
    payments = Notes(postgres_url, postgres_schema, Database(postgres_url, "headgate", size=1))
    errors: list[Exception] = []

    async def pay(*, fails: bool) -> None:
        async with current_job().transaction() as connection:
            # As the owner of the server may have set it.
            await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{LIMIT}'")
            await connection.execute(payments.insert)
            if current_job().attempt == 1:
                payments.block(await connection.fetchval("SELECT pg_backend_pid()"))
                if fails:
                    raise Unwanted

    @app.task(retry=RetryPolicy(retries=1, delay=0.01))
    async def paid(fails: bool) -> None:
        try:
            await pay(fails=fails)
        except Exception as error:
            errors.append(error)
            raise

    async with app:
        await ask(postgres_url, f"CREATE TABLE {postgres_schema}.note (words text)")
        await result_within(await paid.enqueue(fails=False))
        assert await payments.count() == 1
        (error,) = errors
        assert isinstance(error, StorageUnavailable)
        assert "nothing was committed" in str(error)
        assert "idle_in_transaction_session_timeout" in str(error)
        # An error of the handler itself stays what it is.
        await result_within(await paid.enqueue(fails=True))
        assert await payments.count() == 2
        assert isinstance(errors[1], Unwanted)
