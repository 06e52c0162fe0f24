"""The running attempts of a node: starts claimed jobs, cancels them, frees their slots, and records how they ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from concurrent.futures import Executor as Pool
from functools import partial
from typing import Any

from msgspec.structs import replace

from headgate.clock import SECOND, sleep, wait_for_event
from headgate.engine.attempt import LINGERS_AFTER, AttemptDependencies, CancelledBy, RunningAttempt
from headgate.engine.attempt_store import LeftTasks, StoreCompletion, StoreResults
from headgate.engine.charge import MOVE_AGAIN, MOVES, AttemptCharge, ChargeRouter, StartDecision, takes_permit
from headgate.engine.children import ChildBounds, Children
from headgate.engine.chunk_calls import ChunkCalls
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.recorder import Recorder, Then
from headgate.engine.reporter import Reporter
from headgate.engine.resource_pool import ResourcePool
from headgate.engine.services import Services, WithServices
from headgate.errors import USER_CODE_ERRORS
from headgate.jobs.event import AttemptLingers, JobStarted, RetryPolicyFailed
from headgate.jobs.job import ClaimedJob, JobState, summarize_error
from headgate.jobs.lifecycle import (
    CalleeRateLimited,
    Correction,
    Ending,
    Finished,
    Interrupted,
    Outcome,
    Returned,
    Succeeded,
    decide,
    succeeded,
)
from headgate.jobs.retry import RetryPolicy
from headgate.shielding import in_thread, read_error
from headgate.storage.records import FreeSlots
from headgate.tasks.callbacks import CallbackKind
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.tracing import Tracing

MakeAttempt = Callable[[ClaimedJob, TaskDefinition, AttemptCharge | None, AttemptDependencies], RunningAttempt]


class RunningAttempts(WithServices):
    """The attempts that run on this node, each in a slot of its queue.

    A slot is free when nothing of its attempt runs any more: a thread cannot be stopped, a chunk call goes on for other
    jobs, and both keep the slot after the attempt has ended. `started` counts all attempts, `handed_back` the
    interrupted jobs that were returned. `wake` is called with the queues in which a job may wait for a slot that was
    freed, and `on_concluded` when an attempt has ended, after its ending was queued.
    """

    def __init__(
        self,
        services: Services,
        slots: Slots,
        holds_lease: Callable[[], bool],
        charges: ChargeRouter,
        recorder: Recorder,
        reporter: Reporter,
        *,
        wake: Callable[[Collection[str]], None],
        pool: Pool,
        child_bounds: ChildBounds,
        tracing: Tracing | None = None,
        large_payloads: LargePayloads | None = None,
        make_attempt: MakeAttempt = RunningAttempt,
        on_concluded: Callable[[RunningAttempt], None] | None = None,
    ) -> None:
        super().__init__(services)
        self._slots = slots
        self._charges = charges
        self._recorder = recorder
        self._wake = wake
        self._pool = pool
        self._make_attempt = make_attempt
        self._on_concluded = on_concluded
        self._children = Children(services.registry.hooks.of_children(), child_bounds)
        self._resources = ResourcePool(services.clock, services.bus)
        self.left = LeftTasks(services, lambda: recorder.node, partial(wake, slots.capacity))
        self._dependencies = AttemptDependencies(
            storage=services.storage,
            clock=services.clock,
            registry=services.registry,
            pool=pool,
            children=self._children,
            resources=self._resources,
            callback_runner=services.callback_runner,
            reports=reporter,
            completion=StoreCompletion(services.storage),
            results=StoreResults(services.storage, services.registry.codecs, large_payloads),
            chunks=ChunkCalls(services, pool, slots.most_in, self._move_late),
            holds_lease=holds_lease,
            left=self.left,
            move_late=self._move_late,
            on_linger=self._note_lingering,
            around=services.registry.hooks.around_attempt,
            tracing=tracing,
            large_payloads=large_payloads,
        )
        self._running: dict[str, RunningAttempt] = {}
        # Ended attempts that may hold permits and whose threads still run; their endings wait for the threads.
        self._waiting_for_thread: dict[RunningAttempt, asyncio.Task[Outcome]] = {}
        self._lingering: set[RunningAttempt] = set()
        self._is_leaving = False
        self._idle = asyncio.Event()
        self.started = 0
        self.handed_back = 0

    # ------------------------------------------------------------------------------------------------ read

    def __len__(self) -> int:
        """Return how many attempts run, or have ended and may still hold permits."""
        return len(self._running)

    def __iter__(self) -> Iterator[RunningAttempt]:
        return iter(self._running.values())

    @property
    def jobs(self) -> KeysView[str]:
        """The ids of the jobs that run here."""
        return self._running.keys()

    @property
    def lingering(self) -> list[str]:
        """The ids of the jobs whose cancelled attempts still take a slot."""
        return sorted(attempt.job.id for attempt in self._lingering)

    # --------------------------------------------------------------------------------------- start and end

    def start(self, job: ClaimedJob) -> None:
        """Start an attempt of a claimed job."""
        task = self._registry.find(job.task)
        assert task is not None, f"the store returned a job of {job.task!r}, which was not requested"
        charge = self._charges.charge_of(job)
        attempt = self._make_attempt(job, task, charge, self._dependencies)
        self._running[job.id] = attempt
        self._slots.take(job.queue)
        self.started += 1
        if self._bus.has_listener(JobStarted):
            self._bus.publish(
                JobStarted(
                    at=self._clock.now(),
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    waited=max(0, job.started_at - job.run_at) / SECOND,
                    throttled=job.throttled_for / SECOND,
                    limits=tuple([ref.limit for ref in job.buckets]),
                    unlimited=() if charge is None else charge.unlimited,
                )
            )
        attempt.start().add_done_callback(partial(self._attempt_ended, attempt))

    def hand_back(self, job: ClaimedJob, delay: int = 0) -> None:
        """Return a job that was claimed and does not start, for `delay` microseconds; no attempt is spent."""
        charge, corrections = self._charges.refund_unstarted(job)
        self.handed_back += 1
        now = self._storage.now()
        ending = Returned(job.id, job.fence, "interrupted", spent=False, run_at=now + delay if delay else None)
        self._recorder.end(job, replace(ending, charge=charge, corrections=corrections), now)

    async def _move_late(self, attempts: Sequence[RunningAttempt]) -> None:
        """Move the charges of attempts that are about to start together, until none of them is late.

        The call must wait for the commit, which takes time as well. So from the second time on, the charges move to
        an instant ahead, twice as far as the commit took before, and this waits for that instant. An attempt that is
        not on time afterwards must not start.
        """
        ahead = 0
        for _ in range(MOVES):
            decisions = [
                (attempt.charge, attempt.start_decision)
                for attempt in attempts
                if attempt.charge is not None and attempt.cause is None
            ]
            if not any(decision is StartDecision.LATE for _, decision in decisions):
                return
            charges = [charge for charge, decision in decisions if decision is not StartDecision.TOO_LATE]
            await self._charges.move(charges, ahead)
            moved_to = max([charge.moved_to for charge in charges if charge.moved_to is not None], default=None)
            if moved_to is None:
                # The store failed, or another transaction has locked the jobs.
                await sleep(self._clock, MOVE_AGAIN)
                continue
            since = self._storage.limit_now() - moved_to
            await sleep(self._clock, max(0, -since) / SECOND)
            ahead = max(ahead, 2 * since)

    def _attempt_ended(self, attempt: RunningAttempt, done: asyncio.Task[Outcome]) -> None:
        thread = attempt.thread
        if thread is None or thread.done():
            self._forget(attempt)
            self._release_slot(attempt)
        else:
            thread.add_done_callback(lambda ended: self._thread_ended(attempt, ended))
            if self._may_hold_permits(attempt) and attempt.cause is not CancelledBy.DISOWNED and not self._is_leaving:
                # The ending releases its permits, and the work that they guard still runs.
                self._waiting_for_thread[attempt] = done
                return
            self._forget(attempt)
            # A node that stops waits for what it has asked to end, but not for what had ended before.
            if not self._running and attempt.cause is not CancelledBy.SHUTDOWN:
                self._idle.set()
        self._conclude(attempt, done)

    def _thread_ended(self, attempt: RunningAttempt, ended: asyncio.Future[Any]) -> None:
        # Its attempt has ended already.
        read_error(ended)
        done = self._waiting_for_thread.pop(attempt, None)
        self._forget(attempt)
        self._release_slot(attempt)
        if done is not None:
            self._conclude(attempt, done)

    def _may_hold_permits(self, attempt: RunningAttempt) -> bool:
        """Return whether it may hold permits, also one kept from an earlier attempt, which is not in its buckets."""
        rules = self._registry.rules
        return any(takes_permit(ref, rules) for ref in attempt.job.buckets) or any(
            bound.limit.rule.holds_permits for bound in attempt.task.limit_set.limits
        )

    def _forget(self, attempt: RunningAttempt) -> None:
        # After the node was declared dead, another attempt of the same job may already run here.
        if self._running.get(attempt.job.id) is attempt:
            del self._running[attempt.job.id]

    def _release_slot(self, attempt: RunningAttempt) -> None:
        # Nothing of the attempt runs any more.
        if attempt.linger is not None:
            attempt.linger.cancel()
            attempt.linger = None
            self._lingering.discard(attempt)
        if waiting := self._slots.release(attempt.job.queue):
            self._wake(waiting)
        if not self._running:
            self._idle.set()

    def _conclude(self, attempt: RunningAttempt, done: asyncio.Task[Outcome]) -> None:
        if attempt.cause is not CancelledBy.DISOWNED:
            self._record(attempt, attempt.outcome_of(done))
        if self._on_concluded is not None:
            self._on_concluded(attempt)

    def _record(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Record the outcome of an attempt; the charge of a start that never happened or was refused is refunded."""
        job, charge, now = attempt.job, attempt.charge, self._storage.now()
        corrections: tuple[Correction, ...] = ()
        if charge is not None and (not attempt.is_called or isinstance(outcome, CalleeRateLimited)):
            corrections = self._charges.refund(charge, is_refused=isinstance(outcome, CalleeRateLimited))
        # The fast path: most attempts succeed, and then there is nothing to decide.
        ending = succeeded(job, outcome) if isinstance(outcome, Succeeded) else self._ending_of(attempt, outcome, now)
        if charge is not None:
            final = charge.final
            if final is not None or corrections:
                ending = replace(ending, charge=final, corrections=corrections)
        then = self._callbacks_after(attempt, ending) if attempt.task.callbacks.exist else None
        # The traceback refers to the attempt: a cycle that only the garbage collector would free.
        attempt.error = attempt.thread = None
        ran = (self._clock.monotonic() - attempt.started_at) / SECOND
        self._recorder.end(job, ending, now, then, ran=ran)

    def _ending_of(self, attempt: RunningAttempt, outcome: Outcome, now: int) -> Ending:
        job, ending = attempt.job, self._decide(attempt, outcome, now)
        self.handed_back += isinstance(outcome, Interrupted)
        if isinstance(outcome, CalleeRateLimited):
            rules = [self._registry.rules.get(ref.limit) for ref in job.buckets]
            if isinstance(ending, Returned) and all(rule is not None and rule.period == 0 for rule in rules):
                # It uses no bucket that could be closed, so the job itself is delayed.
                ending = replace(ending, run_at=now + outcome.retry_after)
            self._charges.penalize(job, outcome.retry_after)
        return ending

    def _decide(self, attempt: RunningAttempt, outcome: Outcome, now: int) -> Ending:
        job, retry = attempt.job, attempt.retry
        try:
            return decide(job, outcome, retry, now, self._random, attempt.error)
        except USER_CODE_ERRORS as error:
            # The user's own backoff or filter failed. The job must not be lost, so the default policy is used.
            self._bus.publish(RetryPolicyFailed(at=self._clock.now(), task=job.task, error=summarize_error(error)))
            return decide(job, outcome, RetryPolicy(retries=retry.retries), now, self._random)

    def _callbacks_after(self, attempt: RunningAttempt, ending: Ending) -> Then | None:
        """Return the call that runs the callbacks of the task once this ending is stored."""
        task, error = attempt.task, attempt.error
        run = partial(self._callback_runner.submit, task, handler=attempt.handler)
        match ending:
            case Finished(state=JobState.SUCCEEDED) if task.callbacks.wants(CallbackKind.COMPLETED):
                return partial(run, CallbackKind.COMPLETED, attempt.context, attempt.result)
            case Finished(state=JobState.FAILED) if task.callbacks.wants(CallbackKind.ERROR):
                return partial(run, CallbackKind.ERROR, attempt.context, error)
            case Returned(spent=True, run_at=int(run_at)) if task.callbacks.wants(CallbackKind.RETRY):
                delay = max(0, run_at - self._storage.now()) / SECOND
                return partial(run, CallbackKind.RETRY, attempt.context, error, attempt.job.attempt, delay)
        return None

    def _note_lingering(self, attempt: RunningAttempt) -> None:
        """Publish that a cancelled attempt still runs."""
        self._lingering.add(attempt)
        job, cause = attempt.job, attempt.cause
        self._bus.publish(
            AttemptLingers(
                at=self._clock.now(),
                job_id=job.id,
                task=job.task,
                queue=job.queue,
                attempt=job.attempt,
                executor=attempt.task.executor.value,
                cause="" if cause is None else cause.value,
                seconds=LINGERS_AFTER,
            )
        )

    # ---------------------------------------------------------------------------------------------- cancel

    def cancel(self, job_id: str) -> None:
        """Cancel the attempt of a job at the request of a user; no effect if the job does not run here."""
        attempt = self._running.get(job_id)
        if attempt is not None:
            attempt.cancel(CancelledBy.USER)

    def cancel_all(self) -> None:
        """Cancel every attempt, because the node shuts down."""
        for attempt in list(self._running.values()):
            attempt.cancel(CancelledBy.SHUTDOWN)

    def cancel_exclusive(self) -> int:
        """Cancel attempts that may hold permits or have not started, as the lease has ended; return how many."""
        exclusive = [
            attempt
            for attempt in self._running.values()
            if attempt not in self._waiting_for_thread and (not attempt.is_called or self._may_hold_permits(attempt))
        ]
        for attempt in exclusive:
            attempt.cancel(CancelledBy.LEASE)
        return len(exclusive)

    def disown(self) -> int:
        """Cancel and drop every attempt, as other nodes own the jobs now; return how many ran."""
        attempts = list(self._running.values())
        for attempt in attempts:
            attempt.cancel(CancelledBy.DISOWNED)
        for attempt in self._waiting_for_thread:
            self._forget(attempt)
        self._waiting_for_thread.clear()
        return len(attempts)

    # ------------------------------------------------------------------------------------------------ stop

    async def finish(self, grace: float, aborting: asyncio.Event) -> None:
        """Let attempts run for `grace` seconds, or until `aborting`; then cancel them and let them clean up."""
        if self._running:
            self._idle.clear()
            stop_waiting = asyncio.ensure_future(aborting.wait())
            finished = asyncio.ensure_future(wait_for_event(self._clock, self._idle, grace))
            await asyncio.wait([stop_waiting, finished], return_when=asyncio.FIRST_COMPLETED)
            stop_waiting.cancel()
            finished.cancel()
        self.cancel_all()
        if self._running:
            self._idle.clear()
            await wait_for_event(self._clock, self._idle, 1.0 if aborting.is_set() else 5.0)
        # Running threads are not waited for any longer, even if they hold permits.
        self._is_leaving = True
        while self._waiting_for_thread:
            attempt, done = self._waiting_for_thread.popitem()
            self._forget(attempt)
            self._conclude(attempt, done)

    async def close(self, seconds: float) -> None:
        """Cancel what is left, end the child processes, and close the resources, each within `seconds`."""
        self.cancel_all()
        # No child process may outlive its node.
        self._children.kill_all()
        await self._resources.close(seconds)
        if self._children.any_alive:
            # Not in the threads of the event loop: handlers may use all of them, for as long as they like.
            await in_thread(self._pool, self._children.close)
        self._pool.shutdown(wait=False, cancel_futures=True)


class Slots:
    """Counts the slots in use by queue.

    `capacity` maps each served queue to its slots. `most` bounds those of all queues together, which they share by
    their `weights` (default: 1 each) if not all can have what they want.
    """

    def __init__(
        self, capacity: Mapping[str, int], most: int | None = None, weights: Mapping[str, int] | None = None
    ) -> None:
        self.capacity = capacity
        self.most = most
        self._is_quiet = False
        self._weights = dict.fromkeys(capacity, 1) | dict(weights or {})
        self._busy = dict.fromkeys(capacity, 0)
        self._odd_for_gated = dict.fromkeys(capacity, True)
        # The queues in which jobs may wait only for a slot.
        self._short_of_slots = set(capacity)
        self._kept: set[str] = set()

    @property
    def busy(self) -> dict[str, int]:
        """The slots in use, by queue."""
        return dict(self._busy)

    def change(self, capacity: Mapping[str, int], most: int | None, *, is_quiet: bool) -> None:
        """Change the slots of the served queues and the bound of all; while the node is quiet, none is free.

        Jobs in more slots than that continue.
        """
        self.capacity = {queue: capacity.get(queue, slots) for queue, slots in self.capacity.items()}
        self.most = most
        self._is_quiet = is_quiet
        # What earlier claims found was for other slots.
        self._short_of_slots.update(self.capacity)

    def take(self, queue: str) -> None:
        """Take a slot for a job of the queue."""
        self._busy[queue] += 1

    def release(self, queue: str) -> Collection[str]:
        """Release the slot of a job of the queue; return the queues in which a job may wait for it."""
        self._busy[queue] -= 1
        if self.most is not None:
            return self._short_of_slots
        return (queue,) if queue in self._short_of_slots else ()

    def most_in(self, queue: str) -> int:
        """Return how many jobs of a queue can run at once, at least 1."""
        capacity = max(1, self.capacity.get(queue, 1))
        return capacity if self.most is None else max(1, min(capacity, self.most))

    def free_in(self, *queues: str) -> int:
        """Return the free slots of these queues together; those that this node does not serve have none."""
        free = sum(max(0, self.capacity.get(queue, 0) - self._busy.get(queue, 0)) for queue in queues)
        return min(self._shared, free)

    @property
    def free(self) -> int:
        """Return the free slots of all queues."""
        return self.free_in(*self.capacity)

    @property
    def _shared(self) -> int:
        """The free slots that all queues share, none in a quiet node; any number if they are not bounded together."""
        if self._is_quiet:
            return 0
        return sys.maxsize if self.most is None else max(0, self.most - sum(self._busy.values()))

    def free_slots(self, queues: Iterable[str] | None = None) -> dict[str, FreeSlots]:
        """Return what the next claim may ask for in these queues (default: all).

        Queues without a free slot are left out, in a quiet node all. They count as short of slots until `note_unfilled`
        shows otherwise, because a claim does not ask for slots that are released during it.
        """
        free_slots: dict[str, FreeSlots] = {}
        served = self.capacity.keys() if queues is None else queues
        self._short_of_slots.update(served)
        shared = self._shared - len(self._kept)
        for queue in served:
            held = self._busy[queue] + (queue in self._kept)
            free = min(shared, self.capacity[queue] - held)
            if free > 0:
                # The odd slot goes to jobs with and without limits in turn, so a node with one slot starves neither.
                if self.most is None:
                    self._odd_for_gated[queue] = not self._odd_for_gated[queue]
                free_slots[queue] = FreeSlots(free, self._odd_for_gated[queue], held, self._weights[queue])
        return free_slots

    def note_claimed(self, free_slots: Mapping[str, FreeSlots], counts: Mapping[str, int]) -> None:
        """Note how many jobs of each queue a claim returned, for the turns of queues that share slots."""
        if self.most is not None:
            first = next(iter(free_slots))  # It gets the odd slot, and has had its turn also if it could not use it.
            had = {queue: counts.get(queue, 0) / weight for queue, weight in self._weights.items()}
            turns = sorted(self.capacity, key=lambda queue: (queue == first or had[queue] > 0, had[queue]))
            self.capacity = {queue: self.capacity[queue] for queue in turns}
            odd = (each for each in had if (counts.get(each, 0) or each == first) % 2)
            self._odd_for_gated |= {queue: not self._odd_for_gated[queue] for queue in odd}

    def keep(self, queues: Iterable[str]) -> None:
        """Keep a free slot of each of these queues, which the claim after `give_kept` offers to jobs with limits."""
        self._kept.update(queues)
        # They have not had their turns yet.
        self.capacity = {**dict.fromkeys(queues, 0), **self.capacity}
        self._odd_for_gated |= dict.fromkeys(queues, self.most is not None)

    def give_kept(self, queues: Iterable[str]) -> None:
        """Keep no slot of these queues any more."""
        self._kept.difference_update(queues)

    def shared_by(self, free_slots: Mapping[str, FreeSlots]) -> int | None:
        """Return how many slots these queues share; None if each can be filled."""
        shared = self._shared - len(self._kept)
        return None if self.most is None or sum(free.slots for free in free_slots.values()) <= shared else shared

    def note_unfilled(self, queues: Iterable[str]) -> None:
        """Note that these queues were not short of slots: a claim returned fewer jobs of each than its free slots."""
        if self.most is None:
            # Otherwise a queue may have got fewer because others had their parts.
            self._short_of_slots.difference_update(queues)
