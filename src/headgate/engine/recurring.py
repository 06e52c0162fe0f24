"""Recurring: enqueues the occurrences of schedules when they are due, each once, whichever node sees it first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Literal

from headgate.clock import SECOND, Clock, Timer, sleep
from headgate.engine.bus import EventBus
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.declaration import trigger_of
from headgate.engine.declarer import Declarer
from headgate.engine.described import OWN_ERRORS
from headgate.engine.housekeeper import publish_dropped
from headgate.engine.max_wait import reject_over_max_wait, rejected
from headgate.engine.occurrence import last_job_of, occurrence
from headgate.errors import HeadgateError, LeaderNotFound, StorageUnavailable, UnreadableSchedule
from headgate.jobs.event import (
    JobEnqueued,
    OccurrencesSkipped,
    ScheduleOverdue,
    StorageTroubled,
)
from headgate.jobs.identity import IdSource
from headgate.jobs.job import NewJob
from headgate.schedules.schedule import LATE, DueOccurrences, due
from headgate.storage.schedules import Fired, ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.registry import Registry

AFTER_A_CHANGE = SECOND
"""Changes in the store are looked at no more often than that (microseconds): most of them are of no schedule."""


class Recurring:
    """Every node has one. They race for each occurrence, and the store lets one of them win."""

    def __init__(
        self,
        storage: Store,
        registry: Registry,
        *,
        clock: Clock,
        bus: EventBus,
        teller: CallbackRunner,
        ids: IdSource,
        random: Random,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._teller = teller
        self._ids = ids
        self._random = random
        self._look = asyncio.Event()
        self._looked_at = 0
        self._due_timer: Timer | None = None
        self._change_timer: Timer | None = None
        self._declarer = Declarer(storage, registry, clock=clock, bus=bus)
        self._foreign: set[str] = set()
        self._overdue: set[str] = set()
        self._triggers = {name: declared.spec.trigger for name, declared in registry.schedules.items()}

    def look(self) -> None:
        """Something may be due that was not before."""
        self._look.set()

    async def run(self) -> None:
        unwatch = self._storage.watch(self._note_change)
        try:
            while True:
                self._look.clear()
                doing = "storing schedules"
                try:
                    if self._declarer.is_due:
                        await self._tell_overdue()
                        await self._declarer.declare()
                        self._foreign -= self._declarer.stored
                    doing = "enqueueing occurrences"
                    next_at = await self._fire_due()
                except (StorageUnavailable, LeaderNotFound) as error:
                    # The job that one of them was to wait for may have been pruned at that moment.
                    self._trouble(doing, error)
                    await sleep(self._clock, self._random.uniform(0.5, 1.5))
                    continue
                self._looked_at = self._clock.monotonic()
                self._arm(next_at)
                await self._look.wait()
        finally:
            unwatch()
            for timer in (self._due_timer, self._change_timer):
                if timer is not None:
                    timer.cancel()

    def _note_change(self) -> None:
        if self._change_timer is None:
            at = max(self._clock.monotonic(), self._looked_at + AFTER_A_CHANGE)
            self._change_timer = self._clock.call_at(at, self._look_at_change)

    def _look_at_change(self) -> None:
        self._change_timer = None
        self._look.set()

    def _arm(self, next_at: int | None) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if next_at is not None:
            wait = max(0, next_at - self._storage.now())
            self._due_timer = self._clock.call_at(self._clock.monotonic() + wait, self.look)

    # ------------------------------------------------------------------------------------------- firing

    async def fire_now(self) -> int | None:
        """Look once: store what the code declares, enqueue what is due; when the next is (None: never)."""
        if self._declarer.is_due:
            await self._declarer.declare()
        return await self._fire_due()

    async def _fire_due(self) -> int | None:
        """Fire everything that is due; when the next one is."""
        tasks = self._registry.names
        while True:
            unable = frozenset(self._foreign | self._declarer.broken)
            found = await self._storage.due_schedules(tasks, unable=unable)
            if not found.due:
                return found.next_at
            now = self._storage.now()
            decided = [(record, what) for record in found.due if (what := self._decide(record, now)) is not None]
            if not decided:
                continue
            fired = [await self._fired(record, what, now) for record, what in decided]
            written = await self._storage.fire(fired)
            for (record, what), each, is_written in zip(decided, fired, written, strict=True):
                if is_written:
                    self._tell(record, what, each.jobs)
            if not any(written):
                # Others were faster with all of them; so as not to be in step with them again.
                await sleep(self._clock, self._random.uniform(0.001, 0.02))

    def _decide(self, record: ScheduleRecord, now: int) -> DueOccurrences | None:
        try:
            if record.unreadable is not None:
                raise UnreadableSchedule(record.name, record.unreadable)
            trigger = trigger_of(record, self._triggers)
            if trigger is not None:
                return due(record.rules, trigger, record.course, now)
            # Nodes that declare it in their code know its trigger, and this one does not.
            self._foreign.add(record.name)
        except OWN_ERRORS as error:  # with whatever a trigger of the user's own raises, or what a newer version stored
            self._declarer.give_up(record.name, error)
        return None

    async def _fired(self, record: ScheduleRecord, what: DueOccurrences, now: int) -> Fired:
        jobs: list[NewJob] = []
        in_line = record.rules.overlap == "queue"
        before = await last_job_of(self._storage, record) if in_line and what.occurrences else None
        for occurs_at in what.occurrences:
            id = self._ids.next(now)
            jobs.append(occurrence(record, self._registry, id=id, occurs_at=occurs_at, now=now, follows=before))
            before = id if in_line else None
        if any(job.give_up_at is not None for job in jobs):
            jobs = await reject_over_max_wait(self._storage, self._registry.rules, jobs)
        skipped_at = None if what.skipped is None else now
        return Fired(record.name, record.revision, what.next_at, what.last_at, jobs, what.skipped, skipped_at)

    def _tell(self, record: ScheduleRecord, what: DueOccurrences, jobs: Sequence[NewJob]) -> None:
        at = self._clock.now()
        if self._bus.wants(JobEnqueued):
            for job in jobs:
                self._bus.publish(JobEnqueued(at=at, job_id=job.id, task=job.task, queue=job.queue, run_at=job.run_at))
        publish_dropped(self._bus, self._teller, self._clock, rejected(jobs))
        if what.skipped is not None:
            self._bus.publish(
                OccurrencesSkipped(
                    at=at, schedule=record.name, task=record.call.task, reason=what.skipped, next_at=what.next_at
                )
            )

    async def _tell_overdue(self) -> None:
        """Tell once of each schedule that nobody has fired for a minute, and that this node cannot fire."""
        before = self._storage.now() - LATE
        found = await self._storage.overdue_schedules(
            self._registry.names, before=before, unable=frozenset(self._foreign)
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

    def _trouble(self, doing: str, error: HeadgateError) -> None:
        self._bus.publish(StorageTroubled(at=self._clock.now(), doing=doing, error=str(error)))
