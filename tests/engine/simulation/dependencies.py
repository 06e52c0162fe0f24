"""Chains and batches: nothing starts before what it follows has ended, and one batch at a time holds a mutex."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headgate import Headgate, JobState, Mutex, StrictRate, batch, chain
from headgate.client.flow import BatchPlan, ChainPlan
from headgate.client.handles import Batch, Chain, Job
from headgate.client.plan import Step
from headgate.clock import to_datetime
from headgate.errors import StorageUnavailable
from headgate.jobs.job import ClaimedJob, JobRecord
from headgate.storage.endings import EXPIRED_ERROR, LEADER_NOT_SUCCEEDED, REJECTED
from tests.engine.simulation.job_checker import Change, JobChecker

if TYPE_CHECKING:
    from tests.engine.simulation.cluster_simulation import ClusterSimulation

MUTEX = "tied:{key}"
TIED = ("step", "tied", "choosy")
CHOOSY = (
    StrictRate("3/20s", key="{key}", on_limit="cancel", margin=0),
    StrictRate("3/20s", key="{key}", max_wait=5, margin=0),
)


class Dependencies:
    """What is enqueued together, and who holds the mutexes of batches, as the store has it."""

    def __init__(self, simulation: ClusterSimulation, job_checker: JobChecker) -> None:
        self._simulation = simulation
        self._job_checker = job_checker
        self.choosy = simulation.random.choice(CHOOSY)
        self._stored: list[Chain[Any] | Batch] = []
        self._holders: dict[str, str] = {}

    def declare(self, app: Headgate, node: str) -> None:
        async def step(key: str, length: float, fails: bool) -> None:
            await self._simulation.work(node, length, fails)
            if fails and self._simulation.random.random() < 0.8:
                raise ValueError("as planned")

        app.task(name="step")(step)
        app.task(name="tied", limits=[Mutex(MUTEX, hold=self._simulation.hold)])(step)
        app.task(name="choosy", limits=[self.choosy])(step)

    async def act(self) -> None:
        random = self._simulation.random
        what = random.random()
        if what < 0.2 and self._stored:
            await self._cancel()
        elif what < 0.35:
            task = self._simulation.producer.tasks["tied"]
            with contextlib.suppress(StorageUnavailable):
                job = await task.enqueue(random.choice("pq"), random.choice((0.0, 1.0, 4.0)), random.random() < 0.2)
                self._simulation.acknowledged.add(job.id)
        else:
            await self._enqueue()

    async def _enqueue(self) -> None:
        is_chain = self._simulation.random.random() < 0.5
        try:
            stored = await (self._chain(2) if is_chain else self._batch(2)).enqueue()
        except StorageUnavailable:
            return
        self._stored.append(stored)
        self._simulation.acknowledged |= {job.id for job in stored.jobs}

    async def _cancel(self) -> None:
        stored = self._simulation.random.choice(self._stored)
        jobs = job_ids_of(stored)
        with contextlib.suppress(StorageUnavailable):
            if self._simulation.random.random() < 0.5:
                self._simulation.cancelled |= jobs
                await stored.cancel()
            else:
                job = self._simulation.random.choice(stored.jobs)
                self._simulation.cancelled.add(job.id)
                await job.cancel()

    def _call(self, key: str, name: str | None = None) -> Step:
        random = self._simulation.random
        task = self._simulation.producer.tasks[name or random.choice(("step", "step", "step", "choosy"))]
        if random.random() < 0.1:
            task = task.using(
                expires_at=to_datetime(self._simulation.store.now()) + timedelta(seconds=random.uniform(1, 40))
            )
        return task.call(key, random.choice((0.0, 0.1, 1.0, 4.0)), random.random() < 0.15)

    def _chain(self, depth: int) -> ChainPlan[Any]:
        return chain(*(self._step(depth - 1) for _ in range(self._simulation.random.randint(1, 3))))

    def _batch(self, depth: int) -> BatchPlan:
        random = self._simulation.random
        key = random.choice("pq")
        held = random.random() < 0.5
        calls: list[Step] = []
        for _ in range(random.randint(1, 4)):
            one = self._call(key, "tied" if held and random.random() < 0.3 else None)
            calls.append(chain(one, self._call(key)) if random.random() < 0.3 else one)
        plan = batch(calls, limits=[Mutex(MUTEX)] if held else ())
        if random.random() < 0.6:
            plan = plan.then(self._step(depth - 1), on=random.choice(("success", "final")))
        return plan

    def _step(self, depth: int) -> Step:
        kind = self._simulation.random.random()
        if depth <= 0 or kind < 0.5:
            return self._call("p")
        return self._chain(depth) if kind < 0.7 else self._batch(depth)

    # ------------------------------------------------------------------------------------- what must hold

    async def look(self, change: Change) -> None:
        if not self._job_checker.is_exact:
            return
        for job in self._job_checker.open:
            if job.is_blocked and job.id not in self._job_checker.changed:
                self._look_at_follower(job, change)
        # A retry must restore the cancelled followers.
        for id in sorted(self._job_checker.jobs if change.verb == "retry" else self._job_checker.changed):
            self._look_at_follower(self._job_checker.jobs[id], change)
        self._look_at_batches()
        # A claim may reject the last job of a batch, and give the mutex to the next one.
        self._let_go()
        if change.verb == "claim":
            for claimed in change.result.jobs:
                self._look_at_start(claimed)

    def _look_at_follower(self, job: JobRecord, change: Change) -> None:
        """It is let go or cancelled in the commit that ends its leader, and once."""
        require = self._job_checker.require
        if job.origin is None or job.origin.follows is None:
            require(not job.is_blocked, f"job {job.id} is blocked by nothing")
            return
        leader, on, before = job.origin.follows, job.origin.on, change.before.get(job.id)
        ended = self._job_checker.end_of(leader)
        said = (
            f"after {change.verb}, job {job.id} is {job.state}{' and blocked' * job.is_blocked}, and follows {leader}"
        )
        if job.is_blocked:
            require(ended is None, f"{said}, which {ended}")
            require(before is None or before.is_blocked or change.verb == "retry", f"{said} again")
        elif is_left_behind(job):
            require(on == "success" and ended in (JobState.FAILED, JobState.CANCELLED), f"{said}, on {on}: {ended}")
            require(job.attempt == 0 and job.fence == 0, f"{said}, and ran")
        elif job.state is JobState.SKIPPED:
            unneeded = (JobState.SKIPPED,) if on == "success" else (JobState.SUCCEEDED, JobState.SKIPPED)
            require(on != "final" and ended in unneeded, f"{said}, on {on}: {ended}")
            require(job.attempt == 0 and job.fence == 0, f"{said}, and ran")
        elif job.state is JobState.CANCELLED or has_expired(job):
            # A waiting job may be cancelled or expire, also while it is blocked.
            pass
        elif on == "success":
            # Not even an operator's retry lets it run otherwise.
            require(ended is JobState.SUCCEEDED, f"{said}, which is {ended}")
        elif before is None or before.is_blocked:
            require(ended is not None, f"{said}, which has not ended")
        else:
            # Its leader may have been retried since.
            require(leader in self._job_checker.ended, f"{said}, which never ended")

    def _look_at_batches(self) -> None:
        pending = Counter(job.origin.batch for job in self._job_checker.open if job.origin is not None)
        for id, record in self._job_checker.batches.items():
            is_right = record.total == 0 or record.pending == pending[id]
            self._job_checker.require(is_right, f"{record} has {pending[id]} jobs that are not final")

    def _look_at_start(self, claimed: ClaimedJob) -> None:
        new = self._simulation.history.stored.get(claimed.id)
        for index, ref in enumerate(() if new is None else new.buckets):
            if new is None or ref.limit != "mutex" or not ref.key.startswith("tied:"):
                continue
            of_batch = new.terms is not None and new.terms.of_batch >> index & 1
            holder = new.origin.batch if of_batch and new.origin is not None and new.origin.batch else new.id
            before = self._holders.get(ref.key, holder)
            self._job_checker.require(before == holder, f"{holder} starts on {ref.key} while {before} holds it")
            self._holders[ref.key] = holder

    def _let_go(self) -> None:
        for key, holder in list(self._holders.items()):
            if holder in self._job_checker.batches:
                is_over = self._job_checker.end_of(holder) is not None
            else:
                job = self._job_checker.jobs[holder]
                is_over = job.state.is_final or (
                    self._simulation.hold == "running" and job.state is not JobState.RUNNING
                )
            if is_over:
                del self._holders[key]

    async def check(self) -> None:
        jobs = self._job_checker.jobs
        for id in self._job_checker.batches:
            found = await self._job_checker.store.batch(id)
            assert found is not None, f"batch {id} is gone"
            counts = Counter(job.state for job in jobs.values() if job.origin is not None and job.origin.batch == id)
            counted = {
                JobState.SUCCEEDED: found.succeeded,
                JobState.FAILED: found.failed,
                JobState.CANCELLED: found.cancelled,
                JobState.SKIPPED: found.skipped,
            }
            assert +Counter(counted) == counts, f"{found} counts otherwise than its jobs are: {counts}"
            assert found.total == counts.total(), f"{found} has other jobs: {counts}"
        for job in jobs.values():
            self._check_end(job)

    def _check_end(self, job: JobRecord) -> None:
        assert not job.is_blocked, f"job {job.id} is left blocked"
        if job.task in TIED and job.state is JobState.CANCELLED and not is_left_behind(job):
            is_cancelled = job.id in self._simulation.cancelled
            assert is_cancelled or is_rejected(job), f"nobody cancelled job {job.id}"
        if job.origin is None or job.origin.follows is None:
            assert not is_left_behind(job), f"job {job.id} was left behind by nothing"
            return
        ended = self._job_checker.end_of(job.origin.follows)
        is_bad = job.origin.on == "success" and ended is not JobState.SUCCEEDED
        if is_bad:
            if job.id in self._simulation.retried:
                return
            is_right = job.state in (JobState.CANCELLED, JobState.SKIPPED) or has_expired(job)
            assert is_right, f"job {job.id} is {job.state}; what it follows {ended}"
            assert not any(id == job.id for _, id, _, _ in self._simulation.history.starts), f"job {job.id} has run"
        elif is_left_behind(job):
            raise AssertionError(f"job {job.id} was left behind by {job.origin}, which {ended}")


def job_ids_of(stored: Chain[Any] | Batch | Job[Any]) -> set[str]:
    """Its jobs, and those of the steps after it: what a cancellation reaches."""
    if isinstance(stored, Job):
        return {stored.id}
    after = stored.then if isinstance(stored, Batch) else (stored.last,)
    return {job.id for job in stored.jobs}.union(*map(job_ids_of, after))


def is_left_behind(job: JobRecord) -> bool:
    """Whether it was cancelled because of how its leader ended."""
    return job.state is JobState.CANCELLED and job.error is not None and job.error.type == LEADER_NOT_SUCCEEDED


def has_expired(job: JobRecord) -> bool:
    """Whether it failed without having run: too late, or kept waiting by its limits for too long."""
    return job.state is JobState.FAILED and job.error is not None and job.error.type in (EXPIRED_ERROR.type, REJECTED)


def is_rejected(job: JobRecord) -> bool:
    """Whether it was cancelled by its limits, which it does not wait for."""
    return job.task == "choosy" and job.error is not None and job.error.type == REJECTED
