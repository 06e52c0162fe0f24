"""The declaration of a schedule: merges what the code declares with the stored schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.engine.bus import EventBus
from headgate.engine.occurrence import occurrence
from headgate.errors import USER_CODE_ERRORS
from headgate.jobs.encoded import codecs_of
from headgate.jobs.event import ScheduleTooFast
from headgate.jobs.job import BucketRef
from headgate.jobs.scheduled import ScheduledCall
from headgate.limits.limit import AnyRule
from headgate.schedules.schedule import ScheduleRules, first_progress, is_over, updated_progress
from headgate.schedules.stored_trigger import CodeOnlyTrigger, counted_from, dump_trigger, load_trigger
from headgate.schedules.trigger import Trigger
from headgate.storage.records import ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.codec import NO_CODECS, Codecs
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleSpec

SAMPLES = (50, 1000)
"""How many consecutive occurrences are compared with a limit."""


async def declare(
    storage: Store,
    spec: ScheduleSpec,
    call: ScheduledCall,
    *,
    again: bool,
    code: Code | None = None,
    codecs: Codecs = NO_CODECS,
) -> tuple[ScheduleRecord | None, str | None]:
    """Store a schedule, or update the stored one; its run count, its rhythm and its pause stay.

    An ended schedule continues if its declaration has changed; with `again` it starts anew. A schedule declared in the
    `code` replaces the one it was before its task was renamed. Returns the stored schedule and the name it replaces.
    """
    while True:
        now = storage.now()
        rules = rules_of(spec, now)
        found = await storage.schedules(name=spec.name)
        stored = found[0] if found else None
        before = None if code is None else await _before(storage, spec.name, code, is_stored=stored is not None)
        known = before if stored is None else stored
        if known is None and code is not None and not code.may_begin:
            return None, None
        anew = known is None or (again and is_over(known.rules, known.course))
        if known is None or anew:
            course = first_progress(rules, counted_from(spec.trigger, now), now)
            record = ScheduleRecord(
                spec.name, call, rules, course, paused_at=None if known is None else known.paused_at,
                is_declared=code is not None or (known is not None and known.is_declared),
            )  # fmt: skip
        else:
            # Keep the stored first occurrence: one that is computed anew at each start would never come.
            rules = replace(rules, first_at=known.rules.first_at)
            trigger = counted_from(spec.trigger, known.course.started_at)
            course = updated_progress(known.course, rules, trigger, now, is_unchanged=rules == known.rules)
            is_same = codecs.encodes and is_same_call(known.call, call, codecs)
            record = replace(known, name=spec.name, call=known.call if is_same else call, rules=rules, course=course)
            if code is not None:
                formerly = known.formerly if known is stored else known.name
                record = replace(record, is_declared=True, formerly=formerly if formerly in code.names else None)
        if stored is None and before is not None:
            if await storage.take_over_schedule(record, was=before.name, replaces=before.revision):
                return record, before.name
            continue
        revision = None if stored is None else stored.revision
        if record != stored and not await storage.put_schedule(record, replaces=revision, anew=anew):
            continue
        if before is None:
            return record, None
        # A release without the alias has stored it under its new name as well; remove the old one.
        await storage.remove_schedule(before.name)
        return record, before.name


def rules_of(spec: ScheduleSpec, now: int) -> ScheduleRules:
    """Return the rules of a declaration as they are stored."""
    return ScheduleRules(
        trigger=dump_trigger(spec.trigger),
        first_at=now if spec.first == "now" else spec.first_at,
        until=spec.until,
        max_runs=spec.max_runs,
        misfire=spec.misfire,
        overlap=spec.overlap,
        jitter=spec.jitter,
    )


class Code(NamedTuple):
    """The context of a schedule that the code declares.

    `names` are the task's older names that no schedule of this code has; `schedules` are the names of all schedules of
    this code. Without `may_begin` a stored schedule is updated, and a missing one is not stored.
    """

    task: str
    names: tuple[str, ...]
    schedules: Collection[str]
    is_named_after_task: bool
    may_begin: bool


async def _before(storage: Store, name: str, code: Code, *, is_stored: bool) -> ScheduleRecord | None:
    """Return the schedule that this one was before its task was renamed, or before that was undone."""
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


def is_same_call(known: ScheduledCall, call: ScheduledCall, codecs: Codecs) -> bool:
    """Return whether two calls are the same, and encoded by the same codecs: an encryption differs each time."""
    if len(known.calls) != len(call.calls):
        return False
    have_same_codecs = [codecs_of(each.payload) for each in known.calls] == [
        codecs_of(each.payload) for each in call.calls
    ]
    return have_same_codecs and known.with_payloads(codecs.opened) == call.with_payloads(codecs.opened)


def signature(spec: ScheduleSpec, call: ScheduledCall, codecs: Codecs = NO_CODECS) -> str:
    """Return a short text that changes when the declaration of a schedule changes."""
    if codecs.encodes:
        call = call.with_payloads(lambda payload: codecs.digest(payload, f"the payload of schedule {spec.name!r}"))
    declared = (dump_trigger(spec.trigger), *(getattr(spec, field.name) for field in fields(spec)[2:]), call)
    return blake2b(msgspec.json.encode(declared), digest_size=16).hexdigest()


def trigger_of(record: ScheduleRecord, declared: Mapping[str, Trigger]) -> Trigger | None:
    """Return the trigger of a schedule, or None if only other code has it. Raises DeclarationError."""
    stored = load_trigger(record.rules.trigger)
    if not isinstance(stored, CodeOnlyTrigger):
        return counted_from(stored, record.course.started_at)
    own = declared.get(record.name)
    if own is None or own.describe() != stored.description:
        return None
    return counted_from(own, record.course.started_at)


def slower_limit(
    trigger: Trigger, now: int, buckets: Iterable[tuple[str, int]], rules: Mapping[str, AnyRule]
) -> str | None:
    """Return the first limit of `buckets` (limits with costs) that a schedule is faster than; None without one."""
    rates = [(name, cost, rules[name]) for name, cost in buckets if name in rules and not rules[name].holds_permits]
    instants: list[int] = []
    for count in SAMPLES:
        with suppress(*USER_CODE_ERRORS):  # of a custom trigger, which may not know so many occurrences ahead
            while rates and len(instants) < count:
                if (instant := trigger.next_after(instants[-1] if instants else now)) is None:
                    break
                instants.append(instant)
        if len(instants) < count:
            break
        span = instants[-1] - instants[0] + SECOND
        for name, cost, rule in rates:
            if rule.bound(span) < count * cost:
                return name
        # What allows all samples in this time does so in a longer one: of a rare schedule, few are computed.
        rates = [each for each in rates if each[2].bound(span) < SAMPLES[-1] * each[1]]
    return None


def warn_if_too_fast(record: ScheduleRecord, trigger: Trigger, registry: Registry, bus: EventBus, clock: Clock) -> None:
    """Publish ScheduleTooFast if the schedule is due more often than a limit of its tasks allows."""
    now = record.course.started_at
    costs: Counter[BucketRef] = Counter()
    for job in occurrence(record, registry, lambda *, is_batch: "", occurs_at=now, now=now).jobs:
        costs.update(dict(zip(job.buckets, job.costs or (1,) * len(job.buckets), strict=True)))
    buckets = [(ref.limit, cost) for ref, cost in costs.items()]
    limit = slower_limit(counted_from(trigger, now), now, buckets, registry.rules)
    if limit is not None:
        bus.publish(ScheduleTooFast(at=clock.now(), schedule=record.name, task=record.call.task, limit=limit))
