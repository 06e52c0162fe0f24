"""Schedules on PostgreSQL. Whoever ends one of their jobs leaves a note, merged when the schedule is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.schedule import Course, ScheduleRules
from headgate.storage.postgres.addition import add_tied
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.history import note_enqueued
from headgate.storage.schedules import SCHEDULES, DueSchedules, Fired, ScheduleRecord

_decode_call = msgspec.json.Decoder(ScheduledCall).decode
_decode_rules = msgspec.json.Decoder(ScheduleRules).decode


async def put(session: Session, record: ScheduleRecord, replaces: int | None, *, anew: bool) -> bool:
    """Store a schedule in place of that revision; False if there is another one."""
    values = record.columns()
    if replaces is None:
        await session.execute("share_new_schedules")
        return await session.execute("add_schedule", **values) == 1
    if await session.execute("change_schedule", replaces=replaces, anew=False, **values) != 1:
        return False
    if anew:
        # What is noted of runs is of before: it is counted first, and then forgotten with the rest.
        await session.execute("merge_schedule_notes", names=[record.name])
        await session.execute("change_schedule", replaces=replaces + 1, anew=True, **values)
    return True


async def take_over(session: Session, record: ScheduleRecord, was: str, replaces: int) -> bool:
    """Store a schedule in place of that revision of one of another name; False if that is not so any more."""
    await session.execute("share_new_schedules")
    if not await session.fetch("lock_schedules", names=[was], revisions=[replaces]):
        return False
    if await session.execute("add_schedule", **record.columns()) != 1:
        return False
    # Those that end meanwhile are waited for here, so what they note is there for the count.
    await session.execute("move_scheduled_jobs", name=record.name, was=was)
    await session.execute("take_over_schedule", name=record.name, was=was)
    return True


async def fire(session: Session, fired: Sequence[Fired], limit_now: int, now: int) -> list[bool]:
    """Advance the schedules that are as they were read, and add their jobs; whether each was."""
    locked = await session.fetch(
        "lock_schedules", names=[each.name for each in fired], revisions=[each.revision for each in fired]
    )
    names = {row[0] for row in locked}
    written = [each for each in fired if each.name in names]
    if written:
        await session.execute("merge_schedule_notes", names=sorted(names))
        await session.execute(
            "advance_schedules",
            names=[each.name for each in written],
            next_at=[each.next_at for each in written],
            last_at=[each.last_at for each in written],
            opened=[each.opened for each in written],
            last_jobs=[each.jobs[-1].id if each.jobs else None for each in written],
            skipped=[each.skipped for each in written],
            skipped_at=[each.skipped_at for each in written],
        )
        jobs = [job for each in written for job in each.jobs]
        await add_tied(session, jobs, limit_now)
        await note_enqueued(session, jobs, now)
    return [each.name in names for each in fired]


async def evict_notes(session: Session, count: int) -> int:
    """Forget what is noted of removed schedules, in a transaction: their jobs end without them."""
    # A new schedule counts the jobs that are not final. Of one that ends meanwhile only the note tells it, and that
    # schedule is not seen here yet.
    if not await session.value("own_new_schedules"):
        return 0
    return await session.execute("evict_schedule_notes", count=count)


async def due(session: Session, now: int, tasks: frozenset[str], unable: frozenset[str], count: int) -> DueSchedules:
    """The schedules whose next occurrence has come, and when another one's comes."""
    wanted: dict[str, Any] = {"now": now, "tasks": sorted(tasks), "unable": sorted(unable)}
    rows = await session.fetch("due_schedules", count=count, **wanted)
    return DueSchedules([schedule_record(row) for row in rows], await session.value("next_schedule", **wanted))


async def overdue(
    session: Session, before: int, tasks: frozenset[str], unable: frozenset[str], count: int
) -> Sequence[ScheduleRecord]:
    """The schedules that were due before then, and that a node with these tasks does not fire."""
    wanted: dict[str, Any] = {"tasks": sorted(tasks), "unable": sorted(unable)}
    rows = await session.fetch("overdue_schedules", before=before, count=count, **wanted)
    return [schedule_record(row) for row in rows]


def schedule_record(row: Any) -> ScheduleRecord:
    """A schedule as it is stored."""
    try:
        return _record(row)
    except (msgspec.DecodeError, UnicodeError):
        course = (row["started_at"], row["next_at"], row["last_at"], row["runs"], row["open"])
        rest = ("last_job", "paused_at", "revision", "is_declared", "formerly", "skipped", "skipped_at")
        return SCHEDULES.repaired([row["name"], row["call"], row["rules"], course, *(row[name] for name in rest)])


def _record(row: Any) -> ScheduleRecord:
    return ScheduleRecord(
        row["name"],
        _decode_call(row["call"]),
        _decode_rules(row["rules"]),
        Course(row["started_at"], row["next_at"], row["last_at"], row["runs"], row["open"]),
        row["last_job"],
        row["paused_at"],
        row["revision"],
        row["is_declared"],
        row["formerly"],
        row["skipped"],
        row["skipped_at"],
    )
