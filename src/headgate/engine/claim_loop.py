"""The claim loop: claims jobs for the free slots of a node whenever something may have become claimable.

It starts the jobs, and publishes what else a claim found.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.clock import SECOND, Timer, sleep
from headgate.engine.backlog_migrator import BacklogMigrator
from headgate.engine.bus import publish_use
from headgate.engine.claim_tracker import ClaimTracker
from headgate.engine.fetcher import Fetcher
from headgate.engine.lease_keeper import LeaseKeeper, Membership
from headgate.engine.remote_limits import RemoteLimit
from headgate.engine.running_attempts import RunningAttempts, Slots
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.event import JobThrottled, LimitsClosed, LimitThrottled
from headgate.jobs.job import ClaimedJob
from headgate.limits.limit import AnyRule
from headgate.storage.fetched import FetchedStarts
from headgate.storage.records import Claim, Claimed, FreeSlots, Throttled
from headgate.storage.stored_rows import note_unreadable
from headgate.tasks.registry import RunnableTasks

CHANGED_PAUSE = 60 * SECOND
"""How long a job waits until it is claimed again whose row was changed in the database (microseconds)."""

KEPT_FOR = SECOND // 2
"""How long a slot is left at most to starts that are being fetched from another store (microseconds)."""

THROTTLE_WINDOW = 30 * SECOND
"""For how long one event tells how often claims found a bucket or a limit closed."""

OPEN_FOR = SECOND
"""For how long a bucket has been open at most whose jobs are still said to wait behind it: a claim takes a while."""

MAX_BUCKETS = 10_000
"""How many closed buckets, and keys of a closed limit, are counted at once."""


class ClaimLoop(WithServices):
    """Sends a claim on an arrival, a freed slot, an opened bucket, or a job that becomes due.

    There is one claim at a time for the queues with a backlog, which had jobs for all their free slots, and one for the
    others. So a job of a quiet queue does not wait for the claim of many jobs of another one. If the queues share their
    slots, there is one claim for all of them, which divides the slots by their weights.

    `swept` counts the jobs that only a sweep found; it should stay 0.
    """

    def __init__(
        self,
        services: Services,
        membership: Membership,
        slots: Slots,
        lease: LeaseKeeper,
        attempts: RunningAttempts,
        claim_tracker: ClaimTracker,
        fetcher: Fetcher,
        notices: ClaimNotices,
        wakeup: ClaimWakeup,
        *,
        remote_limits: Mapping[str, RemoteLimit],
        labels: frozenset[str] | None,
        stopping: asyncio.Event,
    ) -> None:
        super().__init__(services)
        self._remote_limits = remote_limits
        self._rules: Mapping[str, AnyRule] = {}
        self._runnable: RunnableTasks | None = None
        self._membership = membership
        self._slots = slots
        self._lease = lease
        self._attempts = attempts
        self._claim_tracker = claim_tracker
        self._fetcher = fetcher
        self._notices = notices
        self._wakeup = wakeup
        self._labels = labels
        self._stopping = stopping
        self._backlogged: set[str] = set()
        # The queues whose last claim has left a slot to starts that were to be fetched, and the limits of these and of
        # the claims right before that did so, too.
        self._keeping: dict[str, set[str]] = {}
        # The queues with such a slot: of which limit the starts are, and until when it is kept (monotonic).
        self._kept: dict[str, tuple[str, int]] = {}
        # The pending claims: True is that of the queues with a backlog.
        self._pending: set[bool] = set()
        # When each queue is to be claimed again (monotonic), and the timer of the first one.
        self._due: dict[str, int] = {}
        self._timer: Timer | None = None
        self.swept = 0

    async def run(self, may_begin: asyncio.Event) -> None:
        """Claim, once it may begin, until the node stops and all claims are answered."""
        await may_begin.wait()
        self._wakeup.wake()
        try:
            async with asyncio.TaskGroup() as pending:
                while not self._stopping.is_set():
                    await self._wakeup.wait()
                    if not (self._lease.holds or self._stopping.is_set()):
                        # Other nodes might take back what it claims now before it starts.
                        await self._lease.renew_until_held()
                    if not self._stopping.is_set():
                        self._send_claims(pending)
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            # The error itself, as of any other part of the node.
            raise group.exceptions[0] from None

    def _send_claims(self, pending: asyncio.TaskGroup) -> None:
        """Send the claims that a wake-up asks for, unless the last one for the same queues is still pending."""
        if self._slots.most is not None:
            self._backlogged.clear()
            if self._pending:
                return
        for has_backlog in (False, True):
            if has_backlog in self._pending:
                continue
            queues = [queue for queue in self._slots.capacity if (queue in self._backlogged) is has_backlog]
            is_woken, is_swept = self._wakeup.take(queues)
            if (is_woken or is_swept) and (free_slots := self._slots.free_slots(queues)):
                self._pending.add(has_backlog)
                claim = self.claim_for(free_slots, has_backlog=has_backlog)
                if self._fetcher.has_limits:
                    # Not twice in succession for one limit: where it is closed, other jobs get the slot.
                    kept = set[str]().union(*(self._keeping.get(queue, ()) for queue in free_slots))
                    claim = replace(claim, keeps_for=self._fetcher.ready_limits - kept)
                pending.create_task(self._claim(claim, is_sweep=not is_woken))

    def claim_for(self, free_slots: Mapping[str, FreeSlots], *, has_backlog: bool = False) -> Claim:
        """Return the claim of this node for these free slots."""
        runnable, shared = self._registry.runnable(self._labels), self._slots.shared_by(free_slots)
        if runnable is not self._runnable:
            # Tasks may be declared while the node runs, as in a notebook. A copy, as another thread reads it. A claim
            # asks what was fetched from another store, in place of the limit's own rule.
            fetched = {name: FetchedStarts(remote.limit.rule) for name, remote in self._remote_limits.items()}
            self._runnable, self._rules = runnable, {**self._registry.rules, **fetched}
        names, limit_sets = runnable.names, runnable.limit_sets
        if left := self._attempts.left.names:
            names, limit_sets = names - left, limit_sets.only(names - left)
        return Claim(self._membership.id, free_slots, self._rules, names, limit_sets, shared, has_backlog)

    def close(self) -> None:
        """Cancel the timer of the next claim."""
        if self._timer is not None:
            self._timer.cancel()

    async def _claim(self, claim: Claim, *, is_sweep: bool) -> None:
        try:
            await self._claim_once(claim, is_sweep=is_sweep)
        finally:
            self._pending.discard(claim.has_backlog)
            self._wakeup.claim_ended()

    async def _claim_once(self, claim: Claim, *, is_sweep: bool) -> None:
        asked_at = self._clock.monotonic()
        self._claim_tracker.claim_sent(asked_at)
        try:
            claimed = await self._storage.claim(claim)
        except StorageUnavailable as error:
            self._publish_failure("claiming", error)
            self._claim_tracker.claim_failed(asked_at)
            await sleep(self._clock, self._random.uniform(0.5, 1.5))
            self._wakeup.wake(claim.free_slots)
            return
        publish_use(self._bus, self._clock, "claim", asked_at, len(claimed.jobs))
        if is_sweep and claimed.jobs and not self._wakeup.is_woken(claim.free_slots):
            self.swept += len(claimed.jobs)
        # Also those that are no longer this node's: the store has started them, and their limits are charged.
        self._history_writer.note_started(claimed.jobs)
        jobs = claimed.jobs
        if claim.node != self._membership.id or not self._lease.holds:
            # The claim outlived its lease. A stopping node returns all; the store refuses that for jobs of others.
            owned = await self._lease.renew_until_held()
            jobs = jobs if owned is None else [job for job in jobs if owned.get(job.id) == job.fence]
        self._claim_tracker.claim_answered(asked_at)
        self._start(jobs, claim.tasks)
        self._claim_again(claim, claimed, asked_at)
        self._notices.take(claimed)

    def _start(self, jobs: Sequence[ClaimedJob], runnable: Collection[str]) -> None:
        for job in jobs:
            if self._stopping.is_set():
                # The node was stopped during the claim.
                self._attempts.hand_back(job)
            elif (changed := self._changed_by_hand(job, runnable)) is not None:
                note_unreadable("job", job.id, changed)
                self._attempts.hand_back(job, delay=CHANGED_PAUSE)
            else:
                self._attempts.start(job)

    def _changed_by_hand(self, job: ClaimedJob, runnable: Collection[str]) -> str | None:
        """Return what is wrong with a job that this claim did not ask for; None if nothing.

        A claim takes jobs by their limit sets, and a limit set is of one task in one queue. So a job with this node's
        limit set and another task or queue was changed in the database. It waits like the jobs of an unknown task.
        """
        if job.task not in runnable:
            return f"task: it is {job.task!r}, which this node does not run, but its limit set is that of another task"
        if job.queue not in self._slots.capacity:
            return f"queue: it is {job.queue!r}, which is not served here, but its limit set is that of another queue"
        return None

    def _claim_again(self, claim: Claim, claimed: Claimed, asked_at: int) -> None:
        """Set the timer of the next claim, and fetch starts for the remote buckets that this one found empty."""
        if self._fetcher.has_limits:
            self._fetcher.note_taken(claimed.jobs)
            self._fetcher.request(claimed.needed_fetches, self._slots.free)
        counts = Counter([job.queue for job in claimed.jobs])
        self._slots.note_claimed(claim.free_slots, counts)
        for queue in claim.free_slots.keys() - claimed.keeping.keys():
            self._keeping.pop(queue, None)
        if claimed.keeping:
            self._slots.keep(claimed.keeping)
            until = self._clock.monotonic() + KEPT_FOR
            for queue, limit in claimed.keeping.items():
                self._kept[queue] = limit, until
                self._keeping.setdefault(queue, set()).add(limit)
            self._clock.call_at(until, self.use_kept_slots)
        unfilled = {queue for queue, free in claim.free_slots.items() if counts[queue] < free.slots}
        self._backlogged = (self._backlogged | claim.free_slots.keys()) - unfilled
        if claimed.more:
            self._wakeup.wake(claim.free_slots)
        elif not self._fetcher.has_limits:
            # How much is fetched from other stores depends on the slots that are free then.
            self._slots.note_unfilled(unfilled)
        for queue in claim.free_slots:
            if claimed.next_in is None:
                self._due.pop(queue, None)
            else:
                # Counted from before the claim: a little early costs an empty claim, a little late would lose budget.
                self._due[queue] = asked_at + claimed.next_in
        self._set_timer()

    def use_kept_slots(self, fetched: Collection[str] = ()) -> None:
        """Claim for the slots that were left to starts of limits that are `fetched` now, or that take too long."""
        now = self._clock.monotonic()
        queues = [queue for queue, (limit, until) in self._kept.items() if limit in fetched or until <= now]
        for queue in queues:
            del self._kept[queue]
        self._slots.give_kept(queues)
        self._wakeup.wake(queues)

    def _set_timer(self) -> None:
        self.close()
        self._timer = self._clock.call_at(min(self._due.values()), self._wake_due) if self._due else None

    def _wake_due(self) -> None:
        now = self._clock.monotonic()
        due = [queue for queue, at in self._due.items() if at <= now]
        for queue in due:
            del self._due[queue]
        self._wakeup.wake(due)
        self._set_timer()


class ClaimWakeup:
    """Wakes the claim loop for some of the served `queues`; wake-ups before the next claim of a queue are merged."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = frozenset(queues)
        self._woken: set[str] = set()
        # Woken without a cause.
        self._swept: set[str] = set()
        self._event = asyncio.Event()

    def wake(self, queues: Iterable[str] | None = None) -> None:
        """Wake the loop because a job of these queues may have become claimable; None: of any queue."""
        woken = self._queues if queues is None else self._queues.intersection(queues)
        if woken:
            self._woken.update(woken)
            self._event.set()

    def sweep(self) -> None:
        """Wake the loop for every queue without a cause, as a safety net."""
        self._swept = {*self._queues}
        self._event.set()

    def claim_ended(self) -> None:
        """Wake the loop again for what was woken while it could not be claimed."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until something may be claimed."""
        await self._event.wait()
        self._event.clear()

    def is_woken(self, queues: Collection[str]) -> bool:
        """Whether one of these queues was woken for a cause."""
        return not self._woken.isdisjoint(queues)

    def take(self, queues: Collection[str]) -> tuple[bool, bool]:
        """Return whether these queues were woken for a cause, and whether for a sweep; they no longer are."""
        woken, swept = self.is_woken(queues), not self._swept.isdisjoint(queues)
        self._woken.difference_update(queues)
        self._swept.difference_update(queues)
        return woken, swept


class ClaimNotices(WithServices):
    """Publishes closed limits, dropped jobs and unknown tasks, and passes jobs with old limit sets to the migrator.

    Without `throttle_events` the events of throttled jobs are not published.
    """

    def __init__(self, services: Services, backlog_migrator: BacklogMigrator, *, throttle_events: bool) -> None:
        super().__init__(services)
        self._backlog_migrator = backlog_migrator
        self._throttles = ThrottleLog()
        self._throttle_events = throttle_events

    def take(self, claimed: Claimed) -> None:
        """Handle everything in the result of a claim but its jobs."""
        self._throttles.note_started(claimed.jobs)
        self.publish_throttled(claimed.throttled)
        if claimed.dropped:
            self._publish_dropped(claimed.dropped)
        if claimed.limit_set_mismatches or claimed.has_unknown_lanes:
            self._backlog_migrator.add_met(claimed.limit_set_mismatches, has_unknown_lanes=claimed.has_unknown_lanes)
        for task, queue in claimed.unknown:
            self._backlog_migrator.note_task(task, queue)

    def publish_throttled(self, throttled: Sequence[Throttled]) -> None:
        """Publish the closed buckets that a claim met, and what is due of those that earlier claims met."""
        if self._throttle_events:
            at, now = self._clock.now(), self._clock.monotonic()
            if self._bus.has_listener(JobThrottled):
                for bucket_event in self._throttles.by_bucket(throttled, at, now):
                    self._bus.publish(bucket_event)
            if self._bus.has_listener(LimitThrottled):
                for limit_event in self._throttles.by_limit(throttled, at, now, self._storage.now()):
                    self._bus.publish(limit_event)
        if throttled and self._bus.has_listener(LimitsClosed):
            limits = tuple([met.ref.limit for met in throttled])
            self._bus.publish(LimitsClosed(at=self._clock.now(), limits=limits))

    def close(self) -> None:
        """Publish the summaries of throttling that are not due yet."""
        for event in self._throttles.close(self._clock.now(), self._storage.now()):
            self._bus.publish(event)


class ThrottleLog:
    """Turns the closed buckets of each claim into few events, for each bucket and for each limit.

    What was met is published at the end of its window, or by `close`. Instants `at` are wall time, `now` is monotonic,
    `store_now` the wall time of the store.
    """

    def __init__(self) -> None:
        # Oldest window first.
        self._buckets: OrderedDict[tuple[str, str], _BucketWindow] = OrderedDict()
        self._limits: dict[str, _LimitWindow] = {}

    def by_bucket(self, throttled: Iterable[Throttled], at: int, now: int) -> list[JobThrottled]:
        """Return the events of buckets to publish."""
        events: list[JobThrottled] = []
        for met in throttled:
            bucket = (met.ref.limit, met.ref.key)
            window = self._buckets.get(bucket)
            if window is not None and now - window.began_at < THROTTLE_WINDOW:
                window.count += 1
                window.latest = met
                continue
            events.append(_of_bucket(met, at, 1 if window is None else window.count + 1))
            self._buckets[bucket] = _BucketWindow(now, met)
            self._buckets.move_to_end(bucket)
        while len(self._buckets) > MAX_BUCKETS:
            _, oldest = self._buckets.popitem(last=False)
            if oldest.count:
                events.append(_of_bucket(oldest.latest, at, oldest.count))
        return events

    def note_started(self, jobs: Iterable[ClaimedJob]) -> None:
        """Note that these jobs do not wait any more."""
        for job in jobs if self._limits else ():
            for ref in job.buckets:
                window = self._limits.get(ref.limit)
                for known in () if window is None else (window.by_key, window.told):
                    if (met := known.get(ref.key)) is not None:
                        known[ref.key] = replace(met, waiting=max(0, met.waiting - 1))

    def by_limit(self, throttled: Iterable[Throttled], at: int, now: int, store_now: int) -> list[LimitThrottled]:
        """Return the events of limits to publish, also of limits that were met before."""
        for met in throttled:
            window = self._limits.setdefault(met.ref.limit, _LimitWindow())
            window.count += 1
            window.latest = met.ref.key
            if len(window.by_key) < MAX_BUCKETS or met.ref.key in window.by_key:
                window.by_key[met.ref.key] = met
        events: list[LimitThrottled] = []
        for limit, window in self._limits.items():
            if window.ends_at is not None and now < window.ends_at:
                continue
            if window.count or (window.told and not any(_is_closed(met, store_now) for met in window.told.values())):
                events.append(_of_limit(limit, window, at, store_now))
                told = window.by_key if events[-1].waiting else {}
                self._limits[limit] = _LimitWindow(now + THROTTLE_WINDOW, latest=window.latest, told=told)
        return events

    def close(self, at: int, store_now: int) -> list[JobThrottled | LimitThrottled]:
        """Return the events of what was met and not published yet, and forget it."""
        buckets = [_of_bucket(window.latest, at, window.count) for window in self._buckets.values() if window.count]
        limits = [_of_limit(limit, window, at, store_now) for limit, window in self._limits.items() if window.count]
        self._buckets.clear()
        self._limits.clear()
        return [*buckets, *limits]


@dataclass(slots=True)
class _BucketWindow:
    """How often claims found this bucket closed since the last event."""

    began_at: int
    latest: Throttled
    count: int = 0


@dataclass(slots=True)
class _LimitWindow:
    """How often claims found this limit closed since the last event, the last state of each key, and the latest key."""

    ends_at: int | None = None
    count: int = 0
    latest: str = ""
    by_key: dict[str, Throttled] = field(default_factory=dict)
    told: dict[str, Throttled] = field(default_factory=dict)  # behind which jobs waited by the last event


def _of_bucket(met: Throttled, at: int, count: int) -> JobThrottled:
    return JobThrottled(
        at=at, limit=met.ref.limit, key=met.ref.key, job_id=met.job_id, opens_at=met.opens_at, waiting=met.waiting,
        count=count,
    )  # fmt: skip


def _is_closed(met: Throttled, store_now: int) -> bool:
    # Of a bucket that has opened since and was not met again, another node may have started the jobs.
    return met.waiting > 0 and (met.opens_at or store_now) > store_now - OPEN_FOR


def _of_limit(limit: str, window: _LimitWindow, at: int, store_now: int) -> LimitThrottled:
    closed = [met for met in window.by_key.values() if _is_closed(met, store_now)]
    fullest = max(closed, key=lambda met: met.waiting, default=None)
    return LimitThrottled(
        at=at,
        limit=limit,
        keys=len(closed),
        waiting=sum(met.waiting for met in closed),
        count=window.count,
        key=window.latest if fullest is None else fullest.ref.key,
        opens_at=None if fullest is None else fullest.opens_at,
    )
