"""The running attempts of a node: starts claimed jobs, cancels them, and frees their slots when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, KeysView, Sequence
from concurrent.futures import Executor as Pool
from functools import partial
from typing import Any

from headgate.clock import SECOND, sleep, wait_for_event
from headgate.engine.charge import (
    MOVE_AGAIN,
    MOVES,
    AttemptCharge,
    ChargeRouter,
    StartDecision,
    decide_start,
    takes_permit,
)
from headgate.engine.children import ChildBounds, Children
from headgate.engine.chunk_calls import ChunkCalls
from headgate.engine.claim_wakeup import ClaimWakeup
from headgate.engine.executor import LINGERS_AFTER, AttemptDependencies, CancelledBy, RunningAttempt
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.leases import OwnLease
from headgate.engine.outcome_recorder import OutcomeRecorder
from headgate.engine.reporter import Reporter
from headgate.engine.resource_pool import ResourcePool
from headgate.engine.services import Services
from headgate.engine.slots import Slots
from headgate.engine.store_completion import StoreCompletion
from headgate.engine.store_results import StoreResults
from headgate.jobs.event import AttemptLingers, JobStarted
from headgate.jobs.job import ClaimedJob
from headgate.jobs.lifecycle import Outcome
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.hooks import HookScope
from headgate.tasks.tracing import Tracing

MakeAttempt = Callable[[ClaimedJob, TaskDefinition, AttemptCharge | None, AttemptDependencies], RunningAttempt]


class RunningAttempts:
    """The attempts that run on this node, each in a slot of its queue.

    A slot is free when nothing of its attempt runs any more: a thread cannot be stopped, and keeps the slot after its
    attempt has ended. `started` counts all attempts. `on_concluded` is called when an attempt has ended, after its
    ending was queued.
    """

    def __init__(
        self,
        services: Services,
        slots: Slots,
        own_lease: OwnLease,
        charges: ChargeRouter,
        outcomes: OutcomeRecorder,
        reporter: Reporter,
        wakeup: ClaimWakeup,
        *,
        pool: Pool,
        children: ChildBounds,
        tracing: Tracing | None = None,
        large_payloads: LargePayloads | None = None,
        make_attempt: MakeAttempt = RunningAttempt,
        on_concluded: Callable[[RunningAttempt], None] | None = None,
    ) -> None:
        self._storage = services.storage
        self._registry = services.registry
        self._slots = slots
        self._own_lease = own_lease
        self._charges = charges
        self._outcomes = outcomes
        self._wakeup = wakeup
        self._pool = pool
        self._clock = services.clock
        self._bus = services.bus
        self._make_attempt = make_attempt
        self._on_concluded = on_concluded
        hooks = [hook for hook in services.registry.hooks.lifecycle if hook.scope is HookScope.CHILD]
        self._children = Children(hooks, children)
        self._resources = ResourcePool(services.clock, services.bus)
        self._dependencies = AttemptDependencies(
            services.clock,
            services.registry,
            pool,
            self._children,
            self._resources,
            services.callback_runner,
            reporter,
            StoreCompletion(services.storage),
            StoreResults(services.storage, services.registry.codecs, large_payloads),
            ChunkCalls(services.clock, pool, slots.most_in, self._move_late),
            self._decide_start,
            self._move_late,
            self._note_lingering,
            services.registry.hooks.around_attempt,
            tracing,
            large_payloads,
        )
        self._running: dict[str, RunningAttempt] = {}
        # Ended attempts that may hold permits and whose threads still run; their endings wait for the threads.
        self._waiting_for_thread: dict[RunningAttempt, asyncio.Task[Outcome]] = {}
        self._lingering: set[RunningAttempt] = set()
        self._is_leaving = False
        self._idle = asyncio.Event()
        self.started = 0

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

    def _decide_start(self, attempt: RunningAttempt) -> StartDecision:
        """Return whether the handler of a job with limits may be called now."""
        if not self._own_lease.holds(self._clock.monotonic()):
            return StartDecision.TOO_LATE
        moved_to = None if attempt.charge is None else attempt.charge.moved_to
        return decide_start(attempt.job, self._registry.rules, self._storage.limit_now(), moved_to)

    async def _move_late(self, attempts: Sequence[RunningAttempt]) -> None:
        """Move the charges of attempts that are about to start together, until none of them is late.

        The call must wait for the commit, which takes time as well. So from the second time on, the charges move to
        an instant ahead, twice as far as the commit took before, and this waits for that instant. An attempt that is
        not on time afterwards must not start.
        """
        ahead = 0
        for _ in range(MOVES):
            decisions = [
                (attempt.charge, self._decide_start(attempt))
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
        self._conclude(attempt, done)

    def _thread_ended(self, attempt: RunningAttempt, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled():
            # Its attempt has ended already; read the error, so that asyncio does not log it.
            ended.exception()
        done = self._waiting_for_thread.pop(attempt, None)
        if done is not None:
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
        if attempt.linger is not None:
            attempt.cancel_linger_timer()
            self._lingering.discard(attempt)
        if waiting := self._slots.release(attempt.job.queue):
            self._wakeup.wake(waiting)
        if not self._running:
            self._idle.set()

    def _conclude(self, attempt: RunningAttempt, done: asyncio.Task[Outcome]) -> None:
        if attempt.cause is not CancelledBy.DISOWNED:
            self._outcomes.record(attempt, attempt.outcome_of(done))
        if self._on_concluded is not None:
            self._on_concluded(attempt)

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

    def cancel(self, job_id: str, cause: CancelledBy) -> None:
        """Cancel the attempt of a job; no effect if the job does not run here."""
        attempt = self._running.get(job_id)
        if attempt is not None:
            attempt.cancel(cause)

    def cancel_all(self, cause: CancelledBy) -> None:
        """Cancel every attempt."""
        for attempt in list(self._running.values()):
            attempt.cancel(cause)

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
        self.cancel_all(CancelledBy.SHUTDOWN)
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
        self.cancel_all(CancelledBy.SHUTDOWN)
        # No child process may outlive its node.
        self._children.kill_all()
        await self._resources.close(seconds)
        if self._children.any_alive:
            await asyncio.get_running_loop().run_in_executor(None, self._children.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def statistics(self) -> dict[str, Any]:
        """Return the slots in use, the jobs that linger, the child processes and the open resources."""
        return {
            "busy": self._slots.busy,
            "lingering": self.lingering,
            "processes": self._children.statistics(),
            "resources": self._resources.statistics(),
        }
