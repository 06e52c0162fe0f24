"""Recurring jobs: enqueues the occurrences of schedules when they are due, each once among all nodes.

Before that, it stores the schedules that the code declares, unless a newer release declares them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Literal

from msgspec.structs import replace

from headgate.clock import SECOND, Timer, sleep
from headgate.engine.lease_keeper import Membership
from headgate.engine.max_wait import late_starts, rejected
from headgate.engine.occurrence import last_job_of, occurrence
from headgate.engine.schedule_declaration import Code, declare, is_same_call, signature, trigger_of, warn_if_too_fast
from headgate.engine.services import Services, WithServices
from headgate.errors import (
    USER_CODE_ERRORS,
    LeaderNotFound,
    PayloadError,
    StorageUnavailable,
    UnknownTask,
    UnreadableSchedule,
)
from headgate.jobs.batch import NewBatch
from headgate.jobs.event import (
    JobEnqueued,
    OccurrencesSkipped,
    ScheduleFailed,
    ScheduleOverdue,
    ScheduleRenamed,
    ScheduleSuperseded,
)
from headgate.jobs.job import NewJob
from headgate.schedules.schedule import (
    LATE,
    MAX_PER_COMMIT,
    DueOccurrences,
    due,
    occurrences_per_commit,
    set_back,
    without_refused,
)
from headgate.schedules.trigger import Trigger
from headgate.shielding import is_cancellation
from headgate.storage.records import Fired, ScheduleRecord
from headgate.tasks.schedule import DeclaredSchedule

CHANGE_INTERVAL = SECOND
"""The least time between two checks after changes in the store (microseconds): most changes concern no schedule."""

NOTE_EVERY = 60 * SECOND
"""How often a release notes in the store that it is live (microseconds)."""


class Recurring(WithServices):
    """Fires due schedules. Every node runs one; they race for each occurrence, and the store accepts one of them."""

    def __init__(self, services: Services, membership: Membership, stopping: asyncio.Event) -> None:
        super().__init__(services)
        self._stopping = stopping
        self._wakeup = asyncio.Event()
        self._checked_at = 0
        self._due_timer: Timer | None = None
        self._change_timer: Timer | None = None
        self._declarer = Declarer(services, membership)
        self._without_trigger: set[str] = set()
        self._failed: set[str] = set()
        """Stored schedules that this node could not run; it tries again each time it declares its own."""
        self._overdue: set[str] = set()
        self._triggers: dict[str, Trigger] = {}
        """The triggers of the schedules that the code declares, as the last declaration found them."""

    def wake(self) -> None:
        """Check at once, because a schedule may have become due."""
        self._wakeup.set()

    async def run(self) -> None:
        unwatch = self._storage.watch(self._note_change)
        try:
            while True:
                self._wakeup.clear()
                doing = "storing schedules"
                try:
                    # A node that stops enqueues what is due, but lets the declarations of other releases hold.
                    if self._declarer.is_due and not self._stopping.is_set():
                        await self._publish_overdue()
                        await self._declare()
                    doing = "enqueueing occurrences"
                    next_at = await self._fire_due()
                except (StorageUnavailable, LeaderNotFound) as error:
                    # The job that an occurrence follows may have been pruned meanwhile.
                    self._publish_failure(doing, error)
                    await sleep(self._clock, self._random.uniform(0.5, 1.5))
                    continue
                self._checked_at = self._clock.monotonic()
                self._arm(next_at)
                await self._wakeup.wait()
        finally:
            unwatch()
            for timer in (self._due_timer, self._change_timer):
                if timer is not None:
                    timer.cancel()

    def _note_change(self) -> None:
        if self._change_timer is None:
            at = max(self._clock.monotonic(), self._checked_at + CHANGE_INTERVAL)
            self._change_timer = self._clock.call_at(at, self._wake_after_change)

    def _wake_after_change(self) -> None:
        self._change_timer = None
        self._wakeup.set()

    def _arm(self, next_at: int | None) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if next_at is not None:
            wait = max(0, next_at - self._storage.now())
            self._due_timer = self._clock.call_at(self._clock.monotonic() + wait, self.wake)

    # ------------------------------------------------------------------------------------------- firing

    async def fire_now(self) -> int | None:
        """Store the declared schedules and enqueue due occurrences, once; return when the next is due (None: never)."""
        if self._declarer.is_due:
            await self._declare()
        return await self._fire_due()

    async def _declare(self) -> None:
        declared = list(self._registry.schedules.values())
        self._triggers = {each.spec.name: each.spec.trigger for each in declared}
        await self._set_back()
        await self._declarer.declare(declared)
        # What this node could not run may have been replaced meanwhile: by itself, a newer release, or an operator.
        self._without_trigger.clear()
        self._failed.clear()

    @property
    def _unable(self) -> frozenset[str]:
        """The schedules that this node leaves to other nodes for now."""
        return frozenset(self._without_trigger | self._failed | self._declarer.broken)

    async def _set_back(self) -> None:
        """Let schedules continue that a clock which was ahead has carried far beyond now."""
        now, beyond, unable = self._storage.now(), "", self._unable
        while found := await self._storage.schedules_ahead(
            self._registry.names, after=now + LATE, unable=unable, beyond=beyond
        ):
            for record in found:
                try:
                    trigger = trigger_of(record, self._triggers)
                    if trigger is None or record.unreadable is not None:
                        continue
                    course = set_back(record.course, record.rules, trigger, now)
                except USER_CODE_ERRORS as error:  # including errors of a custom trigger, and rows of a newer version
                    self._declarer.publish_failed(record.name, error)
                    continue
                if course != record.course:
                    # If another node writes it first, that node has done the same.
                    await self._storage.put_schedule(replace(record, course=course), replaces=record.revision)
            beyond = found[-1].name

    async def _fire_due(self) -> int | None:
        """Fire everything that is due; return when the next occurrence is due, or one that is left is tried again."""
        left: set[str] = set()
        while True:
            found = await self._storage.due_schedules(self._registry.names, unable=self._unable | left)
            if not found.due:
                times = [found.next_at, self._storage.now() + CHANGE_INTERVAL if left else None]
                return min((each for each in times if each is not None), default=None)
            now = max(self._storage.now(), *(each.course.next_at or 0 for each in found.due))  # it may step back
            fired: list[tuple[ScheduleRecord, Fired]] = []
            for record in found.due:
                firing = self._decide(record, now, beside=len(found.due))
                if firing is not None and (each := await self._fired(record, firing, now)) is not None:
                    self._declarer.reported.discard(record.name)
                    fired.append((record, each))
            ends = accumulate(len(each.jobs) for _, each in fired)
            for _, group in groupby(zip(fired, ends, strict=True), lambda each: each[1] // MAX_PER_COMMIT):
                portion = [each for each, _ in group]
                written = await self._storage.fire([each for _, each in portion])
                for (record, each), is_written in zip(portion, written, strict=True):
                    if is_written:
                        self._publish_fired(record, each)
                    else:
                        # Another node fires it, or a transaction holds the job that it follows.
                        left.add(record.name)

    def _decide(self, record: ScheduleRecord, now: int, beside: int) -> DueOccurrences | None:
        """Return what to enqueue of one of `beside` schedules that are due together; None if this node cannot."""
        try:
            if record.unreadable is not None:
                raise UnreadableSchedule(record.name, record.unreadable)
            calls = record.call.calls
            for call in calls:
                task = self._registry.find(call.task)
                if task is None:
                    raise UnknownTask(f"it enqueues task {call.task!r}, which this app does not declare")
                # A limit of its queue may now need an argument that the task does not have.
                self._registry.limit_set(task, call.queue)
                # A job without its payload could not get its limits: nodes that can decode it fire the schedule.
                self._registry.codecs.decode(call.payload, "the payload of its jobs")
            trigger = trigger_of(record, self._triggers)
            if trigger is not None:
                return due(record.rules, trigger, record.course, now, occurrences_per_commit(len(calls), beside))
            # Only nodes that declare it in their code have its trigger.
            self._without_trigger.add(record.name)
        except USER_CODE_ERRORS as error:  # including errors of a custom trigger, and rows of a newer version
            self._failed.add(record.name)
            self._declarer.publish_failed(record.name, error)
        return None

    async def _fired(self, record: ScheduleRecord, firing: DueOccurrences, now: int) -> Fired | None:
        jobs: list[NewJob] = []
        batches: list[NewBatch] = []
        is_queued = record.rules.overlap == "queue"
        before = await last_job_of(self._storage, record) if is_queued and firing.occurrences else None
        for occurs_at in firing.occurrences:
            new = occurrence(
                record, self._registry, partial(self._ids.next, now), occurs_at=occurs_at, now=now, follows=before
            )
            jobs += new.jobs
            batches += new.batches
            before = new.id if is_queued else None
        misfits = [job.rejection.message for job in jobs if job.rejection is not None]
        # Whether code has declared the schedule as it is stored, and the code of this node has not.
        own = self._registry.schedules.get(record.name) if misfits else None
        is_own = own is not None and is_same_call(record.call, own.call, self._registry.codecs)
        if misfits and record.is_declared and not is_own:
            # Stored as failed, the occurrence would be lost, although the arguments fit that release.
            self._failed.add(record.name)
            self._declarer.publish_failed(record.name, PayloadError(misfits[0].partition(";")[0]))
            return None
        # The jobs of a queue follow each other, so none of several can be left out; nor can one of a graph.
        is_alone = record.call.graph is None and (len(jobs) == 1 or not is_queued)
        if is_alone and any(job.terms is not None and job.terms.patience is not None for job in jobs):
            left = await self._without_refused(record, firing, jobs)
            if left is None:
                return None
            firing, jobs = left
        skipped_at = None if firing.skipped is None else now
        return Fired(
            record.name, record.revision, firing.next_at, firing.last_at, jobs, firing.skipped, skipped_at,
            firing.skips, batches,
        )  # fmt: skip

    async def _without_refused(
        self, record: ScheduleRecord, firing: DueOccurrences, jobs: list[NewJob]
    ) -> tuple[DueOccurrences, list[NewJob]] | None:
        """Leave out jobs that a limit would refuse, instead of storing and ending them; None if the trigger fails."""
        late = await late_starts(
            self._storage,
            self._registry.rules,
            jobs,
            lambda job: job.rejection is None and job.terms is not None and job.terms.patience is not None,
        )
        pairs = list(zip(jobs, late, strict=True))
        refused = [job.origin.occurs_at for job, start in pairs if start and job.origin and job.origin.occurs_at]
        opens = [start.starts_at for _, start in pairs if start is not None and start.starts_at is not None]
        opens_at = max(opens) if opens and len(refused) == len(jobs) else None
        try:
            trigger = trigger_of(record, self._triggers)
            assert trigger is not None, "its occurrences were just computed from it"
            firing = without_refused(firing, record.rules, trigger, refused, opens_at)
        except USER_CODE_ERRORS as error:  # of a custom trigger, for the instant at which the limit opens
            self._failed.add(record.name)
            self._declarer.publish_failed(record.name, error)
            return None
        return firing, [job for job, start in pairs if start is None]

    def _publish_fired(self, record: ScheduleRecord, fired: Fired) -> None:
        at, jobs = self._clock.now(), fired.jobs
        if self._bus.has_listener(JobEnqueued):
            for job in jobs:
                self._bus.publish(JobEnqueued(at=at, job_id=job.id, task=job.task, queue=job.queue, run_at=job.run_at))
        self._publish_dropped(rejected(jobs))
        if fired.skipped is not None:
            self._bus.publish(
                OccurrencesSkipped(
                    at=at, schedule=record.name, task=record.call.task, reason=fired.skipped, count=fired.skips,
                    next_at=fired.next_at,
                )
            )  # fmt: skip

    async def _publish_overdue(self) -> None:
        """Publish once each schedule that this node cannot fire and no other node has fired for a minute."""
        before = self._storage.now() - LATE
        found = await self._storage.overdue_schedules(
            self._registry.names, before=before, unable=frozenset(self._without_trigger)
        )
        for record in found:
            if record.name not in self._overdue:
                self._overdue.add(record.name)
                lacks: Literal["task", "trigger"] = "trigger" if record.call.task in self._registry.names else "task"
                self._bus.publish(
                    ScheduleOverdue(
                        at=self._clock.now(), schedule=record.name, task=record.call.task, lacks=lacks,
                        due_at=record.course.next_at or before,
                    )
                )  # fmt: skip


class Declarer(WithServices):
    """Stores schedules. Among live releases the newest declaration holds; an older release waits until they end."""

    def __init__(self, services: Services, membership: Membership) -> None:
        super().__init__(services)
        self._membership = membership
        self._noted_at: int | None = None
        self._known: dict[tuple[str, str], DeclaredSchedule] = {}
        self.stored: set[str] = set()
        """Schedules that are stored as this release declares them."""
        self._settled: set[str] = set()
        self._superseded: set[str] = set()
        self.broken: set[str] = set()
        """Schedules that this node could not declare the last time, because their custom triggers fail."""
        self.reported: set[str] = set()
        """Schedules that were published as failed and have not run on this node since."""

    @property
    def is_due(self) -> bool:
        """Whether the next note that this release is live is due."""
        return self._noted_at is None or self._clock.monotonic() - self._noted_at >= NOTE_EVERY

    async def declare(self, schedules: Sequence[DeclaredSchedule]) -> None:
        """Store the schedules that are not stored yet. Raises StorageUnavailable; call it again then."""
        self.broken.clear()
        signatures: dict[str, str] = {}
        for declared in schedules:
            known = (self._membership.id, declared.spec.name)
            if self._known.get(known) is not declared:
                # It is new, a cell of a notebook was run again, or the node has joined again: its tables may be others.
                self._known[known] = declared
                self._forget(declared.spec.name)
            for name in (declared.spec.name, *self._registry.older_names(declared)):
                # It cannot be the subject of a task, whose name has no space.
                signatures[f"schedule {name}"] = self._signature(declared)
        newest = await self._storage.note_limit_sets(signatures) if signatures else {}
        for declared in schedules:
            name = declared.spec.name
            if f"schedule {name}" not in newest:
                self._forget(name)
                if name not in self._superseded:
                    self._superseded.add(name)
                    self._bus.publish(ScheduleSuperseded(at=self._clock.now(), schedule=name))
            elif name not in self._settled and name not in self.broken:
                await self._declare(declared)
        self._noted_at = self._clock.monotonic()

    def _forget(self, name: str) -> None:
        """Store it anew when this release is the one that declares it."""
        self.stored.discard(name)
        self._settled.discard(name)

    def _mark_broken(self, name: str, error: BaseException) -> None:
        """Leave a schedule whose declaration fails to other nodes."""
        self.broken.add(name)
        self.publish_failed(name, error)

    def publish_failed(self, name: str, error: BaseException) -> None:
        """Publish that a schedule cannot run on this node, once until it can."""
        if name not in self.reported:
            self.reported.add(name)
            self._bus.publish(
                ScheduleFailed(at=self._clock.now(), schedule=name, error=f"{type(error).__name__}: {error}")
            )

    def _signature(self, declared: DeclaredSchedule) -> str:
        try:
            return signature(declared.spec, declared.call, self._registry.codecs)
        except USER_CODE_ERRORS as error:  # including errors of a custom trigger: the other schedules must run
            self._mark_broken(declared.spec.name, error)
            return ""

    async def _declare(self, declared: DeclaredSchedule) -> None:
        spec, call = declared.spec, declared.call
        names = self._registry.older_names(declared)
        # Stored a second time a minute later: an older release that was starting may have overwritten it. If it was
        # removed meanwhile, it stays removed.
        is_second = spec.name in self.stored
        code = Code(
            call.task, names, self._registry.schedules.keys(), declared.aliases is not None, may_begin=not is_second
        )
        try:
            record, was = await declare(self._storage, spec, call, again=False, code=code, codecs=self._registry.codecs)
            if was is not None:
                self._bus.publish(ScheduleRenamed(at=self._clock.now(), schedule=spec.name, was=was))
            if record is not None and not is_second:
                warn_if_too_fast(record, spec.trigger, self._registry, self._bus, self._clock)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, StorageUnavailable) or is_cancellation(error):
                raise
            # Including errors of a custom trigger: the others must run.
            self._mark_broken(spec.name, error)
            return
        if is_second:
            self._settled.add(spec.name)
        self.stored.add(spec.name)
        self._superseded.discard(spec.name)
