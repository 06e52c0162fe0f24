"""The regater: moves the backlog to the limits that its tasks have now, after a deploy has changed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headgate.clock import SECOND, Clock, sleep
from headgate.engine.bus import EventBus
from headgate.engine.described import OWN_ERRORS
from headgate.errors import StorageUnavailable
from headgate.jobs.event import BacklogLeft, BacklogMoved, StorageTroubled
from headgate.jobs.gating import GatedJob, Regated
from headgate.jobs.terms import GateTerms
from headgate.storage.protocol import Storage
from headgate.tasks.batch_gate import as_in_batch
from headgate.tasks.registry import Registry

PAGE = 100
"""Jobs that one commit moves: the other writers have to wait for it."""

PAUSE = 0.02
EVERY = 60.0
"""Seconds between two looks for jobs of limits that nobody knows any more: an old release may still enqueue some."""


class Regater:
    """Compares what waiting jobs ask for with what their tasks would ask for now, in small batches."""

    def __init__(self, storage: Storage, registry: Registry, *, clock: Clock, bus: EventBus) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._told: set[str] = set()
        self._noted_at = 0

    async def run(self) -> None:
        while True:
            # By the names that jobs are stored under: those under an alias have other limits until they are moved.
            gates = {name: self._registry.signature(task) for name, task in self._registry.named()}
            try:
                newest = await self._note(gates)
                changed = frozenset(task for task, to_do in newest.items() if to_do)
                if changed:
                    await self._move(changed, gates, unknown_only=False)
                    await self._storage.gates_done({task: gates[task] for task in changed})
                # Where another release is newer, it knows better.
                await self._move(frozenset(newest), gates, unknown_only=True)
            except StorageUnavailable as error:
                self._bus.publish(StorageTroubled(at=self._clock.now(), doing="moving a backlog", error=str(error)))
            await sleep(self._clock, EVERY)

    async def _note(self, gates: Mapping[str, str]) -> Mapping[str, bool]:
        self._noted_at = self._clock.monotonic()
        return await self._storage.note_gates(gates)

    async def _move(self, tasks: frozenset[str], gates: Mapping[str, str], *, unknown_only: bool) -> None:
        known = frozenset(self._registry.rules) if unknown_only else None
        after, moved = "", 0
        while page := await self._storage.gated_jobs(tasks, unknown_to=known, after=after, count=PAGE):
            after = page[-1].id
            regated = list(self._regated(page))
            if regated:
                moved += await self._storage.regate(regated)
                await sleep(self._clock, PAUSE)
            if self._clock.monotonic() - self._noted_at > EVERY * SECOND:
                # A long backlog must not make this release look gone.
                await self._note(gates)
        if moved:
            self._bus.publish(BacklogMoved(at=self._clock.now(), jobs=moved))

    def _regated(self, page: Sequence[GatedJob]) -> Iterator[Regated]:
        """Those jobs of a page that ask for something else now; a job that cannot be read is left as it is."""
        for job in page:
            task = self._registry.find(job.task)
            assert task is not None, f"jobs of {job.task!r} were not asked for"
            try:
                arguments = task.payload.arguments(job.payload)
                asked = self._registry.gate(task, job.queue).ask(arguments, job.headers or {}, _not_told)
                draws, costs, terms = as_in_batch(asked, job.draws, job.terms)
            except OWN_ERRORS as error:  # with whatever the task's own `cost` or `owner` raises for an old payload
                self._tell_once(job, error)
                continue
            if job.terms is not None and job.terms.skips:
                terms = (terms or GateTerms()).skipping()
            if (draws, costs, terms) != (job.draws, job.costs, job.terms):
                yield Regated(job.id, job.draws, draws, costs, terms)

    def _tell_once(self, job: GatedJob, error: BaseException) -> None:
        if job.task not in self._told:
            self._told.add(job.task)
            self._bus.publish(
                BacklogLeft(
                    at=self._clock.now(), task=job.task, job_id=job.id, error=f"{type(error).__name__}: {error}"
                )
            )


def _not_told(limit: str, reason: str) -> None:
    """Whoever enqueued the job was told already."""
