"""Schedules that operators create and edit: on each database, across releases, and by the command."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import Calendar, Cron, Every, Headgate, PayloadError
from headgate.errors import DeclarationError, ScheduleDeclared, ScheduleExists, ScheduleNotFound, UnknownTask
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.one_module import OneModule, answer, call, go_into
from tests.internals import app_on
from tests.until import until


def declare(app: Headgate) -> Headgate:
    @app.task
    async def sync(tenant: str, since: int = 0) -> None: ...

    @app.schedule(Cron("0 3 * * *"), name="nightly", args=["all"])
    @app.task
    async def nightly(tenant: str) -> None: ...

    return app


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "postgres":
        schema = request.getfixturevalue("postgres_schema")
        return declare(Headgate(request.getfixturevalue("postgres_url"), schema=schema))
    return declare(Headgate("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"))


async def test_a_schedule_is_created_fired_edited_and_removed(app: Headgate) -> None:
    async with app:
        admin = app.admin.by("ada@desk").schedules
        created = await admin.create("acme", "sync", Every(minutes=10), {"tenant": "acme"}, priority=3, first="now")
        assert (created.task, created.state, created.is_declared) == ("sync", "active", False)

        async def has_run() -> bool:
            return (await admin.status("acme")).runs >= 1

        await until(has_run)
        (job,) = await app.admin.jobs(schedule="acme")
        assert (job.priority, json.loads((await app.admin.job(job.id)).record.payload)) == (3, {"tenant": "acme"})

        await admin.pause("acme")
        last = datetime.now(UTC).replace(microsecond=0) + timedelta(days=9)
        edited = await admin.edit(
            "acme", Calendar(at="7:30", tz="Europe/Rome"), '{"tenant": "globex"}', jitter=90, until=last, on="weekday"
        )
        assert (edited.runs, edited.state, edited.until, edited.jitter) == (1, "paused", last, 90)
        assert edited.trigger == "every day at 7:30 (Europe/Rome), on weekday (Europe/Rome)"
        # What is left out of an edit stays.
        again = await admin.edit("acme", max_runs=5)
        assert (again.trigger, again.until, again.jitter, again.max_runs) == (edited.trigger, last, 90, 5)
        without = await admin.edit("acme", Every(hours=1), on=None, until=None)
        assert (without.trigger, without.until, without.max_runs) == ("every hour", None, 5)
        definition = await admin.definition("acme")
        assert (json.loads(definition.payload), definition.every, definition.priority) == (
            {"tenant": "globex"},
            "1h",
            3,
        )
        await admin.resume("acme")
        new = await admin.trigger("acme")
        assert json.loads((await app.admin.job(new)).record.payload) == {"tenant": "globex"}

        assert await admin.remove("acme")
        with pytest.raises(ScheduleNotFound):
            await admin.edit("acme", Every(hours=2))
        actions = [entry.action for entry in await app.admin.audit_log(kind="schedule", actor="ada@desk")]
        assert actions == ["remove", "trigger", "resume", "edit", "edit", "edit", "pause", "create"]


async def test_what_is_invalid_is_refused_and_stores_nothing(app: Headgate) -> None:
    async with app:
        admin = app.admin.schedules

        async def is_stored() -> bool:
            return bool(await admin.list())

        await until(is_stored)
        hourly, acme = Every(hours=1), {"tenant": "acme"}
        with pytest.raises(UnknownTask, match="did you mean 'sync'"):
            await admin.create("x", "synk", hourly, acme)
        with pytest.raises(PayloadError, match="lacks argument 'tenant'"):
            await admin.create("x", "sync", hourly)
        with pytest.raises(DeclarationError, match="a function in exclude=, exists only in code"):
            await admin.create("x", "sync", hourly, acme, exclude=lambda day: True)
        await admin.create("acme", "sync", hourly, acme)
        for name in ("nightly", "acme"):
            with pytest.raises(ScheduleExists):
                await admin.create(name, "sync", hourly, acme)
        with pytest.raises(ScheduleDeclared, match="change it there"):
            await admin.edit("nightly", hourly)
        with pytest.raises(PayloadError, match="does not fit its annotation"):
            await admin.edit("acme", payload={"tenant": 7})
        with pytest.raises(DeclarationError, match="first= applies once"):
            await admin.edit("acme", first="now")
        with pytest.raises(DeclarationError, match="would skip all but one"):
            await admin.edit("acme", misfire="run_all")
        assert [(each.name, each.trigger) for each in await admin.list()] == [
            ("acme", "every hour"),
            ("nightly", "cron 0 3 * * * (UTC)"),
        ]
        assert (await admin.status("nightly")).is_declared


def test_a_schedule_of_an_operator_survives_releases_that_do_not_declare_it() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        async with declare(app_on(store, clock=clock)) as app:
            await app.admin.schedules.create("acme", "sync", Every(minutes=1), {"tenant": "acme"})
            await asyncio.sleep(90)
        for _ in range(2):
            async with declare(app_on(store, clock=clock)) as app:
                await asyncio.sleep(130)
                status = await app.admin.schedules.status("acme")
                assert (status.is_declared, status.problem) == (False, None)
        assert status.runs == 5

    run_virtual(main)


APP = """
from headgate import Cron, Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.schedule(Cron("0 3 * * *"), args=["all"])
@app.task
async def sync(tenant: str, since: int = 0) -> None: ...
"""


def test_the_command_creates_and_edits_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_into(tmp_path, monkeypatch)
    monkeypatch.setenv("HEADGATE_APP", OneModule(tmp_path, APP).target)
    create = ("schedules", "create", "acme", "sync", "--payload", '{"tenant": "acme"}')
    created: dict[str, Any] = answer(
        *create, "--every", "10m", "--between", "8:00", "18:00", "--tz", "Europe/Rome", "--exclude", "12-25"
    )
    assert created["trigger"] == "every 10 minutes, between 8:00 and 18:00, except 12-25 (Europe/Rome)"
    assert "there is a schedule 'acme' already" in call(*create, "--every", "10m").output
    assert "add --cron, --every or --calendar" in call(*create).output
    assert "exclude each other" in call(*create, "--every", "10m", "--calendar", "every day").output
    refused = call("schedules", "edit", "acme", "--cron", "0 6 * * *", "--tz", "Asia/Tokyo")
    assert (refused.exit_code, "never runs" in refused.output) == (1, True)
    edited = call("schedules", "edit", "acme", "--payload", '{"tenant": "globex"}')
    assert edited.output.startswith(f"acme is changed: {created['trigger']}; next run 20")
    shown = answer("schedules", "edit", "acme", "--cron", "0 9 * * *", "--tz", "Asia/Tokyo", "--jitter", "2m")
    assert (shown["jitter"], shown["tz"]) == (120, "Asia/Tokyo")
    calendar = answer("schedules", "edit", "acme", "--calendar", "on first monday at 9:00", "--tz", "Europe/Rome")
    assert calendar["trigger"].startswith("every month on first monday at 9:00 (Europe/Rome)")
    # The fault: without --tz, the schedule and its windows were moved to UTC.
    kept = answer("schedules", "edit", "acme", "--cron", "0 10 * * *")
    assert kept["trigger"] == "cron 0 10 * * * (Europe/Rome), between 8:00 and 18:00, except 12-25 (Europe/Rome)"
    # The fault: the windows got the zone, and the cron expression kept its own.
    moved = answer("schedules", "edit", "acme", "--tz", "Europe/Lisbon")
    assert moved["trigger"] == kept["trigger"].replace("Rome", "Lisbon")
    answer("schedules", "edit", "acme", "--tz", "Europe/Rome")
    every = answer("schedules", "edit", "acme", "--every", "10m")
    assert every["trigger"] == created["trigger"]
    refused = call("schedules", "edit", "acme", "--cron", "0 10 * * *", "--tz", "")
    assert (refused.exit_code, "''" in refused.output) == (1, True)
    refused = call("schedules", "edit", "acme", "--calendar", "each monday")
    assert (refused.exit_code, "'each monday' is not a calendar" in refused.output) == (1, True)
    assert "what should change" in call("schedules", "edit", "acme").output
    refused = call("schedules", "edit", "sync", "--every", "5m")
    assert refused.exit_code == 1
    assert "no schedule 'sync' is stored" in refused.output
