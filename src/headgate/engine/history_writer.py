"""The history writer: counts the jobs that a process enqueues, starts and ends, and adds them to the store's charts.

It counts in plain integers, where jobs are handled in groups anyway; no job waits for it or fails because of it.
Counts are written together ten seconds after the first of them; without new counts nothing is written. A process that
is killed loses up to ten seconds of counts. While the store is unavailable the last five minutes are kept; older counts
are dropped and reported as lost. A write whose reply was lost is repeated under the same number, and the store ignores
the repetition. The store itself counts jobs that end without an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from heapq import nlargest
from typing import NamedTuple

from headgate.clock import SECOND, Clock, Timer, sleep, wait_until_done
from headgate.engine.bus import EventBus
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageFailed
from headgate.jobs.history import (
    ALL,
    BOUNDS,
    BUCKETS,
    KEPT_FOR,
    LIMIT_STEPS,
    MAXIMA,
    SHORTEST,
    SUMS,
    Flush,
    JobsStep,
    LimitStep,
    step_at,
    trimmed,
)
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, JobState, NewJob, summarize_error
from headgate.jobs.lifecycle import Ending, Finished
from headgate.storage.records import Amendment
from headgate.storage.store import Store

WRITE_EVERY = 10
"""Seconds between two writes."""

MAX_STEPS = 30
"""How many of the shortest steps are kept while the store is unavailable."""

RETRY_AFTER = 0.25
"""Seconds until the last write, at closing, is tried again."""

STEPS_AT_ONCE = 3
"""How many steps one write contains; more gather only while the store is unavailable."""

AMENDED_FOR = (MAX_STEPS - 2) * SHORTEST * SECOND
"""How old a charge may be (microseconds) so that an amendment changes its own step."""

MAX_KEYS = 1000
"""How many keys of a limit have their own rows: the most used ones."""

MAX_COUNTED_KEYS = 4 * MAX_KEYS
"""How many keys of a limit are counted at once; beyond that the less used half is dropped."""


class _Sent(NamedTuple):
    """A write that was sent to the store and has no reply yet."""

    flush: Flush
    jobs: Sequence[JobsStep]
    limits: Sequence[LimitStep]
    steps: int


class HistoryWriter:
    """Counts for the node and the enqueuer of one app; without `is_on` it counts and writes nothing."""

    def __init__(self, storage: Store, *, clock: Clock, bus: EventBus, ids: IdSource, is_on: bool = True) -> None:
        self._storage = storage
        self._clock = clock
        self._bus = bus
        self._ids = ids
        self._is_on = is_on
        self._lost = 0
        self._is_loss_published = False
        # Steps that are counted, steps that wait to be sent, and the write without a reply.
        self._steps: dict[int, HistoryStep] = {}
        self._waiting: dict[int, HistoryStep] = {}
        self._sent: _Sent | None = None
        self._flush: Flush | None = None
        self._latest: HistoryStep | None = None
        self._named = NamedKeys()
        # What threads have enqueued since the last write, by step, queue and task.
        self._of_threads: Counter[tuple[int, str, str]] = Counter()
        self._threads_lock = threading.RLock()
        self._is_open = False
        self._timer: Timer | None = None
        self._writing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------- counting

    def note_enqueued(self, jobs: Sequence[NewJob], duplicates: Mapping[str, str] | None = None) -> None:
        """Count stored jobs; those whose ids are in `duplicates` were merged into existing jobs."""
        if not self._is_on or not jobs:
            return
        step = self._now()
        tally, queue, task = NO_COUNTS
        for job in jobs:
            if duplicates and job.id in duplicates:
                continue
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tallies[queue, task]
            tally.enqueued += 1

    def note_enqueued_in_thread(
        self, jobs: Sequence[NewJob], duplicates: Mapping[str, str], loop: asyncio.AbstractEventLoop
    ) -> None:
        """As `note_enqueued`, from a thread beside the loop of the app."""
        if not self._is_on:
            return
        with self._threads_lock:
            is_first = not self._of_threads
            for job in jobs:
                if job.id not in duplicates:
                    self._of_threads[step_at(job.enqueued_at, SHORTEST), job.queue, job.task] += 1
        if is_first:
            # The loop may be closed by now; the counts are written when the app is opened again.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._arm_for_threads)

    def note_started(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count claimed jobs and their charges."""
        if not self._is_on or not jobs:
            return
        step = self._now()
        tally, queue, task = NO_COUNTS
        for job in jobs:
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tallies[queue, task]
            tally.started += 1
            wait = job.started_at - max(job.enqueued_at, job.run_at)
            tally.waits[bisect_left(BOUNDS, wait)] += 1
            if wait > tally.wait_max:
                tally.wait_max = wait
            if job.buckets:
                costs = job.costs
                for place, ref in enumerate(job.buckets):
                    step.uses[ref.limit].charge(ref.key, 1 if costs is None else costs[place])

    def note_unlimited(self, limits: Iterable[str]) -> None:
        """Count a start without these limits, whose store was unavailable."""
        if self._is_on:
            uses = self._now().uses
            for limit in limits:
                uses[limit].unlimited += 1

    def note_ended(self, ended: Iterable[tuple[ClaimedJob, Ending, int, object, float | None]]) -> None:
        """Count attempts whose endings are stored; each ended at the given instant (wall microseconds)."""
        if not self._is_on:
            return
        step = self._now()
        tally, queue, task = NO_COUNTS
        for job, ending, ended_at, _, _ in ended:
            if job.task != task or job.queue != queue:
                queue, task = job.queue, job.task
                tally = step.tallies[queue, task]
            if isinstance(ending, Finished):
                if ending.state is JobState.SUCCEEDED:
                    tally.succeeded += 1
                elif ending.state is JobState.FAILED:
                    tally.failed += 1
                else:
                    tally.cancelled += 1
            elif ending.spent:
                tally.retried += 1
            run = ended_at - job.started_at
            tally.runs[bisect_left(BOUNDS, run)] += 1
            if run > tally.run_max:
                tally.run_max = run

    def note_amended(self, amendment: Amendment, *, is_local: bool = True) -> None:
        """Count an amended charge: in the step of the charge if that is recent, else in the current step."""
        if not self._is_on:
            return
        limit, key = amendment.ref.limit, amendment.ref.key
        limit_now = self._storage.limit_now()
        if is_local and limit_now - amendment.charged_at < AMENDED_FOR:
            ahead = self._storage.now() - limit_now
            self._step(amendment.charged_at + ahead).uses[limit].charge(key, -amendment.cost)
            self._step(amendment.started_at + ahead).uses[limit].charge(key, amendment.actual)
        elif amendment.actual != amendment.cost:
            # The charge is old, or its instant is in the time of another store.
            self._now().uses[limit].charge(key, amendment.actual - amendment.cost)

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

    def open(self) -> None:
        """Begin to write what threads count, also what they have counted since `close`."""
        self._is_open = True
        self._arm_for_threads()

    def _arm_for_threads(self) -> None:
        if self._is_open and self._of_threads:
            self._arm()

    async def close(self, seconds: float) -> None:
        """Write the remaining counts for at most `seconds`; what is not written then is lost."""
        self._is_open = False
        before = self._writing
        last = asyncio.get_running_loop().create_task(self._write_last(before), name="headgate-history")
        self._writing = last
        try:
            await wait_until_done(self._clock, last, seconds)
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
            # A fork of this process needs its own writer id.
            self._flush = None

    @property
    def _unwritten(self) -> int:
        """How many ten-second steps are not written yet."""
        return len(self._steps) + len(self._waiting) + (0 if self._sent is None else self._sent.steps)

    def _arm(self) -> None:
        if self._timer is None:
            when = self._clock.monotonic() + WRITE_EVERY * SECOND
            self._timer = self._clock.call_at(when, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        if self._writing is not None:
            # The store is slow; only one write is sent at a time.
            self._arm()
            return
        # It is not part of the job, nor of a transaction, in which the timer was set.
        self._writing = asyncio.get_running_loop().create_task(
            self._write(), name="headgate-history", context=Context()
        )
        self._writing.add_done_callback(self._note_written)

    def _note_written(self, written: asyncio.Task[None]) -> None:
        if self._writing is written:
            self._writing = None

    async def _write_last(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._write()
        while self._unwritten:
            await sleep(self._clock, RETRY_AFTER)
            await self._write()

    async def _write(self) -> None:
        """Repeat the write without a reply first, then write the waiting steps, oldest first."""
        with self._threads_lock:
            counts, self._of_threads = self._of_threads, Counter()
        for (at, queue, task), count in counts.items():
            step = self._steps.setdefault(at, HistoryStep(at))
            step.tallies[queue, task].enqueued += count
        counted, self._steps, self._latest = self._steps, {}, None
        for at, step in counted.items():
            if at in self._waiting:
                self._waiting[at].add(step)
            else:
                self._waiting[at] = step
        while self._sent is not None or self._waiting:
            if self._sent is None:
                self._sent = self._next()
            if not await self._send(self._sent):
                return

    def _next(self) -> _Sent:
        steps = [self._waiting.pop(at) for at in sorted(self._waiting)[:STEPS_AT_ONCE]]
        jobs, limits = rows_of_jobs(steps), rows_of_limits(steps, self._named)
        self._named.forget(steps[0].at)
        last = self._flush or Flush(self._ids.unique(self._clock.now()), 0)
        self._flush = Flush(last.writer, last.number + 1)
        return _Sent(self._flush, jobs, limits, len(steps))

    async def _send(self, sent: _Sent) -> bool:
        """Send a write; return True if it was written or is lost, False if it is to be repeated."""
        try:
            await self._storage.add_history(sent.jobs, sent.limits, sent.flush)
            self._is_loss_published = False
        except StorageUnavailable as error:
            self._keep(sent, error)
            return False
        except Exception as error:
            # An error in this write must not stop the following ones.
            self._lost += sent.steps
            self._publish_loss(error)
        self._sent = None
        return True

    def _keep(self, sent: _Sent, error: StorageUnavailable) -> None:
        """Keep a write for repetition, as it may have been written; drop it once too many steps wait behind it."""
        for step in self._waiting.values():
            for use in step.uses.values():
                # Only the keys that will have a row, because the step has to be held longer.
                use.drop_least_used(MAX_KEYS)
        lost = self._lost
        if self._unwritten > MAX_STEPS:
            self._sent = None
            self._lost += sent.steps
        while self._unwritten > MAX_STEPS:
            del self._waiting[min(self._waiting)]
            self._lost += 1
        if self._lost > lost:
            self._publish_loss(error)
        self._arm()

    def _publish_loss(self, error: Exception) -> None:
        """Publish that counts are lost, once until a write succeeds again."""
        if not self._is_loss_published:
            self._is_loss_published = True
            doing = "writing history: some is lost, and charts will have a gap"
            self._bus.publish(StorageFailed(at=self._clock.now(), doing=doing, error=summarize_error(error)))


class HistoryStep:
    """The counts of the shortest step, which begins at `at` and ends before `until` (wall microseconds).

    Those of jobs are by queue and task, the uses by limit.
    """

    __slots__ = ("at", "tallies", "until", "uses")

    def __init__(self, at: int) -> None:
        self.at = at
        self.until = at + SHORTEST * SECOND
        self.tallies: defaultdict[tuple[str, str], JobCounts] = defaultdict(JobCounts)
        self.uses: defaultdict[str, LimitUse] = defaultdict(LimitUse)

    def add(self, other: HistoryStep) -> None:
        """Add other counts of the same step."""
        for place, tally in other.tallies.items():
            self.tallies[place].add(tally)
        for limit, use in other.uses.items():
            self.uses[limit].add(use)


class JobCounts:
    """The counts of the jobs of one queue and task."""

    def __init__(self) -> None:
        self.enqueued = self.started = self.succeeded = self.failed = self.cancelled = self.retried = 0
        self.skipped = 0  # no attempt ends so
        self.wait_max = self.run_max = 0
        self.waits = [0] * BUCKETS
        self.runs = [0] * BUCKETS

    def add(self, other: JobCounts) -> None:
        """Add other counts."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in MAXIMA:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.waits = list(map(operator.add, self.waits, other.waits))
        self.runs = list(map(operator.add, self.runs, other.runs))

    def row(self, step: int, queue: str, task: str, at: int) -> JobsStep:
        counts = {name: getattr(self, name) for name in (*SUMS, *MAXIMA)}
        return JobsStep(step, queue, task, at, **counts, waits=trimmed(self.waits), runs=trimmed(self.runs))


NO_COUNTS = (JobCounts(), "", "")
"""The counts, queue and task before the first job. Jobs of one task mostly come together, so each is compared with
the one before it."""


class LimitUse:
    """The use of a limit, in total and by key; of very many keys the least used ones are dropped.

    `unlimited` is how many of the starts were not charged, because the store of the limit was unavailable.
    """

    __slots__ = ("keys", "total", "unlimited")

    def __init__(self) -> None:
        self.total = 0
        self.keys: dict[str, int] = {}
        self.unlimited = 0

    def charge(self, key: str, cost: int) -> None:
        self.total += cost
        keys = self.keys
        keys[key] = keys.get(key, 0) + cost
        if len(keys) > MAX_COUNTED_KEYS:
            self.drop_least_used(MAX_COUNTED_KEYS // 2)

    def drop_least_used(self, most: int) -> None:
        """Keep the `most` keys that were used most."""
        if len(self.keys) > most:
            self.keys = {key: self.keys[key] for key in nlargest(most, self.keys, key=self.keys.__getitem__)}

    def add(self, other: LimitUse) -> None:
        """Add another use of the same limit."""
        self.total += other.total
        self.unlimited += other.unlimited
        keys = self.keys
        for key, used in other.keys.items():
            keys[key] = keys.get(key, 0) + used
        if len(keys) > MAX_COUNTED_KEYS:
            self.drop_least_used(MAX_COUNTED_KEYS // 2)


def rows_of_jobs(steps: Iterable[HistoryStep]) -> list[JobsStep]:
    """Return the rows of all lengths: by queue and task, by queue, and in total."""
    totals = defaultdict[tuple[int, str, str, int], JobCounts](JobCounts)
    for step in steps:
        sums = defaultdict[tuple[str, str], JobCounts](JobCounts)
        for (queue, task), tally in step.tallies.items():
            for place in ((queue, task), (queue, ALL), (ALL, ALL)):
                sums[place].add(tally)
        for length in KEPT_FOR:
            at = step_at(step.at, length)
            for (queue, task), tally in sums.items():
                totals[length, queue, task, at].add(tally)
    return [tally.row(*place) for place, tally in totals.items()]


def rows_of_limits(steps: Iterable[HistoryStep], named: NamedKeys) -> list[LimitStep]:
    """Return the rows of the shorter lengths: in total, and for the keys that are `named`."""
    totals = defaultdict[tuple[int, str, int], LimitUse](LimitUse)
    for step in steps:
        for limit, use in step.uses.items():
            for length in LIMIT_STEPS:
                totals[length, limit, step_at(step.at, length)].add(use)
    rows: list[LimitStep] = []
    for (length, limit, at), use in totals.items():
        rows.append(LimitStep(length, limit, None, at, use.total, use.unlimited))
        rows += [LimitStep(length, limit, key, at, use.keys[key]) for key in named.choose(length, limit, at, use.keys)]
    return rows


class NamedKeys:
    """The keys that have their own row in a step, for all writes of this process to that step."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str, int], set[str]] = {}

    def choose(self, length: int, limit: str, at: int, used: dict[str, int]) -> Iterable[str]:
        """Return the keys that have a row already, and the most used of the others while there is room."""
        named = self._named.setdefault((length, limit, at), set())
        unnamed = [key for key in used if key not in named]
        room = max(0, MAX_KEYS - len(named))
        chosen = unnamed if len(unnamed) <= room else nlargest(room, unnamed, key=used.__getitem__)
        known = [key for key in used if key in named]
        named.update(chosen)
        return known + chosen

    def forget(self, before: int) -> None:
        """Drop steps that ended before `before`: little or nothing is written to them any more."""
        self._named = {place: keys for place, keys in self._named.items() if place[2] + place[0] * SECOND > before}
