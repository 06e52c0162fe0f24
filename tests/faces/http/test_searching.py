"""Searches in payloads: however many run and however long they take, the rest of the dashboard answers."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

import headgate.storage.postgres.database as postgres_database
import headgate.storage.sqlite.storage as sqlite_storage
import headgate.storage.sqlite.threads as sqlite_reader
from headgate import Headgate, SearchTooLong, TooManySearches
from headgate.cli.main import main
from headgate.clock import sleep
from headgate.http import dashboard
from headgate.storage.searching import TURN_TIMEOUT, Searches
from headgate.storage.sqlite.threads import Reader
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.http.stage import EVERYBODY, client, make_app, problem
from tests.until import until

WITHOUT_END = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "sqlite":
        return make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    return make_app(url, schema=schema)


@pytest.fixture
def on_postgres(postgres_url: str, postgres_schema: str) -> Headgate:
    return make_app(postgres_url, schema=postgres_schema)


@asynccontextmanager
async def locked_jobs(url: str, schema: str) -> AsyncIterator[Callable[[], Any]]:
    """Lock the jobs against reads; yield a function that returns how many statements wait."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {schema}.job IN ACCESS EXCLUSIVE MODE")

            async def waiting() -> int:
                asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass"
                return int(await connection.fetchval(asked, f"{schema}.job"))

            yield waiting
    finally:
        await connection.close()


@pytest.mark.nightly
async def test_forty_payload_searches_do_not_delay_the_overview_and_lists(app: Headgate) -> None:
    async with app.open(), client(dashboard(app, auth=EVERYBODY)) as caller:
        await app.tasks["answer"].enqueue_many([("why? " * 20,)] * 5000)
        asked = {"text": "nowhere to be found"}
        searches = [asyncio.create_task(caller.get("/api/v1/jobs", params=asked)) for _ in range(20)]
        searches += [asyncio.create_task(caller.get("/api/v1/jobs/count", params=asked)) for _ in range(20)]
        await asyncio.wait(searches, return_when=asyncio.FIRST_COMPLETED)
        assert (await caller.get("/api/v1/overview")).status_code == 200
        assert (await caller.get("/api/v1/jobs", params={"count": 5})).status_code == 200
        left = sum(not each.done() for each in searches)
        answers = await asyncio.gather(*searches)
        # Asked for after all of them, and answered before most.
        assert left >= 5
        # Those that had to wait too long got an error.
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert answers[0].json() == {"items": [], "next": None, "read": None, "reached": None}


def test_a_search_waits_for_others_a_moment_and_is_then_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        searches = Searches(clock, at_once=2)
        began: list[int] = []

        async def search(number: int, seconds: float) -> int:
            began.append(number)
            await sleep(clock, seconds)
            return number

        def start(number: int, seconds: float) -> asyncio.Task[int]:
            return asyncio.create_task(searches.run(lambda: search(number, seconds)))

        running = [start(0, TURN_TIMEOUT - 1), start(1, 60)]
        waiting = [start(2, 60), start(3, 60), start(4, 0)]
        await sleep(clock, 1)
        waiting[0].cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert began == [0, 1, 3]
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1] == 3
        assert isinstance(found[2], TooManySearches)
        assert list(await asyncio.gather(*running)) == [0, 1]
        # Cancelled and refused searches hold no turn.
        assert list(await asyncio.gather(start(5, 1), start(6, 1))) == [5, 6]

    run_virtual(main)


async def test_a_search_that_takes_too_long_is_ended_and_says_what_to_do(
    app: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_storage, "SEARCH_TIMEOUT", 0.0)
    monkeypatch.setattr(sqlite_reader, "PROGRESS", 1)
    monkeypatch.setattr(postgres_database, "SEARCH_TIMEOUT", 0.02)
    async with app.open(), client(dashboard(app, auth=EVERYBODY)) as caller:
        # A tenth of a second of reading, so that it is the search itself that is ended.
        await app.tasks["answer"].enqueue_many([("why? " * 1_500,)] * 5000)
        answer = await caller.get("/api/v1/jobs/count", params={"text": "nowhere"})
        assert (answer.status_code, problem(answer)) == (503, "search_too_long"), answer.text
        assert "narrow it by state, task" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "5"
        with pytest.raises(SearchTooLong, match="what it had found is not shown"):
            await app.admin.jobs(text="nowhere")
        # Nothing but searches is bounded by it, and nothing of it is left behind.
        assert (await caller.get("/api/v1/jobs/count")).json()["count"] == 5000


async def test_a_search_of_a_disconnected_client_is_cancelled_in_the_database(
    on_postgres: Headgate, postgres_url: str, postgres_schema: str
) -> None:
    site = dashboard(on_postgres, auth=EVERYBODY)
    gone = asyncio.Event()
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/jobs",
        "root_path": "",
        "http_version": "1.1",
    }
    scope |= {"query_string": b"text=nowhere", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
    async with on_postgres.open():
        await on_postgres.tasks["answer"].enqueue("why?")
        async with locked_jobs(postgres_url, postgres_schema) as waiting:
            caller = asyncio.create_task(site(scope, receive, send))
            await until(lambda: has(waiting, 1))
            gone.set()
            # Sooner than a lock or the search is given up.
            await until(lambda: has(waiting, 0), seconds=4)
            await caller
            assert sent[0]["status"] == 408
        assert await on_postgres.admin.count(text="why") == 1


async def has(waiting: Callable[[], Any], count: int) -> bool:
    return bool(await waiting() == count)


async def test_a_search_that_is_cancelled_or_over_leaves_its_connection_at_once(tmp_path: Path) -> None:
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")
    await app.migrate()
    reader = Reader(tmp_path / "jobs.db", "test")

    def for_ever(connection: sqlite3.Connection) -> Any:
        return connection.execute(WITHOUT_END).fetchall()

    try:
        searching = asyncio.create_task(reader.run_until(for_ever, lambda: False))
        await asyncio.sleep(0)
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert await reader.run(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            await reader.run_until(for_ever, lambda: True)
        assert await reader.run(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    finally:
        await reader.close()


def test_the_command_line_says_that_a_search_was_ended_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sqlite_storage, "SEARCH_TIMEOUT", 0.0)
    monkeypatch.setattr(sqlite_reader, "PROGRESS", 1)
    name = f"searched_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("from headgate import Headgate\napp = Headgate('sqlite:///jobs.db')\n")
    asyncio.run(importlib.import_module(name).app.migrate())
    for words in (("jobs", "list"), ("jobs", "count")):
        received = CliRunner().invoke(main, [*words, f"{name}:app", "--text", "nowhere"])
        assert (received.exit_code, received.output.count("\n")) == (1, 1)
        assert "narrow it by state, task" in received.output
