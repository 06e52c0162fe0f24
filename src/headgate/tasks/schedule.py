"""Declared schedules: their options, and the checked declaration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict, get_args

from headgate.arguments import parse_count, parse_duration, parse_instant
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.restricted import Excluded, restricted
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.tasks.options import require_names

First = Literal["now", "after"] | datetime


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """The checked declaration of a schedule without its job; instants are wall microseconds."""

    name: str
    trigger: Trigger
    first: Literal["now", "after", "at"]
    first_at: int | None
    until: int | None
    max_runs: int | None
    misfire: Misfire
    overlap: Overlap
    jitter: int | None = None


class ScheduleOptions(TypedDict, total=False):
    """The times when a schedule begins, ends and catches up: what `task.schedule(…)` and `@app.schedule(…)` take."""

    first: First
    """Its first occurrence: "after" (default), the first instant of the trigger after now; "now" or an aware datetime:
    that one, and then those of the trigger."""

    until: datetime | None
    """An aware datetime: it ends before that (default: never)."""

    max_runs: int | None
    """It ends once this many of its jobs have run to their end (default: never)."""

    misfire: Misfire
    """Set what happens to occurrences that were missed by more than a minute because no node was running.

    "run_once" (default) runs one of them, "skip" none, "run_all" each.
    """

    overlap: Overlap | None
    """Set what happens to an occurrence that is due while the previous one waits or runs.

    "skip" (default) leaves it out, "queue" lets it wait for the one before (default with `misfire="run_all"`), "allow"
    lets both run.
    """

    jitter: Duration | None
    """The job of each occurrence is ready up to this long after it: a time that is computed from the name and the
    occurrence, so that all nodes agree (default: none)."""

    between: tuple[str, str] | None
    """The times of day from which and before which it runs, as ("8:00", "18:00"); occurrences outside are left out.

    ("22:00", "6:00") is open over midnight.
    """

    on: str | Collection[str] | None
    """The days of a week on which it runs: "weekday", ["mon", "wed"]; occurrences on other days are left out."""

    exclude: Excluded | Collection[Excluded] | None
    """Days on which it does not run: dates, "2026-12-25" or "12-25" (each year), ranges "12-24..01-06", and functions
    that get a date and return whether it is excluded."""

    tz: str | None
    """The zone of `between`, `on` and `exclude` (default: that of the trigger, else UTC)."""


def require_trigger(trigger: object, where: str) -> None:
    """Raise DeclarationError unless it is a trigger."""
    if not isinstance(trigger, Trigger) or isinstance(trigger, type):
        raise DeclarationError(
            f'{where}: {trigger!r:.80} is not a trigger; pass Cron("0 6 * * *"), Every(minutes=5), Calendar(…), or an '
            "object with next_after, latest_at_or_before and describe"
        )


def schedule_spec(name: str, trigger: Trigger, options: ScheduleOptions) -> ScheduleSpec:
    """Return the checked declaration of a schedule. Raises TypeError, and DeclarationError for what can never work."""
    where = f"schedule {name!r}"
    require_names(options, ScheduleOptions.__annotations__, where)
    first, until, max_runs = options.get("first", "after"), options.get("until"), options.get("max_runs")
    misfire, overlap = options.get("misfire", "run_once"), options.get("overlap")
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable() or name in (".", ".."):
        raise DeclarationError(f"schedule name {name!r:.80} must be 1 to 200 printable characters, but not . or ..")
    require_trigger(trigger, where)
    if first not in ("now", "after") and not isinstance(first, datetime):
        raise DeclarationError(f'{where}: first={first!r} must be "now", "after" or an aware datetime')
    first_at = parse_instant(first, "first", where) if isinstance(first, datetime) else None
    ends_at = None if until is None else parse_instant(until, "until", where)
    if max_runs is not None:
        parse_count(max_runs, "max_runs", where)
    if misfire not in get_args(Misfire):
        raise DeclarationError(f'{where}: misfire={misfire!r} must be "run_once", "skip" or "run_all"')
    if overlap is not None and overlap not in get_args(Overlap):
        raise DeclarationError(f'{where}: overlap={overlap!r} must be "skip", "queue" or "allow"')
    if misfire == "run_all" and overlap == "skip":
        raise DeclarationError(
            f'{where}: misfire="run_all" with overlap="skip" would skip all but one; use overlap="queue" or "allow"'
        )
    windows = {option: options.get(option) for option in ("between", "on", "exclude", "tz")}
    jitter = options.get("jitter")
    return ScheduleSpec(
        name,
        restricted(trigger, where, **windows),
        "at" if isinstance(first, datetime) else first,
        first_at,
        ends_at,
        max_runs,
        misfire,
        overlap or ("queue" if misfire == "run_all" else "skip"),
        None if jitter is None else parse_duration(jitter, "jitter", where, allow_zero=False),
    )


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule declared in code: stored when a node starts.

    `aliases` are those of its task if it has the task's name, so that it is renamed with it; None if it has its own
    name.
    """

    spec: ScheduleSpec
    call: ScheduledCall
    aliases: tuple[str, ...] | None = None
