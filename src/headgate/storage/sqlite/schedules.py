"""Schedules in a SQLite file. What their jobs come to is counted by a trigger, in the commit that ends them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from headgate.storage.schedules import SCHEDULES, DueSchedules, Fired, ScheduleRecord
from headgate.storage.sqlite.statements import as_json, execute, fetch

decode_schedules = SCHEDULES.decode
_decode_revisions = msgspec.json.Decoder(dict[str, int]).decode


def put(connection: sqlite3.Connection, record: ScheduleRecord, replaces: int | None, *, anew: bool) -> bool:
    """Store a schedule in place of that revision; False if there is another one."""
    values = record.columns()
    if replaces is not None:
        return execute(connection, "change_schedule", replaces=replaces, anew=anew, **values) == 1
    if revisions(connection, [record.name]):
        return False
    execute(connection, "add_schedule", **values)
    return True


def take_over(connection: sqlite3.Connection, record: ScheduleRecord, was: str, replaces: int) -> bool:
    """Store a schedule in place of that revision of one of another name; False if that is not so any more."""
    if execute(connection, "rename_schedule", name=record.name, was=was, replaces=replaces) != 1:
        return False
    execute(connection, "move_scheduled_jobs", name=record.name, was=was)
    execute(connection, "recount_schedule", name=record.name)
    return put(connection, record, replaces, anew=False)


def advance(connection: sqlite3.Connection, fired: Sequence[Fired]) -> list[bool]:
    """Advance the schedules that are as they were read; whether each was."""
    known = revisions(connection, [each.name for each in fired])
    written = [known.get(each.name) == each.revision for each in fired]
    rows = [_advance(each) for each, is_written in zip(fired, written, strict=True) if is_written]
    execute(connection, "advance_schedules", fired=as_json(rows))
    return written


def _advance(fired: Fired) -> tuple[object, ...]:
    last_job = fired.jobs[-1].id if fired.jobs else None
    return fired.name, fired.next_at, fired.last_at, fired.opened, last_job, fired.skipped, fired.skipped_at


def revisions(connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, int]:
    """The revisions of those schedules that are there."""
    return _decode_revisions(fetch(connection, "schedule_revisions", names=as_json(names)))


def due(
    connection: sqlite3.Connection, now: int, tasks: frozenset[str], unable: frozenset[str], count: int
) -> DueSchedules:
    """The schedules whose next occurrence has come, and when another one's comes."""
    wanted = {"now": now, "tasks": as_json(sorted(tasks)), "unable": as_json(sorted(unable))}
    found = decode_schedules(fetch(connection, "due_schedules", count=count, **wanted))
    return DueSchedules(found, fetch(connection, "next_schedule", **wanted))


def overdue(
    connection: sqlite3.Connection, before: int, tasks: frozenset[str], unable: frozenset[str], count: int
) -> Sequence[ScheduleRecord]:
    """The schedules that were due before then, and that a node with these tasks does not fire."""
    wanted = {"tasks": as_json(sorted(tasks)), "unable": as_json(sorted(unable))}
    return decode_schedules(fetch(connection, "overdue_schedules", before=before, count=count, **wanted))
