"""`headgate schedules`: list, create, edit, pause and trigger recurring jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, get_args

import click

from headgate.admin import Admin
from headgate.admin.schedules import SCHEDULE_COLUMNS
from headgate.cli.locate import ask, ask_with_time, takes_app, takes_app_and
from headgate.cli.output import (
    json_option,
    print_json,
    print_list,
    print_table,
    printing_of,
    say_change,
    say_done,
    until,
)
from headgate.cli.pausing import add_pausing
from headgate.cli.question import confirm, require_answer
from headgate.cli.times import instant, seconds
from headgate.escaping import one_line, printable
from headgate.jobs.event import SKIPPED_BECAUSE
from headgate.jobs.job import MAX_PRIORITY
from headgate.plural import counted
from headgate.schedules.calendar import Calendar
from headgate.schedules.calendar_text import spelled_trigger
from headgate.schedules.cron import Cron
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.tasks.status import ScheduleStatus


@click.group()
def schedules() -> None:
    """List, create, edit, pause, resume, trigger, skip and remove schedules."""


@schedules.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List schedules: each with its next run, and how many jobs have run, wait or run now.

    Skips are occurrences that did not run. A declared schedule is stored when the first worker that declares it starts.
    The note names problems, and the last skipped occurrence with the reason.
    """
    found, now = ask_with_time(target, lambda admin: admin.schedules.list())
    print_list(
        "Schedules",
        SCHEDULE_COLUMNS,
        found,
        empty="no schedules are stored",
        as_json=as_json,
        task=_tasks,
        next_run=lambda schedule: "overdue" if schedule.is_overdue else until(schedule.next_run, now),
        note=_note,
    )


@schedules.command(name="next")
@takes_app_and("SCHEDULE")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="The most runs to list.")
@json_option
def next_(target: str, schedule: str, count: int, as_json: bool) -> None:
    """List the next runs of a schedule."""
    found, now = ask_with_time(target, lambda admin: admin.schedules.next_runs(schedule, count))
    if as_json:
        print_json(found)
        return
    rows: Sequence[Sequence[object]] = [(instant, until(instant, now)) for instant in found]
    print_table(f"Next runs of {printable(schedule)}", ("at", "in"), rows, empty="none; the schedule is paused or over")


def _takes_definition(function: Callable[..., None]) -> Callable[..., None]:
    """Pass the options of a schedule, as `task.schedule(…)` takes them; None for those that are not given."""
    for option in reversed(
        (
            click.option("--cron", metavar="EXPRESSION", help='When it runs: "0 6 * * *".'),
            click.option("--every", metavar="PERIOD", help="When it runs, instead of --cron: 90s, 15m, 2h."),
            click.option(
                "--calendar", metavar="TEXT", help='When it runs, instead of --cron: "every 2 weeks on mon at 9:00".'
            ),
            click.option("--tz", metavar="ZONE", help="The zone of --cron, --calendar and the windows. Default: UTC."),
            click.option("--payload", metavar="JSON", help="The arguments as a JSON object; - reads it from stdin."),
            click.option("--until", type=instant, metavar="INSTANT", help="It ends before this instant."),
            click.option("--max-runs", type=click.IntRange(1), help="It ends after this many runs."),
            click.option(
                "--misfire",
                type=click.Choice(get_args(Misfire)),
                help="Set how missed occurrences are handled. Default: run_once.",
            ),
            click.option(
                "--overlap",
                type=click.Choice(get_args(Overlap)),
                help="Set what to do while the previous job is not final. Default: skip.",
            ),
            click.option("--jitter", type=seconds, metavar="TIME", help="Jobs are ready up to this time later."),
            click.option("--between", nargs=2, metavar="TIME TIME", help="Run only between: 8:00 18:00."),
            click.option("--on", multiple=True, metavar="DAY", help="Run only on: weekday, mon. Repeatable."),
            click.option("--exclude", multiple=True, metavar="DAY", help="Not on: 12-25, 12-24..01-06. Repeatable."),
        )
    ):
        function = option(function)
    return function


def _trigger(cron: str | None, every: str | None, calendar: str | None, tz: str | None) -> Trigger | None:
    if sum(each is not None for each in (cron, every, calendar)) > 1:
        raise click.UsageError("--cron, --every and --calendar exclude each other")
    return spelled_trigger(cron, every, calendar, tz)


def _payload(given: str) -> bytes:
    return sys.stdin.buffer.read() if given == "-" else os.fsencode(given)


def _given(options: dict[str, Any], trigger: Trigger | None, tz: str | None) -> Any:
    """Return the options that were given; those of windows on a cron expression or a calendar have its zone."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    return given if tz is None or isinstance(trigger, Cron | Calendar) else {**given, "tz": tz}


@schedules.command()
@takes_app_and("SCHEDULE", "TASK")
@_takes_definition
@click.option("--queue", metavar="NAME", help="The queue for its jobs. Default: the task's.")
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), help="The priority for its jobs.")
@json_option
def create(
    target: str,
    schedule: str,
    task: str,
    cron: str | None,
    every: str | None,
    calendar: str | None,
    tz: str | None,
    payload: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Store a new schedule of TASK. It stays until it is removed, whatever later releases declare.

    \b
      headgate schedules create shop:app sync-acme sync --every 5m --payload '{"tenant": "acme"}'
      headgate schedules create shop:app report report --cron '0 6 * * *' --tz Europe/Rome --exclude 12-25
      headgate schedules create shop:app pay pay --calendar 'every 2 weeks on mon, wed at 9:00' --tz Europe/Rome
    """
    trigger = _trigger(cron, every, calendar, tz)
    if trigger is None:
        raise click.UsageError("add --cron, --every or --calendar")
    given, arguments = _given(options, trigger, tz), b"{}" if payload is None else _payload(payload)
    status = ask(target, lambda admin: admin.schedules.create(schedule, task, trigger, arguments, **given))
    _say_stored(status, "is stored", as_json=as_json)


@schedules.command()
@takes_app_and("SCHEDULE")
@_takes_definition
@json_option
def edit(
    target: str,
    schedule: str,
    cron: str | None,
    every: str | None,
    calendar: str | None,
    tz: str | None,
    payload: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a schedule that no code declares. It keeps what you leave out, its runs and its pause.

    A new --cron or --calendar without --tz is in the zone that the schedule has; --tz alone moves the one that it has.
    """
    if all(each is None or each == () for each in (cron, every, calendar, tz, payload, *options.values())):
        raise click.UsageError("add an option: what should change?")
    arguments = None if payload is None else _payload(payload)

    async def change(admin: Admin) -> ScheduleStatus:
        stored, given = await admin.schedules.definition(schedule), (cron, every, calendar)
        if tz is not None and given == (None, None, None):
            # A zone alone is a new one for the trigger, too, and not for its windows only.
            given = (stored.cron, None, stored.calendar)
        trigger = _trigger(*given, stored.tz if tz is None else tz)
        return await admin.schedules.edit(schedule, trigger, arguments, **_given(options, trigger, tz))

    _say_stored(ask(target, change), "is changed", as_json=as_json)


def _say_stored(status: ScheduleStatus, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(status)
    else:
        click.echo(one_line(f"{status.name} {done}: {status.trigger}; next run {_instant(status.next_run) or 'none'}"))


add_pausing(
    schedules,
    "schedule",
    lambda admin: admin.schedules,
    pause="Enqueue no jobs of a schedule until it is resumed. Enqueued jobs continue.",
    resume="End a pause. Occurrences during the pause are not caught up.",
)


@schedules.command()
@takes_app_and("SCHEDULE")
@json_option
def trigger(target: str, schedule: str, as_json: bool) -> None:
    """Enqueue a job of a schedule now, also while it is paused. The next run does not change."""
    job_id = ask(target, lambda admin: admin.schedules.trigger(schedule))
    with printing_of(job_id):
        say_done(f"{schedule} enqueued job {job_id}", as_json=as_json, schedule=schedule, job=job_id)


@schedules.command()
@takes_app_and("SCHEDULE")
@json_option
def skip(target: str, schedule: str, as_json: bool) -> None:
    """Skip the next occurrence of a schedule. Exit code 1 if there is none."""
    left_out = ask(target, lambda admin: admin.schedules.skip(schedule))
    done = f"{schedule} skips {_instant(left_out)}"
    say_change(left_out is not None, done, f"{schedule} is over", as_json=as_json, schedule=schedule, left_out=left_out)


@schedules.command()
@takes_app_and("SCHEDULE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(target: str, schedule: str, yes: bool, as_json: bool) -> None:
    """Remove a schedule. Its jobs stay. A declared schedule is stored again by the next worker that starts."""
    require_answer(as_json=as_json, yes=yes)
    if not yes:
        confirm(f"Remove schedule {schedule!r}?")
    if not ask(target, lambda admin: admin.schedules.remove(schedule)):
        raise click.ClickException(f"there is no schedule {schedule!r}")
    say_done(f"{schedule} is removed", as_json=as_json, schedule=schedule)


@schedules.command()
@takes_app
@json_option
def reencode(target: str, as_json: bool) -> None:
    """Encode the payloads of all schedules with the app's present codecs, before you remove an old codec.

    Schedules that the code declares are encoded anew by the next worker that starts.
    """
    changed = ask(target, lambda admin: admin.schedules.reencode())
    say_done(f"{counted(changed, 'schedule')} encoded anew", as_json=as_json, changed=changed)


def _tasks(schedule: ScheduleStatus) -> str:
    return schedule.task if schedule.jobs == 1 else f"{', '.join(schedule.tasks)} ({counted(schedule.jobs, 'job')})"


def _note(schedule: ScheduleStatus) -> str | None:
    notes: list[str] = [] if schedule.state == "active" else [schedule.state]
    if schedule.problem is not None:
        notes.append(schedule.problem)
    if schedule.max_runs is not None and schedule.state == "active":
        notes.append(f"at most {counted(schedule.max_runs, 'run')}")
    if schedule.skipped is not None:
        notes.append(f"skipped {_instant(schedule.skipped_at)}: {SKIPPED_BECAUSE[schedule.skipped]}")
    return "; ".join(notes) or None


def _instant(instant: datetime | None) -> str:
    return "" if instant is None else instant.isoformat(sep=" ", timespec="seconds")
