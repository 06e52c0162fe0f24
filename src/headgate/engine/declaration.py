"""Declaring schedules: what the code says of one meets what the store knows of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.engine.bus import EventBus
from headgate.engine.occurrence import occurrence
from headgate.jobs.event import ScheduleTooFast
from headgate.jobs.scheduled import ScheduledCall
from headgate.limits.limit import AnyRule
from headgate.schedules.schedule import ScheduleRules, begin, go_on, is_over
from headgate.schedules.stored_trigger import CodeOnlyTrigger, counted_from, dump_trigger, load_trigger
from headgate.schedules.trigger import Trigger
from headgate.storage.schedules import ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleSpec

SAMPLES = (50, 1000)
"""How many occurrences in a row are held against a limit."""


async def declare(
    storage: Store, spec: ScheduleSpec, call: ScheduledCall, *, again: bool, code: Code | None = None
) -> tuple[ScheduleRecord | None, str | None]:
    """Store a schedule, or bring the one of its name up to date: its count, its rhythm and its pause stay.

    One that has come to its end goes on if it is declared otherwise than before; with `again` it begins anew. One of
    the `code` takes the place of the one that it was before its task was renamed, whose name is the second answer.
    """
    while True:
        now = storage.now()
        rules = ScheduleRules(
            trigger=dump_trigger(spec.trigger),
            first_at=now if spec.first == "now" else spec.first_at,
            until=spec.until,
            max_runs=spec.max_runs,
            misfire=spec.misfire,
            overlap=spec.overlap,
        )
        found = await storage.schedules(name=spec.name)
        known = found[0] if found else None
        before = None if code is None else await _before(storage, spec.name, code, is_stored=known is not None)
        if known is None:
            known = before
        if known is None and code is not None and not code.may_begin:
            return None, None
        anew = known is None or (again and is_over(known.rules, known.course))
        if known is None or anew:
            course = begin(rules, counted_from(spec.trigger, now), now)
            record = ScheduleRecord(
                spec.name, call, rules, course, paused_at=None if known is None else known.paused_at,
                is_declared=code is not None or (known is not None and known.is_declared),
            )  # fmt: skip
        else:
            # Its first occurrence is what it was stored with: one that is computed anew at each start would never come.
            rules = replace(rules, first_at=known.rules.first_at)
            trigger = counted_from(spec.trigger, known.course.started_at)
            course = go_on(known.course, rules, trigger, now)
            record = replace(known, name=spec.name, call=call, rules=rules, course=course)
            if code is not None:
                formerly = known.formerly if known is not before else before.name
                record = replace(record, is_declared=True, formerly=formerly if formerly in code.names else None)
            if record == known:
                record = known
        if before is not None and known is before:
            if await storage.take_over_schedule(record, was=before.name, replaces=before.revision):
                return record, before.name
        elif record is known or await storage.put_schedule(
            record, replaces=None if known is None else known.revision, anew=anew
        ):
            if before is None:
                return record, None
            # A release without the alias has begun it under its new name, so both are there, and one is too many.
            await storage.remove_schedule(before.name)
            return record, before.name


class Code(NamedTuple):
    """What the code says around a schedule that it declares.

    `names` are the task's older names that no schedule of this code has, and `schedules` are the names that one has.
    Unless it `may_begin`, it is brought up to date if it is there, and not stored otherwise.
    """

    task: str
    names: tuple[str, ...]
    schedules: Collection[str]
    is_named_after_task: bool
    may_begin: bool


async def _before(storage: Store, name: str, code: Code, *, is_stored: bool) -> ScheduleRecord | None:
    """The schedule that this one was before its task got another name, or before that was undone."""
    if not code.is_named_after_task:
        return None
    for older in code.names:
        for record in await storage.schedules(name=older):
            if record.is_declared and record.call.task in (code.task, *code.names):
                return record
    for record in () if is_stored else await storage.schedules(formerly=name):
        if record.is_declared and record.name not in code.schedules:
            return record
    return None


def signature(spec: ScheduleSpec, call: ScheduledCall) -> str:
    """A short text that changes when a schedule is declared otherwise."""
    said = (dump_trigger(spec.trigger), *(getattr(spec, field.name) for field in fields(spec)[2:]), call)
    return blake2b(msgspec.json.encode(said), digest_size=16).hexdigest()


def trigger_of(record: ScheduleRecord, declared: Mapping[str, Trigger]) -> Trigger | None:
    """The trigger of a schedule as it runs; None for one that only other code knows. Raises DeclarationError."""
    stored = load_trigger(record.rules.trigger)
    if not isinstance(stored, CodeOnlyTrigger):
        return counted_from(stored, record.course.started_at)
    own = declared.get(record.name)
    return own if own is not None and own.describe() == stored.description else None


def slower_limit(
    trigger: Trigger, now: int, draws: Iterable[tuple[str, int]], rules: Mapping[str, AnyRule]
) -> str | None:
    """The limit among these draws (with their costs) that a schedule is faster than, if there is one."""
    instants: list[int] = []
    instant = trigger.next_after(now)
    while instant is not None and len(instants) < SAMPLES[-1]:
        instants.append(instant)
        instant = trigger.next_after(instant)
    for limit, cost in draws:
        rule = rules.get(limit)
        if rule is None or rule.holds_permits:
            continue
        for count in SAMPLES:
            if len(instants) >= count and rule.bound(instants[count - 1] - instants[0] + SECOND) < count * cost:
                return limit
    return None


def warn_if_too_fast(record: ScheduleRecord, trigger: Trigger, registry: Registry, bus: EventBus, clock: Clock) -> None:
    """Tell of a schedule that comes more often than a limit of its task lets its jobs start."""
    now = record.course.started_at
    job = occurrence(record, registry, id="", occurs_at=now, now=now)
    costs = job.costs or (1,) * len(job.draws)
    draws = [(draw.limit, cost) for draw, cost in zip(job.draws, costs, strict=True)]
    if not draws:
        return
    limit = slower_limit(counted_from(trigger, now), now, draws, registry.rules)
    if limit is not None:
        bus.publish(ScheduleTooFast(at=clock.now(), schedule=record.name, task=job.task, limit=limit))
