"""The regater: moves waiting jobs to the limits that their tasks have now, where they were enqueued under others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from headgate.clock import SECOND, Clock, sleep, wait_for_event
from headgate.engine.bus import EventBus
from headgate.engine.described import OWN_ERRORS
from headgate.errors import StorageUnavailable
from headgate.jobs.event import BacklogLeft, BacklogMoved, StorageTroubled
from headgate.jobs.gating import GateChange, GatedJob, subject_of
from headgate.jobs.terms import GateTerms
from headgate.storage.store import Store
from headgate.tasks.batch_gate import regate_in_batch
from headgate.tasks.gate import UNGATED
from headgate.tasks.registry import Registry, intended_queue

PAGE = 100
"""Jobs that one commit moves: the other writers have to wait for it."""

PAUSE = 0.02
NOTE_EVERY = 20.0
"""Seconds between two notes that this release lives."""

LIVES = 60 * SECOND
"""How long its gates count after the last note (microseconds)."""

SWEEP_EVERY = 60.0
"""Seconds between two looks for jobs of limits that nobody knows any more: an old release may still enqueue some."""

SWEEP_SOON = 1.0
"""Seconds between two such looks while claims meet lanes of limits that are not known; each in vain doubles them."""

MOST_LEFT = 10_000
"""How many jobs that cannot be moved are remembered, so that they are not tried each time that a claim meets them."""


class BacklogMigrator:
    """Compares what waiting jobs ask for with what their tasks would ask for now, in small batches.

    A claim starts no job that carries another gate than this release has. So all of a backlog can wait for it, and
    those that a claim has met come first.
    """

    def __init__(
        self, storage: Store, registry: Registry, *, clock: Clock, bus: EventBus, wake: Callable[[], None]
    ) -> None:
        self._wake = wake
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._told: set[str] = set()
        self._left: set[str] = set()
        self._met: dict[str, None] = {}
        self._is_met = asyncio.Event()
        self._newest: frozenset[str] = frozenset()
        self._noted_at = 0
        self._swept_at: int | None = None
        self._sweep_soon = SWEEP_SOON

    def take_up(self, ids: Iterable[str], *, has_strange_lanes: bool = False) -> None:
        """Move these jobs soon: a claim has met them, and was not allowed to start them.

        If it has met lanes of limits that are not known here, their jobs are looked for, too.
        """
        self._met.update(dict.fromkeys(id for id in ids if id not in self._left))
        if self._met or (has_strange_lanes and self._is_after(self._sweep_soon)):
            self._is_met.set()

    async def run(self) -> None:
        while True:
            try:
                await self._note_and_move()
                await self._move_met_until(self._noted_at + round(NOTE_EVERY * SECOND))
            except StorageUnavailable as error:
                self._bus.publish(StorageTroubled(at=self._clock.now(), doing="moving a backlog", error=str(error)))
                await sleep(self._clock, NOTE_EVERY)

    async def move_met(self) -> int:
        """Move the jobs that claims have met; how many were."""
        moved = 0
        while self._met:
            ids = list(self._met)[:PAGE]
            page = await self._storage.gated_jobs(self._registry.names, ids=ids, count=PAGE)
            for id in ids:
                self._met.pop(id, None)
            moved += await self._move_page(page, None)
        self._is_met.clear()
        return moved

    async def _move_met_until(self, instant: int) -> None:
        while (left := instant - self._clock.monotonic()) > 0:
            await wait_for_event(self._clock, self._is_met, left / SECOND)
            has_met = bool(self._met)
            moved = await self.move_met()
            if not has_met and self._clock.monotonic() < instant:
                await self._sweep()
            if moved:
                self._bus.publish(BacklogMoved(at=self._clock.now(), jobs=moved))

    async def _note_and_move(self) -> None:
        to_do = await self._note()
        is_sweep = self._is_after(SWEEP_EVERY)
        if to_do:
            await self._move(self._tasks_of(to_do), to_do, unknown_only=False)
            gates = self._registry.gates().subjects
            await self._storage.gates_done({subject: gates[subject] for subject in to_do if subject in gates})
        if is_sweep:
            await self._sweep()
            self._sweep_soon = SWEEP_SOON

    async def _sweep(self) -> None:
        """Move the jobs of limits that are not known here. Where another release is newer, it knows better."""
        self._swept_at = self._clock.monotonic()
        moved = await self._move(self._tasks_of(self._newest), self._newest, unknown_only=True)
        self._sweep_soon = SWEEP_SOON if moved else min(2 * self._sweep_soon, SWEEP_EVERY)

    def _is_after(self, seconds: float) -> bool:
        """Whether the last sweep is so long ago."""
        return self._swept_at is None or self._clock.monotonic() - self._swept_at >= seconds * SECOND

    async def _note(self) -> frozenset[str]:
        """Say that this release lives; what is to be moved to its gates."""
        self._noted_at = self._clock.monotonic()
        noted = await self._storage.note_gates(self._registry.gates().subjects, lives=LIVES)
        if not self._newest.issuperset(noted):
            # Jobs that were another release's may be started here now.
            self._wake()
        self._newest = frozenset(noted)
        return frozenset(subject for subject, is_to_do in noted.items() if is_to_do)

    def _tasks_of(self, subjects: frozenset[str]) -> frozenset[str]:
        """Names that jobs are stored under: those under an alias have other limits until they are moved."""
        queues = self._registry.queues
        return frozenset(
            name for name in self._registry.names if any(subject_of(name, queue) in subjects for queue in queues)
        )

    async def _move(self, tasks: frozenset[str], subjects: frozenset[str], *, unknown_only: bool) -> int:
        known = frozenset(self._registry.rules) if unknown_only else None
        after, moved = "", 0
        if not tasks:
            return 0
        own = self._registry.gates().names
        while page := await self._storage.gated_jobs(tasks, unknown_to=known, other_than=own, after=after, count=PAGE):
            after = page[-1].id
            count = await self._move_page(page, subjects)
            if count:
                moved += count
                await sleep(self._clock, PAUSE)
            moved += await self.move_met()
            if self._clock.monotonic() - self._noted_at > NOTE_EVERY * SECOND:
                # A long backlog must not make this release look gone.
                await self._note()
        if moved:
            self._bus.publish(BacklogMoved(at=self._clock.now(), jobs=moved))
        return moved

    async def _move_page(self, page: Sequence[GatedJob], subjects: frozenset[str] | None) -> int:
        """Move those jobs of a page that are not where this release would have them; None are all that it knows."""
        regated = list(self._regated(page, subjects))
        if not regated:
            return 0
        done = await self._storage.regate(regated)
        return min(done, sum(not job.stays for job in regated))

    def _regated(self, page: Sequence[GatedJob], subjects: frozenset[str] | None) -> Iterator[GateChange]:
        """Those jobs of a page that carry another gate; a job that cannot be read is left as it is, and not started."""
        for job in page:
            task = self._registry.find(job.task)
            assert task is not None, f"jobs of {job.task!r} were not asked for"
            if job.queue not in self._registry.queues:
                continue
            if subjects is not None and subject_of(job.task, job.queue) not in subjects:
                continue
            # One that went to another queue because its own was full keeps that one's limits.
            wanted = intended_queue(job.gate)
            wanted = wanted if wanted in self._registry.queues else None
            try:
                gate_name = self._registry.gate_name(job.task, job.queue, wanted)
                if gate_name == job.gate:
                    continue
                gate, asked = self._registry.gate(task, job.queue, wanted), UNGATED
                if gate.limits:
                    asked = gate.ask(task.payload.arguments(job.payload), job.headers or {}, _not_told)
                draws, costs, terms = regate_in_batch(asked, job.draws, job.terms)
            except OWN_ERRORS as error:  # with whatever the task's own `cost` or `owner` raises for an old payload
                self._leave(job, error)
                continue
            if job.terms is not None and job.terms.skips:
                terms = (terms or GateTerms()).skipping()
            stays = (draws, costs, terms) == (job.draws, job.costs, job.terms)
            yield GateChange(job.id, job.draws, draws, costs, terms, gate_name, stays)

    def _leave(self, job: GatedJob, error: BaseException) -> None:
        if len(self._left) >= MOST_LEFT:
            self._left.clear()
        self._left.add(job.id)
        if job.task not in self._told:
            self._told.add(job.task)
            self._bus.publish(
                BacklogLeft(
                    at=self._clock.now(), task=job.task, job_id=job.id, error=f"{type(error).__name__}: {error}"
                )
            )


def _not_told(limit: str, reason: str) -> None:
    """Whoever enqueued the job was told already."""
