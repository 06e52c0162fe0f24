"""Declared schedules, and the handles of stored ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, ParamSpec, TypedDict, TypeVar, get_args

from headgate.arguments import parse_count, parse_duration, parse_instant
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.restricted import Excluded, restricted
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.tasks.handle import Job
from headgate.tasks.options import require_names
from headgate.tasks.status import ScheduleStatus

if TYPE_CHECKING:
    from headgate.client import Client
    from headgate.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

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
    """When a schedule begins, ends and catches up: what `task.schedule(…)` and `@app.schedule(…)` take."""

    first: First
    """Its first occurrence: "after" (default), the first instant of the trigger after now; "now" or an aware datetime:
    that one, and then those of the trigger."""

    until: datetime | None
    """An aware datetime: it ends before that (default: never)."""

    max_runs: int | None
    """It ends once this many of its jobs have run to their end (default: never)."""

    misfire: Misfire
    """What happens to occurrences that were missed by more than a minute because no node was running.

    "run_once" (default) runs one of them, "skip" none, "run_all" each.
    """

    overlap: Overlap | None
    """What happens to an occurrence that is due while the one before waits or runs.

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


def schedule_spec(name: str, trigger: Trigger, options: ScheduleOptions) -> ScheduleSpec:
    """Return the checked declaration of a schedule. Raises TypeError, and DeclarationError for what can never work."""
    where = f"schedule {name!r}"
    require_names(options, ScheduleOptions.__annotations__, where)
    first, until, max_runs = options.get("first", "after"), options.get("until"), options.get("max_runs")
    misfire, overlap = options.get("misfire", "run_once"), options.get("overlap")
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise DeclarationError(f"schedule name {name!r:.80} must be 1 to 200 printable characters")
    if not isinstance(trigger, Trigger) or isinstance(trigger, type):
        raise DeclarationError(
            f'{where}: {trigger!r:.80} is not a trigger; pass Cron("0 6 * * *"), Every(minutes=5), Calendar(…), or an '
            "object with next_after, latest_at_or_before and describe"
        )
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


class Schedule(Generic[R_co]):
    """A stored schedule: its name, and the ways to follow and control it."""

    __slots__ = ("_client", "name")

    def __init__(self, name: str, client: Client) -> None:
        self.name: str = name
        self._client = client

    async def status(self) -> ScheduleStatus:
        """Return the schedule as it is now. Raises ScheduleNotFound once it has been removed."""
        return await self._client.admin.schedules.status(self.name)

    async def next_runs(self, count: int = 5) -> Sequence[datetime]:
        """Return its next occurrences, if nothing changes; fewer if it ends before. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.next_runs(self.name, count)

    async def pause(self) -> bool:
        """Enqueue nothing until it is resumed; return False if it was already paused. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.pause(self.name)

    async def resume(self) -> bool:
        """End a pause, without its missed occurrences; return False if there was none. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.resume(self.name)

    async def trigger(self) -> Job[R_co]:
        """Enqueue its job now, also while it is paused; its next occurrences stay, and the run counts as a run.

        Of a chain or a batch, all is enqueued, and the handle is that of its last job. Raises ScheduleNotFound.
        """
        return Job(await self._client.admin.schedules.trigger(self.name), self._client)

    async def remove(self) -> bool:
        """Remove the schedule; jobs that it has enqueued stay. Return False if it did not exist."""
        return await self._client.admin.schedules.remove(self.name)

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class TaskSchedule(Generic[P, R]):
    """A schedule without the arguments of its job; `task.schedule(…)` makes it."""

    __slots__ = ("_spec", "_task")

    def __init__(self, task: Task[P, R], spec: ScheduleSpec) -> None:
        self._task = task
        self._spec = spec

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Schedule[R]:
        """Store the schedule, for jobs with these arguments, and return when it is durable.

        An existing one of the same name is updated and keeps its count, its phase and its pause; one that was removed
        or has ended begins anew. Raises what `task.enqueue` raises.
        """
        return await self._task._client.put_schedule(self._task, self._spec, self._task.call(*args, **kwargs))
