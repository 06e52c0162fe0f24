"""All queues, lanes and buckets of one store, and how lanes move from line to line."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from headgate.jobs.job import Draw
from headgate.storage.memory.bucket import Bucket, Waiters
from headgate.storage.memory.group import Group
from headgate.storage.memory.job import Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.line import Movable
from headgate.storage.memory.queue import Queue


class Lanes:
    """The lanes by queue, and their buckets; both are made when first drawn on, and forgotten by `evict`."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.buckets: dict[Draw, Bucket[Lane]] = {}
        # What was set aside because the claiming node did not know its task.
        self.aside: dict[str, set[Lane]] = {}
        self._ticks = 0
        self._empty: deque[Lane] = deque()
        self._idle_buckets: list[tuple[int, int, Bucket[Lane]]] = []

    def lane(self, queue_name: str, draws: tuple[Draw, ...]) -> Lane:
        queue = self.queues.get(queue_name)
        if queue is None:
            queue = self.queues[queue_name] = Queue(queue_name)
        lane = queue.lanes.get(draws)
        if lane is None:
            limits = tuple(draw.limit for draw in draws)
            group = queue.groups.get(limits)
            if group is None:
                group = queue.groups[limits] = Group(queue_name, limits)
            buckets = [self._bucket(draw) for draw in draws]
            for bucket in buckets:
                bucket.lanes += 1
            lane = queue.lanes[draws] = Lane(queue.tally, group, draws, buckets, queue.open)
        return lane

    def tick(self, item: Movable) -> int:
        """Make all entries of a lane or wait list stale; the next one carries the new tick."""
        self._ticks = item.tick = self._ticks + 1
        return self._ticks

    def arm(self, lane: Lane, job: Job[Lane], now: int) -> None:
        """A job came into a lane that was empty or asleep."""
        if not job.delayed:
            self.make_due(lane, now)
        elif lane.wakes_at is None or job.run_at < lane.wakes_at:
            lane.wakes_at = job.run_at
            lane.group.asleep.push(job.run_at, self.tick(lane), lane)

    def make_due(self, lane: Lane, since: int) -> None:
        lane.is_awake = True
        lane.wakes_at = None
        lane.since = since
        lane.group.due.push(since, self.tick(lane), lane)

    def sleep(self, lane: Lane) -> None:
        """The lane has no ready job: it waits for its earliest delayed one, if it has any."""
        lane.is_awake = False
        lane.wakes_at = lane.earliest()
        tick = self.tick(lane)
        if lane.wakes_at is not None:
            lane.group.asleep.push(lane.wakes_at, tick, lane)

    def empty(self, lane: Lane) -> None:
        """The lane has no job that waits."""
        lane.clear()
        if lane.is_open:
            return
        self.leave_bucket(lane)
        self.tick(lane)
        lane.is_awake = False
        lane.wakes_at = None
        if not lane.is_listed:
            lane.is_listed = True
            self._empty.append(lane)

    def wait_behind(self, lane: Lane, bucket: Bucket[Lane]) -> None:
        lane.is_awake = True
        lane.wakes_at = None
        lane.behind = bucket
        opening = lane.group.opening
        waiters = bucket.waiters.get(opening)
        if waiters is None:
            waiters = bucket.waiters[opening] = Waiters(bucket)
        waiters.count += 1
        waiters.line.push(lane.since, self.tick(lane), lane)

    def leave_bucket(self, lane: Lane) -> None:
        bucket = lane.behind
        if bucket is None:
            return
        assert isinstance(bucket, Bucket)
        lane.behind = None
        waiters = bucket.waiters[lane.group.opening]
        waiters.count -= 1
        if not waiters.count:
            self.tick(waiters)
            del bucket.waiters[lane.group.opening]
            if not bucket.waiters:
                bucket.opens_at = None

    def set_timer(self, bucket: Bucket[Lane], now: int) -> None:
        """Settle when a bucket opens for the lanes behind it, after a claim that moved some."""
        if not bucket.waiters:
            bucket.opens_at = None
            return
        bucket.opens_at = opens_at = bucket.reopens_at(now)
        for opening, waiters in bucket.waiters.items():
            if waiters.opens_at != opens_at:
                waiters.opens_at = opens_at
                opening.push(opens_at, self.tick(waiters), waiters)

    def evict(self, count: int, now: int) -> int:
        """Forget up to `count` lanes without jobs and buckets that are as good as new; returns how many."""
        forgotten = 0
        for _ in range(len(self._empty)):
            if forgotten >= count:
                return forgotten
            lane = self._empty.popleft()
            if lane.waiting:
                lane.is_listed = False
            elif lane.running:
                self._empty.append(lane)
            else:
                self._forget(lane)
                forgotten += 1
        while forgotten < count and self._idle_buckets and self._idle_buckets[0][0] <= now:
            _, _, bucket = heappop(self._idle_buckets)
            bucket.is_listed = False
            if bucket.lanes:
                continue
            if bucket.idle_at > now:
                self._list_idle(bucket)
            else:
                del self.buckets[bucket.draw]
                forgotten += 1
        return forgotten

    def _bucket(self, draw: Draw) -> Bucket[Lane]:
        bucket = self.buckets.get(draw)
        if bucket is None:
            self._ticks += 1
            bucket = self.buckets[draw] = Bucket(draw, self._ticks)
        return bucket

    def _forget(self, lane: Lane) -> None:
        del self.queues[lane.queue].lanes[lane.draws]
        for bucket in lane.own_buckets:
            bucket.lanes -= 1
            if not bucket.lanes and not bucket.is_listed:
                self._list_idle(bucket)

    def _list_idle(self, bucket: Bucket[Lane]) -> None:
        bucket.is_listed = True
        self._ticks += 1
        heappush(self._idle_buckets, (bucket.idle_at, self._ticks, bucket))
