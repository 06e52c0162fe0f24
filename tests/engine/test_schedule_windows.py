"""Schedules with windows and jitter: stored on each database, and run at their times."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import Calendar, Cron, Every, Headgate
from headgate.clock import SECOND, to_datetime
from headgate.errors import DeclarationError
from headgate.jobs.event import ScheduleFailed
from headgate.schedules.restricted import restricted
from headgate.schedules.schedule import ScheduleRules, ready_at
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.until import until


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "postgres":
        schema = request.getfixturevalue("postgres_schema")
        return Headgate(request.getfixturevalue("postgres_url"), schema=schema)
    return Headgate("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db")


async def test_windows_and_jitter_are_stored_and_the_job_knows_its_exact_occurrence(app: Headgate) -> None:
    @app.task
    async def sync(tenant: str) -> None: ...

    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    async with app:
        schedule = await sync.schedule(
            "sync-acme", Every(minutes=10), first="now", jitter=3600, between=("8:00", "18:00"), on="day",
            exclude=[tomorrow, "12-24..01-06"], tz="Europe/Rome",
        ).enqueue("acme")  # fmt: skip

        async def is_enqueued() -> bool:
            return bool(await app.admin.jobs(schedule="sync-acme"))

        await until(is_enqueued)
        found = await app.admin.jobs(schedule="sync-acme")
        record = (await app.admin.job(found[0].id)).record
        assert record.origin is not None
        occurs_at = record.origin.occurs_at
        assert occurs_at is not None
        rules = ScheduleRules("{}", jitter=3600 * SECOND)
        assert (record.run_at, record.delayed) == (ready_at("sync-acme", rules, occurs_at), True)
        assert found[0].is_scheduled
        status = await schedule.status()
        assert (status.jitter, status.tz, status.last_occurrence) == (3600, "Europe/Rome", to_datetime(occurs_at))
        assert status.trigger == (
            f"every 10 minutes, between 8:00 and 18:00, on day, except {tomorrow}, 12-24..01-06 (Europe/Rome)"
        )
        local = [
            run.astimezone(Cron("@daily", tz="Europe/Rome")._wall_clock.zone) for run in await schedule.next_runs(200)
        ]
        assert all(8 <= run.hour < 18 and run.date() != tomorrow for run in local)
        # A job that an operator triggers is ready at once.
        triggered = await schedule.trigger()
        assert not (await triggered.status()).is_scheduled


def test_an_occurrence_outside_of_the_windows_is_left_out_and_not_moved() -> None:
    async def main(clock: VirtualClock) -> None:
        app, seen = Headgate("memory://", clock=clock), list[datetime]()
        start = to_datetime(START)
        opens, closes = start + timedelta(minutes=2), start + timedelta(minutes=4)

        @app.schedule(Every(seconds=30), between=(f"{opens:%H:%M:%S}", f"{closes:%H:%M:%S}"))
        @app.task
        async def poll() -> None:
            seen.append(to_datetime(clock.now()))

        async with app:
            await asyncio.sleep(600)
        assert [round((each - start).total_seconds()) for each in seen] == [120, 150, 180, 210]

    run_virtual(main)


@pytest.mark.parametrize(
    ("windows", "runs"),
    [
        ({"between": ("22:00", "6:00")}, ["1 22:00", "2 22:00", "3 22:00"]),
        ({"between": ("1:00", "2:00")}, ["2 01:00", "3 01:00", "4 01:00"]),
        ({"on": ["sat"]}, ["3 00:00", "10 00:00"]),
        ({"between": ("11:00", "13:00")}, ["2 12:00", "3 12:00", "4 12:00"]),
    ],
    ids=str,
)
def test_a_period_of_a_day_runs_inside_its_windows_whenever_it_is_deployed(
    windows: dict[str, Any], runs: list[str]
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def report() -> None: ...

        async with app.open():
            schedule = await report.schedule("report", Every("1d"), **windows).enqueue()
            assert [f"{run:%-d %H:%M}" for run in await schedule.next_runs(len(runs))] == runs

    # At noon of Thursday, 1 January.
    run_virtual(main, start=START + 12 * 3600 * SECOND)


@pytest.mark.parametrize(
    ("trigger", "windows", "runs"),
    [
        (Calendar(weeks=1, at="9:00"), {"on": "weekday"}, ["01-05 09:00", "01-12 09:00"]),
        (Calendar(days=7), {"on": "weekday", "exclude": "01-05"}, ["01-06 00:00", "01-13 00:00"]),
        (Calendar(weeks=1, at="9:00"), {"on": "sun"}, ["01-11 09:00", "01-18 09:00"]),
        (Calendar(weeks=1, at="9:00"), {"exclude": lambda day: day.weekday() != 2}, ["01-07 09:00", "01-14 09:00"]),
        (Calendar(months=12, at="9:00"), {"exclude": "01-04"}, ["01-05 09:00"]),
        # Monday from 5:00 in Rome is Sunday evening in New York.
        (
            Calendar(weeks=1, at="23:00", tz="America/New_York"),
            {"on": "mon", "tz": "Europe/Rome"},
            ["01-05 04:00", "01-12 04:00"],
        ),
        # What names its days counts its weeks from the declaration.
        (Calendar(weeks=2, on=["mon", "tue"]), {"on": "weekday"}, ["01-12 00:00", "01-13 00:00", "01-26 00:00"]),
    ],
)
def test_a_calendar_without_days_of_its_own_runs_inside_its_windows_whenever_it_is_deployed(
    trigger: Calendar, windows: dict[str, Any], runs: list[str]
) -> None:
    """The fault: a calendar of each week that was deployed on a Sunday, and runs on weekdays, had ended at once."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        report = app.task(name="report")(no_work)
        app.schedule(trigger, **windows)(report)
        async with app:
            await asyncio.sleep(1)
            assert [f"{run:%m-%d %H:%M}" for run in await app.find_schedule("report").next_runs(len(runs))] == runs

    # At noon of Sunday, 4 January.
    run_virtual(main, start=START + (3 * 86400 + 12 * 3600) * SECOND)


async def no_work() -> None: ...


def test_functions_exclude_days_and_an_error_of_one_is_published_once() -> None:
    async def main(clock: VirtualClock) -> None:
        app, seen, failed = Headgate("memory://", clock=clock), list[str](), list[str]()
        today = to_datetime(START).date()

        def is_today(day: date) -> bool:
            return day == today

        def is_another_day(day: date) -> bool:
            return day != today

        def breaks(day: date) -> bool:
            raise LookupError("no calendar")

        @app.task
        async def report(name: str) -> None:
            seen.append(name)

        app.schedule(Every(minutes=1), name="today", args=["today"], exclude=is_another_day)(report)
        app.schedule(Every(minutes=1), name="later", args=["later"], exclude=[is_today, "12-25"])(report)
        app.schedule(Every(minutes=1), name="broken", args=["broken"], exclude=breaks)(report)
        app.subscribe(lambda event: failed.append(f"{event.schedule}: {event.error}"), ScheduleFailed)
        async with app:
            await asyncio.sleep(200)
            later = await app.admin.schedules.status("later")
            assert later.trigger.startswith("every minute, except 12-25, tests.")
            assert later.trigger.endswith("is_today (UTC)")
            assert later.next_run is not None
            assert later.next_run.date() == today + timedelta(days=1)
        assert seen == ["today"] * 3
        assert failed == ["broken: LookupError: no calendar"]

    run_virtual(main)


async def test_a_function_cannot_be_stored_at_run_time() -> None:
    app = Headgate("memory://")

    @app.task
    async def report() -> None: ...

    async with app.open():
        with pytest.raises(DeclarationError, match="a function in exclude=, cannot be stored"):
            await report.schedule("report", Every(hours=1), exclude=lambda day: day.day == 1).enqueue()


async def no_day(day: date) -> bool:
    return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jitter": 0}, "jitter"),
        ({"jitter": "soon"}, "jitter"),
        ({"between": "8:00-18:00"}, r'between=.* as \("8:00", "18:00"\)'),
        ({"between": ("8:00", "8:00")}, "two different times of day"),
        ({"between": ("8:00", "24:00")}, r'\("18:00", "0:00"\) until midnight'),
        ({"between": ("8:00", "12:00", "18:00")}, "two different times of day"),
        ({"on": "mondays"}, r'on=.mondays. must be days of a week, as "weekday"'),
        ({"on": []}, "must be days of a week"),
        ({"on": 1}, "must be days of a week"),
        ({"exclude": "25.12."}, 'must be a date, as date'),
        ({"exclude": "2026-02-30"}, 'must be a date, as date'),
        ({"exclude": "2026-12-31..2026-12-01"}, "a range of both days"),
        ({"exclude": "2026-12-31..01-01"}, "a range of both days"),
        ({"exclude": datetime(2026, 12, 25, tzinfo=UTC)}, "must be a date"),
        ({"exclude": 25}, "must be a date"),
        ({"exclude": {date(2026, 12, 25): "Christmas"}}, "a function that gets a date"),
        ({"exclude": no_day}, "a function that gets a date"),
        ({"exclude": "01-01..12-31"}, "never runs"),
        ({"between": ("8:00", "18:00"), "tz": "Europe/Rom"}, "there is no time zone 'Europe/Rom'"),
        ({"tz": "Europe/Rome"}, "and you pass none"),
    ],
)  # fmt: skip
def test_invalid_windows_are_refused_with_what_to_write(options: dict[str, Any], message: str) -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=message):

        @app.schedule(Cron("0 6 * * *"), **options)
        @app.task
        async def report() -> None: ...


def test_a_rare_window_that_the_trigger_never_meets_is_found_soon() -> None:
    asked = list[date]()

    def excluded(day: date) -> bool:
        asked.append(day)
        return (day.month, day.day) != (1, 1)

    # Each few years a first of January is a Monday, up to the year 9999.
    trigger = restricted(Cron("0 0 2 1 *"), "a schedule", between=None, on="mon", exclude=excluded, tz=None)
    assert trigger.next_after(START) is None
    assert len(asked) < 10_000


def test_a_window_that_the_trigger_never_meets_is_refused() -> None:
    app = Headgate("memory://")
    with pytest.raises(
        DeclarationError, match=r"'cron 0 6 \* \* \* \(UTC\), between 8:00 and 18:00 \(UTC\)' never runs"
    ):

        @app.schedule(Cron("0 6 * * *"), between=("8:00", "18:00"))
        @app.task
        async def report() -> None: ...
