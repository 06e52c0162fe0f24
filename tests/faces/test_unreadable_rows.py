"""Rows that cannot be read: a real worker, the command line and the HTTP API work and show them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest

from headgate import Every, Headgate
from headgate.http import dashboard
from headgate.jobs.identity import job_number
from tests.faces.http.stage import EVERYBODY
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.until import patient, until

APP = """
import os

from headgate import Headgate, StrictRate

app = Headgate(os.environ["ROWS_URL"], schema=os.environ["ROWS_SCHEMA"] or None, heartbeat=0.2, lease=30)


@app.task(limits=[StrictRate("1000/s", key="{tenant}")])
async def sync(tenant: str) -> str:
    return tenant
"""
SQLITE = APP.replace(', schema=os.environ["ROWS_SCHEMA"] or None', "")


class Project(NamedTuple):
    module: OneModule
    url: str
    schema: str

    def corrupt(self, table: str, column: str, value: str, where: str) -> None:
        if self.schema:
            statement = f"UPDATE {self.schema}.{table} SET {column} = $1 WHERE {where}"
            asyncio.run(_on_postgres(self.url, statement, value))
            return
        path = self.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=patient(10))) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))


async def _on_postgres(url: str, statement: str, *values: Any) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement, *values)
    await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    go_into(tmp_path, monkeypatch)
    is_postgres = request.param == "postgres"
    schema = f"rows_{uuid.uuid4().hex[:16]}" if is_postgres else ""
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("ROWS_URL", url)
    monkeypatch.setenv("ROWS_SCHEMA", schema)
    yield Project(OneModule(tmp_path, APP if is_postgres else SQLITE), url, schema)
    if is_postgres:
        asyncio.run(_on_postgres(url, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))


async def _fill(app: Headgate) -> tuple[str, str]:
    sync = app.tasks["sync"]
    bad, good = await sync.enqueue("bad"), await sync.enqueue("good")
    await sync.schedule("bad", Every(seconds=1), first="now").enqueue("a")
    await sync.schedule("good", Every(hours=1)).enqueue("b")
    return bad.id, good.id


async def _has_succeeded(app: Headgate, id: str) -> bool:
    return (await app.admin.status(id)).state == "succeeded"


async def _is_worked_off(app: Headgate, bad: str, good: str) -> None:
    await until(lambda: _has_succeeded(app, good))
    await until(lambda: _waits_for_its_second_try(app, bad))


async def _waits_for_its_second_try(app: Headgate, id: str) -> bool:
    status = await app.admin.status(id)
    return (status.state, status.attempt, status.is_scheduled) == ("waiting", 1, True)


async def _asked(app: Headgate, *paths: str) -> list[Any]:
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(dashboard(app, auth=EVERYBODY)), base_url="http://localhost"
    )
    answers = []
    async with client:
        for path in paths:
            response = await client.get(path)
            assert response.status_code == 200, (path, response.text)
            answers.append(response.json())
    return answers


@pytest.mark.slow
def test_a_worker_the_command_line_and_the_dashboard_work_with_unreadable_rows(
    project: Project, tmp_path: Path
) -> None:
    module = project.module
    bad, good = module.do(_fill)
    project.corrupt("job", "options", '{"timeout": "soon"}', f"id = {job_number(bad)}")
    project.corrupt("schedule", "call", "[1]", "name = 'bad'")
    log = tmp_path / "worker.log"
    expected = (
        f"job {bad} in the store cannot be read: options",
        "schedule bad in the store cannot be read: call",
    )

    async def _is_logged() -> bool:
        return all(line in log.read_text() for line in expected)

    async def _is_done(app: Headgate) -> None:
        await _is_worked_off(app, bad, good)
        await until(_is_logged)

    with log.open("w") as stream:
        worker = subprocess.Popen([sys.executable, "-m", "headgate", "worker", module.target], stderr=stream)
        try:
            module.do(_is_done)
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                assert worker.wait(timeout=patient(20)) == 0, log.read_text()
            finally:
                worker.kill()

    jobs = {job["id"]: job for job in answer("jobs", "list", module.target)}
    assert "options" in jobs[bad]["unreadable"]
    assert jobs[good]["unreadable"] is None
    schedules = {each["name"]: each for each in answer("schedules", "list", module.target)}
    assert "call" in schedules["bad"]["unreadable"]
    assert schedules["good"]["unreadable"] is None
    for words in (("jobs", "list"), ("jobs", "show", bad), ("schedules", "list"), ("status",)):
        shown = call(*words[:2], *([module.target] if len(words) < 3 else [module.target, words[2]]))
        assert shown.exit_code == 0, shown.output
    assert "cannot be read" in " ".join(call("jobs", "list", module.target).output.split())

    listed, details, all_schedules, one = module.do(
        lambda app: _asked(app, "/api/v1/jobs", f"/api/v1/jobs/{bad}", "/api/v1/schedules", "/api/v1/schedules/bad")
    )
    assert {job["id"] for job in listed["items"]} >= {bad, good}
    assert "options" in details["status"]["unreadable"]
    assert [(each["name"], bool(each["unreadable"])) for each in all_schedules["items"]] == [
        ("bad", True),
        ("good", False),
    ]
    assert one["status"]["problem"].startswith("cannot be read: call")
