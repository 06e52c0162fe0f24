"""Schedules as operators see and change them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from headgate.admin.actor import this_process
from headgate.clock import to_datetime
from headgate.engine.declaration import trigger_of
from headgate.engine.occurrence import last_job_of, occurrence
from headgate.errors import DeclarationError, HeadgateError, ScheduleNotFound, UnknownTask, UnreadableSchedule
from headgate.jobs.audit import AuditRecord
from headgate.jobs.encoded import codecs_of
from headgate.jobs.identity import IdSource
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.schedule import LATE, is_over, resume, skip_next, upcoming
from headgate.schedules.stored_trigger import load_trigger
from headgate.schedules.trigger import Trigger
from headgate.storage.schedules import Fired, ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.codec import Codecs
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleStatus

PAGE = 1000


class SchedulesAdmin:
    """The schedules of a store, whichever process declared them."""

    def __init__(self, storage: Store, registry: Registry, ids: IdSource) -> None:
        self._storage = storage
        self._registry = registry
        self._ids = ids
        self.actor: str = this_process()

    async def list(self) -> Sequence[ScheduleStatus]:
        """Return all schedules by name."""
        found: list[ScheduleStatus] = []
        after = ""
        while page := await self._storage.schedules(after=after, count=PAGE):
            found += [self._status(record) for record in page]
            after = page[-1].name
        return found

    async def page(self, *, after: str = "", count: int = 50) -> Sequence[ScheduleStatus]:
        """Return the schedules by name that come after that one, up to 500."""
        found = await self._storage.schedules(after=after, count=min(max(count, 1), 500))
        return [self._status(record) for record in found]

    async def status(self, name: str) -> ScheduleStatus:
        """Return one schedule as it is now. Raises ScheduleNotFound."""
        return self._status(await self._record(name))

    async def overdue(self) -> Sequence[ScheduleStatus]:
        """Return up to 100 schedules that were due more than a minute ago and whose task this app does not declare."""
        before = self._storage.now() - LATE
        found = await self._storage.overdue_schedules(self._registry.names, before=before)
        return [self._status(record) for record in found]

    async def next_runs(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return when it is due next, if nothing changes; fewer if it ends before. Raises ScheduleNotFound."""
        record = await self._readable(name)
        if record.paused_at is not None:
            return ()
        trigger = self._trigger(record)
        return [to_datetime(instant) for instant in upcoming(record.rules, trigger, record.course, count)]

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
        """End a pause, whose occurrences are not made up for; False if there was none. Raises ScheduleNotFound."""
        while True:
            record = await self._readable(name)
            if record.paused_at is None:
                return False
            course = resume(record.course, record.rules, self._trigger(record), self._storage.now())
            resumed = replace(record, course=course, paused_at=None)
            if await self._storage.put_schedule(resumed, replaces=record.revision):
                await self._note("resume", name)
                return True

    async def trigger(self, name: str) -> str:
        """Enqueue its job now, whatever its state; its next occurrences stay. Returns the id of the job.

        It counts as one of its runs, and waits for the job before if its jobs queue up. Raises ScheduleNotFound,
        UnknownTask if this app does not declare its task, PayloadError if it lacks the codec of its payload.
        """
        while True:
            record = await self._readable(name)
            if record.call.task not in self._registry.names:
                raise UnknownTask(
                    f"schedule {name!r} enqueues task {record.call.task!r}, which this app does not declare; trigger "
                    "it from the app that does"
                )
            self._registry.codecs.decode(record.call.payload, f"the payload of schedule {name!r}")
            now = self._storage.now()
            follows = await last_job_of(self._storage, record) if record.rules.overlap == "queue" else None
            job = occurrence(record, self._registry, id=self._ids.next(now), occurs_at=now, now=now, follows=follows)
            course = record.course
            if (await self._storage.fire([Fired(name, record.revision, course.next_at, course.last_at, [job])]))[0]:
                await self._note("trigger", name, f"job {job.id}")
                return job.id

    async def skip(self, name: str) -> datetime | None:
        """Skip its next occurrence. Returns when that would have been, None if there is none.

        Raises ScheduleNotFound, UnknownTask for a schedule whose trigger only the declaring app has.
        """
        while True:
            record = await self._readable(name)
            left_out = record.course.next_at
            if left_out is None or is_over(record.rules, record.course):
                return None
            course = skip_next(record.course, record.rules, self._trigger(record))
            if await self._storage.put_schedule(replace(record, course=course), replaces=record.revision):
                await self._note("skip", name, f"what was due at {to_datetime(left_out):%Y-%m-%d %H:%M:%S} UTC")
                return to_datetime(left_out)

    async def reencode(self) -> int:
        """Encode the payloads of all schedules as new ones are, so that an old codec can be removed.

        Returns how many have changed. Raises PayloadError for one that this app cannot decode.
        """
        codecs, changed, after = self._registry.codecs, 0, ""
        while page := await self._storage.schedules(after=after, count=PAGE):
            for record in page:
                changed += record.unreadable is None and await self._reencode(record, codecs)
            after = page[-1].name
        return changed

    async def _reencode(self, record: ScheduleRecord, codecs: Codecs) -> bool:
        what = f"the payload of schedule {record.name!r}"
        while True:
            call = record.call
            payload = codecs.encode(codecs.decode(call.payload, what).encode(), what)
            if codecs_of(payload) == codecs_of(call.payload):
                return False
            encoded = replace(record, call=replace(call, payload=payload))
            if await self._storage.put_schedule(encoded, replaces=record.revision):
                await self._note("reencode", record.name, ", ".join(codecs_of(payload)) or "no codec")
                return True
            found = await self._storage.schedules(name=record.name)
            if not found or found[0].unreadable is not None:
                return False
            record = found[0]

    async def remove(self, name: str) -> bool:
        """Delete a schedule; jobs that it has enqueued stay. Returns whether there was one.

        A schedule that the code declares is created again when the next node starts.
        """
        was_there = await self._storage.remove_schedule(name)
        if was_there:
            await self._note("remove", name)
        return was_there

    async def _note(self, action: str, name: str, detail: str | None = None) -> None:
        """Record the action, right after it."""
        await self._storage.add_audit_record(AuditRecord(self.actor, action, "schedule", name, detail))

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

    def _trigger(self, record: ScheduleRecord) -> Trigger:
        declared = {name: schedule.spec.trigger for name, schedule in self._registry.schedules.items()}
        try:
            trigger = trigger_of(record, declared)
        except DeclarationError as error:
            raise UnreadableSchedule(record.name, str(error)) from None
        if trigger is None:
            raise UnknownTask(
                f"schedule {record.name!r} has a trigger that only the app that declares it has; use that app"
            )
        return trigger

    def _status(self, record: ScheduleRecord) -> ScheduleStatus:
        course, rules = record.course, record.rules
        state: Literal["active", "paused", "finished"] = "finished" if is_over(rules, course) else "active"
        unreadable = record.unreadable
        tz: str | None = None
        try:
            trigger = load_trigger(rules.trigger)
            described = trigger.describe()
            tz = trigger.tz if isinstance(trigger, Cron | Calendar) else None
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
            next_run=None if state != "active" else _optional(course.next_at),
            last_occurrence=_optional(course.last_at),
            last_job=record.last_job,
            runs=course.runs,
            open=course.open,
            max_runs=rules.max_runs,
            until=_optional(rules.until),
            unreadable=unreadable,
            misfire=rules.misfire,
            overlap=rules.overlap,
            started_at=to_datetime(course.started_at),
            skipped=record.skipped,
            skipped_at=_optional(record.skipped_at),
            tz=tz,
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
        if record.call.task not in self._registry.names:
            return f"overdue: this app does not declare task {record.call.task!r}"
        if late <= LATE:
            return None
        try:
            self._trigger(record)
        except HeadgateError:
            return "overdue: this app does not declare its trigger"
        return "overdue: no worker enqueues its jobs"


def _optional(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
