"""A node: one engine process that claims jobs, runs them, records how they ended, and looks after its neighbours."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from headgate.clock import SECOND, Clock, Timer, sleep, sleep_until, wait_for_event
from headgate.engine.bus import EventBus, publish_use
from headgate.engine.charge import AttemptCharge
from headgate.engine.children import Children
from headgate.engine.described import OWN_ERRORS, described
from headgate.engine.drain import LOOK_EVERY, Drain
from headgate.engine.elsewhere import Elsewhere
from headgate.engine.executor import LINGERS_AFTER, Attempt, Cause, Workshop
from headgate.engine.fetcher import Fetcher
from headgate.engine.handler_tasks import guard_tasks, unguard_tasks
from headgate.engine.historian import Historian
from headgate.engine.housekeeper import Housekeeper, publish_dropped
from headgate.engine.lease import LeaseWatch, OwnLease
from headgate.engine.lost_claims import LostClaims
from headgate.engine.punctuality import Start, judge_start
from headgate.engine.recorder import Recorder, Then
from headgate.engine.recurring import Recurring
from headgate.engine.regater import Regater
from headgate.engine.reporter import Reporter
from headgate.engine.resource_room import ResourceRoom
from headgate.engine.skew import SkewWatch
from headgate.engine.teller import Teller
from headgate.engine.throttle_log import ThrottleLog
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.jobs.event import (
    AttemptLingers,
    BackoffFailed,
    ClockSkewed,
    JobStarted,
    JobThrottled,
    LeaseNotRenewed,
    LimitsClosed,
    LoopBlocked,
    NodeCrashed,
    NodeDisowned,
    NodeLost,
    NodeMeasured,
    NodeStarted,
    NodeStopped,
    NodeStopping,
    StorageTroubled,
    TaskUnknown,
)
from headgate.jobs.identity import IdSource
from headgate.jobs.job import ClaimedJob, Draw, JobState
from headgate.jobs.lifecycle import Ending, Finished, Returned, decide
from headgate.jobs.outcome import Interrupted, Outcome, Refused
from headgate.jobs.retention import DEFAULT_RETENTION, Retention
from headgate.jobs.retry import RetryPolicy
from headgate.storage.fetched import Fetched
from headgate.storage.protocol import Amendment, Claim, Room, Storage, Throttled
from headgate.tasks.callbacks import Moment
from headgate.tasks.context import JobLogCapture
from headgate.tasks.registry import Registry
from headgate.tasks.task import Task
from headgate.tasks.tracing import Tracing

SWEEP_EVERY = 30
"""Seconds between two looks without cause."""

MOST_LINGERING = 100
"""How many jobs that linger a node tells the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How a node behaves; all durations in seconds.

    `heartbeat` (5) renews the lease, which other nodes take for lost after `lease` (30). `grace` (30) is how long
    running jobs may go on after the node was asked to stop. Final jobs are kept for `retention` (7 days).
    `queues` maps the queues to serve to their slots. Of what a job logs the first `log_lines` (1,000; 0: none) of
    `log_level` (INFO) and above are kept. `version` is that of Headgate. With `drain` it stops by itself.
    """

    queues: Mapping[str, int]
    heartbeat: float = 5.0
    lease: float = 30.0
    grace: float = 30.0
    retention: Retention = DEFAULT_RETENTION
    log_lines: int = 1000
    log_level: int = logging.INFO
    version: str = ""
    drain: Drain | None = None


class Node:
    """Runs jobs of one app until it is stopped."""

    def __init__(
        self,
        storage: Storage,
        registry: Registry,
        settings: NodeSettings,
        *,
        clock: Clock,
        bus: EventBus,
        random: Random,
        ids: IdSource,
        teller: Teller,
        historian: Historian,
        elsewhere: Mapping[str, Elsewhere] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._random = random
        self._ids = ids
        self.id = self._new_id()
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._pool = ThreadPoolExecutor(sum(settings.queues.values()), thread_name_prefix="headgate-job")
        self._teller = teller
        self._historian = historian
        self._children = Children()
        self._resources = ResourceRoom(clock, bus)
        self._reporter = Reporter(
            self.id, storage, clock=clock, bus=bus, most_lines=settings.log_lines, lowest=settings.log_level
        )
        self._capture = JobLogCapture(self._reporter)
        self._shop = Workshop(
            clock,
            self._pool,
            self._children,
            self._resources,
            teller,
            self._reporter,
            self._may_start,
            self._note_lingering,
            tracing,
        )
        self._lingering: set[Attempt] = set()
        self._running: dict[str, Attempt] = {}
        # They have ended, and their threads have not: what they hold permits for goes on.
        self._held_back: dict[Attempt, asyncio.Task[Outcome]] = {}
        self._is_leaving = False
        self._busy = dict.fromkeys(settings.queues, 0)
        self._odd_for_gated = dict.fromkeys(settings.queues, True)
        self._recorder = Recorder(
            self.id, storage, registry, self._reporter, clock=clock, bus=bus, random=random, historian=historian
        )
        self._elsewhere = elsewhere or {}
        self._fetcher = Fetcher(storage, self._elsewhere, clock=clock, bus=bus, ids=ids)
        self._rules = {
            **registry.rules,
            **{name: Fetched(limit.limit.rule) for name, limit in self._elsewhere.items()},
        }
        self._regater = Regater(storage, registry, clock=clock, bus=bus, wake=self._wake)
        self._housekeeper = Housekeeper(storage, clock=clock, bus=bus, teller=teller, retention=settings.retention)
        self._recurring = Recurring(storage, registry, clock=clock, bus=bus, teller=teller, ids=ids, random=random)
        self._look = asyncio.Event()
        self._beating = asyncio.Lock()
        self._is_sweep = False
        self._swept = 0
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._idle = asyncio.Event()
        self._timer: Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bound once: one for each job would be work for the garbage collector.
        self._report_amendment = self._report
        self._leases = LeaseWatch(round(settings.lease * SECOND), round(settings.heartbeat * SECOND))
        self._own_lease = OwnLease(round(settings.lease * SECOND))
        self._lease_timer: Timer | None = None
        self._throttles = ThrottleLog()
        self._skew = SkewWatch()
        self._lost_claims = LostClaims()
        self._looks_for_lost = 0
        self._claiming_since: int | None = None
        self._unknown_tasks: set[str] = set()
        self._started = 0
        self._handed_back = 0

    def _new_id(self) -> str:
        return f"node-{self._ids.next(self._clock.now())[-12:]}"

    # ---------------------------------------------------------------------------------------------- life

    def stop(self) -> None:
        """Claim nothing more, let running jobs finish within the grace, then hand them back and end."""
        self._stopping.set()
        self._wake()

    def abort(self) -> None:
        """End at once: running jobs are cancelled and handed back."""
        self.stop()
        self._aborting.set()

    async def run(self) -> None:
        """Work until stopped. A crash of any part ends the whole node loudly."""
        self._loop = asyncio.get_running_loop()
        unwatch = self._storage.watch(self._wake)
        guard_tasks(self._loop)
        if self._settings.log_lines:
            self._capture.start()
        try:
            await self._join()
            self._publish_started()
            self._compare_clocks()
            async with asyncio.TaskGroup() as services:
                background = [
                    services.create_task(self._claim_loop(), name="headgate-claims"),
                    services.create_task(self._heartbeats(), name="headgate-heartbeats"),
                    services.create_task(self._watch_nodes(), name="headgate-watch"),
                    services.create_task(self._housekeeper.run(), name="headgate-housekeeper"),
                    services.create_task(self._recurring.run(), name="headgate-recurring"),
                ]
                if self._settings.drain is not None:
                    drain = self._stop_when_drained(self._settings.drain)
                    background.append(services.create_task(drain, name="headgate-drain"))
                regater = services.create_task(self._regater.run(), name="headgate-regater")
                fetcher = services.create_task(self._fetcher.run(), name="headgate-fetcher")
                recorder = services.create_task(self._recorder.run(), name="headgate-recorder")
                reporter = services.create_task(self._reporter.run(), name="headgate-reporter")
                await self._stopping.wait()
                self._bus.publish(NodeStopping(at=self._clock.now(), node=self.id, running=len(self._running)))
                # It claims no more, so another release need not wait for its jobs to end.
                regater.cancel()
                await self._let_finish()
                for service in background:
                    service.cancel()
                # Stores that are down are waited for a little only: budget is lost, and the lease tells the others.
                await self._fetcher.flush(1.0 if self._aborting.is_set() else 5.0)
                fetcher.cancel()
                await self._recorder.flush(1.0 if self._aborting.is_set() else 10.0)
                recorder.cancel()
                reporter.cancel()
        except Exception as error:
            # Told at once: in a program that does other things as well, nobody may be waiting for this to end.
            self._bus.publish(NodeCrashed(at=self._clock.now(), node=self.id, error=described(_first_of(error))))
            raise
        finally:
            unwatch()
            unguard_tasks(self._loop)
            self._capture.stop()
            for timer in (self._timer, self._lease_timer):
                if timer is not None:
                    timer.cancel()
            for attempt in list(self._running.values()):
                attempt.cancel(Cause.SHUTDOWN)
            # Whatever of an attempt is left now, it is not to outlive its node.
            self._children.kill_all()
            await self._resources.close(1.0 if self._aborting.is_set() else 5.0)
            if self._children.are_there:
                await asyncio.get_running_loop().run_in_executor(None, self._children.close)
            self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            recovered = await self._storage.leave(self.id)
        except StorageUnavailable as error:
            # Whoever sees this node's lease run out takes its jobs back.
            self._trouble("leaving", error)
        else:
            returned = self._handed_back + len(recovered.returned)
            self._bus.publish(NodeStopped(at=self._clock.now(), node=self.id, returned=returned))

    async def _let_finish(self) -> None:
        """Running jobs go on for the grace; those that are left are cancelled and get a moment to clean up."""
        if self._running:
            self._idle.clear()
            stop_waiting = asyncio.ensure_future(self._aborting.wait())
            finished = asyncio.ensure_future(wait_for_event(self._clock, self._idle, self._settings.grace))
            await asyncio.wait([stop_waiting, finished], return_when=asyncio.FIRST_COMPLETED)
            stop_waiting.cancel()
            finished.cancel()
        for attempt in list(self._running.values()):
            attempt.cancel(Cause.SHUTDOWN)
        if self._running:
            self._idle.clear()
            await wait_for_event(self._clock, self._idle, 1.0 if self._aborting.is_set() else 5.0)
        # Threads that still run are not waited for any longer, whatever permits they hold.
        self._is_leaving = True
        while self._held_back:
            attempt, done = self._held_back.popitem()
            self._forget(attempt)
            self._conclude(attempt, done)

    # ------------------------------------------------------------------------------------------- claiming

    async def _claim_loop(self) -> None:
        """Ask for jobs whenever something may have changed: an arrival, a freed slot, an opened bucket."""
        self._wake()
        while not self._stopping.is_set():
            await self._look.wait()
            self._look.clear()
            is_sweep, self._is_sweep = self._is_sweep, False
            if self._stopping.is_set():
                return
            if not self._own_lease.holds(self._clock.monotonic()):
                # What it would claim now might be taken back before it starts.
                await self._renew_lease()
            rooms = self._rooms()
            if not rooms or self._stopping.is_set():
                continue
            asked_at = self._claiming_since = self._clock.monotonic()
            claim = Claim(self.id, rooms, self._rules, self._registry.names, self._registry.gates())
            try:
                claimed = await self._storage.claim(claim)
            except StorageUnavailable as error:
                self._trouble("claiming", error)
                self._claiming_since = None
                # It may have been made, and its reply lost: jobs that were not there in two looks.
                self._looks_for_lost = 2
                await sleep(self._clock, self._random.uniform(0.5, 1.5))
                self._wake()
                continue
            publish_use(self._bus, self._clock, "claim", asked_at, len(claimed.jobs))
            if is_sweep and claimed.jobs and not self._look.is_set():
                self._swept += len(claimed.jobs)
            jobs = claimed.jobs
            if claim.node != self.id or not self._own_lease.holds(self._clock.monotonic()):
                jobs = await self._still_owned(jobs)
            self._claiming_since = None
            self._historian.note_started(jobs)
            for job in jobs:
                if self._stopping.is_set():
                    # Told to end while the claim was on its way.
                    self._hand_back(job)
                else:
                    self._start(job)
            if self._elsewhere:
                self._fetcher.note_taken(claimed.jobs)
                self._fetcher.want(claimed.starved, sum(room.slots for room in self._rooms().values()))
            if claimed.more:
                self._wake()
            self._arm(asked_at, claimed.next_in)
            if claimed.throttled:
                self._publish_throttled(claimed.throttled)
            publish_dropped(self._bus, self._teller, self._clock, claimed.dropped)
            if claimed.astray or claimed.has_strange_lanes:
                self._regater.take_up(claimed.astray, has_strange_lanes=claimed.has_strange_lanes)
            for task in claimed.unknown:
                if task not in self._unknown_tasks:
                    self._unknown_tasks.add(task)
                    self._bus.publish(TaskUnknown(at=self._clock.now(), task=task))

    async def _still_owned(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        """Those of the jobs that a heartbeat finds to be this node's still: their claim took longer than its lease."""
        owned = await self._renew_lease()
        # A node that is stopping hands all of them back, which is refused for those that it does not own.
        return jobs if owned is None else [job for job in jobs if owned.get(job.id) == job.fence]

    async def _renew_lease(self) -> Mapping[str, int] | None:
        """Send heartbeats until one succeeds in time; the jobs the node owns with their fences, None if it stops."""
        while not self._stopping.is_set():
            try:
                owned = await self._beat()
            except StorageUnavailable as error:
                self._trouble("sending a heartbeat", error)
            else:
                if self._own_lease.holds(self._clock.monotonic()):
                    return owned
            await sleep(self._clock, self._random.uniform(0.5, 1.5))
        return None

    async def _stop_when_drained(self, until: Drain) -> None:
        while not self._stopping.is_set():
            started = self._started
            try:
                drained = not self._running and not await self._storage.is_work_left(
                    self._settings.queues.keys(), self._registry.names, ready_only=until == "ready"
                )
            except StorageUnavailable as error:
                self._trouble("looking whether work is left", error)
            else:
                # What came in since it looked, and was claimed at once, is still done.
                if drained and started == self._started and self._claiming_since is None:
                    self.stop()
            await sleep(self._clock, LOOK_EVERY)

    def _wake(self) -> None:
        """Something may have become claimable."""
        self._is_sweep = False
        self._look.set()

    def _sweep(self) -> None:
        """Look without cause: no job should ever be found by this, and `swept` counts those that are."""
        if not self._look.is_set():
            self._is_sweep = True
            self._look.set()

    def _rooms(self) -> dict[str, Room]:
        rooms: dict[str, Room] = {}
        for queue, concurrency in self._settings.queues.items():
            free = concurrency - self._busy[queue]
            if free > 0:
                # The odd slot goes to each kind in turn, so that a node with one slot starves neither.
                self._odd_for_gated[queue] = not self._odd_for_gated[queue]
                rooms[queue] = Room(free, gated_first=self._odd_for_gated[queue])
        return rooms

    def _arm(self, asked_at: int, next_in: int | None) -> None:
        # Counted from before the claim: a little early costs an empty claim, a little late would cost budget.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_in is not None:
            self._timer = self._clock.call_at(asked_at + next_in, self._wake)

    # -------------------------------------------------------------------------------------------- running

    def _start(self, job: ClaimedJob) -> None:
        task = self._registry.find(job.task)
        assert task is not None, f"the storage gave out {job.task!r}, which was not asked for"
        charge = AttemptCharge(job, self._report_amendment, self._elsewhere) if job.draws else None
        attempt = self._new_attempt(job, task, charge)
        self._running[job.id] = attempt
        self._busy[job.queue] += 1
        self._started += 1
        if self._bus.wants(JobStarted):
            self._bus.publish(
                JobStarted(
                    at=self._clock.now(),
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    waited=max(0, job.started_at - job.run_at) / SECOND,
                    throttled=job.throttled_for / SECOND,
                    limits=tuple([draw.limit for draw in job.draws]),
                )
            )
        attempt.start().add_done_callback(lambda done: self._attempt_ended(attempt, done))

    def _new_attempt(self, job: ClaimedJob, task: Task[Any, Any], charge: AttemptCharge | None) -> Attempt:
        return Attempt(job, task, charge, self._shop)

    def _report(self, amendment: Amendment) -> None:
        # Handlers in threads settle their costs, too.
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._amend, amendment)

    def _amend(self, amendment: Amendment) -> None:
        """A charge is amended where it was made."""
        is_elsewhere = amendment.draw.limit in self._elsewhere
        self._historian.note_amended(amendment, is_local=not is_elsewhere)
        if is_elsewhere:
            self._fetcher.amend(amendment)
        else:
            self._recorder.amend(amendment)

    def _hand_back(self, job: ClaimedJob) -> None:
        """A job that was claimed and does not start."""
        charge = AttemptCharge(job, self._amend, self._elsewhere)
        charge.refund()
        self._handed_back += 1
        self._recorder.end(job, Returned(job.id, job.fence, "interrupted", spent=False, charge=charge.final))

    def _may_start(self, attempt: Attempt) -> bool:
        """The last look at a gated job before its handler is called; False sends it back unspent."""
        if not self._own_lease.holds(self._clock.monotonic()):
            return False
        now = self._storage.limit_now()
        match judge_start(attempt.job, self._registry.rules, now):
            case Start.ON_TIME:
                return True
            case Start.LATE:
                assert attempt.charge is not None
                attempt.charge.start_late(now)
                return True
            case Start.TOO_LATE:
                return False

    def _attempt_ended(self, attempt: Attempt, done: asyncio.Task[Outcome]) -> None:
        thread = attempt.thread
        goes_on = thread is not None and not thread.done()
        if thread is not None and goes_on:
            thread.add_done_callback(lambda ended: self._free_after_thread(attempt, ended))
            if self._holds_permits(attempt) and attempt.cause is not Cause.DISOWNED and not self._is_leaving:
                # The ending frees its permits, and what a permit guards is still at work.
                self._held_back[attempt] = done
                return
        self._forget(attempt)
        if not goes_on:
            self._free(attempt)
        self._conclude(attempt, done)

    def _forget(self, attempt: Attempt) -> None:
        # Of a node that was declared dead, another attempt of the same job may run here by now.
        if self._running.get(attempt.job.id) is attempt:
            del self._running[attempt.job.id]

    def _conclude(self, attempt: Attempt, done: asyncio.Task[Outcome]) -> None:
        """Record how it ended."""
        job = attempt.job
        if attempt.cause is not Cause.DISOWNED:
            outcome = self._outcome(attempt, done)
            charge = attempt.charge
            if charge is not None and (isinstance(outcome, Refused) or not attempt.has_begun):
                charge.refund()
            ending = self._decide(job, outcome, attempt.retry)
            self._handed_back += isinstance(outcome, Interrupted)
            if isinstance(outcome, Refused) and isinstance(ending, Returned) and not self._draws_on_rates(job):
                # No bucket can be closed that would hold it back, so it is delayed itself.
                ending = replace(ending, run_at=self._storage.now() + outcome.retry_after)
            if isinstance(outcome, Refused):
                for draw in job.draws:
                    if draw.limit in self._elsewhere:
                        self._fetcher.penalize(draw, outcome.retry_after)
            if charge is not None and charge.final is not None:
                ending = replace(ending, charge=charge.final)
            then = self._to_tell(attempt, ending) if attempt.task.callbacks.exist else None
            ran = (self._clock.monotonic() - attempt.began_at) / SECOND
            self._recorder.end(job, ending, then, ran=ran)

    def _outcome(self, attempt: Attempt, done: asyncio.Task[Outcome]) -> Outcome:
        if done.cancelled():
            # Before its first step, so it has no outcome of its own.
            return attempt.outcome_when_cancelled()
        error = done.exception()
        return done.result() if error is None else attempt.outcome_of_escaped(error)

    def _to_tell(self, attempt: Attempt, ending: Ending) -> Then | None:
        """What the callbacks of the task are told when this ending is stored."""
        task, error = attempt.task, attempt.error
        # Its traceback leads back to the attempt: a cycle that only the garbage collector would find.
        attempt.error = None
        tell = partial(self._teller.tell, task, handler=attempt.handler)
        match ending:
            case Finished(state=JobState.SUCCEEDED) if task.callbacks.wants(Moment.COMPLETED):
                return partial(tell, Moment.COMPLETED, attempt.context, attempt.result)
            case Finished(state=JobState.FAILED) if task.callbacks.wants(Moment.ERROR):
                return partial(tell, Moment.ERROR, attempt.context, error)
            case Returned(spent=True, run_at=int(run_at)) if task.callbacks.wants(Moment.RETRY):
                delay = max(0, run_at - self._storage.now()) / SECOND
                return partial(tell, Moment.RETRY, attempt.context, error, attempt.job.attempt, delay)
        return None

    def _holds_permits(self, attempt: Attempt) -> bool:
        """Whether it may hold any. A permit that it kept from an earlier attempt is none of its draws."""
        return any(self._grants_permits(draw) for draw in attempt.job.draws) or any(
            bound.limit.rule.holds_permits for bound in attempt.task.gate.limits
        )

    def _draws_on_rates(self, job: ClaimedJob) -> bool:
        return not all(self._grants_permits(draw) for draw in job.draws)

    def _grants_permits(self, draw: Draw) -> bool:
        rule = self._registry.rules.get(draw.limit)
        return rule is not None and rule.holds_permits

    def _decide(self, job: ClaimedJob, outcome: Outcome, retry: RetryPolicy) -> Ending:
        try:
            return decide(job, outcome, retry, self._storage.now(), self._random)
        except OWN_ERRORS as error:
            # A user's own backoff failed. The job must not be lost for it, so it is retried as by default.
            self._bus.publish(BackoffFailed(at=self._clock.now(), task=job.task, error=repr(error)))
            plain = RetryPolicy(retries=retry.retries)
            return decide(job, outcome, plain, self._storage.now(), self._random)

    def _free(self, attempt: Attempt) -> None:
        if attempt.linger is not None:
            attempt.leave()
            self._lingering.discard(attempt)
        self._busy[attempt.job.queue] -= 1
        self._wake()
        if not self._running:
            self._idle.set()

    def _note_lingering(self, attempt: Attempt) -> None:
        """It was told to end, and does not."""
        self._lingering.add(attempt)
        job, cause = attempt.job, attempt.cause
        self._bus.publish(
            AttemptLingers(
                at=self._clock.now(),
                job_id=job.id,
                task=job.task,
                queue=job.queue,
                attempt=job.attempt,
                place=attempt.task.place.value,
                cause="" if cause is None else cause.value,
                seconds=LINGERS_AFTER,
            )
        )

    def _lingering_jobs(self) -> list[str]:
        return sorted(attempt.job.id for attempt in self._lingering)

    def _free_after_thread(self, attempt: Attempt, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled():
            # Its attempt has ended before; what it raised now is nobody's any more.
            ended.exception()
        done = self._held_back.pop(attempt, None)
        if done is not None:
            self._forget(attempt)
        self._free(attempt)
        if done is not None:
            self._conclude(attempt, done)

    # ---------------------------------------------------------------------------------- leases, recovery

    async def _heartbeats(self) -> None:
        interval = round(self._settings.heartbeat * SECOND)
        sent_at = self._clock.monotonic()
        while True:
            # Counted from the sending, as the lease is: a slow answer does not put off the next one.
            await sleep_until(self._clock, sent_at + interval)
            sent_at = self._clock.monotonic()
            try:
                await self._beat()
            except StorageUnavailable as error:
                self._trouble("sending a heartbeat", error)

    async def _beat(self) -> Mapping[str, int]:
        """Renew the lease; the jobs that the node owns, with their fences."""
        # One at a time: two would take up the same jobs.
        async with self._beating:
            return await self._beat_alone()

    async def _beat_alone(self) -> Mapping[str, int]:
        sent_at = self._clock.monotonic()
        beat = await self._storage.beat(self.id, lingering=self._lingering_jobs()[:MOST_LINGERING])
        self._leases.own_beat(self._clock.monotonic())
        self._compare_clocks()
        if not beat.known:
            await self._rejoin()
            return {}
        self._lease_renewed(sent_at)
        heard = self._running.keys() | self._recorder.pending
        lost = self._lost_claims.among(
            beat.owned, heard, claiming_since=self._claiming_since, now=self._clock.monotonic()
        )
        for id, fence in lost:
            await self._take_up(id, fence)
        return beat.owned

    def _lease_renewed(self, sent_at: int) -> None:
        self._own_lease.renew(sent_at)
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._lease_timer = self._clock.call_at(self._own_lease.ends_at, self._lease_ended)

    def _lease_ended(self) -> None:
        """Others may soon take its jobs: end what must not run twice, and what has not begun."""
        cancelled = 0
        for attempt in list(self._running.values()):
            if attempt not in self._held_back and (not attempt.has_begun or self._holds_permits(attempt)):
                attempt.cancel(Cause.LEASE)
                cancelled += 1
        now = self._clock.monotonic()
        seconds = self._own_lease.unrenewed_for(now) / SECOND
        self._bus.publish(LeaseNotRenewed(at=self._clock.now(), node=self.id, seconds=seconds, cancelled=cancelled))
        # The claim loop sends heartbeats until one succeeds.
        self._wake()

    async def _take_up(self, job_id: str, fence: int) -> None:
        """Start a job whose claim was made and never answered; it goes back if there is no room for it any more."""
        record = await self._storage.job(job_id)
        if record is None or record.state is not JobState.RUNNING or (record.node, record.fence) != (self.id, fence):
            return
        if job_id in self._running or job_id in self._recorder.pending:
            return
        if not self._own_lease.holds(self._clock.monotonic()):
            # The next heartbeats find it again.
            return
        job = record.as_claimed()
        self._historian.note_started([job])
        free = self._settings.queues.get(job.queue, 0) - self._busy.get(job.queue, 0)
        if self._claiming_since is not None:
            # It was promised every slot that is free.
            free = 0
        elsewhere = any(draw.limit in self._elsewhere for draw in job.draws)
        if free > 0 and job.task in self._registry.names and not elsewhere and not self._stopping.is_set():
            self._start(job)
        else:
            self._hand_back(job)

    def _compare_clocks(self) -> None:
        own = self._clock.now()
        seconds = self._skew.notice(own, self._storage.now())
        if seconds is not None:
            self._bus.publish(ClockSkewed(at=own, node=self.id, seconds=seconds))

    async def _rejoin(self) -> None:
        """Another node declared this one dead: its jobs are others' now, so it drops them and begins anew."""
        attempts = list(self._running.values())
        for attempt in attempts:
            attempt.cancel(Cause.DISOWNED)
        for attempt in self._held_back:
            self._forget(attempt)
        self._held_back.clear()
        self._recorder.drop()
        self._bus.publish(NodeDisowned(at=self._clock.now(), node=self.id, cancelled=len(attempts)))
        self._reporter.drop()
        self.id = self._recorder.node = self._reporter.node = self._new_id()
        await self._join()
        self._wake()

    async def _join(self) -> None:
        settings = self._settings
        sent_at = self._clock.monotonic()
        await self._storage.join(self.id, self._name, queues=settings.queues, version=settings.version)
        self._lease_renewed(sent_at)

    async def _watch_nodes(self) -> None:
        """Every second: recover dead nodes, hear of cancellations, notice stepped clocks and a blocked event loop."""
        turns = 0
        ahead = self._storage.now() - self._clock.monotonic()
        while True:
            try:
                await self._recover_dead()
                if self._looks_for_lost:
                    self._looks_for_lost -= 1
                    await self._beat()
                if self._running:
                    for job_id in await self._storage.cancels(self.id):
                        attempt = self._running.get(job_id)
                        if attempt is not None:
                            attempt.cancel(Cause.USER)
            except StorageUnavailable as error:
                self._trouble("looking after the nodes", error)
            # Storage that does not answer is no fault of the loop.
            expected = self._clock.monotonic() + SECOND
            await sleep(self._clock, 1.0)
            stepped = self._storage.now() - self._clock.monotonic() - ahead
            if abs(stepped) > SECOND // 2:
                # The timer of the next delayed job was set by the store's old wall time.
                ahead += stepped
                self._wake()
                self._recurring.look()
            turns += 1
            if turns % SWEEP_EVERY == 0:
                self._sweep()
                self._recurring.look()
            late = (self._clock.monotonic() - expected) / SECOND
            self._publish_measured(late)
            if late > 1.0:
                self._bus.publish(LoopBlocked(at=self._clock.now(), seconds=late))

    async def _recover_dead(self) -> None:
        nodes = await self._storage.nodes()
        for dead in self._leases.dead(nodes, self.id, self._clock.monotonic()):
            recovered = await self._storage.recover(dead.id, dead.beat)
            if recovered is not None:
                self._teller.tell_unrun(recovered.poisonous)
                self._bus.publish(
                    NodeLost(
                        at=self._clock.now(),
                        node=dead.id,
                        returned=len(recovered.returned),
                        poisonous=len(recovered.poisonous),
                    )
                )

    def look_at_schedules(self) -> None:
        """Enqueue at once what is due of a schedule that this process has just stored."""
        self._recurring.look()

    def cancel(self, job_id: str) -> None:
        """Cancel a job that runs here for its user; without effect if it does not."""
        attempt = self._running.get(job_id)
        if attempt is not None:
            attempt.cancel(Cause.USER)

    # ---------------------------------------------------------------------------------------------- events

    def _trouble(self, doing: str, error: HeadgateError) -> None:
        self._bus.publish(StorageTroubled(at=self._clock.now(), doing=doing, error=str(error)))

    def _publish_started(self) -> None:
        self._bus.publish(NodeStarted(at=self._clock.now(), node=self.id, storage=str(self._storage)))

    def _publish_measured(self, loop_lag: float) -> None:
        if self._bus.wants(NodeMeasured):
            own = self._clock.now()
            self._bus.publish(
                NodeMeasured(
                    at=own,
                    node=self.id,
                    slots=self._settings.queues,
                    busy=dict(self._busy),
                    lingering=len(self._lingering),
                    unrecorded=len(self._recorder.pending),
                    loop_lag=max(0.0, loop_lag),
                    clock_skew=(own - self._storage.now()) / SECOND,
                )
            )

    def _publish_throttled(self, throttled: Sequence[Throttled]) -> None:
        if self._bus.wants(JobThrottled):
            for event in self._throttles.events(throttled, self._clock.now(), self._clock.monotonic()):
                self._bus.publish(event)
        if self._bus.wants(LimitsClosed):
            self._bus.publish(LimitsClosed(at=self._clock.now(), limits=tuple([met.draw.limit for met in throttled])))

    # ------------------------------------------------------------------------------------------ statistics

    def statistics(self) -> dict[str, Any]:
        """Slots in use by queue, endings that wait to be recorded, and jobs that only the sweep found.

        `lingering` are the jobs whose attempts were told to end and still take a slot; `processes` run process tasks.
        """
        return {
            "node": self.id,
            "busy": dict(self._busy),
            "unrecorded": len(self._recorder.pending),
            "swept": self._swept,
            "lingering": self._lingering_jobs(),
            "processes": self._children.statistics(),
            "resources": self._resources.statistics(),
            "history": self._historian.statistics(),
        }


def _first_of(error: BaseException) -> BaseException:
    """The error itself, without the groups that it came in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
