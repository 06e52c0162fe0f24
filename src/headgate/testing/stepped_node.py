"""A node that runs only when called: it runs what is due, one job after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from msgspec.structs import replace as replaced

from headgate.engine.attempt import AttemptDependencies, RunningAttempt
from headgate.engine.bus import INSIDE
from headgate.engine.charge import AttemptCharge
from headgate.engine.node import Node, NodeConfig
from headgate.engine.services import Services
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import Outcome
from headgate.storage.records import Claimed, FreeSlots
from headgate.tasks.alert import DeclaredAlert
from headgate.tasks.chunk import Chunk
from headgate.tasks.context import JobContext
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.executor_kind import Executor
from headgate.tasks.hooks import LifecycleHook
from headgate.tasks.registry import Registry


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One attempt that was run: its job, and the state it left the job in.

    `state` is waiting if the job will be retried, or was snoozed. `error` is the exception object that the handler
    raised, also for a snooze; None if it returned.
    """

    job_id: str
    task: str
    attempt: int
    state: JobState
    error: BaseException | None = None


class NextEvent(NamedTuple):
    """The instants of the next start and the next due occurrence (wall microseconds); None: never."""

    job_at: int | None
    occurrence_at: int | None


class KeptAttempt(RunningAttempt):
    """An attempt that keeps its handler's exception."""

    __slots__ = ("kept",)

    def __init__(
        self, job: ClaimedJob, task: TaskDefinition, charge: AttemptCharge | None, dependencies: AttemptDependencies
    ) -> None:
        super().__init__(job, in_this_process(task), charge, dependencies)
        self.kept: BaseException | None = None

    @property
    def context(self) -> JobContext:
        """The context of the job, also with those limits that its store has left out."""
        context = super().context
        left_out = getattr(self._dependencies.storage, "left_out", {})
        context._job = replaced(context._job, buckets=left_out.get(self.job.id, self.job.buckets))
        return context

    def outcome_of(self, done: asyncio.Task[Outcome]) -> Outcome:
        outcome = super().outcome_of(done)
        self.kept = self.error
        return outcome


class NodeInTest(Node):
    """A node whose jobs stay in this process: a child would import the app anew, with the store of production."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, make_attempt=KeptAttempt, **kwargs)

    def _hooks_to_call(self, registry: Registry) -> list[LifecycleHook]:
        """Return also those of child processes, each function once: process tasks run here."""
        return list({(hook.moment, hook.function): hook for hook in registry.hooks.lifecycle}.values())

    def _alerts_to_watch(self, registry: Registry) -> Mapping[str, DeclaredAlert]:
        """Return none: a test must not wake anybody up."""
        return {}


def in_this_process(task: TaskDefinition) -> TaskDefinition:
    """Return the task; one for a child process runs in a thread instead, and one for chunks gets one job at a time."""
    if task.executor is not Executor.PROCESS and task.chunk is None:
        return task
    task = copy(task)
    if task.executor is Executor.PROCESS:
        task.executor = Executor.THREAD
    task.chunk = task.chunk and Chunk(1, 0)
    return task


class SteppedNode(NodeInTest):
    """Claims, runs and records as every node does, but only inside of `at_work()` and when it is called.

    It runs claimed jobs one after the other, so a rerun of a test does the same again.
    """

    def __init__(self, services: Services, config: NodeConfig, *, latest: dict[str, RunAttempt], **kwargs: Any) -> None:
        super().__init__(services, config, on_concluded=self._on_concluded, **kwargs)
        self.performed: list[RunAttempt] = []
        # A test may enqueue in several threads, each with its own event loop.
        self.recorded: dict[str, Future[None]] = {}
        self._latest = latest
        self._endings: dict[str, asyncio.Future[KeptAttempt]] = {}

    @contextlib.asynccontextmanager
    async def at_work(self, *, with_hooks: bool) -> AsyncIterator[Self]:
        """Register the node in the store; at the end all callbacks and subscribers have been called.

        `with_hooks`: whether to call the startup and shutdown functions.
        """
        try:
            if with_hooks:
                await self.hooks.start(asyncio.Event())
            async with self._at_work():
                yield self
        finally:
            await self.hooks.end(5.0, asyncio.Event())

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        loop, outside = asyncio.get_running_loop(), INSIDE.get()
        INSIDE.set(loop)
        if self._config.log_lines:
            self._capture.start()
        # No lease guard: a test lets hours pass at once, without heartbeats.
        await self.lease.join()
        background = [
            loop.create_task(self.recorder.run(), name="headgate-recorder"),
            loop.create_task(self._reporter.run(), name="headgate-reporter"),
        ]
        try:
            yield
        finally:
            INSIDE.set(outside)
            self.attempts.cancel_all()
            if self._endings:
                await asyncio.wait(self._endings.values())
            await self.recorder.flush(10.0)
            for each in background:
                each.cancel()
            await asyncio.wait(background)
            self._capture.stop()
            await self.attempts.close(5.0)
            await self._storage.leave(self.id)
            await self._callback_runner.close(5.0)
            # Inside of a subscriber, or of a job that one waits for, this would wait for its own end.
            if outside is not loop:
                await self._bus.drain()

    async def run_due(self) -> NextEvent:
        """Run all that is due now, and what follows from it; return when more will be due."""
        while True:
            scheduled_at = await self.recurring.fire_now()
            self._publish_dropped(await self._storage.expire())
            await self._callback_runner.drain(10.0)  # What they enqueue runs as well.
            claims = [await self._claim_one(queue, free) for queue, free in self._slots.free_slots().items()]
            if not any(claimed.jobs or claimed.more or claimed.dropped for claimed in claims):
                break
        waits = [claimed.next_in for claimed in claims if claimed.next_in is not None]
        opens_at = self._storage.now() + max(1, min(waits)) if waits else None
        return NextEvent(opens_at, scheduled_at)

    async def _claim_one(self, queue: str, free: FreeSlots) -> Claimed:
        """Run the next job of a queue, if one is due. One at a time, so that it holds no job that does not run."""
        claim = self._claims.claim_for({queue: replaced(free, slots=1)})
        claimed = await self._storage.claim(claim)
        if claimed.limit_set_mismatches and not claimed.jobs:
            self._backlog_migrator.add_met(claimed.limit_set_mismatches)
            await self._backlog_migrator.move_met()
            claimed = await self._storage.claim(claim)
        self._publish_dropped(claimed.dropped)
        self._notices.publish_throttled(claimed.throttled)
        self._slots.note_claimed(claim.free_slots, {queue: len(claimed.jobs)})
        for job in claimed.jobs:
            await self.perform(job)
        return claimed

    async def perform(self, job: ClaimedJob) -> KeptAttempt:
        """Run one claimed job, and record its outcome."""
        ending = self._endings[job.id] = asyncio.get_running_loop().create_future()
        recorded = self.recorded[job.id] = Future()
        if not self.lease.holds:
            await self.lease.renew_until_held()
        self.attempts.start(job)
        try:
            attempt: KeptAttempt = await asyncio.shield(ending)
            await self.recorder.flush(10.0)
            record = await self._storage.job(job.id)
            assert record is not None
            performed = self._latest[job.id] = RunAttempt(job.id, job.task, job.attempt, record.state, attempt.kept)
            self.performed.append(performed)
        finally:
            if ending.done():
                del self._endings[job.id]
            del self.recorded[job.id]
            recorded.cancel()
        return attempt

    def _on_concluded(self, attempt: RunningAttempt) -> None:
        assert isinstance(attempt, KeptAttempt)
        ending = self._endings[attempt.job.id]
        if not ending.done():
            ending.set_result(attempt)
