"""Schedules: when they are due next, and how to pause, trigger, skip and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from headgate.errors import ScheduleNotFound
from headgate.http.caller import Caller
from headgate.http.endpoint import Acknowledgement, Endpoint, Query, acts, reads, removes
from headgate.http.page import Count, Name, Page
from headgate.tasks.schedule import ScheduleStatus


class SchedulesQuery(Query, frozen=True, kw_only=True):
    after: Annotated[
        Name, msgspec.Meta(description="The `next` of the page before it: the name that it ended with.")
    ] = ""
    count: Count = 50


class ScheduleDetails(msgspec.Struct, frozen=True):
    """A schedule, and when it is due next if nothing changes."""

    status: ScheduleStatus
    next_runs: Sequence[datetime]


class Triggered(msgspec.Struct, frozen=True):
    """The id of the job that was enqueued."""

    job: str


class Skipped(msgspec.Struct, frozen=True):
    """When the skipped occurrence would have been due; null if there is none."""

    skipped: datetime | None


async def schedules(caller: Caller, query: SchedulesQuery) -> Page[ScheduleStatus]:
    """Return schedules by name."""
    found = await caller.admin.schedules.page(after=query.after, count=query.count)
    return Page(found, found[-1].name if len(found) == query.count else None)


async def schedule(caller: Caller, name: str) -> ScheduleDetails:
    """Return one schedule, with its next five runs."""
    status = await caller.admin.schedules.status(name)
    return ScheduleDetails(status, () if status.unreadable else await caller.admin.schedules.next_runs(name))


async def pause_schedule(caller: Caller, name: str) -> Acknowledgement:
    """Enqueue nothing of a schedule until it is resumed."""
    return Acknowledgement(await caller.admin.schedules.pause(name))


async def resume_schedule(caller: Caller, name: str) -> Acknowledgement:
    """End a pause; occurrences of the pause are not made up for."""
    return Acknowledgement(await caller.admin.schedules.resume(name))


async def trigger_schedule(caller: Caller, name: str) -> Triggered:
    """Enqueue its job now, whatever its state; its next occurrences stay."""
    return Triggered(await caller.admin.schedules.trigger(name))


async def skip_schedule(caller: Caller, name: str) -> Skipped:
    """Skip its next occurrence."""
    return Skipped(await caller.admin.schedules.skip(name))


async def remove_schedule(caller: Caller, name: str) -> Acknowledgement:
    """Delete a schedule; jobs that it has enqueued stay. A declared schedule is created again by the next node."""
    if not await caller.admin.schedules.remove(name):
        raise ScheduleNotFound(name)
    return Acknowledgement()


ENDPOINTS: Sequence[Endpoint] = (
    reads("/schedules", schedules),
    reads("/schedules/{name}", schedule, refuses=(404, 409)),
    acts("/schedules/{name}/pause", pause_schedule, refuses=(404,)),
    acts("/schedules/{name}/resume", resume_schedule, refuses=(404, 409)),
    acts("/schedules/{name}/trigger", trigger_schedule, refuses=(404, 409, 422)),
    acts("/schedules/{name}/skip", skip_schedule, refuses=(404, 409)),
    removes("/schedules/{name}", remove_schedule, refuses=(404,)),
)
