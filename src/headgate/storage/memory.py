"""Keeps jobs in this process: nothing survives it. The storage of `memory://`, and what tests run on.

Every verb decides and writes synchronously, so no other coroutine ever sees half of one. A lane holds its jobs in
order, a bucket the lanes behind it, a group the lanes and buckets that one look of a claim concerns. Whatever leaves
one of these orders early (a cancelled job, a lane that moved) stays in it as a stale entry, recognised and dropped
when it is met; so no verb ever searches, and what waits costs nothing.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, nlargest
from typing import Any, Generic, Protocol, TypeVar

from headgate.clock import Clock
from headgate.errors import IllegalTransition
from headgate.jobs.job import Attempt, ClaimedJob, Draw, JobError, JobRecord, JobState, NewJob, truncated_error
from headgate.jobs.lifecycle import Ending, Finished, Returned, is_poisonous, require_transition
from headgate.limits.limit import AnyRule
from headgate.storage.admission import TURN, BucketView, LaneView, admit, gated_share
from headgate.storage.protocol import (
    EXPIRED_ERROR,
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
    Throttled,
    poison_error,
)

EXPIRED_A_VISIT = 100
"""How many expired jobs of one lane a claim fails before it leaves the rest for the next one."""

WAITING = JobState.WAITING
RUNNING = JobState.RUNNING
SUCCEEDED = JobState.SUCCEEDED
FAILED = JobState.FAILED
CANCELLED = JobState.CANCELLED


class MemoryStorage:
    """The Storage protocol in plain objects: one process, one event loop, nothing durable."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()
        self._last_limit_time = 0
        self._ticks = 0
        self._jobs: dict[str, _Job] = {}
        self._ids: list[str] = []
        self._arrivals = 0
        self._queues: dict[str, _Queue] = {}
        self._buckets: dict[Draw, _Bucket] = {}
        self._nodes: dict[str, _Node] = {}
        self._wakes: list[Callable[[], None]] = []
        # What was set aside because the claiming node did not know its task.
        self._aside: dict[str, set[_Lane]] = {}
        self._finals: list[tuple[int, int, _Job]] = []
        self._expiries: list[tuple[int, int, _Job]] = []
        self._expiries_limit = 64
        self._empty_lanes: deque[_Lane] = deque()
        self._idle_buckets: list[tuple[int, int, _Bucket]] = []

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
        self._add(jobs)
        self._wake()

    async def claim(self, claim: Claim) -> Claimed:
        node = self._nodes.get(claim.node)
        if node is None:
            # Its jobs would belong to nobody: a node that was declared dead has to join again.
            return Claimed(jobs=(), next_in=None)
        claiming = _Claiming(self, node, claim)
        claimed = claiming.run()
        if claiming.made_final:
            self._wake()
        return claimed

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool]:
        owner = self._nodes.get(node)
        if owner is None:
            return [False] * len(endings)
        wall = self._clock.now()
        written = [self._finish(owner, ending, wall) for ending in endings]
        self._wake()
        return written

    async def postpone(self, late: Sequence[LateStart], rules: Mapping[str, AnyRule]) -> None:
        for start in late:
            bucket = self._buckets.get(start.draw)
            if bucket is not None and bucket.state is not None:
                bucket.state = rules[start.draw.limit].postpone(
                    bucket.state, start.charged_at, start.started_at, start.cost
                )

    async def cancel(self, job_id: str) -> JobState | None:
        job = self._jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        if before is WAITING:
            self._stop_waiting(job, CANCELLED, self._clock.now(), error=job.error)
            self._wake()
        elif before is RUNNING:
            job.cancel_requested = True
            self._wake()
        return before

    async def retry(self, job_id: str) -> JobState | None:
        job = self._jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        if not before.is_final:
            raise IllegalTransition(f"job {job_id} is {before}; only a failed or cancelled job can be retried")
        require_transition(before, WAITING)
        job.lane.home.count(before, -1)
        job.lane = self._lane(job.new.queue, job.new.draws)
        job.attempt = job.lost = 0
        job.run_at = self._clock.now()
        job.delayed = False
        job.finished_at = job.result = job.expires_at = None
        self._wait(job)
        self._wake()
        return before

    async def job(self, job_id: str) -> JobRecord | None:
        job = self._jobs.get(job_id)
        return None if job is None else self._record(job)

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        found = (self._jobs.get(id) for id in job_ids)
        return [self._record(job) for job in found if job is not None and job.state.is_final]

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        job = self._jobs.get(job_id)
        return () if job is None or job.attempts is None else tuple(job.attempts)

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        page: list[JobRecord] = []
        for job in self._newest_first(filter.before):
            if len(page) >= filter.count:
                break
            if _passes(filter, job):
                page.append(self._record(job))
        return page

    async def counts(self) -> Sequence[QueueCounts]:
        counts = (
            QueueCounts(queue.name, queue.waiting, queue.running, queue.succeeded, queue.failed, queue.cancelled)
            for _, queue in sorted(self._queues.items())
        )
        return [count for count in counts if any((count.waiting, count.running, *_finals(count)))]

    async def buckets(
        self, limit: str | None = None, key: str | None = None, count: int = 100
    ) -> Sequence[BucketRecord]:
        wanted = (
            bucket
            for bucket in self._buckets.values()
            if (limit is None or bucket.draw.limit == limit) and (key is None or bucket.draw.key == key)
        )
        most = nlargest(count, ((bucket.waiting, -bucket.order, bucket) for bucket in wanted))
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
            self._nodes[node] = _Node(node, name, wall)
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
        wall = self._clock.now()
        returned: list[str] = []
        for job in gone.running.values():
            self._keep_attempt(job, "interrupted", None, wall)
            job.attempt -= 1
            if self._wait_or_cancel(job, wall):
                returned.append(job.id)
        self._wake()
        return Recovered(returned)

    async def recover(self, node: str, beat: int) -> Recovered | None:
        dead = self._nodes.get(node)
        if dead is None or dead.beat != beat:
            return None
        del self._nodes[node]
        wall = self._clock.now()
        returned: list[str] = []
        poisonous: list[str] = []
        for job in dead.running.values():
            self._keep_attempt(job, "lost", None, wall)
            job.lost += 1
            if is_poisonous(job.lost) and not job.cancel_requested:
                self._stop_running(job)
                self._end(job, FAILED, wall, error=poison_error(job.lost))
                poisonous.append(job.id)
            elif self._wait_or_cancel(job, wall):
                returned.append(job.id)
        self._wake()
        return Recovered(returned, poisonous)

    async def expire(self, count: int = 100) -> Sequence[Expired]:
        wall = self._clock.now()
        expired: list[Expired] = []
        while len(expired) < count and self._expiries and self._expiries[0][0] <= wall:
            expires_at, _, job = heappop(self._expiries)
            if job.state is WAITING and job.expires_at == expires_at:
                self._stop_waiting(job, FAILED, wall, error=EXPIRED_ERROR)
                expired.append(Expired(job.id, job.new.task, job.new.queue))
        if expired:
            self._wake()
        return expired

    async def prune(self, finished_before: int, count: int = 1000) -> int:
        deleted = 0
        while deleted < count and self._finals and self._finals[0][0] < finished_before:
            finished_at, _, job = heappop(self._finals)
            if job.finished_at == finished_at and self._jobs.get(job.id) is job:
                del self._jobs[job.id]
                job.lane.home.count(job.state, -1)
                deleted += 1
        if len(self._ids) > 2 * len(self._jobs) + 64:
            self._ids = [id for id in self._ids if id in self._jobs]
        return deleted

    async def evict(self, count: int = 1000) -> int:
        forgotten = 0
        for _ in range(len(self._empty_lanes)):
            if forgotten >= count:
                return forgotten
            lane = self._empty_lanes.popleft()
            if lane.waiting:
                lane.is_listed = False
            elif lane.running:
                self._empty_lanes.append(lane)
            else:
                self._forget_lane(lane)
                forgotten += 1
        now = self.limit_now()
        while forgotten < count and self._idle_buckets and self._idle_buckets[0][0] <= now:
            _, _, bucket = heappop(self._idle_buckets)
            bucket.is_listed = False
            if bucket.lanes:
                continue
            if bucket.idle_at > now:
                self._list_idle(bucket)
            else:
                del self._buckets[bucket.draw]
                forgotten += 1
        return forgotten

    async def check(self) -> Sequence[str]:
        return list(self._contradictions())

    # ------------------------------------------------------------------------------------------------ jobs

    def _add(self, jobs: Sequence[NewJob]) -> None:
        stored = self._jobs
        ids = self._ids
        lane: _Lane | None = None
        now = self.limit_now()
        for new in jobs:
            id = new.id
            if id in stored:
                continue
            if lane is None or new.draws != lane.draws or new.queue != lane.queue:
                lane = self._lane(new.queue, new.draws)
            self._arrivals += 1
            stored[id] = job = _Job(new, self._arrivals, lane)
            if ids and id < ids[-1]:
                insort(ids, id)
            else:
                ids.append(id)
            lane.waiting += 1
            lane.home.waiting += 1
            band = lane.first_band
            if band.priority == new.priority and not new.delayed and (new.run_at >= band.last_run_at or not band.fifo):
                band.fifo.append(job)
                band.last_run_at = new.run_at
            else:
                lane.place(job)
            if not lane.is_awake:
                self._arm(lane, job, now)
            if new.expires_at is not None:
                self._watch_expiry(job)

    def _wait(self, job: _Job) -> None:
        """Put a job that was running or final into its lane again."""
        job.state = WAITING
        job.node = None
        job.cancel_requested = False
        lane = job.lane
        lane.waiting += 1
        lane.home.waiting += 1
        lane.place(job)
        if not lane.is_awake:
            self._arm(lane, job, self.limit_now())
        if job.expires_at is not None:
            self._watch_expiry(job)

    def _stop_waiting(self, job: _Job, state: JobState, wall: int, error: JobError | None) -> None:
        """End a waiting job other than by a claim."""
        lane = job.lane
        self._end(job, state, wall, error)
        lane.waiting -= 1
        lane.home.waiting -= 1
        lane.stale += 1
        # Its entry must not look fresh again when the job is retried.
        job.version += 1
        if not lane.waiting:
            self._empty(lane)
        elif lane.wakes_at is not None and job.run_at <= lane.wakes_at:
            self._sleep(lane)
        if lane.stale > lane.waiting + 64:
            lane.drop_stale()

    def _finish(self, node: _Node, ending: Ending, wall: int) -> bool:
        job = self._jobs.get(ending.id)
        if job is None or job.state is not RUNNING or job.node != node.id or job.fence != ending.fence:
            return False
        del node.running[ending.id]
        if isinstance(ending, Finished):
            state = ending.state
            if state is not SUCCEEDED:
                self._keep_attempt(job, state.value, ending.error, wall)
            job.result = ending.result
            lane = job.lane
            lane.running -= 1
            lane.home.running -= 1
            self._end(job, state, wall, ending.error)
        else:
            self._hand_back(job, ending, wall)
        return True

    def _hand_back(self, job: _Job, ending: Returned, wall: int) -> None:
        self._keep_attempt(job, ending.outcome, ending.error, wall)
        if not ending.spent:
            job.attempt -= 1
        if ending.run_at is not None:
            job.run_at = ending.run_at
            job.delayed = True
        if ending.error is not None:
            job.error = ending.error
        if ending.closed_for is not None:
            until = self.limit_now() + ending.closed_for
            for bucket in job.lane.own_buckets:
                bucket.closed_until = max(bucket.closed_until, until)
        self._wait_or_cancel(job, wall)

    def _wait_or_cancel(self, job: _Job, wall: int) -> bool:
        """Whether the job, which was running, waits again; False if its cancellation had been asked for."""
        self._stop_running(job)
        if job.cancel_requested:
            self._end(job, CANCELLED, wall, error=job.error)
            return False
        self._wait(job)
        return True

    def _stop_running(self, job: _Job) -> None:
        job.lane.running -= 1
        job.lane.home.running -= 1

    def _end(self, job: _Job, state: JobState, wall: int, error: JobError | None) -> None:
        job.state = state
        job.error = error
        job.finished_at = wall
        home = job.lane.home
        job.lane = home.open
        if state is SUCCEEDED:
            home.succeeded += 1
        else:
            home.count(state, 1)
        self._ticks += 1
        heappush(self._finals, (wall, self._ticks, job))

    def _keep_attempt(self, job: _Job, outcome: str, error: JobError | None, wall: int) -> None:
        if job.attempts is None:
            job.attempts = []
        job.attempts.append(Attempt(job.attempt, job.node, job.started_at or wall, wall, outcome, error))

    def _watch_expiry(self, job: _Job) -> None:
        assert job.expires_at is not None
        self._ticks += 1
        heappush(self._expiries, (job.expires_at, self._ticks, job))
        if len(self._expiries) > self._expiries_limit:
            # Jobs that ended long before they would have expired must not be kept for it.
            self._expiries = [entry for entry in self._expiries if not entry[2].state.is_final]
            heapify(self._expiries)
            self._expiries_limit = max(64, 2 * len(self._expiries))

    def _newest_first(self, before: str | None) -> Iterator[_Job]:
        end = len(self._ids) if before is None else bisect_left(self._ids, before)
        for position in range(end - 1, -1, -1):
            job = self._jobs.get(self._ids[position])
            if job is not None:
                yield job

    def _record(self, job: _Job) -> JobRecord:
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

    # --------------------------------------------------------------------------------------- lanes, buckets

    def _lane(self, queue_name: str, draws: tuple[Draw, ...]) -> _Lane:
        queue = self._queues.get(queue_name)
        if queue is None:
            queue = self._queues[queue_name] = _Queue(queue_name)
        lane = queue.lanes.get(draws)
        if lane is None:
            limits = tuple(draw.limit for draw in draws)
            group = queue.groups.get(limits)
            if group is None:
                group = queue.groups[limits] = _Group(queue_name, limits)
            buckets = [self._bucket(draw) for draw in draws]
            for bucket in buckets:
                bucket.lanes += 1
            lane = queue.lanes[draws] = _Lane(queue, group, draws, buckets)
        return lane

    def _bucket(self, draw: Draw) -> _Bucket:
        bucket = self._buckets.get(draw)
        if bucket is None:
            self._ticks += 1
            bucket = self._buckets[draw] = _Bucket(draw, self._ticks)
        return bucket

    def _tick(self, item: _Movable) -> int:
        """Make all entries of a lane or wait list stale; the next one carries the new tick."""
        self._ticks = item.tick = self._ticks + 1
        return self._ticks

    def _arm(self, lane: _Lane, job: _Job, now: int) -> None:
        """A job came into a lane that was empty or asleep."""
        if not job.delayed:
            self._make_due(lane, now)
        elif lane.wakes_at is None or job.run_at < lane.wakes_at:
            lane.wakes_at = job.run_at
            lane.group.asleep.push(job.run_at, self._tick(lane), lane)

    def _make_due(self, lane: _Lane, since: int) -> None:
        lane.is_awake = True
        lane.wakes_at = None
        lane.since = since
        lane.group.due.push(since, self._tick(lane), lane)

    def _sleep(self, lane: _Lane) -> None:
        """The lane has no ready job: it waits for its earliest delayed one, if it has any."""
        lane.is_awake = False
        lane.wakes_at = lane.earliest()
        tick = self._tick(lane)
        if lane.wakes_at is not None:
            lane.group.asleep.push(lane.wakes_at, tick, lane)

    def _empty(self, lane: _Lane) -> None:
        lane.clear()
        if lane.is_open:
            return
        self._leave_bucket(lane)
        self._tick(lane)
        lane.is_awake = False
        lane.wakes_at = None
        if not lane.is_listed:
            lane.is_listed = True
            self._empty_lanes.append(lane)

    def _wait_behind(self, lane: _Lane, bucket: _Bucket) -> None:
        lane.is_awake = True
        lane.wakes_at = None
        lane.behind = bucket
        waiters = bucket.waiters.get(lane.group)
        if waiters is None:
            waiters = bucket.waiters[lane.group] = _Waiters(bucket)
        waiters.count += 1
        waiters.line.push(lane.since, self._tick(lane), lane)

    def _leave_bucket(self, lane: _Lane) -> None:
        bucket = lane.behind
        if bucket is None:
            return
        assert isinstance(bucket, _Bucket)
        lane.behind = None
        waiters = bucket.waiters[lane.group]
        waiters.count -= 1
        if not waiters.count:
            self._tick(waiters)
            del bucket.waiters[lane.group]
            if not bucket.waiters:
                bucket.opens_at = None

    def _set_timer(self, bucket: _Bucket, now: int) -> None:
        """Settle when a bucket opens for the lanes behind it, after a claim that moved some."""
        if not bucket.waiters:
            bucket.opens_at = None
            return
        bucket.opens_at = opens_at = bucket.reopens_at(now)
        for group, waiters in bucket.waiters.items():
            if waiters.opens_at != opens_at:
                waiters.opens_at = opens_at
                group.opening.push(opens_at, self._tick(waiters), waiters)

    def _forget_lane(self, lane: _Lane) -> None:
        del lane.home.lanes[lane.draws]
        for bucket in lane.own_buckets:
            bucket.lanes -= 1
            if not bucket.lanes and not bucket.is_listed:
                self._list_idle(bucket)

    def _list_idle(self, bucket: _Bucket) -> None:
        bucket.is_listed = True
        self._ticks += 1
        heappush(self._idle_buckets, (bucket.idle_at, self._ticks, bucket))

    # ----------------------------------------------------------------------------------------------- check

    def _contradictions(self) -> Iterator[str]:
        found: dict[str, dict[JobState, int]] = {name: dict.fromkeys(JobState, 0) for name in self._queues}
        waiting: dict[_Lane, int] = {}
        running: dict[_Lane, int] = {}
        for job in self._jobs.values():
            found[job.new.queue][job.state] += 1
            if not job.state.is_final:
                lane = job.lane
                if self._queues[job.new.queue].lanes.get(job.new.draws) is not lane:
                    yield f"job {job.id} is {job.state}, and its lane is gone"
                    continue
                counts = waiting if job.state is WAITING else running
                counts[lane] = counts.get(lane, 0) + 1
            if job.state is RUNNING:
                node = None if job.node is None else self._nodes.get(job.node)
                if node is None or node.running.get(job.id) is not job:
                    yield f"job {job.id} is running, and no node owns it"
            if job.state.is_final != (job.finished_at is not None):
                yield f"job {job.id} is {job.state}, and finished_at is {job.finished_at}"
        for node in self._nodes.values():
            for id, job in node.running.items():
                if job.state is not RUNNING or job.node != node.id:
                    yield f"node {node.id} owns job {id}, which is {job.state} on {job.node}"
        for queue in self._queues.values():
            for state, count in found[queue.name].items():
                if count != queue.number(state):
                    yield f"queue {queue.name} counts {queue.number(state)} {state} jobs and has {count}"
            for lane in queue.lanes.values():
                yield from self._lane_contradictions(lane, waiting.get(lane, 0), running.get(lane, 0))
        for bucket in self._buckets.values():
            yield from _bucket_contradictions(bucket)

    def _lane_contradictions(self, lane: _Lane, waiting: int, running: int) -> Iterator[str]:
        if lane.waiting != waiting:
            yield f"{lane} counts {lane.waiting} waiting jobs and has {waiting}"
        if lane.waiting != lane.held():
            yield f"{lane} counts {lane.waiting} waiting jobs and holds {lane.held()} in order"
        if lane.running != running:
            yield f"{lane} counts {lane.running} running jobs and has {running}"
        if lane.is_open:
            return
        for bucket in lane.own_buckets:
            if self._buckets.get(bucket.draw) is not bucket:
                yield f"{lane} draws on a bucket {bucket.draw} that was forgotten"
        if lane.behind is not None:
            assert isinstance(lane.behind, _Bucket)
            waiters = lane.behind.waiters.get(lane.group)
            is_listed = waiters is not None and lane in waiters.line
        elif lane.is_awake:
            is_listed = lane in lane.group.due
        elif lane.wakes_at is not None:
            is_listed = lane in lane.group.asleep
        else:
            is_listed = True
            if lane.has_fresh():
                yield f"{lane} has jobs, and nothing will look at them"
        if not is_listed:
            yield f"{lane} is in none of the lines that a claim looks at"
        if lane.wakes_at is not None and lane.wakes_at != lane.earliest():
            yield f"{lane} sleeps until {lane.wakes_at}; its earliest job is at {lane.earliest()}"


def _passes(filter: JobFilter, job: _Job) -> bool:
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


def _finals(counts: QueueCounts) -> tuple[int, int, int]:
    return counts.succeeded, counts.failed, counts.cancelled


def _bucket_contradictions(bucket: _Bucket) -> Iterator[str]:
    if (bucket.opens_at is not None) != bool(bucket.waiters):
        yield f"bucket {bucket.draw} opens at {bucket.opens_at}, with {len(bucket.waiters)} wait lists"
    for group, waiters in bucket.waiters.items():
        lanes = list(waiters.line)
        if len(lanes) != waiters.count or not lanes:
            yield f"bucket {bucket.draw} counts {waiters.count} lanes behind it and has {len(lanes)}"
        if any(lane.behind is not bucket for lane in lanes):
            yield f"bucket {bucket.draw} lists a lane that is not behind it"
        if waiters.opens_at != bucket.opens_at or waiters not in group.opening:
            yield f"bucket {bucket.draw} opens at {bucket.opens_at}, and no timer of queue {group.queue} says so"


class _Claiming:
    """One claim: look, decide with `admit`, write."""

    def __init__(self, store: MemoryStorage, node: _Node, claim: Claim) -> None:
        self._store = store
        self._node = node
        self._rules = claim.rules
        self._rooms = claim.rooms
        self._visit = _Visit(store._clock.now(), claim.tasks, store._aside)
        self._now = store.limit_now()
        self._claimed: list[ClaimedJob] = []
        self._throttled: list[Throttled] = []
        # Buckets whose timer has to be settled when all lanes have their new places.
        self._touched: dict[_Bucket, None] = {}
        # Lanes that had more expired jobs than one claim fails.
        self._spent: list[_Lane] = []
        self.made_final = False

    def run(self) -> Claimed:
        self._take_up_known()
        queues = [queue for name in self._rooms if (queue := self._store._queues.get(name)) is not None]
        groups = [
            group
            for queue in queues
            for group in queue.groups.values()
            if group.has_lanes and all(limit in self._rules for limit in group.limits)
        ]
        ungated: dict[str, list[_Job]] = {queue.name: [] for queue in queues}
        started = dict.fromkeys(ungated, 0)
        if groups:
            left = {queue.name: self._gated_share(queue, ungated[queue.name]) for queue in queues}
            visits = dict(left)
            is_done = False
            while not is_done:
                lanes = self._next_lanes(groups, left, visits)
                admit(lanes, left, self._now)
                for lane in lanes:
                    started[lane.queue] += lane.taken
                    left[lane.queue] -= lane.taken
                    self._settle(lane)
                for bucket in self._touched:
                    self._store._set_timer(bucket, self._now)
                self._touched.clear()
                is_done = not lanes
            for lane in self._spent:
                self._store._make_due(lane, lane.since)
        more, waits = self._left_over(groups)
        for queue in queues:
            room = self._rooms[queue.name]
            most = room.slots - started[queue.name] + room.ahead
            more |= self._take_ungated(queue.open, ungated[queue.name], most, waits)
        return Claimed(
            jobs=self._claimed,
            next_in=min(waits) if waits else None,
            more=more,
            throttled=self._throttled,
            expired=self._fail_expired(),
            unknown=sorted(self._visit.unknown),
        )

    def _take_up_known(self) -> None:
        """Put jobs that another node's claim had set aside back in order, if this node knows their task."""
        aside = self._store._aside
        for task in [task for task in aside if task in self._visit.tasks]:
            for lane in aside.pop(task):
                for job in lane.take_up(task):
                    lane.place(job)
                    if not lane.is_awake:
                        self._store._arm(lane, job, self._now)

    def _gated_share(self, queue: _Queue, ungated: list[_Job]) -> int:
        """How many gated jobs may start; the ungated ones that were read to know it are kept in `ungated`."""
        room = self._rooms[queue.name]
        queue.open.expired = 0
        queue.open.pull(ungated, room.slots - gated_share(room, room.slots), self._visit)
        return gated_share(room, len(ungated))

    def _next_lanes(self, groups: Sequence[_Group], left: Mapping[str, int], visits: dict[str, int]) -> list[_Lane]:
        """As many lanes as can be expected to use up the room that is left; `visits` is how many may be looked at."""
        room = {queue: min(count, visits[queue]) for queue, count in left.items()}
        lanes = self._released(groups, room)
        lanes += self._due(groups, room)
        for lane in lanes:
            visits[lane.queue] -= 1
            lane.look(self._visit)
            for bucket in lane.own_buckets:
                bucket.use(self._rules[bucket.draw.limit], self._now)
        return lanes

    def _released(self, groups: Sequence[_Group], room: dict[str, int]) -> list[_Lane]:
        """Lanes from behind opened buckets: as many as each grants, longest waiting first."""
        lanes: list[_Lane] = []
        for _ in range(sum(room.values())):
            first: tuple[int, int, _Waiters] | None = None
            for group in groups:
                if room[group.queue] > 0:
                    head = group.opening.head()
                    if head is not None and head[0] <= self._now and (first is None or head < first):
                        first = head
            if first is None:
                break
            lanes += self._released_by(first[2].bucket, groups, room)
        return lanes

    def _released_by(self, bucket: _Bucket, groups: Sequence[_Group], room: dict[str, int]) -> Iterator[_Lane]:
        self._touched[bucket] = None
        lists = [
            (group, bucket.waiters[group]) for group in groups if group in bucket.waiters and room[group.queue] > 0
        ]
        for _, waiters in lists:
            # Its timer has rung; `_set_timer` makes the next one.
            waiters.opens_at = None
            self._store._tick(waiters)
        bucket.use(self._rules[bucket.draw.limit], self._now)
        most = min(
            sum(waiters.count for _, waiters in lists),
            sum(room[queue] for queue in {group.queue for group, _ in lists}),
        )
        for _ in range(bucket.grants(self._now, most)):
            first: tuple[int, int, _Lane] | None = None
            for group, waiters in lists:
                head = waiters.line.head() if room[group.queue] > 0 else None
                if head is not None and (first is None or head < first):
                    first = head
            if first is None:
                return
            lane = first[2]
            room[lane.queue] -= 1
            self._store._leave_bucket(lane)
            self._store._tick(lane)
            yield lane

    def _due(self, groups: Sequence[_Group], room: dict[str, int]) -> list[_Lane]:
        """Lanes that are due, longest waiting first."""
        lanes: list[_Lane] = []
        ahead = self._now - self._visit.wall
        for queue, left in room.items():
            own = [group for group in groups if group.queue == queue]
            while left > 0:
                first: tuple[int, int, _Lane] | None = None
                for group in own:
                    head = group.next_due(self._visit.wall, ahead)
                    if head is not None and (first is None or head < first):
                        first = head
                if first is None:
                    break
                lane = first[2]
                lane.since = first[0]
                left -= min(TURN, lane.waiting)
                self._store._tick(lane)
                lanes.append(lane)
        lanes.sort(key=_since)
        return lanes

    def _settle(self, lane: _Lane) -> None:
        """Start what was admitted and give the lane its new place."""
        store = self._store
        jobs = lane.jobs
        taken = lane.taken
        closed, lane.behind = lane.behind, None
        if taken:
            self._start(lane, jobs[:taken])
            lane.since = self._now
        ready = jobs[taken:]
        if lane.failed is not None:
            self._fail(lane, ready.pop(0), truncated_error(lane.failed))
        if ready:
            lane.put_back(ready)
        if not lane.waiting:
            store._empty(lane)
        elif closed is not None:
            assert isinstance(closed, _Bucket)
            assert closed.opens_at is not None
            store._wait_behind(lane, closed)
            self._touched[closed] = None
            opens_at = self._visit.wall + (closed.opens_at - self._now)
            self._throttled.append(Throttled(closed.draw, opens_at, lane.waiting))
        elif lane.expired >= EXPIRED_A_VISIT:
            self._spent.append(lane)
        elif ready or lane.failed is not None:
            store._make_due(lane, lane.since)
        else:
            store._sleep(lane)

    def _take_ungated(self, lane: _Lane, jobs: list[_Job], most: int, waits: list[int]) -> bool:
        """Start up to `most` jobs of an open lane; whether there are more that are ready."""
        if not lane.waiting:
            return False
        lane.expired = 0
        lane.pull(jobs, most + 1, self._visit)
        if len(jobs) > most:
            lane.put_back(jobs[most:])
            del jobs[most:]
            is_more = True
        else:
            is_more = lane.expired >= EXPIRED_A_VISIT
            earliest = lane.earliest()
            if earliest is not None:
                waits.append(max(0, earliest - self._visit.wall))
        if jobs:
            self._start(lane, jobs)
        if not lane.waiting:
            lane.clear()
        return is_more

    def _start(self, lane: _Lane, jobs: Sequence[_Job]) -> None:
        node = self._node.id
        running = self._node.running
        wall = self._visit.wall
        claimed = self._claimed
        for job in jobs:
            new = job.new
            job.state = RUNNING
            job.node = node
            job.started_at = wall
            job.attempt = attempt = job.attempt + 1
            job.fence = fence = job.fence + 1
            running[new.id] = job
            claimed.append(
                ClaimedJob(
                    new.id,
                    new.task,
                    new.queue,
                    new.payload,
                    attempt,
                    fence,
                    job.lost,
                    new.enqueued_at,
                    job.run_at,
                    wall,
                    new.draws,
                    new.costs,
                    self._now,
                    new.headers,
                    new.options,
                )
            )
        lane.waiting -= len(jobs)
        lane.home.waiting -= len(jobs)
        lane.running += len(jobs)
        lane.home.running += len(jobs)

    def _fail(self, lane: _Lane, job: _Job, error: JobError) -> None:
        lane.waiting -= 1
        lane.home.waiting -= 1
        self._store._end(job, FAILED, self._visit.wall, error=error)
        self.made_final = True

    def _fail_expired(self) -> list[Expired]:
        for job in self._visit.expired:
            self._store._end(job, FAILED, self._visit.wall, error=EXPIRED_ERROR)
            self.made_final = True
        return [Expired(job.id, job.new.task, job.new.queue) for job in self._visit.expired]

    def _left_over(self, groups: Sequence[_Group]) -> tuple[bool, list[int]]:
        """Whether gated lanes are left that may have a job to start now, and in how long others will."""
        more = False
        waits: list[int] = []
        wall = self._visit.wall
        for group in groups:
            if group.due.head() is not None:
                more = True
            asleep = group.asleep.head()
            if asleep is not None:
                if asleep[0] <= wall:
                    more = True
                else:
                    waits.append(asleep[0] - wall)
            opening = group.opening.head()
            if opening is not None:
                if opening[0] <= self._now:
                    more = True
                else:
                    waits.append(opening[0] - self._now)
        return more, waits


def _since(lane: _Lane) -> tuple[int, int]:
    return lane.since, lane.tick


class _Visit:
    """What a lane needs to know of the claim that looks at it, and what it found expired or unknown."""

    __slots__ = ("aside", "expired", "tasks", "unknown", "wall")

    def __init__(self, wall: int, tasks: frozenset[str], aside: dict[str, set[_Lane]]) -> None:
        self.wall = wall
        self.tasks = tasks
        self.aside = aside
        self.expired: list[_Job] = []
        self.unknown: set[str] = set()


class _Job:
    """A stored job.

    `version` is 0 in the fifo that it arrived in, and grows each time it is placed elsewhere. `lane` is the one it
    waits or runs in; a final job names the open lane of its queue, so that its own can be forgotten.
    """

    __slots__ = (
        "attempt",
        "attempts",
        "cancel_requested",
        "delayed",
        "error",
        "expires_at",
        "fence",
        "finished_at",
        "lane",
        "lost",
        "new",
        "node",
        "result",
        "run_at",
        "seq",
        "started_at",
        "state",
        "version",
    )

    def __init__(self, new: NewJob, seq: int, lane: _Lane) -> None:
        self.new = new
        self.seq = seq
        self.lane = lane
        self.version = 0
        self.state = WAITING
        self.run_at = new.run_at
        self.delayed = new.delayed
        self.expires_at = new.expires_at
        self.attempt = 0
        self.fence = 0
        self.lost = 0
        self.node: str | None = None
        self.started_at: int | None = None
        self.finished_at: int | None = None
        self.cancel_requested = False
        self.result: str | None = None
        self.error: JobError | None = None
        self.attempts: list[Attempt] | None = None

    @property
    def id(self) -> str:
        return self.new.id


class _Movable(Protocol):
    tick: int


M = TypeVar("M", bound=_Movable)


class _Line(Generic[M]):
    """Lanes or wait lists in order of an instant; an entry is stale once its item has another tick."""

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, M]] = []
        self._limit = 64

    def push(self, at: int, tick: int, item: M) -> None:
        heappush(self._entries, (at, tick, item))
        if len(self._entries) > self._limit:
            self._entries = [entry for entry in self._entries if entry[2].tick == entry[1]]
            heapify(self._entries)
            self._limit = max(64, 2 * len(self._entries))

    def head(self) -> tuple[int, int, M] | None:
        entries = self._entries
        while entries:
            head = entries[0]
            if head[2].tick == head[1]:
                return head
            heappop(entries)
        return None

    def __iter__(self) -> Iterator[M]:
        return (item for _, tick, item in self._entries if item.tick == tick)

    def __contains__(self, item: M) -> bool:
        return any(other is item for other in self)


class _Band:
    """The jobs of one priority in one lane, in order of `run_at` and arrival.

    Those that arrive in order stand in a fifo. What comes out of order (a retry, a wall clock that stepped back) and
    what is delayed is kept in heaps of its own.
    """

    __slots__ = ("delayed", "fifo", "last_run_at", "late", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.fifo: deque[_Job] = deque()
        self.last_run_at = 0
        self.late: list[_Place] = []
        self.delayed: list[_Place] = []

    def pop(self, wall: int) -> _Job | None:
        """Remove and return the first job that is ready."""
        fifo = self.fifo
        while fifo and (fifo[0].version or fifo[0].state is not WAITING):
            fifo.popleft()
        late = _fresh_head(self.late)
        delayed = _fresh_head(self.delayed)
        if delayed is not None and delayed[0] > wall:
            delayed = None
        first = late if delayed is None or (late is not None and late < delayed) else delayed
        if fifo and (first is None or (fifo[0].run_at, fifo[0].seq) < first[:2]):
            return fifo.popleft()
        if first is None:
            return None
        heappop(self.late if first is late else self.delayed)
        return first[3]

    def place(self, job: _Job) -> None:
        if not job.version and not job.delayed and (not self.fifo or job.run_at > self.last_run_at):
            self.fifo.append(job)
            self.last_run_at = job.run_at
            return
        job.version += 1
        heappush(self.delayed if job.delayed else self.late, (job.run_at, job.seq, job.version, job))

    def put_back(self, job: _Job) -> None:
        """Undo the removal of the last job that was removed."""
        if job.version:
            heappush(self.delayed if job.delayed else self.late, (job.run_at, job.seq, job.version, job))
        else:
            self.fifo.appendleft(job)

    def fresh(self) -> Iterator[_Job]:
        for job in self.fifo:
            if not job.version and job.state is WAITING:
                yield job
        for place in (*self.late, *self.delayed):
            if _is_fresh(place):
                yield place[3]

    def drop_stale(self) -> None:
        self.fifo = deque(job for job in self.fifo if not job.version and job.state is WAITING)
        for heap in (self.late, self.delayed):
            heap[:] = [place for place in heap if _is_fresh(place)]
            heapify(heap)


_Place = tuple[int, int, int, _Job]
"""Where a job stands: run_at, arrival, its version when it was placed there, the job."""


def _is_fresh(place: _Place) -> bool:
    job = place[3]
    return job.version == place[2] and job.state is WAITING


def _fresh_head(heap: list[_Place]) -> _Place | None:
    while heap:
        if _is_fresh(heap[0]):
            return heap[0]
        heappop(heap)
    return None


class _Lane(LaneView):
    """All waiting jobs of one queue that draw on the same buckets; the open lane's draw on none.

    Awake it is due or behind a bucket; else it sleeps until `wakes_at`, or has nothing that a claim could take. The
    open lane of a queue is always awake and in no line.
    """

    __slots__ = (
        "aside",
        "bands",
        "draws",
        "expired",
        "first_band",
        "group",
        "home",
        "is_awake",
        "is_listed",
        "is_open",
        "jobs",
        "own_buckets",
        "running",
        "since",
        "stale",
        "tick",
        "waiting",
        "wakes_at",
    )

    def __init__(self, home: _Queue, group: _Group, draws: tuple[Draw, ...], buckets: Sequence[_Bucket]) -> None:
        super().__init__(0, home.name, buckets, ())
        self.home = home
        self.group = group
        self.draws = draws
        self.own_buckets = buckets
        self.first_band = _Band(0)
        self.bands = [self.first_band]
        self.jobs: list[_Job] = []
        self.aside: dict[str, list[tuple[int, _Job]]] = {}
        self.waiting = 0
        self.running = 0
        self.stale = 0
        self.expired = 0
        self.since = 0
        self.wakes_at: int | None = None
        self.tick = 0
        self.is_open = not draws
        self.is_awake = self.is_open
        self.is_listed = False

    def __str__(self) -> str:
        return f"lane {self.queue} {[f'{draw.limit}:{draw.key}' for draw in self.draws]}"

    def place(self, job: _Job) -> None:
        self._band(job.new.priority).place(job)

    def look(self, visit: _Visit) -> None:
        """Make ready for admission."""
        self.taken = self.expired = 0
        self.behind = self.failed = None
        self.jobs = []
        if self.waiting > TURN:
            self.costs = _Costs(self, visit)
        else:
            self.pull(self.jobs, TURN, visit)
            self.costs = [job.new.costs for job in self.jobs]

    def pull(self, jobs: list[_Job], count: int, visit: _Visit) -> None:
        """Move ready jobs of known tasks to `jobs`, until there are `count`; expired ones go to the visit."""
        wall = visit.wall
        tasks = visit.tasks
        missing = count - len(jobs)
        for band in self.bands:
            fifo = band.fifo
            in_order = not band.late and not band.delayed
            while missing > 0:
                if in_order:
                    if not fifo:
                        break
                    job = fifo.popleft()
                    if job.version or job.state is not WAITING:
                        continue
                else:
                    first = band.pop(wall)
                    if first is None:
                        break
                    job = first
                if job.new.task not in tasks:
                    self._set_aside(job, visit)
                elif job.expires_at is None or job.expires_at > wall:
                    jobs.append(job)
                    missing -= 1
                elif self.expired < EXPIRED_A_VISIT:
                    self.expired += 1
                    self.waiting -= 1
                    self.home.waiting -= 1
                    visit.expired.append(job)
                else:
                    band.put_back(job)
                    return

    def put_back(self, jobs: Sequence[_Job]) -> None:
        """Undo the end of a pull."""
        for job in reversed(jobs):
            self._band(job.new.priority).put_back(job)

    def earliest(self) -> int | None:
        """The first `run_at` of its delayed jobs."""
        heads = [head[0] for band in self.bands if band.delayed and (head := _fresh_head(band.delayed)) is not None]
        return min(heads) if heads else None

    def take_up(self, task: str) -> Iterable[_Job]:
        """The jobs of this task that had been set aside."""
        return [job for version, job in self.aside.pop(task, ()) if job.version == version and job.state is WAITING]

    def drop_stale(self) -> None:
        self.stale = 0
        for band in self.bands:
            band.drop_stale()
        for task, places in self.aside.items():
            self.aside[task] = [place for place in places if place[1].version == place[0] and place[1].state is WAITING]

    def clear(self) -> None:
        """Forget the stale entries of a lane without jobs."""
        if self.stale or len(self.bands) > 1:
            self.stale = 0
            self.first_band = _Band(self.first_band.priority)
            self.bands = [self.first_band]
            self.aside.clear()

    def held(self) -> int:
        """How many jobs it has in order or set aside, counted one by one."""
        aside = sum(
            1
            for places in self.aside.values()
            for version, job in places
            if job.version == version and job.state is WAITING
        )
        return aside + sum(1 for band in self.bands for _ in band.fresh())

    def has_fresh(self) -> bool:
        """Whether it has a job that was not set aside."""
        return any(True for band in self.bands for _ in band.fresh())

    def _band(self, priority: int) -> _Band:
        for band in self.bands:
            if band.priority == priority:
                return band
        band = _Band(priority)
        self.bands.append(band)
        self.bands.sort(key=_by_priority)
        self.first_band = self.bands[0]
        return band

    def _set_aside(self, job: _Job, visit: _Visit) -> None:
        # Left in its place, it would be met again by every claim of this node.
        job.version += 1
        visit.unknown.add(job.new.task)
        self.aside.setdefault(job.new.task, []).append((job.version, job))
        visit.aside.setdefault(job.new.task, set()).add(self)


def _by_priority(band: _Band) -> int:
    return -band.priority


class _Costs(list[tuple[int, ...] | None]):
    """The costs of a lane's first ready jobs, read as far as admission can get in the lane's next turn."""

    __slots__ = ("_lane", "_visit")

    def __init__(self, lane: _Lane, visit: _Visit) -> None:
        super().__init__()
        self._lane = lane
        self._visit = visit

    def __len__(self) -> int:
        lane = self._lane
        jobs = lane.jobs
        known = len(jobs)
        wanted = lane.taken + TURN + 1
        if known < wanted:
            lane.pull(jobs, wanted, self._visit)
            for job in jobs[known:]:
                self.append(job.new.costs)
        return len(jobs)


class _Group:
    """The gated lanes of one queue whose jobs draw on the same limits, in the lines that a claim looks at."""

    __slots__ = ("asleep", "due", "limits", "opening", "queue")

    def __init__(self, queue: str, limits: tuple[str, ...]) -> None:
        self.queue = queue
        self.limits = limits
        self.due: _Line[_Lane] = _Line()
        self.asleep: _Line[_Lane] = _Line()
        self.opening: _Line[_Waiters] = _Line()

    @property
    def has_lanes(self) -> bool:
        return (
            self.due.head() is not None or self.opening.head() is not None or self.asleep.head() is not None
        ) and bool(self.limits)

    def next_due(self, wall: int, ahead: int) -> tuple[int, int, _Lane] | None:
        """The lane that is due for longest, as (since, tick, lane); `ahead` is limit time minus wall time."""
        due = self.due.head()
        asleep = self.asleep.head()
        if asleep is not None and asleep[0] <= wall:
            since = asleep[0] + ahead
            if due is None or since < due[0]:
                return since, asleep[1], asleep[2]
        return due


class _Bucket(BucketView):
    """A bucket with the lanes behind it, by group. `lanes` counts all lanes that draw on it."""

    __slots__ = ("is_listed", "lanes", "order", "waiters")

    def __init__(self, draw: Draw, order: int) -> None:
        super().__init__(draw, _NO_RULE, None)
        self.order = order
        self.waiters: dict[_Group, _Waiters] = {}
        self.lanes = 0
        self.is_listed = False

    def use(self, rule: AnyRule, now: int) -> None:
        """Be judged by `rule` from now on; the state is carried over if another one wrote it."""
        before = self.rule
        if before is rule:
            return
        if self.state is not None and (before.kind, before.describe()) != (rule.kind, rule.describe()):
            if before.kind == rule.kind:
                self.state = rule.load(before.dump(self.state), now)
            else:
                # Nothing is known of what its window holds already: it starts exhausted.
                self.state = rule.take(None, now, rule.snapshot(None, now).available)[1]
        self.rule = rule

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for waiters in self.waiters.values() for lane in waiters.line)

    @property
    def idle_at(self) -> int:
        """From this limit time on it is as good as new."""
        if self.state is None:
            return self.closed_until
        return max(self.closed_until, self.rule.idle_at(self.state))


# A bucket gets its rule from the first claim that looks at it.
_NO_RULE: Any = None


class _Waiters:
    """The lanes of one group that wait behind one bucket; `opens_at` is what its timer is set to."""

    __slots__ = ("bucket", "count", "line", "opens_at", "tick")

    def __init__(self, bucket: _Bucket) -> None:
        self.bucket = bucket
        self.line: _Line[_Lane] = _Line()
        self.count = 0
        self.opens_at: int | None = None
        self.tick = 0


class _Queue:
    """A queue's lanes and how many jobs it has in each state."""

    __slots__ = ("cancelled", "failed", "groups", "lanes", "name", "open", "running", "succeeded", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = _Lane(self, _Group(name, ()), (), ())
        self.lanes: dict[tuple[Draw, ...], _Lane] = {(): self.open}
        self.groups: dict[tuple[str, ...], _Group] = {}
        self.waiting = 0
        self.running = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0

    def count(self, state: JobState, change: int) -> None:
        """Count a job that came to a final state or left it."""
        if state is SUCCEEDED:
            self.succeeded += change
        elif state is FAILED:
            self.failed += change
        else:
            self.cancelled += change

    def number(self, state: JobState) -> int:
        numbers: Mapping[JobState, int] = {
            WAITING: self.waiting,
            RUNNING: self.running,
            SUCCEEDED: self.succeeded,
            FAILED: self.failed,
            CANCELLED: self.cancelled,
        }
        return numbers[state]


class _Node:
    """A node and the jobs that it runs."""

    __slots__ = ("beat", "beat_at", "id", "name", "running", "started_at")

    def __init__(self, id: str, name: str, now: int) -> None:
        self.id = id
        self.name = name
        self.started_at = now
        self.beat_at = now
        self.beat = 0
        self.running: dict[str, _Job] = {}

    def record(self) -> NodeRecord:
        return NodeRecord(self.id, self.name, os.getpid(), self.started_at, self.beat_at, self.beat, len(self.running))
