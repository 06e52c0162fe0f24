"""What a store has to do, written as naively as possible: lists, and everything found by scanning them.

The model does not choose which jobs a claim takes; it judges what a store chose, and then does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Ending, Finished, Returned, is_poisonous
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import Gcra
from headgate.limits.strict_rate import SlidingLog
from headgate.storage.admission import gated_share
from headgate.storage.endings import EXPIRED_ERROR, poison_error
from headgate.storage.protocol import Claim, Claimed

Lane = tuple[str, tuple[Draw, ...]]


@dataclass
class ModelJob:
    new: NewJob
    arrival: int
    run_at: int
    delayed: bool
    expires_at: int | None
    state: JobState = JobState.WAITING
    node: str | None = None
    fence: int = 0
    attempt: int = 0
    lost: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    cancel_requested: bool = False
    result: str | None = None
    error: JobError | None = None
    attempts: list[tuple[int, str]] = field(default_factory=list)

    @property
    def lane(self) -> Lane:
        return self.new.queue, self.new.draws

    @property
    def order(self) -> tuple[int, int, int]:
        return -self.new.priority, self.run_at, self.arrival

    def cost(self, draw: Draw) -> int:
        return 1 if self.new.costs is None else self.new.costs[self.new.draws.index(draw)]

    def is_ready(self, wall: int) -> bool:
        return self.state is JobState.WAITING and (not self.delayed or self.run_at <= wall)

    def is_expired(self, wall: int) -> bool:
        return self.expires_at is not None and self.expires_at <= wall

    def end(self, state: JobState, wall: int, error: JobError | None) -> None:
        self.state, self.finished_at, self.error = state, wall, error


@dataclass
class ModelBucket:
    rule: AnyRule
    state: object = None
    closed_until: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)

    def opens_at(self, now: int, cost: int) -> int:
        opens_at: int = self.rule.take(self.state, now, cost)[0]
        return max(opens_at, self.closed_until)


class StorageModel:
    """Jobs and limits. `mixed` names the limits with jobs of many costs: their buckets may be kept closed longer."""

    def __init__(self, rules: dict[str, AnyRule], mixed: frozenset[str]) -> None:
        self.rules = rules
        self.mixed = mixed
        self.jobs: dict[str, ModelJob] = {}
        self.buckets: dict[Draw, ModelBucket] = {}
        self.nodes: set[str] = set()
        self.arrivals = 0

    # ------------------------------------------------------------------------------------------ verbs

    def add(self, jobs: Sequence[NewJob]) -> None:
        for new in jobs:
            if new.id not in self.jobs:
                self.arrivals += 1
                self.jobs[new.id] = ModelJob(new, self.arrivals, new.run_at, new.delayed, new.expires_at)
                for draw in new.draws:
                    self.buckets.setdefault(draw, ModelBucket(self.rules[draw.limit]))

    def finish(self, node: str, ending: Ending, wall: int, now: int) -> bool:
        job = self.jobs.get(ending.id)
        if job is None or (job.state, job.node, job.fence) != (JobState.RUNNING, node, ending.fence):
            return False
        match ending:
            case Finished():
                if ending.state is not JobState.SUCCEEDED:
                    job.attempts.append((job.attempt, ending.state.value))
                job.result = ending.result
                job.end(ending.state, wall, ending.error)
            case Returned():
                job.attempts.append((job.attempt, ending.outcome))
                job.attempt -= not ending.spent
                if ending.run_at is not None:
                    job.run_at, job.delayed = ending.run_at, True
                if ending.error is not None:
                    job.error = ending.error
                if ending.closed_for is not None:
                    for draw in job.new.draws:
                        bucket = self.buckets[draw]
                        bucket.closed_until = max(bucket.closed_until, now + ending.closed_for)
                self._wait_or_cancel(job, wall)
        return True

    def cancel(self, job_id: str, wall: int) -> JobState | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        if before is JobState.WAITING:
            job.end(JobState.CANCELLED, wall, job.error)
        elif before is JobState.RUNNING:
            job.cancel_requested = True
        return before

    def retry(self, job_id: str, wall: int) -> None:
        job = self.jobs[job_id]
        job.attempt = job.lost = 0
        job.run_at, job.delayed = wall, False
        job.finished_at = job.result = job.expires_at = None
        job.cancel_requested = False
        job.state = JobState.WAITING

    def leave(self, node: str, wall: int) -> list[str]:
        self.nodes.discard(node)
        for job in self.owned(node):
            job.attempts.append((job.attempt, "interrupted"))
            job.attempt -= 1
            self._wait_or_cancel(job, wall)
        return []

    def recover(self, node: str, wall: int) -> list[str]:
        """The ids of the poisonous ones."""
        self.nodes.discard(node)
        poisonous: list[str] = []
        for job in self.owned(node):
            job.attempts.append((job.attempt, "lost"))
            job.lost += 1
            if is_poisonous(job.lost) and not job.cancel_requested:
                job.end(JobState.FAILED, wall, poison_error(job.lost))
                poisonous.append(job.new.id)
            else:
                self._wait_or_cancel(job, wall)
        return poisonous

    def expire(self, ids: Sequence[str], count: int, wall: int) -> None:
        due = {job.new.id for job in self.jobs.values() if job.state is JobState.WAITING and job.is_expired(wall)}
        assert set(ids) <= due
        assert len(ids) == len(set(ids)) == min(count, len(due))
        for id in ids:
            self.jobs[id].end(JobState.FAILED, wall, EXPIRED_ERROR)

    def prune(self, finished_before: int, kept: set[str]) -> int:
        """Forget what a store pruned, given what it kept; how many it had to be allowed to forget."""
        gone = [job for id, job in self.jobs.items() if id not in kept]
        for job in gone:
            assert job.finished_at is not None
            assert job.finished_at < finished_before
            del self.jobs[job.new.id]
        return len(gone)

    def owned(self, node: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state is JobState.RUNNING and job.node == node]

    def count(self, queue: str, state: JobState) -> int:
        return sum(1 for job in self.jobs.values() if job.new.queue == queue and job.state is state)

    def lane_waiting(self, job: ModelJob) -> int:
        return sum(1 for other in self.jobs.values() if other.lane == job.lane and other.state is JobState.WAITING)

    def _wait_or_cancel(self, job: ModelJob, wall: int) -> None:
        if job.cancel_requested:
            job.end(JobState.CANCELLED, wall, job.error)
        else:
            job.state = JobState.WAITING

    # ------------------------------------------------------------------------------------------ claims

    def judge(self, claim: Claim, claimed: Claimed, impossible: Sequence[str], wall: int, now: int) -> None:
        """Check what a claim gave, and do the same; `impossible` are the jobs it failed for their cost."""
        line = self._lines(claim, wall)
        ungated_ready = {
            queue: sum(len(jobs) for lane, jobs in line.items() if lane[0] == queue and not lane[1])
            for queue in claim.rooms
        }
        for gone in claimed.dropped:
            job = self.jobs[gone.id]
            assert job.is_ready(wall)
            assert job.is_expired(wall)
            assert self._is_known(claim, job)
            job.end(JobState.FAILED, wall, EXPIRED_ERROR)
        left: dict[Lane, list[str]] = {}
        for taken in claimed.jobs:
            left.setdefault(self.jobs[taken.id].lane, []).append(taken.id)
        lost = set(impossible)
        for lane, jobs in line.items():
            wanted = left.pop(lane, [])
            for job in jobs:
                if job.new.id in lost:
                    lost.remove(job.new.id)
                elif wanted:
                    assert wanted.pop(0) == job.new.id, "a lane was not served in its order"
                else:
                    break
            assert not wanted, "a job was claimed that was not ready, or not this node's to claim"
        assert not left
        assert not lost, "an impossible job failed before its turn"
        for id in impossible:
            self.jobs[id].end(JobState.FAILED, wall, self.jobs[id].error)
        for taken in claimed.jobs:
            job = self.jobs[taken.id]
            self._charge(job, now)
            job.state, job.node, job.started_at = JobState.RUNNING, claim.node, wall
            job.fence += 1
            job.attempt += 1
            assert (taken.fence, taken.attempt, taken.lost) == (job.fence, job.attempt, job.lost)
            assert taken.gated == bool(job.new.draws)
        self._judge_room(claim, claimed, ungated_ready)
        if not claimed.more:
            self._judge_idleness(claim, claimed, wall, now)

    def _lines(self, claim: Claim, wall: int) -> dict[Lane, list[ModelJob]]:
        """By lane, the jobs that this node may start as far as their lanes go, in order."""
        lines: dict[Lane, list[ModelJob]] = {}
        for job in sorted(self.jobs.values(), key=lambda job: job.order):
            if job.is_ready(wall) and not job.is_expired(wall) and self._is_known(claim, job):
                lines.setdefault(job.lane, []).append(job)
        return lines

    def _is_known(self, claim: Claim, job: ModelJob) -> bool:
        return (
            job.new.queue in claim.rooms
            and job.new.task in claim.tasks
            and all(draw.limit in claim.rules for draw in job.new.draws)
        )

    def _charge(self, job: ModelJob, now: int) -> None:
        for draw in job.new.draws:
            bucket = self.buckets[draw]
            assert bucket.opens_at(now, job.cost(draw)) <= now, f"{draw} was closed"
            bucket.state = bucket.rule.take(bucket.state, now, job.cost(draw))[1]
            bucket.starts.append((now, job.cost(draw)))

    def _judge_room(self, claim: Claim, claimed: Claimed, ungated_ready: dict[str, int]) -> None:
        for queue, room in claim.rooms.items():
            jobs = [job for job in claimed.jobs if job.queue == queue]
            gated = sum(1 for job in jobs if job.gated)
            assert len(jobs) <= room.slots + room.ahead
            assert gated <= gated_share(room, ungated_ready[queue])

    def _judge_idleness(self, claim: Claim, claimed: Claimed, wall: int, now: int) -> None:
        """Nobody who could start now may be left while there is room, nor be forgotten until something else happens."""
        waits: list[int] = []
        for (queue, draws), jobs in self._lines(claim, wall).items():
            started = sum(1 for job in claimed.jobs if job.queue == queue)
            if started >= claim.rooms[queue].slots:
                continue
            head = jobs[0]
            assert draws, f"{head.new.id} could have started"
            if not any(draw.limit in self.mixed for draw in draws):
                opens_at = max(self.buckets[draw].opens_at(now, head.cost(draw)) for draw in draws)
                assert opens_at > now, f"{head.new.id} could have started"
                waits.append(opens_at - now)
        for job in self.jobs.values():
            if job.state is JobState.WAITING and self._is_known(claim, job) and job.delayed and job.run_at > wall:
                ready = any(
                    other.lane == job.lane and other.is_ready(wall) and not other.is_expired(wall)
                    for other in self.jobs.values()
                )
                if not ready:
                    waits.append(self._startable_at(job, wall, now))
        assert claimed.next_in is None or claimed.next_in >= 0
        if waits:
            assert claimed.next_in is not None
            assert claimed.next_in <= min(waits), "the next claim would come too late"

    def _startable_at(self, job: ModelJob, wall: int, now: int) -> int:
        waits = [job.run_at - wall]
        for draw in job.new.draws:
            if draw.limit not in self.mixed:
                waits.append(self.buckets[draw].opens_at(now, job.cost(draw)) - now)
            else:
                # Kept closed for a costlier job, for as long as its rule can take at most.
                waits.append(10**12)
        return max(waits)

    # ------------------------------------------------------------------------------------------- rules

    def judge_budgets(self) -> None:
        """No bucket has started more than its rule may in any stretch of time, by looking at all of them."""
        for draw, bucket in self.buckets.items():
            rule = bucket.rule
            for first, (begin, _) in enumerate(bucket.starts):
                total = 0
                for at, cost in bucket.starts[first:]:
                    total += cost
                    match rule:
                        case SlidingLog():
                            assert at - begin >= rule.period or total <= rule.count, f"{draw} in one window: {total}"
                        case Gcra():
                            assert (total - rule.burst) * rule.period <= (at - begin) * rule.count, f"{draw}: {total}"
                        case _:
                            raise AssertionError(f"no bound is known for {rule}")
