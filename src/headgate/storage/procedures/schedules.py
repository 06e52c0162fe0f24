"""Schedules: rules that enqueue the same job, or graph of jobs, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.schedule import ScheduleProgress, ScheduleRules
from headgate.storage.driver import Transaction
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.following import leaders_of
from headgate.storage.procedures.history import note_enqueued
from headgate.storage.records import DueSchedules, Fired, ScheduleRecord
from headgate.storage.statements import as_json
from headgate.storage.stored_rows import RowDecoder


def _blank_call(stored: Any) -> ScheduledCall:
    """Return a blank call in place of one that cannot be read, with its task if that can be read."""
    try:
        known = msgspec.json.decode(stored) if isinstance(stored, str) else stored
    except (msgspec.DecodeError, UnicodeError):
        known = None
    task = known.get("task") if isinstance(known, dict) else None
    return ScheduledCall(task=task if isinstance(task, str) else "", queue="", payload="")


_SCHEDULES = RowDecoder(
    ScheduleRecord, "schedule", call=_blank_call, rules=ScheduleRules(trigger=""), course=ScheduleProgress(0, None)
)


async def put_schedule(tx: Transaction, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
    """Store a schedule in place of the one with its name and the revision `replaces` (None: there is none).

    False, and nothing is written, if the stored revision differs. The store itself counts the jobs of the schedule:
    it ignores `open` in the record, and `runs` unless it begins `anew`.
    """
    values = _columns(record)
    if replaces is None:
        if not tx.has_one_writer:
            await tx.values("share_new_schedules")
        return await tx.execute("add_schedule", **values) == 1
    if await tx.execute("change_schedule", replaces=replaces, anew=anew and tx.has_one_writer, **values) != 1:
        return False
    if anew and not tx.has_one_writer:
        # Noted runs are from before: they are counted first, and reset with the others.
        await tx.execute("merge_schedule_notes", names=[record.name])
        await tx.execute("change_schedule", replaces=replaces + 1, anew=True, **values)
    return True


async def take_over_schedule(tx: Transaction, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
    """Store a schedule in place of the one with the name `was` and that revision, in one commit.

    Jobs of the old schedule that are not final are moved to the new name, and its count is kept. False, and nothing
    is written, if the stored revision differs or the new name is taken.
    """
    if not tx.has_one_writer:
        await tx.values("share_new_schedules")
    if not await tx.values("lock_schedules", named=[(was, replaces)]):
        return False
    if await tx.execute("add_schedule", **_columns(record)) != 1:
        return False
    # Waits for jobs that are ending, so that their notes are counted.
    await tx.execute("move_scheduled_jobs", name=record.name, was=was)
    await tx.execute("move_scheduled_batches", name=record.name, was=was)
    await tx.execute("take_over_schedule", name=record.name, was=was)
    await tx.execute("remove_schedule", name=was)
    return True


def _columns(record: ScheduleRecord) -> dict[str, Any]:
    """Return the columns of a schedule's row, by name, as parameters; values that are not scalar are JSON text."""
    values = {"task": record.call.task, "call": as_json(record.call), "rules": as_json(record.rules)}
    return asdict(record) | asdict(record.course) | values


async def fire(tx: Transaction, fired: Sequence[Fired]) -> Sequence[bool]:
    """Add the jobs of occurrences and advance their schedules, in one commit; False for each that has changed.

    So each occurrence is enqueued once, however many nodes try, and a schedule whose advance is lost has not
    enqueued anything either. One that follows a job which another transaction has locked is left out, too.
    """
    leaders = set() if tx.has_one_writer else leaders_of([job for each in fired for job in each.jobs], ())
    held = set(await tx.ids("lock_leaders_if_free", ids=sorted(leaders))) if leaders else set()
    revisions = [(each.name, each.revision) for each in fired if held.isdisjoint(leaders_of(each.jobs, ()))]
    names = set(await tx.values("lock_schedules", named=revisions))
    written = [each for each in fired if each.name in names]
    if written:
        if not tx.has_one_writer:
            await tx.execute("merge_schedule_notes", names=sorted(names))
        await tx.execute("advance_schedules", fired=written)
    jobs = [job for each in written for job in each.jobs]
    batches = [batch for each in written for batch in each.batches]
    await add_jobs(tx, jobs, batches)
    if batches:
        await tx.execute("uncount_final_runs", runs=[run for each in written for run in each.runs], names=sorted(names))
    await note_enqueued(tx, jobs)
    return [each.name in names for each in fired]


async def remove_schedule(tx: Transaction, name: str) -> bool:
    """Delete a schedule; the jobs that it has enqueued stay. Returns whether there was one."""
    return await tx.execute("remove_schedule", name=name) == 1


async def evict_schedule_notes(tx: Transaction, count: int) -> int:
    """Delete notes of removed schedules, which their jobs have left."""
    # A new schedule starts with the number of jobs that are not final. If one of them ends before that commit, only the
    # note records it, and the schedule cannot be seen here yet.
    if tx.has_one_writer or not await tx.value("own_new_schedules"):
        return 0
    return await tx.execute("evict_schedule_notes", count=count)


async def schedules(
    tx: Transaction, *, name: str | None = None, formerly: str | None = None, after: str = "", count: int = 1000
) -> Sequence[ScheduleRecord]:
    """Return schedules by name, beyond `after`: all, the one of that `name`, or those once named `formerly`."""
    if name is not None:
        return await tx.fetch(_SCHEDULES, "schedule_named", name=name)
    return await tx.fetch(_SCHEDULES, "schedules", formerly=formerly, after=after, count=count)


async def due_schedules(
    tx: Transaction, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
) -> DueSchedules:
    """Return schedules of these tasks that are due and not paused, except those that a node is `unable` to fire."""
    due = await _due(tx, tx.now + 1, tasks, unable, count, are_served=True)
    next_at = await tx.value("next_schedule", now=tx.now, tasks=sorted(tasks), unable=sorted(unable))
    return DueSchedules(due, next_at)


async def overdue_schedules(
    tx: Transaction, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
) -> Sequence[ScheduleRecord]:
    """Return schedules due before then and not paused, of other tasks than these or in `unable`."""
    return await _due(tx, before, tasks, unable, count, are_served=False)


async def _due(
    tx: Transaction, before: int, tasks: frozenset[str], unable: frozenset[str], count: int, *, are_served: bool
) -> list[ScheduleRecord]:
    values = {"before": before, "tasks": sorted(tasks), "unable": sorted(unable), "count": count}
    return await tx.fetch(_SCHEDULES, "due_schedules", are_served=are_served, **values)


async def schedules_ahead(
    tx: Transaction,
    tasks: frozenset[str],
    *,
    after: int,
    unable: frozenset[str] = frozenset(),
    beyond: str = "",
    count: int = 100,
) -> Sequence[ScheduleRecord]:
    """Return schedules of these tasks that were declared or had an occurrence after then, by name, `beyond` one."""
    values = {"after": after, "tasks": sorted(tasks), "unable": sorted(unable), "beyond": beyond, "count": count}
    return await tx.fetch(_SCHEDULES, "schedules_ahead", **values)
