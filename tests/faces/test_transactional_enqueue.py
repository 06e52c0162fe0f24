"""A job that is enqueued in a transaction of the caller's exists if and only if that commits, with every driver."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from headgate import (
    DeclarationError,
    DuplicateJob,
    Headgate,
    IdInUse,
    JobCancelled,
    JobNotFound,
    JobState,
    Mutex,
    RateLimit,
    RetryPolicy,
    StrictRate,
    Task,
    UnfitConnection,
)
from headgate.jobs.history import ALL
from headgate.storage.postgres import storage as postgres_storage
from tests.faces.user_transactions import IDS, KINDS, postgres_in, sqlite_in
from tests.internals import store_of
from tests.until import result_within, until


class AppAndWorker:
    """An app, a worker of it, and where its jobs are."""

    def __init__(self, app: Headgate, place: str, schema: str = "") -> None:
        self.app = app
        self.place = place
        self.schema = schema
        self.ran: list[str] = []

        async def mail(to: str) -> str:
            self.ran.append(to)
            return to

        self.mail: Task[[str], str] = app.task(limits=[RateLimit("1000/s", key="{to}", burst=1000)])(mail)
        self.plain: Task[[str], str] = app.task(name="plain")(mail)

        @app.task(limits=[StrictRate(10, per=3600, cost="{weight}")])
        async def weighed(weight: int) -> None:
            self.ran.append("weighed")

        @app.task(limits=[Mutex("{key}", hold="until_final")], retry=RetryPolicy(retries=3, delay=3600))
        async def sticky(key: str) -> None:
            self.ran.append("sticky")
            raise ValueError("tried again in an hour")

        @app.task
        async def slow(to: str) -> None:
            self.ran.append(f"slow {to}")
            await asyncio.Event().wait()

        self.weighed, self.sticky, self.slow = weighed, sticky, slow


class Undone(Exception):
    pass


@pytest_asyncio.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[AppAndWorker]:
    path = tmp_path / "jobs.db"
    program = AppAndWorker(Headgate(f"sqlite:///{path}", synchronous="OFF"), str(path))
    async with program.app.open():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE account (name TEXT)")
        yield program


@pytest_asyncio.fixture
async def on_postgres(postgres_url: str, postgres_schema: str) -> AsyncIterator[AppAndWorker]:
    program = AppAndWorker(Headgate(postgres_url, schema=postgres_schema), postgres_url, postgres_schema)
    async with program.app.open():
        yield program


@pytest.fixture(params=KINDS, ids=IDS)
def driven(request: pytest.FixtureRequest) -> tuple[AppAndWorker, Any]:
    store, kind = request.param
    program = request.getfixturevalue(f"on_{store}")
    return program, (postgres_in if store == "postgres" else sqlite_in)(kind)


@pytest.fixture(params=["postgres", "sqlite"])
def stored(request: pytest.FixtureRequest) -> tuple[AppAndWorker, Any]:
    """One driver of each store."""
    program = request.getfixturevalue(f"on_{request.param}")
    return program, postgres_in("asyncpg") if request.param == "postgres" else sqlite_in("sqlite3")


async def is_there(program: AppAndWorker, job_id: str) -> bool:
    try:
        await program.app.job(job_id).status()
    except JobNotFound:
        return False
    return True


async def enqueued(program: AppAndWorker) -> int:
    """Return how many jobs enqueued in transactions the charts count."""
    store = store_of(program.app)
    await store.gather_history()
    return sum(row.enqueued for row in await store.jobs_history(3600, ALL, ALL, 0))


async def test_a_job_exists_from_the_commit_on_and_runs(driven: tuple[AppAndWorker, Any]) -> None:
    program, begin = driven
    async with begin(program) as (connection, _run):
        job = await program.mail.using(connection=connection).enqueue("ada")
        many = await program.plain.using(connection=connection).enqueue_many([("eve",), ("bob",)])
        assert not await is_there(program, job.id)
    assert (await job.status()).state is JobState.WAITING
    assert await enqueued(program) == 3
    async with program.app:
        assert await result_within(job, 5) == "ada"
        assert [await result_within(each, 5) for each in many] == ["eve", "bob"]
    assert await store_of(program.app).check() == []


async def test_a_rollback_leaves_nothing(driven: tuple[AppAndWorker, Any]) -> None:
    program, begin = driven
    with contextlib.suppress(Undone):
        async with begin(program) as (connection, _run):
            job = await program.mail.using(connection=connection).enqueue("ada")
            raise Undone
    assert not await is_there(program, job.id)
    assert await enqueued(program) == 0
    async with program.app:
        after = await program.mail.enqueue("eve")
        assert await result_within(after, 5) == "eve"
    assert program.ran == ["eve"]
    assert await store_of(program.app).check() == []


async def test_calls_in_a_transaction_keep_their_own_options(driven: tuple[AppAndWorker, Any]) -> None:
    """They were looked at for their arguments only: a job of next week ran at once, also when another task's."""
    program, begin = driven
    async with begin(program) as (connection, _run):
        enqueuer = program.plain.using(connection=connection, priority=3)
        later, same = program.plain.using(delay=3600, priority=7), enqueuer
        jobs = await enqueuer.enqueue_many([later.call("ada"), same.call("eve"), ("bob",)])
        with pytest.raises(TypeError, match="a call of task 'mail'"):
            await enqueuer.enqueue_many([program.mail.call("eve")])
    async with program.app.open():
        statuses = [await job.status() for job in jobs]
    assert [(each.is_scheduled, each.priority) for each in statuses] == [(True, 7), (False, 3), (False, 3)]


async def test_unique_keys_apply_in_a_transaction(driven: tuple[AppAndWorker, Any]) -> None:
    program, begin = driven
    first = await program.mail.using(unique_key="k").enqueue("ada")
    async with begin(program) as (connection, _run):
        using = program.mail.using(connection=connection, unique_key="k")
        assert await using.enqueue("eve") == first
        with pytest.raises(DuplicateJob):
            await program.mail.using(connection=connection, unique_key="k", on_conflict="raise").enqueue("eve")
        fresh = program.mail.using(connection=connection, unique_key="new", on_conflict="raise")
        with pytest.raises(DuplicateJob):
            await fresh.enqueue_many([("a",), ("b",)])
        assert (
            await program.mail.using(connection=connection, unique_key="k", on_conflict="replace").enqueue("bob")
            == first
        )
    async with program.app:
        assert await result_within(first, 5) == "bob"
    assert program.ran == ["bob"]


async def test_own_ids_and_reserved_keys_apply_in_a_transaction(driven: tuple[AppAndWorker, Any]) -> None:
    program, begin = driven
    first, second = uuid.uuid4(), uuid.uuid4()
    kept = await program.mail.using(id=first, unique_key="k", unique_for=3600).enqueue("ada")
    async with program.app:
        assert await result_within(kept, 5) == "ada"
    async with begin(program) as (connection, run):
        using = program.mail.using(connection=connection)
        assert await using.using(id=first).enqueue("eve") == kept
        assert await using.using(unique_key="k").enqueue("eve") == kept
        with pytest.raises(IdInUse, match="of task 'mail', not 'plain'"):
            await program.plain.using(connection=connection, id=first).enqueue("eve")
        await run("SAVEPOINT mine")
        gone = await using.using(id=second, unique_key="new", unique_for=3600).enqueue("eve")
        assert gone.id == str(second)
        await run("ROLLBACK TO SAVEPOINT mine")
        await using.using(unique_key="new", unique_for=3600).enqueue("bob")
    assert not await is_there(program, str(second))
    async with program.app:
        await program.mail.using(id=second).enqueue("eve")
        await until(lambda: sorted(program.ran) == ["ada", "bob", "eve"], 5)
    assert list(await store_of(program.app).check()) == []


async def test_a_debounced_enqueue_in_a_transaction_postpones_the_job(stored: tuple[AppAndWorker, Any]) -> None:
    program, begin = stored
    debounced = program.mail.using(unique_key="k", debounce=3600, debounce_max=3601)
    first = await debounced.enqueue("ada")
    due = (await first.status()).run_at
    async with begin(program) as (connection, _run):
        assert await debounced.using(connection=connection).enqueue("eve") == first
    status = await first.status()
    assert due < status.run_at <= status.enqueued_at + timedelta(seconds=3601)


async def test_a_running_job_is_cancelled_if_the_transaction_commits(on_postgres: AppAndWorker) -> None:
    program = on_postgres
    slow = program.slow.using(unique_key="k", on_conflict="cancel_running")
    async with program.app:
        first = await slow.enqueue("ada")
        await until(lambda: program.ran == ["slow ada"], 10)
        async with postgres_in("psycopg")(program) as (connection, _run):
            second = await slow.using(connection=connection).enqueue("eve")
            assert second != first
        with pytest.raises(JobCancelled):
            await result_within(first)
        await until(lambda: program.ran == ["slow ada", "slow eve"], 10)
        await second.cancel()


async def test_the_permits_and_costs_of_a_replaced_job_are_returned_after_the_commit(
    driven: tuple[AppAndWorker, Any],
) -> None:
    program, begin = driven
    for _ in range(2):
        # Two that run one after the other: the second waits for the cost of the first.
        await program.weighed.enqueue(1)
    costly = await program.weighed.using(unique_key="k").enqueue(10)
    sticky = await program.sticky.using(unique_key="k").enqueue("one")
    async with program.app:
        # Their order is open: a start that is late waits until that is stored.
        await until(lambda: sorted(program.ran) == ["sticky", "weighed", "weighed"], 10)
    behind = await program.sticky.enqueue("one")
    async with begin(program) as (connection, _run):
        enlisted = {"unique_key": "k", "on_conflict": "replace", "connection": connection}
        assert await program.weighed.using(**enlisted).enqueue(1) == costly
        assert await program.sticky.using(**enlisted).enqueue("two") == sticky
    async with program.app:
        await result_within(costly, 5)
        # Both fail, and hold their permits until they are tried again.
        await until(lambda: program.ran.count("sticky") == 3, 5)
    assert {(await each.status()).attempt for each in (behind, sticky)} == {1}
    assert list(await store_of(program.app).check()) == []


async def test_a_rolled_back_savepoint_removes_its_job(driven: tuple[AppAndWorker, Any]) -> None:
    program, begin = driven
    async with begin(program) as (connection, run):
        using = program.mail.using(connection=connection)
        kept = await using.enqueue("ada")
        await run("SAVEPOINT mine")
        gone = await using.enqueue("eve")
        await run("ROLLBACK TO SAVEPOINT mine")
        last = await using.enqueue("bob")
    assert [await is_there(program, job.id) for job in (kept, gone, last)] == [True, False, True]
    async with program.app:
        assert await result_within(last, 5) == "bob"
    assert await store_of(program.app).check() == []


async def test_a_worker_is_notified_at_the_commit(stored: tuple[AppAndWorker, Any]) -> None:
    program, begin = stored
    async with program.app:
        async with begin(program) as (connection, _run):
            job = await program.mail.using(connection=connection).enqueue("ada")
        assert await result_within(job, 2) == "ada"


async def test_time_priority_headers_and_limits_are_kept(stored: tuple[AppAndWorker, Any]) -> None:
    program, begin = stored
    async with begin(program) as (connection, _run):
        job = await program.mail.using(
            connection=connection, delay=60, priority=4, headers={"tenant": "acme"}, retry=RetryPolicy(retries=7)
        ).enqueue("ada")
    record = await store_of(program.app).job(job.id)
    assert record is not None
    assert (record.priority, record.headers, record.delayed) == (4, {"tenant": "acme"}, True)
    assert [ref.key for ref in record.buckets] == ["ada"]


async def test_sync_code_enqueues_on_its_own_connection(on_sqlite: AppAndWorker, on_postgres: AppAndWorker) -> None:
    def enqueue(program: AppAndWorker, connection: Any, how: Callable[[Any], Any]) -> str:
        with how(connection):
            (job,) = program.mail.using(connection=connection).sync.enqueue_many([("ada",)])
            return job.id

    def on_file() -> str:
        with contextlib.closing(sqlite3.connect(on_sqlite.place)) as connection:
            return enqueue(on_sqlite, connection, lambda each: each)

    def on_server() -> str:
        with psycopg.connect(on_postgres.place, autocommit=True) as connection:
            return enqueue(on_postgres, connection, lambda each: each.transaction())

    assert await is_there(on_sqlite, await asyncio.to_thread(on_file))
    assert await is_there(on_postgres, await asyncio.to_thread(on_server))


async def test_an_async_connection_is_refused_in_sync_code(on_postgres: AppAndWorker) -> None:
    connection = await asyncpg.connect(on_postgres.place)
    try:
        with pytest.raises(UnfitConnection, match="is async"):
            await asyncio.to_thread(on_postgres.mail.using(connection=connection).sync.enqueue, "ada")
    finally:
        await connection.close()


async def test_without_a_transaction_nothing_is_stored_and_the_error_says_how_to_begin_one(
    on_sqlite: AppAndWorker, on_postgres: AppAndWorker
) -> None:
    connection = await asyncpg.connect(on_postgres.place)
    with pytest.raises(UnfitConnection, match=r"connection\.transaction\(\)"):
        await on_postgres.mail.using(connection=connection).enqueue("ada")
    await connection.close()
    # The error said to begin a transaction, which would not help.
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        await on_postgres.mail.using(connection=connection).enqueue("ada")
    with (
        psycopg.connect(on_postgres.place, autocommit=True) as other,
        pytest.raises(UnfitConnection, match=r"connection\.transaction\(\)"),
    ):
        await on_postgres.mail.using(connection=other).enqueue("ada")
    url = on_postgres.place.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(UnfitConnection, match="another isolation_level than AUTOCOMMIT"):
            await on_postgres.mail.using(connection=session).enqueue("ada")
    await engine.dispose()
    with (
        contextlib.closing(sqlite3.connect(on_sqlite.place, isolation_level=None)) as file,
        pytest.raises(UnfitConnection, match="BEGIN"),
    ):
        await on_sqlite.mail.using(connection=file).enqueue("ada")
    assert await on_postgres.app.admin.counts() == []
    assert await on_sqlite.app.admin.counts() == []


async def test_psycopg_in_pipeline_mode_is_refused_and_its_transaction_stays_usable(on_postgres: AppAndWorker) -> None:
    """The error was "not enough values to unpack", raised while statements were under way."""
    task = on_postgres.plain
    with psycopg.connect(on_postgres.place) as connection:
        connection.execute("SELECT 1")
        with connection.pipeline(), pytest.raises(UnfitConnection, match="pipeline mode"):
            await task.using(connection=connection).enqueue("ada")
        jobs = [await task.using(connection=connection).enqueue("ada")]
    async with await psycopg.AsyncConnection.connect(on_postgres.place) as other:
        async with other.pipeline():
            with pytest.raises(UnfitConnection, match="pipeline mode"):
                await task.using(connection=other).enqueue("ada")
        jobs.append(await task.using(connection=other).enqueue("ada"))
    assert all([await is_there(on_postgres, job.id) for job in jobs])


async def test_a_connection_to_somewhere_else_is_refused_by_name(
    on_sqlite: AppAndWorker, on_postgres: AppAndWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is set below is read again every 5 s.
    monkeypatch.setattr(postgres_storage, "FOLLOW_EVERY", 600)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        with pytest.raises(UnfitConnection, match=r"other\.db"):
            await on_sqlite.mail.using(connection=other).enqueue("ada")
        with pytest.raises(UnfitConnection, match="connection is from sqlite3"):
            await on_postgres.mail.using(connection=other).enqueue("ada")
    with contextlib.closing(sqlite3.connect(":memory:")) as nowhere, pytest.raises(UnfitConnection, match="in memory"):
        await on_sqlite.mail.using(connection=nowhere).enqueue("ada")
    server = await asyncpg.connect(on_postgres.place)
    try:
        async with server.transaction():
            with pytest.raises(UnfitConnection, match="connection is from asyncpg"):
                await on_sqlite.mail.using(connection=server).enqueue("ada")
            elsewhere = Headgate(on_postgres.place, schema=f"{on_postgres.schema}_b"[-31:])
            task = elsewhere.task(name="mail")(_nothing)
            async with elsewhere.open():
                storage: Any = store_of(elsewhere)
                storage._place_id = "another"
                with pytest.raises(UnfitConnection, match="does not have the jobs of this app"):
                    await task.using(connection=server).enqueue()
                await server.execute(f'SET LOCAL search_path TO "{elsewhere._settings.schema}"')
            # The caller's transaction is as good as before.
            assert await server.fetchval("SELECT 1") == 1
        await server.execute(f'DROP SCHEMA "{elsewhere._settings.schema}" CASCADE')
    finally:
        await server.close()


async def test_a_connection_to_a_copy_of_the_database_on_the_same_server_is_refused(on_postgres: AppAndWorker) -> None:
    """The fault: the copy has the id of the tables, so the job was enqueued there, where no worker looks for it."""
    copy = f"copy_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(on_postgres.place)
    await admin.execute(f'CREATE DATABASE "{copy}"')
    try:
        elsewhere = await asyncpg.connect(on_postgres.place, database=copy)
        await elsewhere.execute(f'CREATE SCHEMA "{on_postgres.schema}"')
        await elsewhere.execute(f'CREATE TABLE "{on_postgres.schema}".identity (id uuid)')
        id = await admin.fetchval(f'SELECT id FROM "{on_postgres.schema}".identity')
        await elsewhere.execute(f'INSERT INTO "{on_postgres.schema}".identity VALUES ($1)', id)
        async with elsewhere.transaction():
            with pytest.raises(
                UnfitConnection, match=f"to database '{copy}', which does not have the jobs of this app"
            ):
                await on_postgres.mail.using(connection=elsewhere).enqueue("ada")
        await elsewhere.close()
    finally:
        await admin.execute(f'DROP DATABASE "{copy}" WITH (FORCE)')
        await admin.close()


async def _nothing() -> None: ...


async def test_a_server_without_the_tables_is_refused_and_the_transaction_of_the_caller_continues(
    on_postgres: AppAndWorker,
) -> None:
    server = await asyncpg.connect(on_postgres.place)
    try:
        await server.execute(f'ALTER SCHEMA "{on_postgres.schema}" RENAME TO "{on_postgres.schema[:28]}_x"')
        async with server.transaction():
            with pytest.raises(UnfitConnection, match="does not have the jobs of this app"):
                await on_postgres.mail.using(connection=server).enqueue("ada")
            assert await server.fetchval("SELECT 1") == 1
    finally:
        await server.execute(f'ALTER SCHEMA "{on_postgres.schema[:28]}_x" RENAME TO "{on_postgres.schema}"')
        await server.close()


async def test_under_another_isolation_a_unique_key_is_refused_and_a_plain_job_is_not(
    on_postgres: AppAndWorker,
) -> None:
    connection = await asyncpg.connect(on_postgres.place)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            using = on_postgres.mail.using(connection=connection)
            with pytest.raises(UnfitConnection, match="READ COMMITTED"):
                await using.using(unique_key="k").enqueue("ada")
            job = await using.enqueue("ada")
        assert await is_there(on_postgres, job.id)
    finally:
        await connection.close()


async def test_a_connection_that_returns_texts_as_bytes_enqueues_and_goes_on_returning_them(
    on_sqlite: AppAndWorker,
) -> None:
    with contextlib.closing(sqlite3.connect(on_sqlite.place)) as connection:
        connection.text_factory = bytes
        with connection:
            job = await on_sqlite.plain.using(connection=connection, unique_key="k").enqueue("ada")
            assert await on_sqlite.plain.using(connection=connection, unique_key="k").enqueue("eve") == job
        assert connection.execute("SELECT 'ada'").fetchone() == (b"ada",)
    assert await is_there(on_sqlite, job.id)


async def test_a_psycopg_connection_may_have_cursors_of_another_kind(on_postgres: AppAndWorker) -> None:
    """Those that take $1 for parameters raised "raw queries require a sequence of parameters"."""
    task = on_postgres.plain
    for factory in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(on_postgres.place, cursor_factory=factory) as connection:
            job = await task.using(connection=connection, unique_key=factory.__name__).enqueue("ada")
        assert await is_there(on_postgres, job.id)
    for async_factory in (psycopg.AsyncRawCursor, psycopg.AsyncClientCursor):
        connecting = psycopg.AsyncConnection.connect(on_postgres.place, cursor_factory=async_factory)
        async with await connecting as other:
            job = await task.using(connection=other, unique_key=async_factory.__name__).enqueue("ada")
        assert await is_there(on_postgres, job.id)


async def test_sqlalchemy_over_another_driver_is_refused_by_the_name_of_the_driver(on_sqlite: AppAndWorker) -> None:
    """As over psycopg2: the error said to pass a SQLAlchemy session, which it was."""

    class Wrapped:
        def __init__(self) -> None:
            self.inner = sqlite3.connect(on_sqlite.place)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    engine = create_engine("sqlite://", creator=Wrapped)
    with Session(engine) as session, pytest.raises(UnfitConnection, match=r"Session over .*Wrapped cannot carry"):
        await on_sqlite.plain.using(connection=session).enqueue("ada")
    engine.dispose()


class Proxy:
    """As those of wrapt, around connections."""

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


async def test_a_proxy_of_a_connection_as_of_monitoring_libraries_is_the_connection(
    on_sqlite: AppAndWorker, on_postgres: AppAndWorker
) -> None:
    with (
        contextlib.closing(sqlite3.connect(on_sqlite.place)) as file,
        psycopg.connect(on_postgres.place) as server,
    ):
        for program, connection in ((on_sqlite, file), (on_postgres, server)):
            job = await program.plain.using(connection=Proxy(connection), unique_key="k").enqueue("ada")
            assert not await is_there(program, job.id)
            connection.commit()
            assert await is_there(program, job.id)


@pytest.mark.parametrize("begun", ["by BEGIN", "by the enqueue"])
@pytest.mark.parametrize("how", ["an id", "many", "a unique key"])
async def test_an_enqueue_that_comes_first_in_a_transaction_waits_for_another_writer(
    on_sqlite: AppAndWorker, how: str, begun: str
) -> None:
    """It read before it wrote, and SQLite does not let a transaction wait that has read: "database is locked"."""
    program = on_sqlite
    own: Any = {"an id": {"id": uuid.uuid4()}, "a unique key": {"unique_key": "k"}}.get(how, {})
    isolation: Any = None if begun == "by BEGIN" else "DEFERRED"
    with (
        contextlib.closing(sqlite3.connect(program.place, isolation_level=None, check_same_thread=False)) as other,
        contextlib.closing(sqlite3.connect(program.place, isolation_level=isolation, timeout=10)) as connection,
    ):
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.2, other.execute, ["COMMIT"])
        ending.start()
        try:
            with connection:
                if begun == "by BEGIN":
                    connection.execute("BEGIN")
                calls = [("ada",), ("eve",)] if how == "many" else [("ada",)]
                jobs = await program.plain.using(connection=connection, **own).enqueue_many(calls)
        finally:
            ending.join()
    assert all([await is_there(program, job.id) for job in jobs])


async def test_an_object_that_is_not_a_connection_is_refused_by_its_type(on_sqlite: AppAndWorker) -> None:
    with pytest.raises(UnfitConnection, match=r"builtins\.object"):
        await on_sqlite.mail.using(connection=object()).enqueue("ada")


async def test_an_app_in_memory_has_no_transactions() -> None:
    app = Headgate("memory://")
    task = app.task(_nothing)
    async with app.open():
        with pytest.raises(DeclarationError, match="in memory"):
            await task.using(connection=object()).enqueue()
    with pytest.raises(DeclarationError, match="predict= needs a committed job"):
        task.using(connection=object(), predict=True)


async def test_an_open_transaction_blocks_no_other_job(on_postgres: AppAndWorker) -> None:
    """An enqueue that is held open for half a minute must make no other enqueue or claim wait."""
    program = on_postgres
    async with postgres_in("asyncpg")(program) as (connection, _run), program.app:
        late = await program.mail.using(connection=connection).enqueue("ada")
        keyed = await program.mail.using(connection=connection, unique_key="k", delay=60).enqueue("late")
        # As many as there are connections, and more, want the key that it holds.
        waiting = [asyncio.create_task(program.mail.using(unique_key="k").enqueue("eve")) for _ in range(10)]
        for _ in range(20):
            job = await program.mail.enqueue("ada")
            assert await result_within(job, 2) == "ada"
        other = await program.mail.using(unique_key="other").enqueue("bob")
        assert await result_within(other, 5) == "bob"
        assert not any(each.done() for each in waiting)
        assert not await is_there(program, late.id)
        await connection.execute("COMMIT")
        assert {(await each).id for each in waiting} == {keyed.id}
        assert await result_within(late, 5) == "ada"
        await connection.execute("BEGIN")


KILLED = """
import asyncio, os, signal, sqlite3, sys
import psycopg
from headgate import Headgate

url, place, schema = sys.argv[1:]
app = Headgate(url, **({"schema": schema} if schema else {}))

@app.task(name="plain")
async def mail(to: str) -> None: ...

connection = psycopg.connect(place) if schema else sqlite3.connect(place, isolation_level="IMMEDIATE")
job = mail.using(connection=connection).sync.enqueue("ada")
print(job.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_process_that_is_killed_before_its_commit_has_enqueued_nothing(
    stored: tuple[AppAndWorker, Any],
) -> None:
    program, _begin = stored
    url = program.place if program.schema else f"sqlite:///{program.place}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, url, program.place, program.schema, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not await is_there(program, output.decode().strip())
    async with program.app:
        assert await result_within(await program.plain.enqueue("eve"), 5) == "eve"


@pytest.mark.parametrize("made_by", ["a worker", "headgate migrate"])
def test_the_first_enqueue_of_a_process_may_be_in_a_transaction_that_has_written(tmp_path: Path, made_by: str) -> None:
    # It opens the app in another thread, which must not wait for the transaction's lock.
    path = tmp_path / "jobs.db"
    if made_by == "a worker":
        with Headgate(f"sqlite:///{path}").open():
            pass
    else:
        asyncio.run(Headgate(f"sqlite:///{path}").migrate())
    app = Headgate(f"sqlite:///{path}")

    @app.task
    def mail(to: str) -> None: ...

    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE account (name TEXT)")
        connection.execute("INSERT INTO account VALUES ('ada')")
        job = mail.using(connection=connection).sync.enqueue("ada")
    try:
        assert job.status().state == "waiting"
    finally:
        app.sync.close()
