"""`headgate schedules`: list, pause and trigger recurring jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from headgate.cli.locate import ask, ask_with_time, takes_app, takes_app_and
from headgate.cli.output import json_option, print_json, print_table, say_change, say_done, until
from headgate.cli.pausing import add_pausing
from headgate.cli.question import confirm, require_answer
from headgate.escaping import printable
from headgate.plural import counted
from headgate.tasks.schedule import ScheduleStatus

_SKIPPED = {
    "misfire": "no node was running",
    "overlap": "the previous job had not ended",
    "max_runs": "the running jobs may be its last",
    "limit": "its limit was closed, and its jobs do not wait",
}


@click.group()
def schedules() -> None:
    """List, pause, resume, trigger, skip and remove schedules."""


@schedules.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List schedules: the next run of each, and how many of its jobs have run, wait or run now.

    A declared schedule is stored when the first worker that declares it starts. The note names problems, and the last
    skipped occurrence with the reason.
    """
    found, now = ask_with_time(target, lambda admin: admin.schedules.list())
    if as_json:
        print_json(found)
        return
    print_table(
        "Schedules",
        ("schedule", "task", "trigger", "next run", "last occurrence", "runs", "open", "note"),
        [
            (each.name, each.task, each.trigger, _next_run(each, now), each.last_occurrence, each.runs, each.open,
             _note(each))
            for each in found
        ],
        empty="no schedules are stored",
    )  # fmt: skip


@schedules.command(name="next")
@takes_app_and("SCHEDULE")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="The most runs to list.")
@json_option
def next_(target: str, words: tuple[str], count: int, as_json: bool) -> None:
    """List the next runs of a schedule."""
    (name,) = words
    found, now = ask_with_time(target, lambda admin: admin.schedules.next_runs(name, count))
    if as_json:
        print_json(found)
        return
    rows: Sequence[Sequence[object]] = [(instant, until(instant, now)) for instant in found]
    print_table(f"Next runs of {printable(name)}", ("at", "in"), rows, empty="none; the schedule is paused or over")


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
def trigger(target: str, words: tuple[str], as_json: bool) -> None:
    """Enqueue a job of a schedule now, also while it is paused. The next run does not change."""
    (name,) = words
    job_id = ask(target, lambda admin: admin.schedules.trigger(name))
    say_done(f"{name} enqueued job {job_id}", as_json=as_json, schedule=name, job=job_id)


@schedules.command()
@takes_app_and("SCHEDULE")
@json_option
def skip(target: str, words: tuple[str], as_json: bool) -> None:
    """Skip the next occurrence of a schedule. Exit code 1 if there is none."""
    (name,) = words
    left_out = ask(target, lambda admin: admin.schedules.skip(name))
    done = f"{name} skips {_instant(left_out)}"
    say_change(left_out is not None, done, f"{name} is over", as_json=as_json, schedule=name, left_out=left_out)


@schedules.command()
@takes_app_and("SCHEDULE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(target: str, words: tuple[str], yes: bool, as_json: bool) -> None:
    """Remove a schedule. Its jobs stay. A declared schedule is stored again by the next worker that starts."""
    (name,) = words
    require_answer(as_json=as_json, yes=yes)
    if not yes:
        confirm(f"Remove schedule {name!r}?")
    if not ask(target, lambda admin: admin.schedules.remove(name)):
        raise click.ClickException(f"there is no schedule {name!r}")
    say_done(f"{name} is removed", as_json=as_json, schedule=name)


@schedules.command()
@takes_app
@json_option
def reencode(target: str, as_json: bool) -> None:
    """Encode the payloads of all schedules with the present codecs of the app, before an old codec is removed.

    Schedules that the code declares are encoded anew by the next worker that starts.
    """
    changed = ask(target, lambda admin: admin.schedules.reencode())
    say_done(f"{counted(changed, 'schedule')} encoded anew", as_json=as_json, changed=changed)


def _next_run(schedule: ScheduleStatus, now: datetime) -> str | None:
    return "overdue" if schedule.is_overdue else until(schedule.next_run, now)


def _note(schedule: ScheduleStatus) -> str | None:
    notes: list[str] = [] if schedule.state == "active" else [schedule.state]
    if schedule.problem is not None:
        notes.append(schedule.problem)
    if schedule.max_runs is not None and schedule.state == "active":
        notes.append(f"at most {counted(schedule.max_runs, 'run')}")
    if schedule.skipped is not None:
        notes.append(f"skipped {_instant(schedule.skipped_at)}: {_SKIPPED[schedule.skipped]}")
    return "; ".join(notes) or None


def _instant(instant: datetime | None) -> str:
    return "" if instant is None else instant.isoformat(sep=" ", timespec="seconds")
