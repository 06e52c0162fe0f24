"""The historian: counts what a process enqueues, starts and ends, and adds it to the charts in the store.

It counts where jobs pass by in groups anyway, in plain integers; nobody waits for it, and nothing fails because of it.
What it has counted is written ten seconds after the first of it, in one go, and nothing is written while nothing
happens. A process that is killed loses that much of its chart. While the store is away the last five minutes are kept;
what is older is dropped, and counted as lost. What was perhaps written is sent again under the same number, by which
the store knows it. Jobs that end without an attempt's word are counted by the store itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.clock import SECOND, Clock, Timer, sleep, wait_for_event
from headgate.engine.bus import EventBus
from headgate.engine.described import said
from headgate.engine.history_step import HistoryStep, JobCounts, NamedKeys, rows_of_jobs, rows_of_limits
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageTroubled
from headgate.jobs.histogram import BOUNDS
from headgate.jobs.history import SHORTEST, Flush, JobsStep, LimitStep, step_at
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished
from headgate.storage.records import Amendment
from headgate.storage.store import Store

WRITE_EVERY = 10
"""Seconds between two writes."""

MOST_STEPS = 30
"""How many of the shortest steps are kept for a store that is away."""

AGAIN_AFTER = 0.25
"""Seconds until the last write is tried again."""

STEPS_AT_ONCE = 3
"""How many steps are written in one go; while the store answers there are no more."""

AMENDED_FOR = (MOST_STEPS - 2) * SHORTEST * SECOND
"""How long ago (microseconds) a start was charged, at most, for its own step to be amended."""

NOBODY = (JobCounts(), "", "")
"""Before the first job. Those of one task come together most often, so each is compared with the one before it."""


class _Sent(NamedTuple):
    """What was sent to the store, and has not been answered."""

    flush: Flush
    jobs: Sequence[JobsStep]
    limits: Sequence[LimitStep]
    steps: int


class HistoryWriter:
    """One for each app, whose node and intake tell it; without `is_on` it counts and writes nothing."""

    def __init__(self, storage: Store, *, clock: Clock, bus: EventBus, ids: IdSource, is_on: bool = True) -> None:
        self._storage = storage
        self._clock = clock
        self._bus = bus
        self._ids = ids
        self._is_on = is_on
        self._lost = 0
        self._is_told = False
        # The ones that are counted up, those that wait to be sent, and what was sent and not answered.
        self._steps: dict[int, HistoryStep] = {}
        self._waiting: dict[int, HistoryStep] = {}
        self._sent: _Sent | None = None
        self._flush: Flush | None = None
        self._latest: HistoryStep | None = None
        self._named = NamedKeys()
        self._timer: Timer | None = None
        self._writing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------- counting

    def note_enqueued(self, jobs: Sequence[NewJob], others: Mapping[str, str] | None = None) -> None:
        """Jobs were stored, but for those that `others` stand for."""
        if not self._is_on or not jobs:
            return
        step = self._now()
        tally, queue, task = NOBODY
        for job in jobs:
            if others and job.id in others:
                continue
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tally(queue, task)
            tally.enqueued += 1

    def note_started(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs were claimed, and what they draw on was charged."""
        if not self._is_on or not jobs:
            return
        step = self._now()
        tally, queue, task = NOBODY
        for job in jobs:
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tally(queue, task)
            tally.started += 1
            due_at, enqueued_at = job.run_at, job.enqueued_at
            wait = job.started_at - (max(enqueued_at, due_at))
            tally.waits[bisect_left(BOUNDS, wait)] += 1
            if wait > tally.wait_max:
                tally.wait_max = wait
            if job.draws:
                costs = job.costs
                for place, draw in enumerate(job.draws):
                    step.charge(draw.limit, draw.key, 1 if costs is None else costs[place])

    def note_ended(self, ended: Iterable[tuple[ClaimedJob, Ending, int, object, float | None]]) -> None:
        """Attempts ended, each at that instant (wall microseconds), and that is stored."""
        if not self._is_on:
            return
        step = self._now()
        tally, queue, task = NOBODY
        for job, ending, ended_at, _, _ in ended:
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tally(queue, task)
            if isinstance(ending, Finished):
                if ending.state is JobState.SUCCEEDED:
                    tally.succeeded += 1
                else:
                    tally.note_final(ending.state)
            elif ending.spent:
                tally.retried += 1
            run = ended_at - job.started_at
            tally.runs[bisect_left(BOUNDS, run)] += 1
            if run > tally.run_max:
                tally.run_max = run

    def note_amended(self, amendment: Amendment, *, is_local: bool = True) -> None:
        """A start counts as something else than it was charged as: in its own step, if that was a moment ago."""
        if not self._is_on:
            return
        limit, key = amendment.draw.limit, amendment.draw.key
        limit_now = self._storage.limit_now()
        if is_local and limit_now - amendment.charged_at < AMENDED_FOR:
            ahead = self._storage.now() - limit_now
            self._step(amendment.charged_at + ahead).charge(limit, key, -amendment.cost)
            self._step(amendment.started_at + ahead).charge(limit, key, amendment.actual)
        elif amendment.actual != amendment.cost:
            # Long ago, or in the time of another store.
            self._now().charge(limit, key, amendment.actual - amendment.cost)

    def _now(self) -> HistoryStep:
        now, latest = self._storage.now(), self._latest
        if latest is not None and latest.at <= now < latest.until:
            return latest
        self._latest = step = self._step(now)
        return step

    def _step(self, instant: int) -> HistoryStep:
        at = step_at(instant, SHORTEST)
        step = self._steps.get(at)
        if step is None:
            step = self._steps[at] = HistoryStep(at)
            self._arm()
        return step

    # -------------------------------------------------------------------------------------------- writing

    async def close(self, seconds: float) -> None:
        """Write what is left, for so long; what is not written then is lost."""
        written = asyncio.Event()
        before = self._writing
        last = asyncio.get_running_loop().create_task(self._write_last(before), name="headgate-history")
        last.add_done_callback(lambda _: written.set())
        self._writing = last
        try:
            await wait_for_event(self._clock, written, seconds)
        finally:
            last.cancel()
            if before is not None:
                before.cancel()
            self._writing = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._lost += self._unwritten
            self._steps, self._waiting, self._sent, self._latest = {}, {}, None, None
            # A process that is forked from this one has its own.
            self._flush = None

    def statistics(self) -> dict[str, Any]:
        """How many steps of ten seconds wait to be written, and how many were lost because the store was away."""
        return {"unwritten": self._unwritten, "lost": self._lost}

    @property
    def _unwritten(self) -> int:
        return len(self._steps) + len(self._waiting) + (0 if self._sent is None else self._sent.steps)

    def _arm(self) -> None:
        if self._timer is None:
            when = self._clock.monotonic() + WRITE_EVERY * SECOND
            self._timer = self._clock.call_at(when, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        if self._writing is not None:
            # The store is slow, and is not asked for two of them at once.
            self._arm()
            return
        self._writing = asyncio.get_running_loop().create_task(self._write(), name="headgate-history")
        self._writing.add_done_callback(self._note_written)

    def _note_written(self, written: asyncio.Task[None]) -> None:
        if self._writing is written:
            self._writing = None

    async def _write_last(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._write()
        while self._unwritten:
            await sleep(self._clock, AGAIN_AFTER)
            await self._write()

    async def _write(self) -> None:
        """What was sent before and not answered goes first, then what was counted until now, oldest first."""
        counted, self._steps, self._latest = self._steps, {}, None
        for at, step in counted.items():
            before = self._waiting.get(at)
            if before is None:
                self._waiting[at] = step
            else:
                before.add(step)
        while self._sent is not None or self._waiting:
            if self._sent is None:
                self._sent = self._next()
            if not await self._send(self._sent):
                return

    def _next(self) -> _Sent:
        steps = [self._waiting.pop(at) for at in sorted(self._waiting)[:STEPS_AT_ONCE]]
        jobs, limits = rows_of_jobs(steps), rows_of_limits(steps, self._named.choose)
        self._named.forget(steps[0].at)
        last = self._flush or Flush(self._ids.next(self._clock.now()), 0)
        self._flush = Flush(last.writer, last.number + 1)
        return _Sent(self._flush, jobs, limits, len(steps))

    async def _send(self, sent: _Sent) -> bool:
        """Whether that is over: it was written, or is lost."""
        try:
            await self._storage.add_history(sent.jobs, sent.limits, sent.flush)
            self._is_told = False
        except StorageUnavailable as error:
            self._keep(sent, error)
            return False
        except Exception as error:
            # Whatever is wrong with it, nothing else is to suffer.
            self._lost += sent.steps
            self._trouble(error)
        self._sent = None
        return True

    def _keep(self, sent: _Sent, error: StorageUnavailable) -> None:
        """Perhaps it was written. It is sent again as it is, until too much waits behind it."""
        for step in self._waiting.values():
            step.let_go()
        lost = self._lost
        if self._unwritten > MOST_STEPS:
            self._sent = None
            self._lost += sent.steps
        while self._unwritten > MOST_STEPS:
            del self._waiting[min(self._waiting)]
            self._lost += 1
        if self._lost > lost:
            self._trouble(error)
        self._arm()

    def _trouble(self, error: Exception) -> None:
        """Some of it is lost: told once until it can be written again."""
        if not self._is_told:
            self._is_told = True
            doing = "writing history, of which some is lost: charts will have a gap"
            self._bus.publish(StorageTroubled(at=self._clock.now(), doing=doing, error=said(error)))
