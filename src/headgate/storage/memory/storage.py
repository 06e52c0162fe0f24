"""The verbs of the memory storage.

Each decides and writes synchronously, so no other coroutine ever sees half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest

from headgate.clock import Clock
from headgate.errors import IllegalTransition
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending, is_poisonous, require_transition
from headgate.limits.limit import AnyRule
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.claim import Claiming
from headgate.storage.memory.contradictions import contradictions
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, WAITING, Job
from headgate.storage.memory.jobs import Jobs
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.protocol import (
    Beat,
    BucketRecord,
    Claim,
    Claimed,
    Expired,
    JobFilter,
    LateStart,
    NodeRecord,
    QueueCounts,
    Recovered,
    poison_error,
)


class MemoryStorage:
    """The Storage protocol in plain objects: one process, one event loop, nothing durable."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()
        self._last_limit_time = 0
        self._lanes = Lanes()
        self._jobs = Jobs(self._lanes)
        self._nodes: dict[str, Node] = {}
        self._wakes: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of; what was stored can be read on."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._wakes.append(wake)

        def unwatch() -> None:
            if wake in self._wakes:
                self._wakes.remove(wake)

        return unwatch

    def limit_now(self) -> int:
        now = self._clock.monotonic() + self._ahead
        self._last_limit_time = max(self._last_limit_time, now)
        return self._last_limit_time

    async def add(self, jobs: Sequence[NewJob]) -> None:
        self._jobs.add(jobs, self.limit_now())
        self._wake()

    async def claim(self, claim: Claim) -> Claimed:
        node = self._nodes.get(claim.node)
        if node is None:
            # Its jobs would belong to nobody: a node that was declared dead has to join again.
            return Claimed(jobs=(), next_in=None)
        claiming = Claiming(self._lanes, self._jobs, node, claim, self._clock.now(), self.limit_now())
        claimed = claiming.run()
        if claiming.made_final:
            self._wake()
        return claimed

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool]:
        owner = self._nodes.get(node)
        if owner is None:
            return [False] * len(endings)
        wall, now = self._clock.now(), self.limit_now()
        written = [self._jobs.finish(owner, ending, wall, now) for ending in endings]
        self._wake()
        return written

    async def postpone(self, late: Sequence[LateStart], rules: Mapping[str, AnyRule]) -> None:
        for start in late:
            bucket = self._lanes.buckets.get(start.draw)
            if bucket is not None and bucket.state is not None:
                bucket.state = rules[start.draw.limit].amend(
                    bucket.state, start.charged_at, start.cost, start.started_at, start.cost
                )

    async def cancel(self, job_id: str) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        before = job.state
        if before is WAITING:
            self._jobs.stop_waiting(job, CANCELLED, self._clock.now(), error=job.error)
            self._wake()
        elif before is RUNNING:
            job.cancel_requested = True
            self._wake()
        return before

    async def retry(self, job_id: str) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        before = job.state
        if not before.is_final:
            raise IllegalTransition(f"job {job_id} is {before}; only a failed or cancelled job can be retried")
        require_transition(before, WAITING)
        job.lane.tally.count(before, -1)
        job.lane = self._lanes.lane(job.new.queue, job.new.draws)
        job.attempt = job.lost = 0
        job.run_at = self._clock.now()
        job.delayed = False
        job.finished_at = job.result = job.expires_at = None
        self._jobs.wait(job, self.limit_now())
        self._wake()
        return before

    async def job(self, job_id: str) -> JobRecord | None:
        job = self._jobs.by_id.get(job_id)
        return None if job is None else self._record(job)

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        found = (self._jobs.by_id.get(id) for id in job_ids)
        return [self._record(job) for job in found if job is not None and job.state.is_final]

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        job = self._jobs.by_id.get(job_id)
        return () if job is None or job.attempts is None else tuple(job.attempts)

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        page: list[JobRecord] = []
        for job in self._jobs.newest_first(filter.before):
            if len(page) >= filter.count:
                break
            if _passes(filter, job):
                page.append(self._record(job))
        return page

    async def counts(self) -> Sequence[QueueCounts]:
        tallies = ((name, queue.tally) for name, queue in sorted(self._lanes.queues.items()))
        return [
            QueueCounts(name, tally.waiting, tally.running, tally.succeeded, tally.failed, tally.cancelled)
            for name, tally in tallies
            if tally.has_jobs
        ]

    async def buckets(
        self, limit: str | None = None, key: str | None = None, count: int = 100
    ) -> Sequence[BucketRecord]:
        wanted = (
            bucket
            for bucket in self._lanes.buckets.values()
            if (limit is None or bucket.draw.limit == limit) and (key is None or bucket.draw.key == key)
        )
        most = nlargest(count, ((_waiting(bucket), -bucket.order, bucket) for bucket in wanted))
        return [
            BucketRecord(
                bucket.draw, None if bucket.state is None else bucket.rule.dump(bucket.state), waiting, bucket.opens_at
            )
            for waiting, _, bucket in most
        ]

    async def nodes(self) -> Sequence[NodeRecord]:
        return [node.record() for node in self._nodes.values()]

    async def join(self, node: str, name: str) -> None:
        wall = self._clock.now()
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = Node(node, name, wall)
        else:
            known.name, known.beat_at = name, wall
            known.beat += 1

    async def beat(self, node: str) -> Beat:
        known = self._nodes.get(node)
        if known is not None:
            known.beat += 1
            known.beat_at = self._clock.now()
        running = known.running if known is not None else {}
        return Beat(
            known=known is not None,
            nodes=await self.nodes(),
            owned={id: job.fence for id, job in running.items()},
            cancels=await self.cancels(node),
        )

    async def cancels(self, node: str) -> frozenset[str]:
        known = self._nodes.get(node)
        running = known.running if known is not None else {}
        return frozenset(id for id, job in running.items() if job.cancel_requested)

    async def leave(self, node: str) -> Recovered:
        gone = self._nodes.pop(node, None)
        if gone is None:
            return Recovered()
        wall, now = self._clock.now(), self.limit_now()
        returned: list[str] = []
        for job in gone.running.values():
            self._jobs.keep_attempt(job, "interrupted", None, wall)
            job.attempt -= 1
            if self._jobs.wait_or_cancel(job, wall, now):
                returned.append(job.id)
        self._wake()
        return Recovered(returned)

    async def recover(self, node: str, beat: int) -> Recovered | None:
        dead = self._nodes.get(node)
        if dead is None or dead.beat != beat:
            return None
        del self._nodes[node]
        wall, now = self._clock.now(), self.limit_now()
        returned: list[str] = []
        poisonous: list[str] = []
        for job in dead.running.values():
            self._jobs.keep_attempt(job, "lost", None, wall)
            job.lost += 1
            if is_poisonous(job.lost) and not job.cancel_requested:
                self._jobs.stop_running(job)
                self._jobs.end(job, FAILED, wall, error=poison_error(job.lost))
                poisonous.append(job.id)
            elif self._jobs.wait_or_cancel(job, wall, now):
                returned.append(job.id)
        self._wake()
        return Recovered(returned, poisonous)

    async def expire(self, count: int = 100) -> Sequence[Expired]:
        expired = self._jobs.expire(self._clock.now(), count)
        if expired:
            self._wake()
        return expired

    async def prune(self, finished_before: int, count: int = 1000) -> int:
        return self._jobs.prune(finished_before, count)

    async def evict(self, count: int = 1000) -> int:
        return self._lanes.evict(count, self.limit_now())

    async def check(self) -> Sequence[str]:
        return list(contradictions(self._jobs, self._lanes, self._nodes))

    def _record(self, job: Job[Lane]) -> JobRecord:
        new = job.new
        opens_at: int | None = None
        waits_for: Draw | None = None
        lane_waiting = 0
        if job.state is WAITING:
            lane = job.lane
            lane_waiting = lane.waiting
            now = self.limit_now()
            if lane.behind is not None and lane.behind.opens_at is not None and lane.behind.opens_at > now:
                opens_at = self._clock.now() + (lane.behind.opens_at - now)
                waits_for = lane.behind.draw
        return JobRecord(
            new.id,
            new.task,
            new.queue,
            job.state,
            new.payload,
            new.priority,
            job.delayed,
            job.run_at,
            new.enqueued_at,
            job.expires_at,
            job.attempt,
            job.fence,
            job.lost,
            job.node,
            job.started_at,
            job.finished_at,
            job.cancel_requested,
            job.result,
            job.error,
            new.draws,
            new.headers,
            new.options,
            opens_at,
            waits_for,
            lane_waiting,
        )

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()


def _passes(filter: JobFilter, job: Job[Lane]) -> bool:
    new = job.new
    return (
        (filter.state is None or job.state is filter.state)
        and (filter.queue is None or new.queue == filter.queue)
        and (filter.task is None or new.task == filter.task)
        and (
            (filter.limit is None and filter.key is None)
            or any(
                (filter.limit is None or draw.limit == filter.limit) and (filter.key is None or draw.key == filter.key)
                for draw in new.draws
            )
        )
    )


def _waiting(bucket: Bucket[Lane]) -> int:
    return sum(lane.waiting for waiters in bucket.waiters.values() for lane in waiters.line)
