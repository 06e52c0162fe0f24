"""One claim on the memory storage: look, decide with `admit`, write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from headgate.jobs.draw_set import without
from headgate.jobs.job import ClaimedJob, Draw, JobError, JobState, truncated_error
from headgate.limits.concurrency import batches_of
from headgate.limits.rule import NEVER
from headgate.storage.admission import TURN, BucketView, admit, charges_elsewhere, gated_share, starved_by
from headgate.storage.claiming import throttled_for
from headgate.storage.endings import late_ending, rejection_error
from headgate.storage.memory.bucket import Bucket, Waiters
from headgate.storage.memory.group import Group
from headgate.storage.memory.job import FAILED, RUNNING, WAITING, Job
from headgate.storage.memory.jobs import Jobs
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.memory.queue import Queue
from headgate.storage.memory.visit import LATE_A_VISIT, Visit
from headgate.storage.protocol import Claim, Claimed, Dropped, Starved, Throttled

MOST_ASTRAY = 100
"""How many of the jobs that were set aside a claim looks through for those that may be moved."""


class Claiming:
    """A claim while it is decided and written; to be run once."""

    def __init__(
        self, lanes: Lanes, jobs: Jobs, node: Node, claim: Claim, newest: Mapping[str, str], wall: int, now: int
    ) -> None:
        self._claim = claim
        self._newest = newest
        self._lanes = lanes
        self._jobs = jobs
        self._node = node
        self._rules = claim.rules
        self._rooms = claim.rooms
        self._visit = Visit(wall, claim.known(newest), lanes.aside)
        self._now = now
        self._revision = lanes.settings.revision
        self._claimed: list[ClaimedJob] = []
        self._throttled: list[Throttled] = []
        self._dropped: list[Dropped] = []
        # Buckets whose timer has to be settled when all lanes have their new places.
        self._touched: dict[Bucket[Lane], None] = {}
        # Lanes that had more late jobs than one claim ends.
        self._spent: list[Lane] = []
        self._homes: set[Bucket[Lane]] = set()
        self._starved: dict[Draw, Starved] = {}
        # The lanes that are being decided on, and how many of them have given their first jobs for that.
        self._round: list[Lane] = []
        self._looked = 0

    def run(self) -> Claimed:
        self._take_up_known()
        known = [queue for name in self._rooms if (queue := self._lanes.queues.get(name)) is not None]
        queues = [queue for queue in known if queue.paused_at is None]
        groups = [
            group
            for queue in queues
            for group in queue.groups.values()
            if group.has_lanes and all(limit in self._rules for limit in group.limits)
        ]
        ungated: dict[str, list[Job[Lane]]] = {queue.name: [] for queue in queues}
        started = dict.fromkeys(ungated, 0)
        if groups:
            left = {queue.name: self._gated_share(queue, ungated[queue.name]) for queue in queues}
            try:
                self._start_gated(groups, left, started)
            except BaseException:
                self._undo(ungated)
                raise
        waits: list[int] = []
        more = False
        for queue in queues:
            room = self._rooms[queue.name]
            most = room.slots - started[queue.name] + room.ahead
            more |= self._take_ungated(queue.open, ungated[queue.name], most, waits)
        # Before it is seen what is left: they may give permits back, and others may follow them.
        self._drop_late()
        more |= self._jobs.tell_followers(self._visit.wall, self._now)
        more |= self._is_more(groups, waits)
        return Claimed(
            jobs=self._claimed,
            next_in=min(waits) if waits else None,
            more=more,
            throttled=self._throttled,
            starved=list(self._starved.values()),
            dropped=self._dropped,
            unknown=sorted({job.new.task for job in self._visit.set_aside if job.new.task not in self._claim.tasks}),
            astray=self._astray(),
            has_strange_lanes=any(
                group.has_lanes and not all(limit in self._rules for limit in group.limits)
                for queue in queues
                for group in queue.groups.values()
            ),
        )

    def _astray(self) -> list[str]:
        """Jobs that this node may move to its gates: those that this claim has set aside, and some of the others."""
        claim, newest = self._claim, self._newest
        if claim.gates is None:
            return []
        others = (
            job
            for known_by, lanes in self._lanes.aside.items()
            for lane in lanes
            for version, job in lane.aside.get(known_by, ())
            if job.version == version and job.state is WAITING
        )
        met = {job.id: job.new for job in (*self._visit.set_aside, *islice(others, MOST_ASTRAY))}
        return [id for id, new in met.items() if claim.is_astray(new.task, new.queue, newest)]

    def _take_up_known(self) -> None:
        """Put jobs that another node's claim had set aside back in order, if this node knows their task."""
        aside = self._lanes.aside
        for known_by in [known_by for known_by in aside if known_by in self._visit.known]:
            for lane in aside.pop(known_by):
                for job in lane.take_up(known_by):
                    lane.place(job)
                    if not lane.is_awake:
                        self._lanes.arm(lane, job, self._now)

    def _gated_share(self, queue: Queue, ungated: list[Job[Lane]]) -> int:
        """How many gated jobs may start; the ungated ones that were read to know it are kept in `ungated`."""
        room = self._rooms[queue.name]
        queue.open.late = 0
        queue.open.pull(ungated, room.slots - gated_share(room, room.slots), self._visit)
        return gated_share(room, len(ungated))

    def _start_gated(self, groups: Sequence[Group[Lane]], left: dict[str, int], started: dict[str, int]) -> None:
        visits = dict(left)
        while lanes := self._next_lanes(groups, left, visits):
            admit(lanes, left, self._now)
            for lane in lanes:
                started[lane.queue] += lane.taken
                left[lane.queue] -= lane.taken
                self._settle(lane)
            self._set_timers()
        self._set_timers()
        for home in self._homes:
            home.rivals.clear()
        for lane in self._spent:
            self._lanes.make_due(lane, lane.since)

    def _set_timers(self) -> None:
        for bucket in self._touched:
            if bucket.waiters and bucket.closed_until <= self._now:
                for batch in batches_of(bucket.permits):
                    self._let_in(bucket, batch)
            self._lanes.set_timer(bucket, self._now)
        self._touched.clear()

    def _let_in(self, bucket: Bucket[Lane], batch: str) -> None:
        """All lanes of a batch that holds a permit may go: it comes back only when all its jobs are final."""
        own = [lane for waiters in bucket.waiters.values() for lane in waiters.line if batch in lane.variant]
        for lane in own:
            lane.opened_at = self._now
            self._lanes.leave_bucket(lane)
            self._lanes.make_due(lane, lane.since)

    def _undo(self, ungated: Mapping[str, list[Job[Lane]]]) -> None:
        """A rule has broken: who was looked at is in line again, and nothing is charged to anybody."""
        for lane in self._round[: self._looked]:
            lane.uncharge(self._now)
            lane.put_back(lane.jobs)
        for lane in self._round:
            if isinstance(lane.behind, Bucket):
                self._touched[lane.behind] = None
                lane.behind = None
            if lane.waiting:
                self._lanes.make_due(lane, lane.since)
            else:
                self._lanes.empty(lane)
        for bucket in self._touched:
            bucket.opens_at = None
            if bucket.waiters:
                self._lanes.open_at(bucket, self._now, self._now)
        for queue, jobs in ungated.items():
            self._lanes.queues[queue].open.put_back(jobs)
        self._drop_late()
        self._jobs.tell_followers(self._visit.wall, self._now)

    def _next_lanes(self, groups: Sequence[Group[Lane]], left: Mapping[str, int], visits: dict[str, int]) -> list[Lane]:
        """As many lanes as can be expected to use up the room that is left; `visits` is how many may be looked at."""
        room = {queue: min(count, visits[queue]) for queue, count in left.items()}
        lanes: list[Lane] = []
        self._round = lanes
        self._looked = 0
        self._note_rivals(groups)
        self._release(groups, room, lanes)
        lanes += self._due(groups, room)
        for lane in lanes:
            visits[lane.queue] -= 1
            lane.look(self._visit)
            self._looked += 1
            for bucket in lane.own_buckets:
                self._judge(bucket)
        return lanes

    def _judge(self, bucket: Bucket[Lane]) -> None:
        """Let it be judged by the rule that holds for its key now."""
        declared = self._rules[bucket.draw.limit]
        if bucket.declared is not declared or bucket.revision != self._revision or bucket.home.declared is not declared:
            self._lanes.judge(bucket, declared, self._now)

    def _note_rivals(self, groups: Sequence[Group[Lane]]) -> None:
        """Keys that share a ceiling have to know who else wants to start now."""
        for group in groups:
            if any(self._rules[limit].shares_state for limit in group.limits):
                for waiters in group.opening:
                    if waiters.opens_at is not None and waiters.opens_at <= self._now + 1:
                        bucket = waiters.bucket
                        self._judge(bucket)
                        bucket.home.rivals.add(bucket.draw.key)
                        self._homes.add(bucket.home)

    def _release(self, groups: Sequence[Group[Lane]], room: dict[str, int], lanes: list[Lane]) -> None:
        """Add the lanes from behind opened buckets: as many as each grants, longest waiting first."""
        for _ in range(sum(room.values())):
            first: tuple[int, int, Waiters[Lane]] | None = None
            for group in groups:
                if room[group.queue] > 0:
                    head = group.opening.head()
                    if head is not None and head[0] <= self._now and (first is None or head < first):
                        first = head
            if first is None:
                break
            lanes.extend(self._released_by(first[2].bucket, groups, room))

    def _released_by(self, bucket: Bucket[Lane], groups: Sequence[Group[Lane]], room: dict[str, int]) -> Iterator[Lane]:
        self._touched[bucket] = None
        lists = [
            (group, bucket.waiters[group.opening])
            for group in groups
            if group.opening in bucket.waiters and room[group.queue] > 0
        ]
        for _, waiters in lists:
            # Its timer has rung; `set_timer` makes the next one.
            waiters.opens_at = None
            self._lanes.tick(waiters)
        self._judge(bucket)
        most = min(
            sum(waiters.count for _, waiters in lists),
            sum(room[queue] for queue in {group.queue for group, _ in lists}),
        )
        grants = bucket.grants(self._now, most)
        if not grants and bucket.is_starved(self._now):
            self._starved[bucket.draw] = Starved(bucket.draw, bucket.rule, 1, most)
        for _ in range(grants):
            first: tuple[int, int, Lane] | None = None
            for group, waiters in lists:
                head = waiters.line.head() if room[group.queue] > 0 else None
                if head is not None and (first is None or head < first):
                    first = head
            if first is None:
                return
            lane = first[2]
            room[lane.queue] -= 1
            lane.opened_at = min(bucket.opened_at or self._now, self._now)
            self._lanes.leave_bucket(lane)
            self._lanes.tick(lane)
            yield lane

    def _due(self, groups: Sequence[Group[Lane]], room: dict[str, int]) -> list[Lane]:
        """Lanes that are due, longest waiting first."""
        lanes: list[Lane] = []
        ahead = self._now - self._visit.wall
        for queue, left in room.items():
            own = [group for group in groups if group.queue == queue]
            while left > 0:
                first: tuple[int, int, Lane] | None = None
                for group in own:
                    head = group.next_due(self._visit.wall, ahead)
                    if head is not None and (first is None or head < first):
                        first = head
                if first is None:
                    break
                lane = first[2]
                lane.since = first[0]
                left -= min(TURN, lane.waiting)
                self._lanes.tick(lane)
                lanes.append(lane)
        lanes.sort(key=_since)
        return lanes

    def _settle(self, lane: Lane) -> None:
        """Start what was admitted and give the lane its new place."""
        lanes = self._lanes
        jobs = lane.jobs
        taken = lane.taken
        starved = starved_by(lane, lane.waiting - taken, self._now)
        if starved is not None:
            self._starved[starved.draw] = starved
        closed, lane.behind = lane.behind, None
        if taken:
            self._start(lane, jobs[:taken])
            lane.since = self._now
        ready = jobs[taken:]
        if lane.failed is not None:
            # A limit was lowered below what the job costs: it could only wait for ever.
            self._drop(lane, ready.pop(0), FAILED, truncated_error(lane.failed))
        rejected: list[Job[Lane]] = []
        if closed is not None and lane.discards:
            rejected, ready = ready, rejected
            self._reject(lane, rejected, closed)
            closed = None
        if ready:
            lane.put_back(ready)
        if not lane.waiting:
            lanes.empty(lane)
        elif closed is not None:
            assert isinstance(closed, Bucket)
            assert closed.opens_at is not None
            lanes.wait_behind(lane, closed)
            self._touched[closed] = None
            self._throttled.append(Throttled(closed.draw, self._in_wall_time(closed.opens_at), lane.waiting))
        elif lane.late >= LATE_A_VISIT:
            self._spent.append(lane)
        elif ready or rejected or lane.failed is not None:
            lanes.make_due(lane, lane.since)
        else:
            lanes.sleep(lane)

    def _take_ungated(self, lane: Lane, jobs: list[Job[Lane]], most: int, waits: list[int]) -> bool:
        """Start up to `most` jobs of an open lane; whether there are more that are ready."""
        if not lane.waiting:
            return False
        lane.late = 0
        lane.pull(jobs, most + 1, self._visit)
        if len(jobs) > most:
            lane.put_back(jobs[most:])
            del jobs[most:]
            is_more = True
        else:
            is_more = lane.late >= LATE_A_VISIT
            earliest = lane.earliest()
            if earliest is not None:
                waits.append(max(0, earliest - self._visit.wall))
        if jobs:
            self._start(lane, jobs)
        if not lane.waiting:
            lane.clear()
        return is_more

    def _start(self, lane: Lane, jobs: Sequence[Job[Lane]]) -> None:
        node = self._node.id
        running = self._node.running
        wall = self._visit.wall
        now = self._now
        draws = lane.draws
        holders = self._jobs.holders
        claimed = self._claimed
        elsewhere = charges_elsewhere(lane.own_buckets)
        opened_at = None if lane.opened_at is None else wall - (now - lane.opened_at)
        for job in jobs:
            new = job.new
            job.state = RUNNING
            job.node = node
            job.started_at = wall
            job.attempt = attempt = job.attempt + 1
            job.fence = fence = job.fence + 1
            job.charged_at = now
            running[new.id] = job
            costs = new.costs
            if new.terms is not None:
                if costs is not None:
                    costs = without(costs, job.passes)
                holders.hold(job)
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
                    draws,
                    costs,
                    now,
                    elsewhere,
                    new.headers,
                    new.options,
                    new.origin,
                    0 if opened_at is None else throttled_for(job.run_at, wall, opened_at),
                )
            )
        lane.waiting -= len(jobs)
        lane.tally.waiting -= len(jobs)
        lane.running += len(jobs)
        lane.tally.running += len(jobs)

    def _reject(self, lane: Lane, jobs: Sequence[Job[Lane]], closed: BucketView) -> None:
        """End jobs that do not wait for a closed bucket."""
        error = rejection_error(closed.draw, self._in_wall_time(lane.opens_at), 0)
        for job in jobs:
            assert job.new.terms is not None
            self._drop(lane, job, job.new.terms.rejected_as, error)

    def _drop(self, lane: Lane, job: Job[Lane], state: JobState, error: JobError) -> None:
        lane.waiting -= 1
        lane.tally.waiting -= 1
        self._end(job, state, error)

    def _drop_late(self) -> None:
        for job in self._visit.late:
            self._end(job, *late_ending(self._visit.wall, job.expires_at, job.give_up_at, job.new.terms, None))

    def _end(self, job: Job[Lane], state: JobState, error: JobError) -> None:
        self._jobs.end_unrun(job, state, self._visit.wall, self._now, error)
        self._dropped.append(Dropped(job.id, job.new.task, job.new.queue, state, error, job.attempt))

    def _in_wall_time(self, instant: int | None) -> int | None:
        """An instant of limit time as wall time; None for never."""
        return None if instant is None or instant >= NEVER else self._visit.wall + (instant - self._now)

    def _is_more(self, groups: Sequence[Group[Lane]], waits: list[int]) -> bool:
        """Whether gated lanes are left that may have a job to start now; to `waits` goes in how long others will."""
        more = False
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
                elif opening[0] < NEVER:
                    waits.append(opening[0] - self._now)
        return more


def _since(lane: Lane) -> tuple[int, int]:
    return lane.since, lane.tick
