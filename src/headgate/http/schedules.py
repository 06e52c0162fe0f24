"""Schedules: when they are due next, and how to pause, trigger, skip and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from headgate.admin.schedules import DayPlan, ScheduleDefinition
from headgate.errors import DeclarationError, HeadgateError, ScheduleNotFound, StorageUnavailable
from headgate.http.caller import Caller
from headgate.http.endpoint import JsonBody, Query
from headgate.http.page import Count, Name, Page, page_of
from headgate.http.tasks import Arguments, require_no_mark
from headgate.jobs.job import MAX_PRIORITY
from headgate.jobs.query import Instant
from headgate.schedules.calendar_text import spelled_trigger
from headgate.schedules.schedule import Misfire, Overlap
from headgate.schedules.trigger import Trigger
from headgate.tasks.schedule import ScheduleOptions
from headgate.tasks.status import ScheduleStatus
from headgate.views import view_of


class SchedulesQuery(Query, frozen=True, kw_only=True):
    after: Annotated[
        Name, msgspec.Meta(description="The `next` of the page before it: the name that it ended with.")
    ] = ""
    count: Count = 50


Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class ScheduleBody(JsonBody, frozen=True, kw_only=True):
    """A schedule: when it runs, and the arguments of its jobs. What is left out has its default.

    `cron` is an expression, or `every` a period ("5m"), or `calendar` a text ("every 2 weeks on mon at 9:00"); `tz`
    is the zone of these and of the windows: `between` two times of day, `on` weekdays, `exclude` days ("12-25") and
    ranges ("12-24..01-06"). `jitter` is in seconds.
    """

    cron: Text | None = None
    every: Text | None = None
    calendar: Text | None = None
    tz: Text | None = None
    payload: Arguments | None = None
    until: Instant | None = None
    max_runs: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    misfire: Misfire = "run_once"
    overlap: Overlap | None = None
    jitter: Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)] | None = None
    between: tuple[Text, Text] | None = None
    on: Annotated[Sequence[Text], msgspec.Meta(max_length=7)] = ()
    exclude: Annotated[Sequence[Text], msgspec.Meta(max_length=1000)] = ()

    def trigger(self) -> Trigger | None:
        """Return its trigger; None without one. Raises DeclarationError."""
        if sum(each is not None for each in (self.cron, self.every, self.calendar)) > 1:
            raise DeclarationError(
                "a schedule has a cron expression, a period or a calendar; pass one of cron, every and calendar"
            )
        return spelled_trigger(self.cron, self.every, self.calendar, self.tz)

    def options(self) -> ScheduleOptions:
        """Return its options; windows on a cron expression or a calendar have its zone."""
        return {
            "until": self.until,
            "max_runs": self.max_runs,
            "misfire": self.misfire,
            "overlap": self.overlap,
            "jitter": self.jitter,
            "between": self.between,
            "on": self.on or None,
            "exclude": self.exclude or None,
            "tz": self.tz if self.cron is None and self.calendar is None else None,
        }


class NewSchedule(ScheduleBody, frozen=True, kw_only=True):
    """A schedule to store, under a new name, of a task that this app declares."""

    name: Name
    task: Name
    queue: Name | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] | None = None


class DefinitionView(ScheduleDefinition, frozen=True):
    """The jobs and times of a schedule. A trigger from the code has neither `cron`, nor `every`, nor `calendar`."""

    payload: Any


class ScheduleDetails(msgspec.Struct, frozen=True):
    """A schedule, when it is due next if nothing changes, and its definition, if it can be read."""

    status: ScheduleStatus
    next_runs: Sequence[datetime]
    definition: DefinitionView | None


class PreviewQuery(Query, frozen=True, kw_only=True):
    """When a schedule would run: as in the body of a new one, with lists as text ("mon, wed", "8:00 - 18:00").

    With `schedule`, the name of a stored one, it is that one with these changes.
    """

    schedule: Name | None = None
    cron: Text | None = None
    every: Text | None = None
    calendar: Text | None = None
    tz: Text | None = None
    between: Text | None = None
    on: Text | None = None
    exclude: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    max_runs: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    until: Instant | None = None

    def body(self) -> ScheduleBody:
        """Return it as the body of a schedule. Raises DeclarationError."""
        between = None if self.between is None else tuple(each.strip() for each in self.between.split("-"))
        if between is not None and len(between) != 2:
            raise DeclarationError(f'between={self.between!r} must be two times of day, such as "8:00 - 18:00"')
        given = msgspec.structs.asdict(self)
        del given["schedule"]
        days = {"on": _parts(self.on or ""), "exclude": _parts(self.exclude)}
        return ScheduleBody(**{**given, **days, "between": between})


class SchedulePreview(msgspec.Struct, frozen=True):
    """The next five runs of a schedule that is not stored yet; fewer if it ends before.

    If it cannot be stored like this, there are none, and `error` says why: the expression may not be complete yet.
    """

    next_runs: Sequence[datetime]
    now: datetime
    error: str | None = None


class Triggered(msgspec.Struct, frozen=True):
    """The id of the job that was enqueued."""

    job: str


class Skipped(msgspec.Struct, frozen=True):
    """The instant of the skipped occurrence; null if there is none."""

    skipped: datetime | None


async def schedules(caller: Caller, query: SchedulesQuery) -> Page[ScheduleStatus]:
    """Return schedules by name."""
    found = await caller.admin.schedules.page(after=query.after, count=query.count + 1)
    return page_of(found, query.count, lambda schedule: schedule.name)


async def schedule(caller: Caller, name: str) -> ScheduleDetails:
    """Return one schedule, with its next five runs and its definition."""
    admin = caller.admin.schedules
    status = await admin.status(name)
    if status.unreadable:
        return ScheduleDetails(status, (), None)
    definition = await admin.definition(name)
    secrets = caller.secrets_of(definition.payload, fields=())
    payload = caller.redaction.json(caller.visible(definition.payload), secrets)
    try:
        runs = await admin.next_runs(name)
    except (ScheduleNotFound, StorageUnavailable):
        raise
    except HeadgateError:
        # The trigger is code of another app, which alone can compute the later ones, or it raises for one of them.
        runs = () if status.next_run is None else (status.next_run,)
    return ScheduleDetails(status, runs, view_of(DefinitionView, definition, payload=payload))


async def schedule_preview(caller: Caller, query: PreviewQuery) -> SchedulePreview:
    """Return when a schedule would run, before it is stored or changed."""
    try:
        body = query.body()
        runs = await caller.admin.schedules.preview(body.trigger(), name=query.schedule, **body.options())
    except DeclarationError as error:
        return SchedulePreview((), caller.admin.now(), str(error))
    return SchedulePreview(runs, caller.admin.now())


async def schedule_day(caller: Caller) -> DayPlan:
    """Return when the schedules are due in the next 24 hours.

    Of the first 500 by name these are the 40 that are due next, each with its first 24 runs.
    """
    return await caller.admin.schedules.day()


async def create_schedule(caller: Caller, body: NewSchedule) -> ScheduleStatus:
    """Store a new schedule of a task that this app declares; it stays until it is removed."""
    require_no_mark(body.payload, caller.redaction)
    trigger = body.trigger()
    if trigger is None:
        raise DeclarationError(f"schedule {body.name!r} needs cron, every or calendar")
    return await caller.admin.schedules.create(
        body.name, body.task, trigger, body.payload or {}, queue=body.queue, priority=body.priority, **body.options()
    )


async def edit_schedule(caller: Caller, name: str, body: ScheduleBody) -> ScheduleStatus:
    """Replace the definition of a schedule that no code declares; its runs, its rhythm and its pause stay.

    Without `cron`, `every` and `calendar` its trigger stays, moved to a new `tz`; and without `payload` its arguments.
    """
    require_no_mark(body.payload, caller.redaction)
    return await caller.admin.schedules.edit(name, body.trigger(), body.payload, **body.options())


async def pause_schedule(caller: Caller, name: str) -> bool:
    """Enqueue nothing of a schedule until it is resumed."""
    return await caller.admin.schedules.pause(name)


async def resume_schedule(caller: Caller, name: str) -> bool:
    """End a pause; occurrences of the pause are not made up for."""
    return await caller.admin.schedules.resume(name)


async def trigger_schedule(caller: Caller, name: str) -> Triggered:
    """Enqueue its job now, whatever its state; its next occurrences stay."""
    return Triggered(await caller.admin.schedules.trigger(name))


async def skip_schedule(caller: Caller, name: str) -> Skipped:
    """Skip its next occurrence."""
    return Skipped(await caller.admin.schedules.skip(name))


async def remove_schedule(caller: Caller, name: str) -> None:
    """Delete a schedule; jobs that it has enqueued stay. A declared schedule is created again by the next node."""
    if not await caller.admin.schedules.remove(name):
        raise ScheduleNotFound(name)


def _parts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
