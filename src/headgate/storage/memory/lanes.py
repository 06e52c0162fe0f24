"""All queues, lanes and buckets of one store, and how lanes move from line to line."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from headgate.jobs.draw_set import DrawSet, without
from headgate.jobs.job import Draw, NewJob
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS
from headgate.storage.endings import limit_in_use
from headgate.storage.memory.bucket import Bucket, Waiters
from headgate.storage.memory.group import Group
from headgate.storage.memory.job import Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.line import Movable
from headgate.storage.memory.queue import Queue
from headgate.storage.memory.settings import Settings


class Lanes:
    """The lanes by queue, and their buckets; both are made when first drawn on, and forgotten by `evict`."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.buckets: dict[Draw, Bucket[Lane]] = {}
        self.settings = Settings()
        # What was set aside because the claiming node did not know its gate or its task.
        self.aside: dict[str, dict[Lane, None]] = {}
        self._ticks = 0
        self._empty: deque[Lane] = deque()
        self._idle_buckets: list[tuple[int, int, Bucket[Lane]]] = []

    def queue(self, name: str) -> Queue:
        """The queue of that name, made if it is not there."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue

    def lane(self, queue_name: str, draws: tuple[Draw, ...], variant: str = "") -> Lane:
        """The lane of a queue, its draws and variant; made if it is not there."""
        queue = self.queue(queue_name)
        if not draws:
            return queue.open
        lane = queue.lanes.get((draws, variant))
        if lane is None:
            limits = tuple(draw.limit for draw in draws)
            group = queue.groups.get(limits)
            if group is None:
                group = queue.groups[limits] = Group(queue_name, limits)
            buckets = [self._bucket(draw) for draw in draws]
            for bucket in buckets:
                bucket.users += 1
            lane = queue.lanes[draws, variant] = Lane(queue.tally, group, draws, variant, buckets, queue.open)
        return lane

    def find(self, queue_name: str, draws: tuple[Draw, ...], variant: str) -> Lane | None:
        """The same lane if it is there."""
        queue = self.queues.get(queue_name)
        return None if queue is None else queue.lanes.get((draws, variant))

    def lane_of(self, new: NewJob, passes: DrawSet) -> Lane:
        """The lane of a job that passes some of its draws."""
        if not passes or new.terms is None:
            return self.lane(new.queue, new.draws, new.variant)
        return self.lane(new.queue, without(new.draws, passes), new.terms.variant(passes))

    def bucket(self, draw: Draw) -> Bucket[Lane]:
        """The bucket of a draw, made if it is not there; to be forgotten if nobody draws on it."""
        bucket = self._bucket(draw)
        self.list_unused(bucket)
        return bucket

    def judge(self, bucket: Bucket[Lane], declared: AnyRule, now: int) -> None:
        """Let a bucket be judged by the rule that holds for its key now."""
        draw, settings = bucket.draw, self.settings
        rule = settings.live.rule(draw, declared)
        bucket.use(rule, now, is_paused=settings.live.is_paused(draw))
        bucket.declared, bucket.revision = declared, settings.revision
        home = bucket
        if rule.shares_state and draw.key != FOR_ALL_KEYS:
            home = self._bucket(Draw(draw.limit, FOR_ALL_KEYS))
            self.judge(home, declared, now)
        if home is not bucket.home:
            self._move_home(bucket, home)

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
                bucket.opens_at = bucket.opened_at = None

    def set_timer(self, bucket: Bucket[Lane], now: int) -> None:
        """Settle when a bucket opens for the lanes behind it, after a claim that moved some."""
        if not bucket.waiters:
            bucket.opens_at = bucket.opened_at = None
            return
        self.open_at(bucket, bucket.reopens_at(now), now)

    def reopen(self, bucket: Bucket[Lane], now: int) -> None:
        """Whoever waits behind the bucket is looked at by the next claim."""
        if bucket.opens_at is not None and bucket.opens_at > now:
            self.open_at(bucket, now, now)

    def reopen_limit(self, limit: str, key: str | None, now: int) -> None:
        """The same for the buckets of a limit; of one key, or of all."""
        for bucket in self.buckets.values():
            if bucket.draw.limit == limit and (key is None or bucket.draw.key == key):
                self.reopen(bucket, now)

    def forget(self, limit: str, blocked: int) -> bool:
        """Forget what is set about a limit and its buckets; whether there was anything.

        Raises LimitInUse while jobs need it, also blocked ones.
        """
        own = [bucket for bucket in self.buckets.values() if bucket.draw.limit == limit]
        waiting = blocked + sum(
            lane.waiting
            for queue in self.queues.values()
            for lane in queue.lanes.values()
            if limit in lane.group.limits
        )
        held = sum(bucket.permits.held for bucket in own)
        if waiting or held:
            raise limit_in_use(limit, waiting, held)
        was_there = self.settings.forget(limit) or bool(own)
        for bucket in own:
            # Running jobs may come back to it: it goes when nobody draws on it any more.
            bucket.renew(keep_state=False)
        return was_there

    def open_at(self, bucket: Bucket[Lane], opens_at: int, now: int) -> None:
        """Set the timer of a bucket that lanes wait behind."""
        bucket.opens_at = opens_at
        if bucket.opened_at is None or opens_at > now:
            bucket.opened_at = opens_at
        else:
            bucket.opened_at = min(bucket.opened_at, opens_at)
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
            if bucket.users:
                continue
            if bucket.idle_at > now:
                self.list_unused(bucket)
            else:
                del self.buckets[bucket.draw]
                self._move_home(bucket, bucket)
                forgotten += 1
        return forgotten

    def list_unused(self, bucket: Bucket[Lane]) -> None:
        """A bucket that nobody draws on any more is forgotten once it is as good as new."""
        if bucket.users or bucket.is_listed or (idle_at := bucket.idle_at) >= NEVER:
            return
        bucket.is_listed = True
        self._ticks += 1
        heappush(self._idle_buckets, (idle_at, self._ticks, bucket))

    def _bucket(self, draw: Draw) -> Bucket[Lane]:
        bucket = self.buckets.get(draw)
        if bucket is None:
            bucket = self.buckets[draw] = Bucket(draw)
        return bucket

    def _forget(self, lane: Lane) -> None:
        del self.queues[lane.queue].lanes[lane.draws, lane.variant]
        for bucket in lane.own_buckets:
            bucket.users -= 1
            self.list_unused(bucket)

    def _move_home(self, bucket: Bucket[Lane], home: Bucket[Lane]) -> None:
        before, bucket.home = bucket.home, home
        if home is not bucket:
            home.users += 1
        if before is not bucket:
            before.users -= 1
            self.list_unused(before)
