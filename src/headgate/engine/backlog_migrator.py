"""The backlog migrator: moves waiting jobs from the limits they were enqueued under to those their tasks have now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from headgate.clock import SECOND, sleep, wait_for_event
from headgate.engine.large_payloads import LargePayloads, call_all
from headgate.engine.services import Services, WithServices
from headgate.errors import USER_CODE_ERRORS, FolderUnavailable, PayloadError, StorageUnavailable
from headgate.jobs.encoded import is_in_folder
from headgate.jobs.event import JobNotMigrated, JobsMigrated, LimitUnknown, TaskUnknown
from headgate.jobs.limit_sets import GatedJob, LimitSetChange, subject_of
from headgate.jobs.terms import LimitTerms
from headgate.tasks.batch_limits import buckets_in_batch
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.limit_set import UNGATED, GatedCall, LimitSet, ignore_skip
from headgate.tasks.registry import intended_queue

PAGE = 100
"""Jobs that one commit moves; other writers wait for the commit."""

PAUSE = 0.02
"""Seconds between two commits, so that other writers get their turn."""

NOTE_EVERY = 20.0
"""Seconds between two notes in the store that this release is live."""

LIVE_FOR = 60 * SECOND
"""How long the limit sets of this release count as live after its last note (microseconds)."""

SWEEP_EVERY = 60.0
"""Seconds between two sweeps for jobs of limits that no longer exist: an old release may still enqueue some."""

SWEEP_SOON = 1.0
"""Seconds between two sweeps while claims meet lanes of unknown limits; each sweep that moves nothing doubles them."""

MAX_UNMOVABLE = 10_000
"""How many unmovable jobs are kept in memory, so that they are not tried again at each claim that meets them."""

LOADED_AT_ONCE = 4
"""How many large payloads are in memory at once."""

FOLDER_PAUSE = 30 * SECOND
"""The time without reads of large payloads after one has failed (microseconds); their jobs wait where they are."""


class _Move(NamedTuple):
    """A waiting job that carries another limit set than that of this release."""

    job: GatedJob
    task: TaskDefinition
    limit_set: LimitSet
    limit_set_name: str


class BacklogMigrator(WithServices):
    """Compares the limits of waiting jobs with the current limits of their tasks, and moves jobs in small batches.

    A claim starts no job whose limit set differs from the one in this release. So a whole backlog may wait for this
    class, and jobs that a claim has met are moved first.
    """

    def __init__(
        self, services: Services, *, wake: Callable[[], None], large_payloads: LargePayloads | None = None
    ) -> None:
        super().__init__(services)
        self._large_payloads = large_payloads
        self._wake = wake
        self.has_noted = asyncio.Event()
        """Set after the first note. A claim before it would start jobs by the rules of the release before."""
        self._published_tasks: set[str] = set()
        self._unknown_tasks: set[str] = set()
        # Each with the queue in which its jobs wait.
        self._met_tasks: set[tuple[str, str]] = set()
        self._elsewhere: set[tuple[str, str]] = set()
        self._unknown_limits: set[str] = set()
        self._unmovable: set[str] = set()
        self._not_yet: set[str] = set()
        self._folder_again_at = 0
        self._met: dict[str, None] = {}
        self._is_met = asyncio.Event()
        self._has_met_unknown_lanes = False
        self._newest: frozenset[str] = frozenset()
        self._noted_at = 0
        self._swept_at: int | None = None
        self._sweep_soon = SWEEP_SOON

    def note_task(self, task: str, queue: str) -> None:
        """Publish TaskUnknown soon, once per task, unless a node of the queue declares it or only labels lack here."""
        met = task, queue
        if not (task in self._unknown_tasks or met in self._elsewhere or task in self._registry.names):
            self._met_tasks.add(met)
            self._is_met.set()

    async def _publish_unknown(self) -> None:
        """Publish the tasks that were met and no node of their queue declares. The others are looked at again."""
        tasks, self._met_tasks = self._met_tasks, set()
        subjects = await self._storage.declared_subjects() if tasks else ()
        for task, queue in sorted(tasks):
            if subject_of(task, queue) in subjects:
                self._elsewhere.add((task, queue))
            elif task not in self._unknown_tasks:
                self._unknown_tasks.add(task)
                self._bus.publish(TaskUnknown(at=self._clock.now(), task=task, declared=sorted(self._registry.tasks)))

    def add_met(self, ids: Iterable[str], *, has_unknown_lanes: bool = False) -> None:
        """Move these jobs soon: a claim has met them, and was not allowed to start them.

        If it has met lanes of limits that are not known here, their jobs are looked for, too.
        """
        self._met.update(dict.fromkeys(id for id in ids if id not in self._unmovable))
        self._has_met_unknown_lanes = self._has_met_unknown_lanes or has_unknown_lanes
        if self._met or has_unknown_lanes:
            self._is_met.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()

        def note_soon() -> None:
            # A program may close the loop and leave its node; its declarations go on.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._note_soon)

        with self._registry.listening(note_soon):
            while True:
                try:
                    await self._note_and_move()
                    await self._move_met_until_next_note()
                except StorageUnavailable as error:
                    # Claims go on under the rules that are stored.
                    self.has_noted.set()
                    self._publish_failure("moving a backlog", error)
                    await sleep(self._clock, NOTE_EVERY)

    def _note_soon(self) -> None:
        """Note the limits anew: a task was declared while the node runs, as in a notebook."""
        self._noted_at = self._clock.monotonic() - round(NOTE_EVERY * SECOND)
        self._is_met.set()

    async def move_met(self) -> int:
        """Move the jobs that claims have met; return how many."""
        moved = 0
        while self._met:
            ids = list(self._met)[:PAGE]
            page = await self._storage.gated_jobs_by_id(self._registry.names, ids)
            for id in ids:
                self._met.pop(id, None)
            moved += await self._move_page(page, None)
        self._is_met.clear()
        return moved

    async def _move_met_until_next_note(self) -> None:
        while (left := self._noted_at + round(NOTE_EVERY * SECOND) - self._clock.monotonic()) > 0:
            if self._has_met_unknown_lanes:
                # No later claim may meet them again, so the sweep has a timer.
                left = min(left, self._until(self._sweep_soon))
            await wait_for_event(self._clock, self._is_met, left / SECOND)
            moved = await self.move_met()
            await self._publish_unknown()
            if self._has_met_unknown_lanes and not self._until(self._sweep_soon):
                await self._sweep()
            if moved:
                self._bus.publish(JobsMigrated(at=self._clock.now(), jobs=moved))

    async def _note_and_move(self) -> None:
        to_do = await self._note()
        is_sweep = not self._until(SWEEP_EVERY)
        if to_do:
            self._not_yet.clear()
            await self._move(self._tasks_of(to_do), to_do, unknown_only=False)
            noted = self._registry.subjects()
            done = [subject for subject in to_do if subject in noted and subject not in self._not_yet]
            await self._storage.limit_sets_done({subject: noted[subject] for subject in done})
        if is_sweep:
            await self._sweep()
            self._sweep_soon = SWEEP_SOON

    async def _sweep(self) -> None:
        """Move the jobs of unknown limits, but for tasks of which a newer release is live: that release moves them."""
        self._swept_at = self._clock.monotonic()
        if self._has_met_unknown_lanes:
            # A claim reads no job of a lane whose limits it does not know, so it does not see the tasks.
            jobs = await self._storage.jobs_of_other_limits(frozenset(self._registry.rules))
            # A batch of another app's tasks may hold limits of that app.
            own = [job for job in jobs if job.task in self._registry.names]
            held = {limit: job.id for job in own for limit in job.held_by_batch(self._registry.rules)}
            # The jobs of a limit that another release has may start there. Once that is gone, no claim may meet them.
            elsewhere = {each.limit for each in await self._storage.settings(LIVE_FOR) if each.scope == "declared"}
            tasks = {(job.task, job.queue) for job in jobs if job.task not in self._registry.names}
            self._met_tasks |= tasks
            await self._publish_unknown()
            # A job keeps the limits of its batch, whatever its task declares.
            for limit in held.keys() - elsewhere - self._unknown_limits:
                self._unknown_limits.add(limit)
                self._bus.publish(LimitUnknown(at=self._clock.now(), limit=limit, job_id=held[limit]))
            self._has_met_unknown_lanes = not (elsewhere.isdisjoint(held) and self._elsewhere.isdisjoint(tasks))
        await self._release_failed()
        moved = await self._move(self._tasks_of(self._newest), self._newest, unknown_only=True)
        self._sweep_soon = SWEEP_SOON if moved else min(2 * self._sweep_soon, SWEEP_EVERY)

    async def _release_failed(self) -> None:
        """Release permits of failed jobs that jobs of this release would not keep: no success may ever return them."""
        tasks, after, own = self._tasks_of(self._newest), "", self._registry.limit_sets().names
        while tasks and (page := await self._storage.failed_holders(tasks, other_than=own, after=after, count=PAGE)):
            after = page[-1].id
            async for changes in self._changes(page, self._newest):
                await self._storage.release_failed(changes)

    def _until(self, seconds: float) -> int:
        """Return the microseconds until the last sweep is so many seconds ago; 0 if it is."""
        if self._swept_at is None:
            return 0
        return max(0, self._swept_at + round(seconds * SECOND) - self._clock.monotonic())

    async def _note(self) -> frozenset[str]:
        """Note that this release is live; return the subjects whose jobs have to be moved to its limit sets."""
        self._noted_at = self._clock.monotonic()
        self._elsewhere.clear()
        noted = await self._storage.note_limit_sets(self._registry.subjects(), lives=LIVE_FOR)
        self.has_noted.set()
        if not self._newest.issuperset(noted):
            # Jobs that only another release could start may now start here.
            self._wake()
        self._newest = frozenset(noted)
        return frozenset(subject for subject, is_to_do in noted.items() if is_to_do)

    def _tasks_of(self, subjects: frozenset[str]) -> frozenset[str]:
        """Return the task names of the subjects, aliases included: jobs under an alias have old limits until moved."""
        queues = self._registry.queues
        return frozenset(
            name for name in self._registry.names if any(subject_of(name, queue) in subjects for queue in queues)
        )

    async def _move(self, tasks: frozenset[str], subjects: frozenset[str], *, unknown_only: bool) -> int:
        known = frozenset(self._registry.rules) if unknown_only else None
        after, moved = "", 0
        if not tasks:
            return 0
        own = self._registry.limit_sets().names
        while page := await self._storage.gated_jobs(tasks, unknown_to=known, other_than=own, after=after, count=PAGE):
            after = page[-1].id
            count = await self._move_page(page, subjects)
            if count:
                moved += count
                await sleep(self._clock, PAUSE)
            moved += await self.move_met()
            if self._clock.monotonic() - self._noted_at > NOTE_EVERY * SECOND:
                # During a long move this release must still count as live.
                await self._note()
        if moved:
            self._bus.publish(JobsMigrated(at=self._clock.now(), jobs=moved))
        return moved

    async def _move_page(self, page: Sequence[GatedJob], subjects: frozenset[str] | None) -> int:
        """Move the jobs of a page whose limits differ from this release; `subjects` None: those of all its tasks."""
        moved = 0
        async for changes in self._changes(page, subjects):
            done = await self._storage.change_limit_sets(changes)
            moved += min(done, sum(not job.stays for job in changes))
        return moved

    async def _changes(
        self, page: Sequence[GatedJob], subjects: frozenset[str] | None
    ) -> AsyncIterator[Sequence[LimitSetChange]]:
        """Yield the changes for the jobs of a page: first those that need no folder, as it may not answer."""
        moves = [move for job in page if (move := self._move_of(job, subjects)) is not None]
        small = [self._change(move) for move in moves if not self._needs_folder(move)]
        if changes := [change for change in small if change is not None]:
            yield changes
        calls = [partial(self._change_of_large, move) for move in moves if self._needs_folder(move)]
        large = await call_all(calls, at_once=LOADED_AT_ONCE)
        if changes := [change for change in large if change is not None]:
            yield changes

    def _needs_folder(self, move: _Move) -> bool:
        return self._large_payloads is not None and move.limit_set.reads_arguments and is_in_folder(move.job.payload)

    def _move_of(self, job: GatedJob, subjects: frozenset[str] | None) -> _Move | None:
        """Return the move of a job; None if it has this release's limit set, or belongs to none of these subjects."""
        task = self._registry.find(job.task)
        assert task is not None, f"jobs of {job.task!r} were not requested"
        if job.queue not in self._registry.queues:
            return None
        if subjects is not None and subject_of(job.task, job.queue) not in subjects:
            return None
        try:
            # A job that went to a fallback queue keeps the limits of the queue it was meant for.
            queue = intended_queue(job.limit_set)
            queue = queue if queue in self._registry.queues else None
            limit_set_name = self._registry.limit_set_name(job.task, job.queue, queue)
            if limit_set_name == job.limit_set:
                return None
            return _Move(job, task, self._registry.limit_set(task, job.queue, queue), limit_set_name)
        except USER_CODE_ERRORS as error:
            self._skip(job, error)
            return None

    async def _change_of_large(self, move: _Move) -> LimitSetChange | None:
        """Return the change for a job whose payload is in the folder; None if that cannot be read, now or ever."""
        assert self._large_payloads is not None
        job = move.job
        try:
            if self._clock.monotonic() >= self._folder_again_at:
                payload = await self._large_payloads.load(job.payload, f"the payload of job {job.id}")
                return self._change(move._replace(job=replace(job, payload=payload)))
        except FolderUnavailable as error:
            if self._clock.monotonic() >= self._folder_again_at:
                self._publish_failure("moving a backlog", error)
            self._folder_again_at = self._clock.monotonic() + FOLDER_PAUSE
        except PayloadError as error:
            self._skip(job, error)
            return None
        self._not_yet.add(subject_of(job.task, job.queue))
        return None

    def _change(self, move: _Move) -> LimitSetChange | None:
        """Return the change for a job; None if its limits cannot be computed: it stays as it is and does not start."""
        job = move.job
        try:
            gated = _gated_call(move.limit_set, move.task, job) if move.limit_set.limits else UNGATED
            buckets, costs, terms = buckets_in_batch(gated, job.buckets, job.terms)
        except USER_CODE_ERRORS as error:  # including errors of the task's own `cost` or `owner` for an old payload
            self._skip(job, error)
            return None
        if job.terms is not None and job.terms.skips:
            terms = (terms or LimitTerms()).skipping()
        stays = (buckets, costs, terms) == (job.buckets, job.costs, job.terms)
        return LimitSetChange(job.id, job.buckets, buckets, costs, terms, move.limit_set_name, stays)

    def _skip(self, job: GatedJob, error: BaseException) -> None:
        if len(self._unmovable) >= MAX_UNMOVABLE:
            self._unmovable.clear()
        self._unmovable.add(job.id)
        if job.task not in self._published_tasks:
            self._published_tasks.add(job.task)
            self._bus.publish(
                JobNotMigrated(
                    at=self._clock.now(), task=job.task, job_id=job.id, error=f"{type(error).__name__}: {error}"
                )
            )


def _gated_call(limit_set: LimitSet, task: TaskDefinition, job: GatedJob) -> GatedCall:
    # A limit that is skipped was published when the job was enqueued.
    if not limit_set.reads_arguments:
        return limit_set.ask({}, job.headers or {}, ignore_skip)
    # Results that are arguments are added when the job starts.
    results = None if job.origin is None else job.origin.results
    payload = task.payload
    arguments = payload.decode_part(job.payload, results) if results else payload.arguments(job.payload)
    return limit_set.ask(arguments, job.headers or {}, ignore_skip)
