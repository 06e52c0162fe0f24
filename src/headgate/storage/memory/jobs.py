"""All jobs of one store, and how they go from one state to the next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from headgate.jobs.job import Attempt, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.protocol import EXPIRED_ERROR, Expired


class Jobs:
    """The jobs by id, and in the orders of id, of end and of expiry. `wall` and `now` are wall and limit time."""

    def __init__(self, lanes: Lanes) -> None:
        self.by_id: dict[str, Job[Lane]] = {}
        self._lanes = lanes
        self._ids: list[str] = []
        self._ticks = 0
        self._finals: list[tuple[int, int, Job[Lane]]] = []
        self._expiries: list[tuple[int, int, Job[Lane]]] = []
        self._expiries_limit = 64

    def add(self, jobs: Sequence[NewJob], now: int) -> None:
        stored = self.by_id
        ids = self._ids
        lane: Lane | None = None
        for new in jobs:
            id = new.id
            if id in stored:
                continue
            if lane is None or new.draws != lane.draws or new.queue != lane.queue:
                lane = self._lanes.lane(new.queue, new.draws)
            self._ticks += 1
            stored[id] = job = Job(new, self._ticks, lane)
            if ids and id < ids[-1]:
                insort(ids, id)
            else:
                ids.append(id)
            lane.waiting += 1
            lane.tally.waiting += 1
            band = lane.first_band
            if band.priority == new.priority and not new.delayed and (new.run_at >= band.last_run_at or not band.fifo):
                band.fifo.append(job)
                band.last_run_at = new.run_at
            else:
                lane.place(job)
            if not lane.is_awake:
                self._lanes.arm(lane, job, now)
            if new.expires_at is not None:
                self._watch_expiry(job)

    def newest_first(self, before: str | None) -> Iterator[Job[Lane]]:
        """By id, below `before`."""
        end = len(self._ids) if before is None else bisect_left(self._ids, before)
        for position in range(end - 1, -1, -1):
            job = self.by_id.get(self._ids[position])
            if job is not None:
                yield job

    def wait(self, job: Job[Lane], now: int) -> None:
        """Put a job that was running or final into its lane again."""
        job.state = WAITING
        job.node = None
        job.cancel_requested = False
        lane = job.lane
        lane.waiting += 1
        lane.tally.waiting += 1
        lane.place(job)
        if not lane.is_awake:
            self._lanes.arm(lane, job, now)
        if job.expires_at is not None:
            self._watch_expiry(job)

    def stop_waiting(self, job: Job[Lane], state: JobState, wall: int, error: JobError | None) -> None:
        """End a waiting job other than by a claim."""
        lane = job.lane
        self.end(job, state, wall, error)
        lane.waiting -= 1
        lane.tally.waiting -= 1
        lane.stale += 1
        # Its entry must not look fresh again when the job is retried.
        job.version += 1
        if not lane.waiting:
            self._lanes.empty(lane)
        elif lane.wakes_at is not None and job.run_at <= lane.wakes_at:
            self._lanes.sleep(lane)
        if lane.stale > lane.waiting + 64:
            lane.drop_stale()

    def finish(self, node: Node, ending: Ending, wall: int, now: int) -> bool:
        """Whether the job still was this attempt of the node, and now is what the ending says."""
        job = self.by_id.get(ending.id)
        if job is None or job.state is not RUNNING or job.node != node.id or job.fence != ending.fence:
            return False
        del node.running[ending.id]
        if isinstance(ending, Finished):
            state = ending.state
            if state is not SUCCEEDED:
                self.keep_attempt(job, state.value, ending.error, wall)
            job.result = ending.result
            lane = job.lane
            lane.running -= 1
            lane.tally.running -= 1
            self.end(job, state, wall, ending.error)
        else:
            self._hand_back(job, ending, wall, now)
        return True

    def wait_or_cancel(self, job: Job[Lane], wall: int, now: int) -> bool:
        """Whether the job, which was running, waits again; False if its cancellation had been asked for."""
        self.stop_running(job)
        if job.cancel_requested:
            self.end(job, CANCELLED, wall, error=job.error)
            return False
        self.wait(job, now)
        return True

    def stop_running(self, job: Job[Lane]) -> None:
        job.lane.running -= 1
        job.lane.tally.running -= 1

    def end(self, job: Job[Lane], state: JobState, wall: int, error: JobError | None) -> None:
        job.state = state
        job.error = error
        job.finished_at = wall
        lane = job.lane
        job.lane = lane.open
        if state is SUCCEEDED:
            lane.tally.succeeded += 1
        else:
            lane.tally.count(state, 1)
        self._ticks += 1
        heappush(self._finals, (wall, self._ticks, job))

    def keep_attempt(self, job: Job[Lane], outcome: str, error: JobError | None, wall: int) -> None:
        if job.attempts is None:
            job.attempts = []
        job.attempts.append(Attempt(job.attempt, job.node, job.started_at or wall, wall, outcome, error))

    def expire(self, wall: int, count: int) -> list[Expired]:
        expired: list[Expired] = []
        while len(expired) < count and self._expiries and self._expiries[0][0] <= wall:
            expires_at, _, job = heappop(self._expiries)
            if job.state is WAITING and job.expires_at == expires_at:
                self.stop_waiting(job, FAILED, wall, error=EXPIRED_ERROR)
                expired.append(Expired(job.id, job.new.task, job.new.queue))
        return expired

    def prune(self, finished_before: int, count: int) -> int:
        deleted = 0
        while deleted < count and self._finals and self._finals[0][0] < finished_before:
            finished_at, _, job = heappop(self._finals)
            if job.finished_at == finished_at and self.by_id.get(job.id) is job:
                del self.by_id[job.id]
                job.lane.tally.count(job.state, -1)
                deleted += 1
        if len(self._ids) > 2 * len(self.by_id) + 64:
            self._ids = [id for id in self._ids if id in self.by_id]
        return deleted

    def _hand_back(self, job: Job[Lane], ending: Returned, wall: int, now: int) -> None:
        self.keep_attempt(job, ending.outcome, ending.error, wall)
        if not ending.spent:
            job.attempt -= 1
        if ending.run_at is not None:
            job.run_at = ending.run_at
            job.delayed = True
        if ending.error is not None:
            job.error = ending.error
        if ending.closed_for is not None:
            until = now + ending.closed_for
            for bucket in job.lane.own_buckets:
                bucket.closed_until = max(bucket.closed_until, until)
        self.wait_or_cancel(job, wall, now)

    def _watch_expiry(self, job: Job[Lane]) -> None:
        assert job.expires_at is not None
        self._ticks += 1
        heappush(self._expiries, (job.expires_at, self._ticks, job))
        if len(self._expiries) > self._expiries_limit:
            # Jobs that ended long before they would have expired must not be kept for it.
            self._expiries = [entry for entry in self._expiries if not entry[2].state.is_final]
            heapify(self._expiries)
            self._expiries_limit = max(64, 2 * len(self._expiries))
