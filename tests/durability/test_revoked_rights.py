"""What a server refuses is waited for, whatever it says; what a file can never answer ends the program, loudly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from headgate import Headgate, StorageUnavailable
from headgate.clock import SECOND
from headgate.jobs.event import StorageFailed
from headgate.storage.postgres import database
from tests.durability.postgres import session_at
from tests.until import patient

DEADLINE = patient(15)


class Place(NamedTuple):
    """An app, and how its database is changed behind its back."""

    app: Headgate
    change: Callable[[str], Awaitable[object]]
    schema: str = ""
    role: str = ""


@contextlib.asynccontextmanager
async def on_postgres(url: str, schema: str) -> AsyncIterator[Place]:
    """The app is not the owner of its tables."""
    role = f"app_{uuid.uuid4().hex[:12]}"
    address = urlsplit(url)
    mine = address._replace(netloc=f"{role}@{address.netloc.rpartition('@')[2]}").geturl()
    async with session_at(url) as owner:
        await Headgate(url, schema=schema).migrate()
        await owner.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        try:
            yield Place(Headgate(mine, schema=schema), owner.execute, f"{schema}.", role)
        finally:
            await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextlib.asynccontextmanager
async def on_sqlite(path: Path) -> AsyncIterator[Place]:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=patient(10))

    async def change(statement: str) -> None:
        await asyncio.to_thread(connection.execute, statement)

    with contextlib.closing(connection):
        yield Place(Headgate(f"sqlite:///{path}"), change)


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "sqlite":
        async with on_sqlite(tmp_path / "jobs.db") as place:
            yield place
        return
    url, schema = request.getfixturevalue("postgres_url"), f"headgate_{uuid.uuid4().hex[:16]}"
    async with on_postgres(url, schema) as place:
        try:
            yield place
        finally:
            await place.change(f"DROP SCHEMA {schema} CASCADE")


def withdrawals(place: Place) -> list[tuple[str, str, str]]:
    """What is revoked, how it is restored, and a word of the error meanwhile."""
    job = f"{place.schema}job"
    renamed = (f"ALTER TABLE {job} RENAME TO away", f"ALTER TABLE {place.schema}away RENAME TO job", "restore it")
    if not place.role:
        return [renamed]
    rights = f"UPDATE, INSERT ON {job}"
    column = (
        f"ALTER TABLE {job} RENAME COLUMN priority TO importance",
        f"ALTER TABLE {job} RENAME COLUMN importance TO priority",
        "priority",
    )
    hidden = (
        f"ALTER TABLE {job} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {job} DISABLE ROW LEVEL SECURITY",
        "without row level security",
    )
    right = (f"REVOKE {rights} FROM {place.role}", f"GRANT {rights} TO {place.role}", "GRANT")
    return [column, right, renamed, hidden]


async def test_a_worker_continues_when_its_rights_are_restored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a right that a DBA took away for three seconds ended the worker of a web server, which went on
    without it: jobs waited for ever, and their callers were told nothing that they could understand."""
    monkeypatch.setattr(database, "PATIENCE", SECOND // 2)
    app = place.app
    open_limit_set = asyncio.Event()
    failed = asyncio.Event()
    app.subscribe(lambda event: failed.set(), StorageFailed)

    @app.task
    async def work(number: int) -> int:
        if number < 0:
            await open_limit_set.wait()
        return number

    async with asyncio.timeout(DEADLINE), app:
        assert await (await work.enqueue(1)).result() == 1
        for taken, given_back, word in withdrawals(place):
            open_limit_set.clear()
            failed.clear()
            running = await work.enqueue(-1)
            await place.change(taken)
            # It ends while it cannot be recorded.
            open_limit_set.set()
            await failed.wait()
            with pytest.raises(StorageUnavailable, match=word):
                await work.enqueue(2)
            await place.change(given_back)
            assert await running.result() == -1
            assert await (await work.enqueue(3)).result() == 3


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_permanent_error_of_a_file_ends_the_worker_block_immediately(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing column is an error in a statement, or of a changed table: waiting does not help."""
    app = place.app
    went_on: list[str] = []

    @app.task
    async def work() -> None: ...

    async def beside_a_worker() -> None:
        async with app:
            await (await work.enqueue()).result()
            await place.change(f"ALTER TABLE {place.schema}job RENAME COLUMN priority TO importance")
            await asyncio.sleep(DEADLINE)
            went_on.append("without a worker")

    with caplog.at_level(logging.CRITICAL, "headgate"), pytest.raises(ExceptionGroup) as crashed:
        await beside_a_worker()
    assert isinstance(crashed.value.exceptions[0], sqlite3.OperationalError)
    assert not went_on
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "crashed and runs no more jobs" in line
    assert "Traceback" in line
    assert "priority" in line
