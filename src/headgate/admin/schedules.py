"""Schedules as operators see and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, Unpack

import msgspec
from msgspec.structs import replace

from headgate.admin.actor import this_process
from headgate.admin.columns import Column
from headgate.admin.enqueueing import Payload, call_of, declared_task
from headgate.clock import SECOND, optional_datetime, sleep, to_datetime
from headgate.engine.enqueuer import Enqueuer
from headgate.engine.occurrence import Occurrence, last_job_of, occurrence
from headgate.engine.schedule_declaration import rules_of, trigger_of
from headgate.errors import (
    USER_CODE_ERRORS,
    DeclarationError,
    HeadgateError,
    JobHeld,
    PayloadError,
    ScheduleDeclared,
    ScheduleExists,
    ScheduleNotFound,
    UnknownTask,
    UnreadableSchedule,
)
from headgate.jobs.audit import AuditRecord
from headgate.jobs.encoded import codecs_of
from headgate.jobs.identity import IdSource, with_new_ids
from headgate.jobs.job import summarize_error
from headgate.jobs.query import PAGE_AND_ONE
from headgate.plural import counted
from headgate.schedules.calendar import Calendar
from headgate.schedules.calendar_text import calendar_text
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.restricted import RestrictedTrigger, WindowTerms
from headgate.schedules.schedule import (
    DAY,
    LATE,
    ScheduleProgress,
    ScheduleRules,
    first_progress,
    is_over,
    resume,
    skip_next,
    upcoming,
    updated_progress,
)
from headgate.schedules.stored_trigger import (
    CodeOnlyTrigger,
    StoredTrigger,
    counted_from,
    is_storable,
    load_trigger,
)
from headgate.schedules.trigger import Trigger
from headgate.storage.records import Fired, ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.codec import Codecs
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleOptions, ScheduleSpec, schedule_spec
from headgate.tasks.status import ScheduleStatus

PAGE = 1000

MOST_IN_DAY = 500
"""How many schedules are read for the plan of a day."""

SHOWN_IN_DAY = 40
"""How many of these are shown."""

SHOWN_RUNS = 24
"""How many runs of a schedule are shown in the plan of a day: those of one every hour."""

UNSERVED = "overdue: no worker enqueues its jobs"
"""The problem of a schedule of which this app declares everything."""

SCHEDULE_COLUMNS = (
    Column("name", "Schedule"),
    Column("task", "Task", only="cli"),
    Column("state", "State", only="dashboard"),
    Column("trigger", "Trigger"),
    Column("next_run", "Next run", "until"),
    Column("last_occurrence", "Last run", "time"),
    Column("runs", "Runs", "count"),
    Column("skips", "Skips", "count", only="cli"),
    Column("open", "Unfinished", "count"),
    Column("note", "Note", only="cli"),
)


class ScheduleDefinition(msgspec.Struct, frozen=True):
    """The jobs and times of a schedule, as `create` and `edit` take them.

    `calendar` is the text of a calendar. All three are None for a trigger of the code. Of a graph, `payload` is "null".
    """

    task: str
    payload: str
    queue: str
    priority: int
    cron: str | None
    every: str | None
    calendar: str | None
    tz: str | None
    between: tuple[str, str] | None
    on: Sequence[str]
    exclude: Sequence[str]


class PlannedRuns(msgspec.Struct, frozen=True):
    """When a schedule is due in a day, up to 24 times; `is_cut`: more often."""

    name: str
    runs: Sequence[datetime]
    is_cut: bool


class DayPlan(msgspec.Struct, frozen=True):
    """The schedules that are due from `now` to `until`, those that are due next first; there are `total`."""

    items: Sequence[PlannedRuns]
    total: int
    now: datetime
    until: datetime


class SchedulesAdmin:
    """The schedules of a store, whichever process declared them."""

    def __init__(self, storage: Store, registry: Registry, ids: IdSource, enqueuer: Enqueuer) -> None:
        self._storage = storage
        self._registry = registry
        self._ids = ids
        self._enqueuer = enqueuer
        self.actor: str = this_process()

    async def list(self) -> Sequence[ScheduleStatus]:
        """Return all schedules by name."""
        return [self._status(record) async for record in self._all()]

    async def page(self, *, after: str = "", count: int = 50) -> Sequence[ScheduleStatus]:
        """Return the schedules by name that come after that one, up to 500."""
        found = await self._storage.schedules(after=after, count=min(max(count, 1), PAGE_AND_ONE))
        return [self._status(record) for record in found]

    async def status(self, name: str) -> ScheduleStatus:
        """Return one schedule as it is now. Raises ScheduleNotFound."""
        return self._status(await self._record(name))

    async def overdue(self) -> Sequence[ScheduleStatus]:
        """Return overdue schedules whose tasks, trigger or codec this app does not have, of the 100 due for longest."""
        found = await self._storage.overdue_schedules(frozenset(), before=self._storage.now() - LATE)
        return [each for each in map(self._status, found) if each.is_overdue and each.problem != UNSERVED]

    async def next_runs(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return when it is due next, if nothing changes; fewer if it ends before.

        Raises ScheduleNotFound, UnknownTask for a trigger that only the declaring app has, and HeadgateError for one
        that raises.
        """
        record = await self._readable(name)
        if record.paused_at is not None:
            return ()
        return [to_datetime(instant) for instant in self._upcoming(record, count)]

    async def definition(self, name: str) -> ScheduleDefinition:
        """Return what it enqueues, and when. Raises ScheduleNotFound, UnreadableSchedule."""
        record = await self._readable(name)
        stored = self._stored_trigger(record)
        trigger, terms = _parts(stored)
        return ScheduleDefinition(
            task=record.call.task,
            payload=record.call.payload or "null",
            queue=record.call.queue,
            priority=record.call.priority,
            cron=trigger.expression if isinstance(trigger, Cron) else None,
            every=trigger.text if isinstance(trigger, Every) else None,
            calendar=calendar_text(trigger) if isinstance(trigger, Calendar) else None,
            tz=_zone_of(stored),
            between=None if terms is None else terms.between,
            on=() if terms is None else terms.on,
            exclude=() if terms is None else terms.exclude,
        )

    async def create(
        self,
        name: str,
        task: str,
        trigger: Trigger,
        payload: Payload = "{}",
        *,
        queue: str | None = None,
        priority: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus:
        """Store a new schedule of a declared task, with these arguments by name: JSON text, or a dict.

        It stays until it is removed, whatever later releases declare. `options` are those of `task.schedule(…)`. Raises
        ScheduleExists, UnknownTask, PayloadError, and DeclarationError for a trigger that cannot be stored.
        """
        spec = _storable_spec(name, trigger, options)
        chosen = self._registry.with_options(
            declared_task(self._registry, task), {"queue": queue, "priority": priority}
        )
        call = self._enqueuer.scheduled_call(chosen, spec, call_of(chosen, payload))
        now = self._storage.now()
        rules = rules_of(spec, now)
        record = ScheduleRecord(name, call, rules, first_progress(rules, counted_from(spec.trigger, now), now))
        if name in self._registry.schedules or not await self._storage.put_schedule(record, replaces=None):
            raise ScheduleExists(f"there is a schedule {name!r} already; edit it, or choose another name")
        await self._note("create", name, spec.trigger.describe())
        return await self.status(name)

    async def edit(
        self,
        name: str,
        trigger: Trigger | None = None,
        payload: Payload | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus:
        """Change a schedule that no code declares: its trigger, the arguments of its jobs, or options.

        It keeps what you leave out, and its number of runs, rhythm, pause and enqueued jobs; a new `tz` alone is also
        that of its trigger; `first` cannot be changed. Raises ScheduleDeclared for a schedule of the code,
        ScheduleNotFound, UnreadableSchedule, UnknownTask, PayloadError, DeclarationError.
        """
        if "first" in options:
            raise DeclarationError(f"schedule {name!r}: first= applies once, when the schedule is stored")
        while True:
            record, now = await self._readable(name), self._storage.now()
            spec, rules, course = self._edited(record, trigger, options, now)
            call = record.call
            if payload is not None and call.graph is not None:
                raise DeclarationError(
                    f"schedule {name!r} enqueues a graph, whose calls have their arguments; store it anew in code"
                )
            if payload is not None:
                chosen = self._registry.with_options(declared_task(self._registry, call.task), {"queue": call.queue})
                new = self._enqueuer.scheduled_call(chosen, spec, call_of(chosen, payload))
                call = replace(call, payload=new.payload)
            edited = replace(record, call=call, rules=rules, course=course)
            if await self._storage.put_schedule(edited, replaces=record.revision):
                changed = ["arguments"] if call != record.call else []
                changed += [spec.trigger.describe()] if rules.trigger != record.rules.trigger else []
                await self._note("edit", name, ", ".join(changed) or None)
                return await self.status(name)

    async def preview(
        self,
        trigger: Trigger | None,
        *,
        name: str | None = None,
        count: int = 5,
        **options: Unpack[ScheduleOptions],
    ) -> Sequence[datetime]:
        """Return when a schedule with this trigger and these options would run; nothing is stored.

        With a `name` it is the stored schedule, as `edit` would change it. Raises DeclarationError, and with a name
        what `edit` raises.
        """
        now = self._storage.now()
        if name is not None:
            record = await self._readable(name)
            spec, rules, course = self._edited(record, trigger, options, now)
            if record.paused_at is not None:
                course = resume(course, rules, counted_from(spec.trigger, course.started_at), now)
        elif trigger is None:
            raise DeclarationError("a schedule needs cron, every or calendar")
        else:
            spec = _storable_spec("preview", trigger, options)
            rules = rules_of(spec, now)
            course = first_progress(rules, counted_from(spec.trigger, now), now)
        counted = counted_from(spec.trigger, course.started_at)
        return [to_datetime(instant) for instant in upcoming(rules, counted, course, now, count)]

    async def day(self) -> DayPlan:
        """Return when active schedules are due in the next 24 hours, if nothing changes.

        It reads the first 500 schedules by name, and returns the 40 that are due next, each with its first 24 runs.
        """
        now = self._storage.now()
        until = now + DAY
        due = [
            (record.course.next_at, record)
            for record in await self._storage.schedules(after="", count=MOST_IN_DAY)
            if record.course.next_at is not None
            and record.course.next_at < until
            and record.paused_at is None
            and not is_over(record.rules, record.course)
        ]
        due.sort(key=lambda each: (each[0], each[1].name))
        planned = [self._planned(record, next_at, until) for next_at, record in due[:SHOWN_IN_DAY]]
        return DayPlan(planned, len(due), to_datetime(now), to_datetime(until))

    def _planned(self, record: ScheduleRecord, next_at: int, until: int) -> PlannedRuns:
        try:
            found = self._upcoming(record, SHOWN_RUNS + 1)
        except HeadgateError:
            # Only another app can compute the later ones, or its trigger raises for one of them.
            found = [next_at]
        runs = [to_datetime(instant) for instant in found if instant < until]
        return PlannedRuns(record.name, runs[:SHOWN_RUNS], len(runs) > SHOWN_RUNS)

    async def pause(self, name: str) -> bool:
        """Enqueue none of its jobs until `resume`; False if it was already paused. Raises ScheduleNotFound."""
        while True:
            record = await self._readable(name)
            if record.paused_at is not None:
                return False
            paused = replace(record, paused_at=self._storage.now())
            if await self._storage.put_schedule(paused, replaces=record.revision):
                await self._note("pause", name)
                return True

    async def resume(self, name: str) -> bool:
        """End a pause, whose occurrences are not made up for; False if there was none.

        Raises ScheduleNotFound, UnknownTask as `skip`, and HeadgateError if its trigger raises.
        """
        while True:
            record = await self._readable(name)
            if record.paused_at is None:
                return False
            trigger, now = self._trigger(record), self._storage.now()
            with _naming(name):
                course = resume(record.course, record.rules, trigger, now)
            resumed = replace(record, course=course, paused_at=None)
            if await self._storage.put_schedule(resumed, replaces=record.revision):
                await self._note("resume", name)
                return True

    async def trigger(self, name: str) -> str:
        """Enqueue its job now, whatever its state; its next occurrences stay. Returns the id of the job.

        A schedule of a chain or a batch enqueues all its jobs; the id is that of the last one.

        It counts as a run, and waits for the previous job if the schedule's jobs queue up. Raises ScheduleNotFound,
        UnknownTask if this app does not declare its task, PayloadError if it lacks the codec of its payload, JobHeld if
        another open transaction has locked that previous job.
        """
        clock, tried, until = self._storage.clock, 0, 0
        while True:
            record = await self._readable(name)
            if record.revision != tried:
                tried, until = record.revision, clock.monotonic() + SECOND
            elif clock.monotonic() > until:
                raise JobHeld(
                    f"schedule {name!r} was not triggered: another open transaction has locked its job "
                    f"{record.last_job}, which the new one follows; try again when that transaction has ended "
                    "(`headgate status` shows it)"
                )
            else:
                await sleep(clock, 0.1)
            for call in record.call.calls:
                if call.task not in self._registry.names:
                    raise UnknownTask(
                        f"schedule {name!r} enqueues task {call.task!r}, which this app does not declare; trigger it "
                        "from the app that does"
                    )
                self._registry.codecs.decode(call.payload, f"the payload of schedule {name!r}")
            new = await with_new_ids(partial(self._fire, record))
            if new is not None:
                await self._note("trigger", name, f"job {new.id}" if not new.batches else f"batch {new.id}")
                return new.last

    async def _fire(self, record: ScheduleRecord) -> Occurrence | None:
        """Enqueue an occurrence at once.

        Returns None if the schedule has changed since it was read, or if the job that it would follow is locked.
        """
        now = self._storage.now()
        follows = await last_job_of(self._storage, record) if record.rules.overlap == "queue" else None
        at_once = replace(record, rules=replace(record.rules, jitter=None, until=None))
        new = occurrence(at_once, self._registry, partial(self._ids.next, now), occurs_at=now, now=now, follows=follows)
        course = record.course
        fired = Fired(record.name, record.revision, course.next_at, course.last_at, new.jobs, batches=new.batches)
        (is_fired,) = await self._storage.fire([fired])
        return new if is_fired else None

    async def skip(self, name: str) -> datetime | None:
        """Skip its next occurrence. Returns when that would have been, None if there is none.

        Raises ScheduleNotFound, UnknownTask for a schedule whose trigger only the declaring app has, and HeadgateError
        if its trigger raises.
        """
        while True:
            record = await self._readable(name)
            left_out = record.course.next_at
            if left_out is None or is_over(record.rules, record.course):
                return None
            trigger = self._trigger(record)
            with _naming(name):
                course = skip_next(record.course, record.rules, trigger)
            if await self._storage.put_schedule(replace(record, course=course), replaces=record.revision):
                await self._note("skip", name, f"what was due at {to_datetime(left_out):%Y-%m-%d %H:%M:%S} UTC")
                return to_datetime(left_out)

    async def reencode(self) -> int:
        """Encode the payloads of all schedules as new ones are, so that an old codec can be removed.

        Returns how many have changed. Raises PayloadError at the end, if there are some that this app cannot decode.
        """
        codecs, changed, failed = self._registry.codecs, 0, list[str]()
        async for record in self._all():
            try:
                changed += record.unreadable is None and await self._reencode(record, codecs)
            except PayloadError as error:
                failed.append(str(error))
        if failed:
            named = "; ".join(failed[:3]) + ("; …" if len(failed) > 3 else "")
            raise PayloadError(f"{counted(changed, 'schedule')} encoded anew, and {len(failed)} not: {named}")
        return changed

    async def _reencode(self, record: ScheduleRecord, codecs: Codecs) -> bool:
        what = f"the payload of schedule {record.name!r}"
        while True:
            call = record.call.with_payloads(lambda each: codecs.encode(codecs.decode(each, what).encode(), what))
            used = [codecs_of(each.payload) for each in call.calls]
            if used == [codecs_of(each.payload) for each in record.call.calls]:
                return False
            encoded = replace(record, call=call)
            if await self._storage.put_schedule(encoded, replaces=record.revision):
                await self._note("reencode", record.name, ", ".join(used[0]) or "no codec")
                return True
            found = await self._storage.schedules(name=record.name)
            if not found or found[0].unreadable is not None:
                return False
            record = found[0]

    async def remove(self, name: str) -> bool:
        """Delete a schedule; jobs that it has enqueued stay. Returns whether there was one.

        A schedule that the code declares is created again when the next node starts, or joins again.
        """
        was_there = await self._storage.remove_schedule(name)
        if was_there:
            await self._note("remove", name)
        return was_there

    async def _note(self, action: str, name: str, detail: str | None = None) -> None:
        """Record the action, right after it."""
        await self._storage.add_audit_record(AuditRecord(self.actor, action, "schedule", name, detail))

    async def _all(self) -> AsyncIterator[ScheduleRecord]:
        after = ""
        while page := await self._storage.schedules(after=after, count=PAGE):
            for record in page:
                yield record
            after = page[-1].name

    async def _record(self, name: str) -> ScheduleRecord:
        found = await self._storage.schedules(name=name)
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    async def _readable(self, name: str) -> ScheduleRecord:
        record = await self._record(name)
        if record.unreadable is not None:
            raise UnreadableSchedule(name, record.unreadable)
        return record

    def _edited(
        self, record: ScheduleRecord, trigger: Trigger | None, options: ScheduleOptions, now: int
    ) -> tuple[ScheduleSpec, ScheduleRules, ScheduleProgress]:
        """Return the declaration of a stored schedule with these changes, its rules, and its progress under them."""
        if record.is_declared or record.name in self._registry.schedules:
            raise ScheduleDeclared(record.name)
        spec = _edited_spec(record, self._stored_trigger(record), trigger, options)
        rules = replace(rules_of(spec, now), first_at=record.rules.first_at)
        started = counted_from(spec.trigger, record.course.started_at)
        return spec, rules, updated_progress(record.course, rules, started, now, is_unchanged=rules == record.rules)

    def _stored_trigger(self, record: ScheduleRecord) -> StoredTrigger:
        try:
            return load_trigger(record.rules.trigger)
        except DeclarationError as error:
            raise UnreadableSchedule(record.name, str(error)) from None

    def _trigger(self, record: ScheduleRecord) -> Trigger:
        declared = {name: schedule.spec.trigger for name, schedule in self._registry.schedules.items()}
        self._stored_trigger(record)
        trigger = trigger_of(record, declared)
        if trigger is None:
            raise UnknownTask(
                f"schedule {record.name!r} has a trigger that only the app that declares it has; use that app"
            )
        return trigger

    def _upcoming(self, record: ScheduleRecord, count: int) -> Sequence[int]:
        trigger = self._trigger(record)
        with _naming(record.name):
            return upcoming(record.rules, trigger, record.course, self._storage.now(), count)

    def _status(self, record: ScheduleRecord) -> ScheduleStatus:
        course, rules = record.course, record.rules
        state: Literal["active", "paused", "finished"] = "finished" if is_over(rules, course) else "active"
        unreadable = record.unreadable
        tz: str | None = None
        try:
            trigger = load_trigger(rules.trigger)
            described = trigger.describe()
            tz = _zone_of(trigger)
        except DeclarationError as error:
            described = "unreadable"
            unreadable = unreadable or str(error)
        if record.paused_at is not None and state == "active":
            state = "paused"
        overdue = self._why_overdue(record) if state == "active" else None
        is_lost = record.is_declared and record.name not in self._registry.schedules
        return ScheduleStatus(
            name=record.name,
            task=record.call.task,
            trigger=described,
            state=state,
            next_run=None if state != "active" else optional_datetime(course.next_at),
            last_occurrence=optional_datetime(course.last_at),
            last_job=record.last_job if record.call.graph is None else None,
            last_batch=None if record.call.graph is None else record.last_job,
            tasks=record.call.tasks,
            jobs=len(record.call.calls),
            runs=course.runs,
            open=course.open,
            max_runs=rules.max_runs,
            until=optional_datetime(rules.until),
            unreadable=unreadable,
            misfire=rules.misfire,
            overlap=rules.overlap,
            started_at=to_datetime(course.started_at),
            skipped=record.skipped,
            skipped_at=optional_datetime(record.skipped_at),
            skips=record.skips,
            tz=tz,
            jitter=None if rules.jitter is None else rules.jitter / SECOND,
            is_declared=record.is_declared,
            is_overdue=overdue is not None,
            problem=f"cannot be read: {unreadable}"
            if unreadable
            else overdue or ("code has declared it, but this app does not" if is_lost else None),
        )

    def _why_overdue(self, record: ScheduleRecord) -> str | None:
        """Return why its due occurrence is not fired; None if it is not due, or has been due for less than a minute."""
        late = -1 if record.course.next_at is None else self._storage.now() - record.course.next_at
        if late < 0:
            return None
        for task in record.call.tasks:
            if task not in self._registry.names:
                return f"overdue: this app does not declare task {task!r}"
        if late <= LATE:
            return None
        try:
            self._trigger(record)
            record.call.with_payloads(partial(self._registry.codecs.decode, what="the payload of its jobs"))
        except HeadgateError as error:
            is_codec = isinstance(error, PayloadError)
            return f"overdue: {error if is_codec else 'this app does not declare its trigger'}"
        return UNSERVED


@contextmanager
def _naming(schedule: str) -> Iterator[None]:
    """Raise HeadgateError for what the code of its trigger raises in the block."""
    try:
        yield
    except USER_CODE_ERRORS as error:
        raise HeadgateError(
            f"schedule {schedule!r}: its trigger or a function in its exclude= raised {summarize_error(error)}; "
            "correct it in the code"
        ) from error


def _parts(trigger: StoredTrigger) -> tuple[Cron | Every | Calendar | None, WindowTerms | None]:
    """Return the trigger itself, None for one that exists only in code, and its windows."""
    if isinstance(trigger, RestrictedTrigger):
        return trigger.trigger, trigger.terms
    return None if isinstance(trigger, CodeOnlyTrigger) else trigger, None


def _storable_spec(name: str, trigger: Trigger, options: ScheduleOptions) -> ScheduleSpec:
    spec = schedule_spec(name, trigger, options)
    if not is_storable(spec.trigger):
        raise DeclarationError(
            f"schedule {name!r}: a custom trigger, or a function in exclude=, exists only in code; declare the "
            "schedule there with @app.schedule"
        )
    return spec


def _edited_spec(
    record: ScheduleRecord, stored: StoredTrigger, trigger: Trigger | None, changes: ScheduleOptions
) -> ScheduleSpec:
    """Return the declaration of a stored schedule with these changes. Raises DeclarationError."""
    own, terms = _parts(stored)
    zone = changes.get("tz")
    if trigger is None and zone is not None and isinstance(own, Cron | Calendar):
        # A new zone alone is one for the trigger, too, which those of its windows follow.
        trigger = own if zone == _zone_of(stored) else replace(own, tz=zone)
        changes = changes | {"tz": zone if trigger.tz != zone else None}
    rules = record.rules
    options: ScheduleOptions = {
        "misfire": rules.misfire,
        "overlap": rules.overlap,
        "max_runs": rules.max_runs,
        "until": optional_datetime(rules.until),
        "jitter": None if rules.jitter is None else timedelta(microseconds=rules.jitter),
    }
    if terms is not None:
        options |= {"between": terms.between, "on": terms.on or None, "exclude": terms.exclude or None}
        # The zone of windows follows that of a new trigger.
        if trigger is None or not hasattr(trigger, "tz"):
            options["tz"] = terms.tz
    options |= changes
    if "tz" not in changes and all(options.get(name) is None for name in ("between", "on", "exclude")):
        options["tz"] = None
    chosen = own if trigger is None else trigger
    assert chosen is not None, "a trigger that exists only in code belongs to a schedule of the code"
    return _storable_spec(record.name, chosen, options)


def _zone_of(trigger: StoredTrigger) -> str | None:
    if isinstance(trigger, RestrictedTrigger):
        return trigger.terms.tz
    return trigger.tz if isinstance(trigger, Cron | Calendar) else None
