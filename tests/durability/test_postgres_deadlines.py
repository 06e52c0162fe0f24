"""Whatever stops answering on PostgreSQL: every wait has an end, and closing does not wait for what never comes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import asyncpg
import pytest

from headgate.clock import SystemClock
from headgate.errors import StorageUnavailable
from headgate.storage.facts import PostgresFacts
from headgate.storage.postgres import database, schema
from headgate.storage.postgres.database import Database, Deadlocked, Session
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.postgres.wake_ups import WakeUps
from headgate.testing.manual_clock import ManualClock
from tests.durability.postgres import ask, session_at
from tests.durability.tcp_proxy import TcpProxy
from tests.durability.work import Work
from tests.internals import store_of
from tests.postgres_server import PostgresServer, server_in
from tests.until import patient, until

pytestmark = pytest.mark.nightly

R = TypeVar("R")

SLEEP = "SELECT pg_sleep(60)"


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What does not end by itself takes a minute or more here, or for ever: longer than `patient` is."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < patient(seconds), f"it took {took:.1f} s"


@contextlib.asynccontextmanager
async def opened(url: str, *, size: int = 2) -> AsyncIterator[Database]:
    database_ = Database(url, "headgate", size=size)
    await database_.open()
    try:
        yield database_
    finally:
        await database_.close()


async def is_asleep(postgres: PostgresServer) -> bool:
    """Whether the server has begun with SLEEP."""
    return bool(await ask(postgres.url, f"SELECT count(*) FROM pg_stat_activity WHERE query = '{SLEEP}'"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_TIMEOUT", 0.5)
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr(database, "PATIENCE", 500_000)
    monkeypatch.setattr(schema, "COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr(schema, "TURN_TIMEOUT", 1)


@pytest.fixture
def patient_with_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer a statement counts as gone so late that whatever waits for that is noticed."""
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", 60.0)


@pytest.mark.usefixtures("impatient")
async def test_opening_a_server_that_never_answers_fails_in_time(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        proxy.hold()
        storage = PostgresStorage(postgres.url_at(proxy.port), SystemClock())
        with within(3), pytest.raises(StorageUnavailable):
            await storage.open()
        with within(1):
            await storage.close()


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_stops_while_the_tables_are_made_is_reported(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        stalled = proxy.stall_before(b"CREATE SCHEMA")
        storage = PostgresStorage(postgres.url_at(proxy.port), SystemClock())
        opening = asyncio.ensure_future(storage.open())
        await stalled.happened.wait()
        # The server does not answer any connection any more.
        proxy.hold()
        with within(5), pytest.raises(StorageUnavailable):
            await opening
        stalled.resumed.set()


@pytest.mark.usefixtures("impatient")
async def test_a_pool_whose_connections_are_all_stuck_is_not_waited_for_longer_than_a_statement(
    postgres: PostgresServer,
) -> None:
    async with TcpProxy.to(postgres.port) as proxy, opened(postgres.url_at(proxy.port)) as data:

        async def stuck() -> None:
            await data.run(lambda session: session.script(SLEEP))

        await data.run(lambda session: session.script("SELECT 1"))
        proxy.hold()
        with within(4):
            failures = await asyncio.gather(*(stuck() for _ in range(8)), return_exceptions=True)
        assert all(isinstance(failure, StorageUnavailable) for failure in failures), failures
        # Also those that waited for a connection in use.
        assert all("does not answer" in str(failure) for failure in failures), failures
        # The silent ones stay silent, and none of them is in the pool any more.
        proxy.release()
        with within(3):
            await data.repeat(lambda session: session.script("SELECT 1"))


@pytest.mark.usefixtures("impatient")
async def test_a_pool_that_is_fully_in_use_is_told_from_a_server_that_does_not_answer(postgres: PostgresServer) -> None:
    """The fault: the caller was told that the server does not answer, which answered all the while."""
    async with opened(postgres.url) as data:
        began, ended = asyncio.Event(), asyncio.Event()

        async def long(session: Session) -> None:
            while not ended.is_set():
                await session.row("own_transaction")
                began.set()

        using = [asyncio.ensure_future(data.transact(long)) for _ in range(2)]
        await began.wait()
        with pytest.raises(StorageUnavailable) as raised:
            await data.run(lambda session: session.script("SELECT 1"))
        ended.set()
        await asyncio.gather(*using)
        said = str(raised.value)
        assert "all 2 connections of this process to postgresql://" in said, said
        assert "were in use for 0.5 s, their last statements: 2 × own_transaction; raise connections=" in said, said
        await data.run(lambda session: session.script("SELECT 1"))


@pytest.mark.usefixtures("impatient")
async def test_silent_connections_that_the_pool_replaces_are_no_errors_of_the_event_loop(
    postgres: PostgresServer,
) -> None:
    """The fault: for each connection that a firewall had cut, a traceback of the driver was logged, and no cause."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with TcpProxy.to(postgres.port) as proxy, opened(postgres.url_at(proxy.port)) as data:

        async def sleep(seconds: float) -> None:
            await data.run(lambda session: session.script(f"SELECT pg_sleep({seconds})"))

        await asyncio.gather(*(sleep(0.2) for _ in range(3)))
        proxy.hold()
        with pytest.raises(StorageUnavailable):
            await sleep(0)
        await asyncio.gather(*(sleep(0) for _ in range(3)), return_exceptions=True)
        await until(lambda: not any("Connection.close()" in repr(task) for task in asyncio.all_tasks()))
        # An error that no one asks for is reported when its task is collected.
        gc.collect()
        assert reported == []


@pytest.mark.parametrize("statement", ["BEGIN", "SLEEP", "COMMIT", "ROLLBACK"])
@pytest.mark.usefixtures("impatient")
async def test_each_statement_of_a_transaction_has_a_timeout(postgres: PostgresServer, statement: str) -> None:
    async with TcpProxy.to(postgres.port) as proxy, opened(postgres.url_at(proxy.port)) as data:
        await data.run(lambda session: session.script("SELECT 1"))
        stalled = proxy.stall_before(b"pg_sleep" if statement == "SLEEP" else statement.encode())

        async def work(session: database.Session) -> None:
            await session.script(SLEEP if statement == "SLEEP" else "SELECT 2")
            if statement == "ROLLBACK":
                raise LookupError

        with within(3), pytest.raises(StorageUnavailable):
            await data.transact(work)
        assert stalled.happened.is_set()
        with within(3):
            await data.run(lambda session: session.script("SELECT 3"))
        stalled.resumed.set()


@pytest.mark.usefixtures("patient_with_statements")
async def test_a_task_that_is_cancelled_in_the_middle_leaves_at_once_and_its_connection_goes(
    postgres: PostgresServer,
) -> None:
    async with TcpProxy.to(postgres.port) as proxy, opened(postgres.url_at(proxy.port), size=1) as data:
        stalled = proxy.stall_before(b"pg_sleep")
        working = asyncio.ensure_future(data.run(lambda session: session.script(SLEEP)))
        await stalled.happened.wait()
        working.cancel()
        with within(1), pytest.raises(asyncio.CancelledError):
            await working
        with within(2):
            await data.run(lambda session: session.script("SELECT 1"))
        stalled.resumed.set()


@pytest.mark.usefixtures("patient_with_statements")
async def test_closing_does_not_wait_for_silent_connections(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        data = Database(postgres.url_at(proxy.port), "headgate", size=4)
        await data.open()
        await asyncio.gather(*(data.run(lambda session: session.script("SELECT pg_sleep(0.1)")) for _ in range(3)))
        working = asyncio.ensure_future(data.run(lambda session: session.script(SLEEP)))
        await until(lambda: is_asleep(postgres))
        proxy.hold()
        with within(database.CLOSE_TIMEOUT + 1):
            await data.close()
        with pytest.raises(StorageUnavailable):
            await working


@pytest.mark.usefixtures("patient_with_statements")
async def test_an_app_with_a_silent_server_closes(postgres: PostgresServer) -> None:
    async with TcpProxy.to(postgres.port) as proxy:
        work = Work(postgres.url_at(proxy.port))
        async with work.app.open():
            await work.gated.enqueue("acme")
            proxy.hold()
            began = time.monotonic()
        assert time.monotonic() - began < database.CLOSE_TIMEOUT + patient(2)


async def test_a_lost_cancel_request_is_sent_again(postgres: PostgresServer) -> None:
    class SilentWakeUps(WakeUps):
        async def _poll(self) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()

    async with opened(postgres.url) as data:
        wake_ups = SilentWakeUps(data, None, SystemClock(), lambda _: None)
        await wake_ups.open()
        await asyncio.sleep(0)
        with within(3):
            await wake_ups.close()


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server with a small notification queue, if it has that setting: 17 or newer."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(server_in(tmp_path, "max_notify_queue_pages=64"))
        except AssertionError:
            pytest.skip("this PostgreSQL has no max_notify_queue_pages")
        yield server


async def flood(session: asyncpg.Connection) -> None:
    while True:
        await session.execute("SELECT pg_notify('nothing', repeat('x', 7000) || n) FROM generate_series(1, 50) n")


async def test_a_repeat_is_made_even_if_the_clock_of_a_test_stands_still(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = PostgresStorage(postgres_url, ManualClock(), schema=postgres_schema, own_time=True)
    await storage.open()
    data = storage._database
    once, failures = data._once, [Deadlocked("a deadlock"), StorageUnavailable("the server was restarted")]

    async def fails_twice(work: Callable[[Session], Awaitable[R]]) -> R:
        if failures:
            raise failures.pop()
        return await once(work)

    monkeypatch.setattr(data, "_once", fails_twice)
    with within(1):
        assert isinstance(await storage.facts(), PostgresFacts)
    assert failures == []
    await storage.close()


async def test_the_check_of_a_large_store_takes_longer_than_other_statements(
    postgres_url: str, postgres_schema: str
) -> None:
    storage = PostgresStorage(postgres_url, SystemClock(), schema=postgres_schema)
    await storage.open()
    async with session_at(postgres_url) as session:
        # As if there were so many tags that reading them took longer than any other statement may.
        await session.execute(
            f"SET search_path = {postgres_schema}; ALTER TABLE job_tag RENAME TO many_tags; "
            "CREATE VIEW job_tag AS SELECT many_tags.* FROM many_tags CROSS JOIN pg_sleep(10)"
        )
        await session.execute("INSERT INTO many_tags (tag, job) VALUES ('red', 1)")
    (found,) = await storage.check()
    assert "tag red" in found.seen
    await storage.close()


async def test_the_check_of_an_index_ends_if_the_server_stops_answering(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a script had no timeout of its own, and a connection of a check has none."""
    monkeypatch.setattr(database, "CHECK_FOR", 0.5)
    async with TcpProxy.to(postgres.port) as proxy, opened(postgres.url_at(proxy.port)) as data:
        stalled = proxy.stall_before(b"pg_sleep")
        async with asyncio.timeout(patient(5)):
            with pytest.raises(StorageUnavailable):
                await data.check(lambda session: session.script(SLEEP))
        assert stalled.happened.is_set()
        stalled.resumed.set()


async def test_a_full_notification_queue_stops_no_worker(narrow: PostgresServer) -> None:
    work, other = Work(narrow.url), Work(narrow.url)
    async with work.app, other.app.open(), session_at(narrow.url) as lazy, session_at(narrow.url) as loud:
        await work.has_run(await other.gated.enqueue("acme"))
        # A listener that stays in its transaction keeps all notifications in the queue.
        await lazy.execute("LISTEN nothing; BEGIN; SELECT 1")
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications"):
            await flood(loud)
        await work.has_run(*[await other.gated.enqueue("acme") for _ in range(3)])
        await lazy.execute("COMMIT; UNLISTEN *")
        # Notifications that failed then are sent again now.
        storage = store_of(other.app)
        assert isinstance(storage, PostgresStorage)
        assert storage._wake_ups is not None
        assert not any(task.done() for task in storage._wake_ups._tasks)
        assert work.failures == []


async def test_a_transaction_that_may_last_is_not_ended_by_a_setting_of_the_server(postgres: PostgresServer) -> None:
    if int(await ask(postgres.url, "SHOW server_version_num")) < database.ENDS_TRANSACTIONS:
        pytest.skip("it has no transaction_timeout")
    await ask(postgres.url, "ALTER ROLE ALL SET transaction_timeout = '300ms'")
    async with opened(postgres.url) as data:
        await data.scan(lambda session: session.script("SELECT pg_sleep(0.6)"))
