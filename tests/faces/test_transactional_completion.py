"""A job that is completed in a transaction of its handler's has succeeded if and only if that commits."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from headgate import (
    AttemptLost,
    Fail,
    Headgate,
    HeadgateError,
    JobState,
    Mutex,
    RateLimited,
    RetryPolicy,
    Task,
    UnfitConnection,
    current_job,
)
from headgate.jobs.event import EndingRefused, Event, JobFailure, JobFinished, JobRetried
from headgate.tasks.context import JobContext
from headgate.testing import manual
from tests.faces.user_transactions import IDS, KINDS, postgres_in, sqlite_in
from tests.internals import store_of
from tests.until import result_within, until


class Broken(Exception):
    pass


class AppWithTable:
    """An app whose handler writes a row and completes its job, and then does as it is told."""

    def __init__(self, app: Headgate, place: str, table: str) -> None:
        self.app = app
        self.place = place
        self.table = table
        self.begin: Any = None
        self.runs = 0
        self.events: list[Event] = []
        app.subscribe(self.events.append, JobFinished, JobFailure, JobRetried, EndingRefused)
        self.insert = f"INSERT INTO {table} VALUES ('ada')"

        @app.task(retry=RetryPolicy(retries=2, delay=0.01), limits=[Mutex("account")])
        async def with_own_connection(then: str) -> str:
            self.runs += 1
            async with self.begin(self) as (connection, run):
                await run(self.insert)
                await current_job().complete(connection)
                if then == "breaks in the block" and self.runs == 1:
                    raise Broken
            return await self._afterwards(then)

        @app.task(retry=RetryPolicy(retries=2, delay=0.01))
        async def with_given_connection(then: str) -> str:
            self.runs += 1
            async with current_job().transaction() as connection:
                written = connection.execute(self.insert)
                if not isinstance(written, sqlite3.Cursor):
                    await written
                if then == "breaks in the block" and self.runs == 1:
                    raise Broken
            return await self._afterwards(then)

        self.with_own_connection: Task[[str], str] = with_own_connection
        self.with_given_connection: Task[[str], str] = with_given_connection

    async def _afterwards(self, then: str) -> str:
        match then:
            case "raises":
                raise Broken
            case "fails":
                raise Fail("no more tries")
            case "is refused":
                raise RateLimited(retry_after=0.01)
            case "returns what cannot be stored":
                return object()  # type: ignore[return-value]
            case "takes too long":
                await asyncio.sleep(3600)
        return then

    async def count_rows(self) -> int:
        if self.place.startswith("postgres"):
            connection = await asyncpg.connect(self.place)
            try:
                return int(await connection.fetchval(f"SELECT count(*) FROM {self.table}"))
            finally:
                await connection.close()
        with contextlib.closing(sqlite3.connect(self.place)) as file:
            return int(file.execute(f"SELECT count(*) FROM {self.table}").fetchone()[0])


@pytest_asyncio.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[AppWithTable]:
    path = tmp_path / "jobs.db"
    program = AppWithTable(Headgate(f"sqlite:///{path}", synchronous="OFF", grace=0.1), str(path), "account")
    async with program.app.open():
        with contextlib.closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE account (name TEXT)")
        yield program


@pytest_asyncio.fixture
async def on_postgres(postgres_url: str, postgres_schema: str) -> AsyncIterator[AppWithTable]:
    program = AppWithTable(
        Headgate(postgres_url, schema=postgres_schema, grace=0.1), postgres_url, f"{postgres_schema}.account"
    )
    async with program.app.open():
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(f"CREATE TABLE {program.table} (name TEXT)")
        await connection.close()
        yield program


@pytest.fixture(params=KINDS, ids=IDS)
def driven(request: pytest.FixtureRequest) -> AppWithTable:
    store, kind = request.param
    program: AppWithTable = request.getfixturevalue(f"on_{store}")
    program.begin = (postgres_in if store == "postgres" else sqlite_in)(kind)
    return program


@pytest.fixture(params=["postgres", "sqlite"])
def stored(request: pytest.FixtureRequest) -> AppWithTable:
    """One program of each store."""
    program: AppWithTable = request.getfixturevalue(f"on_{request.param}")
    return program


async def test_a_job_completed_on_the_users_connection_succeeds_whatever_comes_after(driven: AppWithTable) -> None:
    async with driven.app:
        job = await driven.with_own_connection.enqueue("raises")
        await until(lambda: bool(driven.events), 10)
        status = await job.status()
        # Its permit is returned: the next one starts.
        assert await result_within(await driven.with_own_connection.enqueue("returns"), 5) == "returns"
    assert (status.state, status.error, status.attempt) == (JobState.SUCCEEDED, None, 1)
    assert (driven.runs, await driven.count_rows()) == (2, 2)
    assert {type(event) for event in driven.events} == {JobFinished}
    assert await store_of(driven.app).check() == []


async def test_a_rollback_undoes_the_completion_with_the_rows(driven: AppWithTable) -> None:
    async with driven.app:
        job = await driven.with_own_connection.enqueue("breaks in the block")
        assert await result_within(job, 5) == "breaks in the block"
    assert (await job.status()).attempt == 2
    assert (driven.runs, await driven.count_rows()) == (2, 1)


async def test_a_job_completes_on_a_connection_of_the_store(stored: AppWithTable) -> None:
    async with stored.app:
        job = await stored.with_given_connection.enqueue("returns")
        assert await result_within(job, 5) == "returns"
    assert (stored.runs, await stored.count_rows()) == (1, 1)


async def test_an_error_in_the_block_rolls_back_on_a_connection_of_the_store(stored: AppWithTable) -> None:
    async with stored.app:
        job = await stored.with_given_connection.enqueue("breaks in the block")
        await result_within(job, 5)
    assert ((await job.status()).attempt, stored.runs, await stored.count_rows()) == (2, 2, 1)


@pytest.mark.parametrize("then", ["raises", "fails", "is refused", "returns what cannot be stored"])
async def test_no_outcome_takes_a_completion_back(stored: AppWithTable, then: str) -> None:
    async with stored.app:
        job = await stored.with_given_connection.enqueue(then)
        await until(lambda: bool(stored.events), 5)
    assert ((await job.status()).state, stored.runs, await stored.count_rows()) == (JobState.SUCCEEDED, 1, 1)
    assert [type(event) for event in stored.events] == [JobFinished]


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
async def test_a_completed_job_that_is_interrupted_has_succeeded(stored: AppWithTable, end: str) -> None:
    async with stored.app:
        job = await stored.with_given_connection.enqueue("takes too long")

        async def is_written() -> bool:
            return await stored.count_rows() == 1

        await until(is_written, 5)
        if end == "cancelled":
            await job.cancel()
            await until(lambda: bool(stored.events), 5)
    assert ((await job.status()).state, stored.runs) == (JobState.SUCCEEDED, 1)


async def test_the_error_after_a_completion_is_in_the_log_of_the_job(stored: AppWithTable) -> None:
    async with stored.app:
        job = await stored.with_given_connection.enqueue("raises")
        await until(lambda: bool(stored.events), 5)
    lines = await store_of(stored.app).logs(job.id)
    assert [line.message for line in lines] == ["the job succeeded in a transaction; then its handler raised Broken()"]


async def test_an_attempt_that_has_lost_its_job_cannot_complete_it(stored: AppWithTable) -> None:
    """Another node has taken the job over meanwhile: the rows of this attempt must not be committed."""
    raised: list[AttemptLost] = []

    @stored.app.task
    async def overtaken() -> None:
        try:
            async with current_job().transaction() as connection:
                fence = f"{stored.table.removesuffix('account')}job"
                written = connection.execute(stored.insert), connection.execute
                if isinstance(written[0], sqlite3.Cursor):
                    written[1](f"UPDATE {fence} SET fence = fence + 1")
                else:
                    await written[0]
                    await written[1](f"UPDATE {fence} SET fence = fence + 1")
        except AttemptLost as error:
            raised.append(error)
            raise

    async with stored.app:
        job = await overtaken.enqueue()
        await until(lambda: bool(raised), 5)
    assert raised[0].job_id == job.id
    assert "another attempt" in str(raised[0])
    assert await stored.count_rows() == 0


async def test_a_handler_in_a_thread_completes_its_job(stored: AppWithTable) -> None:
    is_postgres = stored.place.startswith("postgres")

    @stored.app.task(retry=RetryPolicy(retries=1, delay=0.01))
    def in_thread() -> None:
        stored.runs += 1
        connection: Any = psycopg.connect(stored.place) if is_postgres else sqlite3.connect(stored.place)
        with contextlib.closing(connection), connection:
            connection.execute(stored.insert)
            current_job().sync.complete(connection)
        raise Broken

    async with stored.app:
        job = await in_thread.enqueue()
        await until(lambda: bool(stored.events), 5)
    assert ((await job.status()).state, stored.runs, await stored.count_rows()) == (JobState.SUCCEEDED, 1, 1)


async def test_unfit_connections_are_refused(stored: AppWithTable, tmp_path: Path) -> None:
    errors: list[Exception] = []

    @stored.app.task
    async def complete_wrongly() -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
            try:
                other.execute("BEGIN")
                await current_job().complete(other)
            except UnfitConnection as error:
                errors.append(error)

    @stored.app.task
    def complete_without_await() -> None:
        try:
            current_job().sync.complete(aiosqlite.connect(":memory:"))
        except UnfitConnection as error:
            errors.append(error)

    async with stored.app:
        await result_within(await complete_wrongly.enqueue(), 5)
        await result_within(await complete_without_await.enqueue(), 5)
    assert ("sqlite3" if stored.place.startswith("postgres") else "other.db") in str(errors[0])
    assert "is async" in str(errors[1])


async def test_the_blocking_side_of_an_async_session_is_refused_and_its_transaction_stays_usable(
    stored: AppWithTable,
) -> None:
    """The error was RuntimeError, after the statement was sent: the connection could not be used any more."""
    is_postgres = stored.place.startswith("postgres")
    url = stored.place.replace("://", "+asyncpg://") if is_postgres else f"sqlite+aiosqlite:///{stored.place}"
    errors: list[Exception] = []

    def complete_blocking(session: Session) -> None:
        try:
            current_job().sync.complete(session)
        except UnfitConnection as error:
            errors.append(error)

    @stored.app.task
    async def complete_in_run_sync() -> None:
        engine = create_async_engine(url)
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(complete_blocking)
            await session.execute(text(stored.insert))
            await current_job().complete(session)
        await engine.dispose()

    async with stored.app:
        await result_within(await complete_in_run_sync.enqueue(), 5)
    assert "run_sync" in str(errors[0])
    assert await stored.count_rows() == 1


async def test_a_job_in_memory_cannot_be_completed_in_a_transaction() -> None:
    app = Headgate("memory://")
    errors: list[Exception] = []

    @app.task
    async def complete_it() -> None:
        try:
            async with current_job().transaction():
                raise AssertionError("there is no transaction")
        except UnfitConnection as error:
            errors.append(error)

    async with app:
        await result_within(await complete_it.enqueue(), 5)
    assert "in memory" in str(errors[0])


def test_a_child_process_says_that_it_has_no_store() -> None:
    class ClaimedForChild:
        task = "report"

    context = JobContext(ClaimedForChild())  # type: ignore[arg-type]  # only its task is read
    with pytest.raises(HeadgateError, match=r"'report' runs in a child process"):
        context.transaction()


async def test_a_test_completes_jobs_at_once() -> None:
    app = Headgate("memory://")

    @app.task
    async def pay() -> None:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            await current_job().complete(connection)
        raise Broken

    with manual(app) as jobs:
        job = await pay.enqueue()
        await jobs.drain()
        assert (await job.status()).state is JobState.SUCCEEDED
