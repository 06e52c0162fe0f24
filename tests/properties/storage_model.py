"""What a store has to do, written as naively as possible: lists, and everything found by scanning them.

The model does not choose which jobs a claim takes; it judges what a store chose, and then does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from msgspec.structs import replace

from headgate.errors import CostExceedsLimit, DuplicateJob
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import BucketRef, JobError, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Ending, Finished, Returned, Unchanged, is_poisonous
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.jobs.uniqueness import SUPERSEDED, key_of, superseded_error
from headgate.limits.concurrency import OF_BATCH, Semaphore
from headgate.limits.kinds import load_rule
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import Gcra
from headgate.limits.rule import NEVER
from headgate.limits.strict_rate import SlidingLog
from headgate.storage.admission import gated_share
from headgate.storage.endings import (
    EXPIRED_ERROR,
    LEADER_NOT_SUCCEEDED,
    REJECTED,
    LeaderError,
    leader_error,
    poison_error,
)
from headgate.storage.live_rules import LimitSetting
from headgate.storage.records import Amendment, Claim, Claimed, Dropped

Lane = tuple[str, tuple[BucketRef, ...], bool, tuple[str, ...]]
"""Queue, buckets, whether its jobs do not wait, and whose permits they share."""

NO_TERMS = LimitTerms()


@dataclass
class ModelStart:
    """A start as it is charged: which buckets, for what, and when; None when it counts as nothing any more."""

    at: int | None
    costs: dict[BucketRef, int]


@dataclass
class ModelJob:
    new: NewJob
    arrival: int
    run_at: int
    delayed: bool
    expires_at: int | None
    give_up_at: int | None
    state: JobState = JobState.WAITING
    node: str | None = None
    fence: int = 0
    attempt: int = 0
    has_run: bool = False
    """Whether it had spent an attempt when it was last retried."""
    lost: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    cancel_requested: bool = False
    result: str | None = None
    error: JobError | None = None
    attempts: list[tuple[int, str]] = field(default_factory=list)
    held: set[BucketRef] = field(default_factory=set)
    passed: set[BucketRef] = field(default_factory=set)
    starts: list[ModelStart] = field(default_factory=list)
    is_blocked: bool = False

    @property
    def origin(self) -> Origin:
        return self.new.origin or Origin()

    @property
    def terms(self) -> LimitTerms:
        return self.new.terms or NO_TERMS

    @property
    def asked(self) -> tuple[BucketRef, ...]:
        return tuple(ref for ref in self.new.buckets if ref not in self.held and ref not in self.passed)

    @property
    def lane(self) -> Lane:
        owners = [holding.owner for ref in self.asked if (holding := self.holding(ref)) is not None]
        shared = tuple(owner for owner in owners if owner is not None)
        return self.new.queue, self.asked, bool(self.asked) and self.terms.patience == 0, shared

    @property
    def order(self) -> tuple[int, int, int]:
        """The first of two jobs of one lane, whose queue has one aging, or none."""
        if self.new.aging is not None:
            return 0, self.run_at - self.new.priority * self.new.aging, self.arrival
        return -self.new.priority, self.run_at, self.arrival

    def holding(self, ref: BucketRef) -> PermitTerms | None:
        return self.terms.holds[self.new.buckets.index(ref)] if self.terms.holds else None

    def holder(self, ref: BucketRef) -> str:
        holding = self.holding(ref)
        return self.new.id if holding is None else holding.holder(self.new.id)

    def cost(self, ref: BucketRef) -> int:
        return 1 if self.new.costs is None else self.new.costs[self.new.buckets.index(ref)]

    def is_ready(self, wall: int) -> bool:
        return self.waits_in_lane and (not self.delayed or self.run_at <= wall)

    @property
    def waits_in_lane(self) -> bool:
        return self.state is JobState.WAITING and not self.is_blocked

    def is_late(self, wall: int) -> bool:
        return any(at is not None and at <= wall for at in (self.expires_at, self.give_up_at))

    def late_ending(self, wall: int) -> tuple[JobState, str]:
        """The state it ends in and the type of its error."""
        gives_up = self.give_up_at is not None and self.give_up_at <= wall
        if not gives_up or (self.expires_at is not None and self.expires_at <= (self.give_up_at or 0)):
            return JobState.CANCELLED if self.is_skipped else JobState.FAILED, EXPIRED_ERROR.type
        return self.rejected_as, REJECTED

    @property
    def is_skipped(self) -> bool:
        """Whether it is an occurrence that never spent an attempt."""
        return self.terms.skips and not (self.attempt or self.has_run)

    @property
    def rejected_as(self) -> JobState:
        return JobState.CANCELLED if self.terms.cancels or self.is_skipped else JobState.FAILED

    def keeps(self, ref: BucketRef, state: JobState) -> bool:
        """Whether it keeps a permit of that bucket when it becomes `state`."""
        holding = self.holding(ref)
        assert holding is not None
        kept_by = {
            "running": {JobState.RUNNING},
            "batch": {JobState.RUNNING},
            "until_final": {JobState.RUNNING, JobState.WAITING},
        }
        return state in kept_by.get(holding.until, {JobState.RUNNING, JobState.WAITING, JobState.FAILED})


@dataclass
class ModelBucket:
    state: object = None
    holders: dict[str, list[int]] = field(default_factory=dict)
    """The cost and the uses of each permit."""
    closed_until: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)
    is_steered: bool = False
    """Whether its state was changed from outside. `_charge` checks the grants in any case."""

    @property
    def held(self) -> int:
        return sum(cost for cost, _ in self.holders.values())


class StorageModel:
    """Jobs and limits. `mixed` names the limits with jobs of many costs: their buckets may be kept closed longer."""

    def __init__(self, rules: dict[str, AnyRule], mixed: frozenset[str]) -> None:
        self.rules = rules
        self.mixed = mixed
        self.jobs: dict[str, ModelJob] = {}
        self.buckets: dict[BucketRef, ModelBucket] = {}
        self.nodes: set[str] = set()
        self.settings: dict[tuple[str, str, str], LimitSetting] = {}
        self.steered: set[str] = set()
        self.arrivals = 0
        self.batches: dict[str, dict[str, JobState | None]] = {}
        """How the jobs of each batch ended, None while they have not; also of those that were pruned."""
        self.released: set[str] = set()
        """By the claim that is being judged."""

    # ------------------------------------------------------------------------------------------ verbs

    def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch], wall: int) -> dict[str, str]:
        for batch in batches:
            self.batches.setdefault(batch.id, {})
        for new in jobs:
            if new.id not in self.jobs:
                self.arrivals += 1
                job = ModelJob(new, self.arrivals, new.run_at, new.delayed, new.expires_at, new.give_up_at)
                self.jobs[new.id] = job
                if new.rejection is not None:
                    job.state, job.finished_at, job.error = job.rejected_as, new.enqueued_at, new.rejection
                elif job.origin.follows is not None and not self._let_go_or_cancel(job, wall):
                    self._block(job)
                self._count_in_batch(job)
        return {}

    # -------------------------------------------------------------------------------------- following

    def end_of(self, leader: str | None) -> JobState | None:
        """How a leader ended; None if it has not."""
        if leader in self.batches:
            ends = list(self.batches[leader].values())
            if None in ends:
                return None
            for state in (JobState.FAILED, JobState.CANCELLED):
                if state in ends:
                    return state
            return JobState.SUCCEEDED
        job = self.jobs.get(leader or "")
        # A pruned job is final, and its outcome is not read.
        return JobState.SUCCEEDED if job is None else job.state if job.state.is_final else None

    def _cause_of(self, leader: str) -> LeaderError:
        """The error of a leader; of a batch, of its first job that went wrong by itself, or else of its first one."""
        if leader not in self.batches:
            return LeaderError(leader, self.jobs[leader].error)
        errors = [
            self.jobs[id].error
            for id, state in sorted(self.batches[leader].items())
            if id in self.jobs and state in (JobState.FAILED, JobState.CANCELLED)
        ]
        own = [error for error in errors if error is None or error.type != LEADER_NOT_SUCCEEDED]
        return LeaderError(leader, [*own, *errors, None][0], is_batch=True)

    def may_be_retried(self, job: ModelJob) -> bool:
        """Whether what it follows, if that is final, ended as the job needs it."""
        return job.origin.on == "final" or self.end_of(job.origin.follows) in (None, JobState.SUCCEEDED)

    def _block(self, job: ModelJob) -> None:
        job.state, job.is_blocked, job.give_up_at = JobState.WAITING, True, None

    def _let_go_or_cancel(self, job: ModelJob, wall: int) -> bool:
        """Whether its leader is final, and it is what that makes of it."""
        leader = job.origin.follows
        end = self.end_of(leader)
        if end is None or leader is None:
            return False
        if job.origin.on == "success" and end is not JobState.SUCCEEDED:
            job.is_blocked = False
            self._end(job, JobState.CANCELLED, wall, leader_error(leader, end, self._cause_of(leader)))
        elif job.is_blocked:
            job.is_blocked = False
            job.delayed = job.delayed and job.run_at > wall
            job.run_at = max(job.run_at, wall)
            job.give_up_at = job.run_at + job.terms.patience if job.terms.patience else None
            self.released.add(job.new.id)
        return True

    def _count_in_batch(self, job: ModelJob) -> None:
        if job.origin.batch is not None:
            self.batches[job.origin.batch][job.new.id] = job.state if job.state.is_final else None

    def is_stored(self, batch: str) -> bool:
        """Whether any of its jobs is."""
        return any(job.origin.batch == batch for job in self.jobs.values())

    def settle(self, wall: int) -> None:
        """Check that no job is blocked whose leader is final."""
        while True:
            for job in self.jobs.values():
                self._count_in_batch(job)
            received = [self._let_go_or_cancel(job, wall) for job in list(self.jobs.values()) if job.is_blocked]
            if not any(received):
                break
        for id in self.batches:
            if self.end_of(id) is not None:
                for bucket in self.buckets.values():
                    bucket.holders.pop(OF_BATCH + id, None)

    def _come_back(self, job: ModelJob) -> None:
        """A final job will be final no more, nor is its batch; who was cancelled because of either is blocked."""
        leaders = {job.new.id}
        if job.origin.batch is not None:
            if self.end_of(job.origin.batch) is not None:
                leaders.add(job.origin.batch)
            self.batches[job.origin.batch][job.new.id] = None
        for other in self.jobs.values():
            gone = other.state is JobState.CANCELLED and other.error is not None
            if gone and other.origin.follows in leaders and other.error.type == LEADER_NOT_SUCCEEDED:  # type: ignore[union-attr]
                self._come_back(other)
                other.attempt = other.lost = 0
                other.finished_at = other.result = other.error = None
                other.cancel_requested, other.passed = False, set()
                self._block(other)

    def add_unique(self, jobs: Sequence[NewJob], wall: int) -> dict[str, str]:
        """Return the duplicates by their ids. Raises DuplicateJob, and then stores none of the jobs."""
        new = [job for job in jobs if job.id not in self.jobs]
        existing = {key for job in self.jobs.values() if not job.state.is_final and (key := key_of(job.new))}
        for job in new:
            key = key_of(job)
            if key in existing and job.on_conflict == "raise":
                raise DuplicateJob("", *key)
            if key is not None and job.rejection is None:
                existing.add(key)
        others: dict[str, str] = {}
        for job in new:
            waiting, running = (self.existing(job, state) for state in (JobState.WAITING, JobState.RUNNING))
            if waiting is not None and job.on_conflict == "replace":
                self._replace(waiting, job)
                others[job.id] = waiting.new.id
            elif waiting is not None or running is not None:
                others[job.id] = (waiting or running or self.jobs[job.id]).new.id
            else:
                self.add([job], [], wall)
        return others

    def existing(self, new: NewJob, state: JobState) -> ModelJob | None:
        """A job in that state under the same unique key."""
        key = key_of(new)
        found = (job for job in self.jobs.values() if key is not None and key_of(job.new) == key and job.state is state)
        return next(found, None)

    def _replace(self, job: ModelJob, new: NewJob) -> None:
        before, lane = job.new, job.lane
        kept = {ref for ref in job.held if ref in new.buckets and _holder(new, ref) == job.holder(ref)}
        self._give(job, [ref for ref in job.held if ref not in kept])
        if (before.buckets, before.costs, new.costs) != (new.buckets, None, None):
            job.starts = []
        job.new = replace(new, id=before.id)
        job.passed = set()
        if job.lane != lane or job.delayed or new.delayed:
            job.run_at = new.run_at
        job.delayed, job.expires_at, job.give_up_at = new.delayed, new.expires_at, new.give_up_at
        job.attempt = job.lost = 0
        job.fence += 1
        job.error = None

    def finish(self, node: str, ending: Ending, wall: int, now: int) -> bool:
        job = self.jobs.get(ending.id)
        if job is None or (job.node, job.fence) != (node, ending.fence):
            return False
        if job.state is not JobState.RUNNING:
            return isinstance(ending, Finished) and self._has_ended(job, ending)
        for correction in ending.corrections:
            at = job.starts[-1].at
            assert at is not None
            if not isinstance(self.rule(correction.ref), Semaphore):
                self.amend(Amendment(correction.ref, at, correction.cost, at, correction.actual))
        if ending.charge is not None:
            start = job.starts[-1]
            start.at = ending.charge.at
            if ending.charge.costs is not None:
                start.costs = dict(zip(start.costs, ending.charge.costs, strict=True))
        match ending:
            case Finished():
                if ending.state is not JobState.SUCCEEDED:
                    job.attempts.append((job.attempt, ending.state.value))
                job.result = ending.result
                self._end(job, ending.state, wall, ending.error)
            case Returned():
                job.attempts.append((job.attempt, ending.outcome))
                job.attempt -= not ending.spent
                if ending.spent:
                    free = job.terms.free_retries
                    job.passed = {ref for index, ref in enumerate(job.new.buckets) if free >> index & 1}
                if ending.run_at is not None:
                    job.run_at, job.delayed = ending.run_at, True
                if ending.error is not None:
                    job.error = ending.error
                if ending.closed_for is not None:
                    for ref in job.new.buckets:
                        if job.holding(ref) is None and not self.rules[ref.limit].orders_turns:
                            self.penalize(ref, now + ending.closed_for)
                self._wait_or_cancel(job, wall, ending.run_at)
        self.settle(wall)
        return True

    def _has_ended(self, job: ModelJob, ending: Finished) -> bool:
        """Whether it is final by that very ending, sent before."""
        if job.state is not ending.state:
            return False
        return job.cancel_requested if job.state is JobState.CANCELLED else job.error == ending.error

    def cancel(self, job_id: str, wall: int) -> JobState | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        before = job.state
        if before is JobState.WAITING:
            job.is_blocked = False
            self._end(job, JobState.CANCELLED, wall, job.error)
        elif before is JobState.RUNNING:
            if job.cancel_requested:
                raise Unchanged
            job.cancel_requested = True
        self.settle(wall)
        return before

    def reschedule(self, job_id: str, run_at: int | None, priority: int | None, wall: int) -> None:
        job = self.jobs[job_id]
        is_new_time = run_at is not None and (run_at > wall or (job.delayed and job.run_at > wall))
        time = (max(run_at, wall), run_at > wall) if is_new_time and run_at is not None else (job.run_at, job.delayed)
        if time == (job.run_at, job.delayed) and priority in (None, job.new.priority):
            raise Unchanged
        job.fence += not job.is_blocked
        if priority is not None:
            job.new = replace(job.new, priority=priority)
        if not is_new_time:
            return
        job.run_at, job.delayed = time
        if not job.is_blocked and job.terms.patience:
            job.give_up_at = job.run_at + job.terms.patience

    def retry(self, job_id: str, wall: int) -> None:
        job = self.jobs[job_id]
        self._come_back(job)
        if job.error is not None and job.error.type in (LEADER_NOT_SUCCEEDED, REJECTED, EXPIRED_ERROR.type, SUPERSEDED):
            job.error = None
        job.has_run = job.has_run or job.attempt > 0
        job.attempt = job.lost = 0
        job.run_at, job.delayed = wall, False
        job.finished_at = job.result = job.expires_at = None
        job.cancel_requested = False
        job.passed = set()
        job.give_up_at = wall + job.terms.patience if job.terms.patience else None
        job.state = JobState.WAITING
        if job.origin.follows is not None and self.end_of(job.origin.follows) is None:
            self._give(job, list(job.held))
            self._block(job)

    def leave(self, node: str, wall: int) -> None:
        self.nodes.discard(node)
        for job in self.owned(node):
            job.attempts.append((job.attempt, "interrupted"))
            job.attempt -= 1
            self._wait_or_cancel(job, wall)
        self.settle(wall)

    def recover(self, node: str, wall: int) -> list[str]:
        """The ids of the poisonous ones."""
        self.nodes.discard(node)
        poisonous: list[str] = []
        for job in self.owned(node):
            job.attempts.append((job.attempt, "lost"))
            job.lost += 1
            if is_poisonous(job.lost) and not job.cancel_requested:
                self._end(job, JobState.FAILED, wall, poison_error(job.lost))
                poisonous.append(job.new.id)
            else:
                self._wait_or_cancel(job, wall)
        self.settle(wall)
        return poisonous

    def expire(self, dropped: Sequence[Dropped], count: int, wall: int) -> None:
        due = {job.new.id for job in self.jobs.values() if job.state is JobState.WAITING and job.is_late(wall)}
        ids = [gone.id for gone in dropped]
        assert set(ids) <= due
        assert len(ids) == len(set(ids)) == min(count, len(due))
        for gone in dropped:
            self._drop_late(gone, wall)
        self.settle(wall)

    def prune(self, finished_before: int, kept: set[str]) -> int:
        """Forget what a store pruned, given what it kept; how many it had to be allowed to forget."""
        gone = [job for id, job in self.jobs.items() if id not in kept]
        for job in gone:
            assert job.finished_at is not None
            assert job.finished_at < finished_before
            self._give(job, list(job.held))
            del self.jobs[job.new.id]
        return len(gone)

    def owned(self, node: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state is JobState.RUNNING and job.node == node]

    def count(self, queue: str, state: JobState) -> int:
        return sum(1 for job in self.jobs.values() if job.new.queue == queue and job.state is state)

    def oldest(self, queue: str, wall: int) -> int | None:
        """The `run_at` of the job that has been ready for longest, late or not."""
        ready = [job.run_at for job in self.jobs.values() if job.new.queue == queue and job.is_ready(wall)]
        return min(ready, default=None)

    def count_waiting(self) -> int:
        return sum(1 for job in self.jobs.values() if job.state is JobState.WAITING)

    def lane_waiting(self, job: ModelJob) -> int:
        if job.is_blocked:
            return 0
        return sum(1 for other in self.jobs.values() if other.lane == job.lane and other.waits_in_lane)

    def place(self, job: ModelJob) -> int:
        return sum(
            1
            for other in self.jobs.values()
            if other.lane == job.lane and other.waits_in_lane and other.order <= job.order
        )

    def starts(self, limit: str) -> list[tuple[str, int, int]]:
        """Key, instant and cost of each start that was charged to a limit."""
        return sorted(
            (ref.key, start.at, cost)
            for job in self.jobs.values()
            for start in job.starts
            for ref, cost in start.costs.items()
            if ref.limit == limit and start.at is not None
        )

    def _end(self, job: ModelJob, state: JobState, wall: int, error: JobError | None) -> None:
        job.state, job.finished_at, job.error = state, wall, error
        self._give(job, [ref for ref in job.held if not job.keeps(ref, state)])

    def _wait_or_cancel(self, job: ModelJob, wall: int, ready_at: int | None = None) -> None:
        if job.cancel_requested:
            self._end(job, JobState.CANCELLED, wall, job.error)
            return
        successor = self.existing(job.new, JobState.WAITING)
        if successor is not None:
            self._end(job, JobState.CANCELLED, wall, superseded_error(successor.new.id))
            return
        job.state = JobState.WAITING
        patience = job.terms.patience
        job.give_up_at = (wall if ready_at is None else ready_at) + patience if patience else None
        self._give(job, [ref for ref in job.held if not job.keeps(ref, JobState.WAITING)])

    def _drop_late(self, gone: Dropped, wall: int) -> None:
        job = self.jobs[gone.id]
        job.is_blocked = False
        assert (gone.state, gone.error.type) == job.late_ending(wall)
        self._end(job, gone.state, wall, gone.error)

    # ------------------------------------------------------------------------------------------ limits

    def bucket(self, ref: BucketRef) -> ModelBucket:
        return self.buckets.setdefault(ref, ModelBucket())

    def rule(self, ref: BucketRef) -> AnyRule:
        for setting in self._settings_of(ref):
            if setting.rule is not None:
                return load_rule(setting.rule)
        return self.rules[ref.limit]

    def opens_at(self, ref: BucketRef, now: int, cost: int, holder: str) -> int:
        """When that much may go. Raises CostExceedsLimit."""
        bucket, rule = self.bucket(ref), self.rule(ref)
        closed_until = bucket.closed_until
        if any(setting.is_paused for setting in self._settings_of(ref)):
            closed_until = NEVER
        if isinstance(rule, Semaphore):
            rule.check_cost(cost)
            fits = holder in bucket.holders or bucket.held + cost <= rule.count
            return max(closed_until, now if fits else NEVER)
        opens_at: int = rule.take(bucket.state, now, cost)[0]
        return max(opens_at, closed_until)

    def change(self, setting: LimitSetting, *, remove: bool) -> None:
        place = (setting.limit, setting.scope, setting.target)
        self.settings.pop(place, None)
        if not remove:
            self.settings[place] = setting
        self.steered.add(setting.limit)

    def penalize(self, ref: BucketRef, until: int) -> None:
        self.bucket(ref).closed_until = max(self.bucket(ref).closed_until, until)

    def reset(self, ref: BucketRef) -> int:
        bucket = self.bucket(ref)
        for job in self.jobs.values():
            if ref in job.held and job.state is not JobState.RUNNING:
                self._give(job, [ref])
        bucket.holders = {holder: hold for holder, hold in bucket.holders.items() if hold[1]}
        bucket.state, bucket.closed_until, bucket.is_steered = None, 0, True
        return bucket.held

    def is_in_use(self, limit: str) -> bool:
        is_asked = any(
            ref.limit == limit for job in self.jobs.values() if job.state is JobState.WAITING for ref in job.asked
        )
        return is_asked or any(bucket.held for ref, bucket in self.buckets.items() if ref.limit == limit)

    def forget(self, limit: str) -> None:
        self.settings = {place: setting for place, setting in self.settings.items() if setting.limit != limit}
        for ref, bucket in self.buckets.items():
            if ref.limit == limit:
                bucket.state, bucket.closed_until, bucket.is_steered = None, 0, True

    def amend(self, amendment: Amendment) -> None:
        bucket, rule = self.bucket(amendment.ref), self.rule(amendment.ref)
        bucket.is_steered = True
        if bucket.state is not None:
            bucket.state = rule.amend(
                bucket.state, amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual
            )

    def _settings_of(self, ref: BucketRef) -> Iterable[LimitSetting]:
        """Most specific first."""
        own = [setting for setting in self.settings.values() if setting.limit == ref.limit]
        yield from (setting for setting in own if setting.scope == "key" and setting.target == ref.key)
        patterns = [setting for setting in own if setting.scope == "pattern" and fnmatchcase(ref.key, setting.target)]
        yield from sorted(patterns, key=lambda setting: -len(setting.target))
        yield from (setting for setting in own if setting.scope == "all")

    def _give(self, job: ModelJob, buckets: Sequence[BucketRef]) -> None:
        for ref in buckets:
            holders, holder = self.bucket(ref).holders, job.holder(ref)
            holders[holder][1] -= 1
            if not holders[holder][1] and not holder.startswith(OF_BATCH):
                del holders[holder]
            job.held.remove(ref)

    def _charge(self, job: ModelJob, now: int) -> None:
        start = ModelStart(now, {})
        for ref in job.asked:
            bucket, rule, cost, holder = self.bucket(ref), self.rule(ref), job.cost(ref), job.holder(ref)
            assert self.opens_at(ref, now, cost, holder) <= now, f"{ref} was closed"
            start.costs[ref] = cost
            bucket.starts.append((now, cost))
            if isinstance(rule, Semaphore):
                bucket.holders.setdefault(holder, [cost, 0])[1] += 1
                job.held.add(ref)
            else:
                bucket.state = rule.take(bucket.state, now, cost)[1]
        job.starts.append(start)

    # ------------------------------------------------------------------------------------------ claims

    def judge(self, claim: Claim, claimed: Claimed, wall: int, now: int) -> None:
        """Check what a claim gave, and do the same."""
        line = self._lines(claim, wall)
        ungated_ready = {
            queue: sum(len(jobs) for lane, jobs in line.items() if lane[0] == queue and not lane[1])
            for queue in claim.free_slots
        }
        # Jobs of this claim may get a permit that a late job returns, its own or that of its batch.
        late = [self.jobs[gone.id] for gone in claimed.dropped]
        given = any(job.held or job.lane[3] for job in late)
        self.released.clear()
        impossible: set[str] = set()
        rejected: set[str] = set()
        # Followers of a job that ends in this claim may end in it as well, after its second read.
        ended_after_it = [gone for gone in claimed.dropped if self.jobs[gone.id].is_blocked]
        for gone in claimed.dropped:
            if gone in ended_after_it:
                continue
            job = self.jobs[gone.id]
            assert job.is_ready(wall), f"it ended before it was ready: {job}"
            assert self._is_known(claim, job)
            if job.is_late(wall):
                self._drop_late(gone, wall)
            elif gone.error.type == REJECTED:
                assert job.lane[2], "a job that waits was rejected"
                assert gone.state is job.rejected_as
                rejected.add(gone.id)
            else:
                assert gone.error.type.endswith("CostExceedsLimit")
                assert gone.state is JobState.FAILED
                assert self._is_impossible(job, now)
                impossible.add(gone.id)
        self.settle(wall)
        if self.released:
            # Followers of a late job may have started in the same claim, or start in the next one.
            line = self._lines(claim, wall)
            for lane, jobs in line.items():
                taken_ids = {taken.id for taken in claimed.jobs}
                line[lane] = [job for job in jobs if job.new.id not in self.released or job.new.id in taken_ids]
        # Followers of a job that ends in this claim may start in it as well, after its second read.
        followers = {taken.id for taken in claimed.jobs if self.jobs[taken.id].is_blocked}
        self._judge_order(line, claimed, impossible, rejected, followers)
        lanes = {id: self.jobs[id].lane for id in rejected}
        for gone in claimed.dropped:
            if gone.id in impossible or gone.id in rejected:
                self._end(self.jobs[gone.id], gone.state, wall, gone.error)
        if followers or ended_after_it:
            self.settle(wall)
        for gone in ended_after_it:
            job = self.jobs[gone.id]
            assert job.is_ready(wall)
            assert self._is_known(claim, job)
            if job.is_late(wall):
                self._drop_late(gone, wall)
            else:
                assert gone.error.type == REJECTED or gone.error.type.endswith("CostExceedsLimit")
                self._end(job, gone.state, wall, gone.error)
        for taken in claimed.jobs:
            job = self.jobs[taken.id]
            assert job.is_ready(wall), "a job was claimed that was not ready"
            asked = job.asked
            assert taken.buckets == asked
            assert taken.costs == (None if job.new.costs is None else tuple(job.cost(ref) for ref in asked))
            assert taken.gated == bool(asked)
            assert 0 <= taken.throttled_for <= max(0, wall - job.run_at), "more than it has waited at all"
            assert asked or not taken.throttled_for
            assert taken.charged_at == now
            self._charge(job, now)
            job.state, job.node, job.started_at = JobState.RUNNING, claim.node, wall
            job.fence += 1
            job.attempt += 1
            assert (taken.fence, taken.attempt, taken.lost) == (job.fence, job.attempt, job.lost)
        for id, (_, buckets, _, _) in lanes.items():
            if not given and not self._is_mixed(buckets):
                assert self._opens_at(self.jobs[id], buckets, now) > now, f"{id} was rejected, and could have started"
        self.settle(wall)
        self._judge_room(claim, claimed, ungated_ready)
        if not claimed.more:
            self._judge_idleness(claim, claimed, wall, now)

    def _judge_order(
        self,
        line: dict[Lane, list[ModelJob]],
        claimed: Claimed,
        impossible: set[str],
        rejected: set[str],
        followers: set[str],
    ) -> None:
        left: dict[Lane, list[str]] = {}
        for taken in claimed.jobs:
            if taken.id not in followers:
                left.setdefault(self.jobs[taken.id].lane, []).append(taken.id)
        gone = impossible | rejected
        for lane, jobs in line.items():
            wanted = left.pop(lane, [])
            for job in jobs:
                if job.new.id in gone:
                    gone.remove(job.new.id)
                elif wanted:
                    assert wanted.pop(0) == job.new.id, "a lane was not served in its order"
                else:
                    break
            assert not wanted, "a job was claimed that was not ready, or not this node's to claim"
        assert not left, f"jobs of lanes without any that is ready were claimed: {left}"
        assert not gone, "a job was dropped before its turn"

    def _lines(self, claim: Claim, wall: int) -> dict[Lane, list[ModelJob]]:
        """By lane, the jobs that this node may start as far as their lanes go, in order."""
        lines: dict[Lane, list[ModelJob]] = {}
        for job in sorted(self.jobs.values(), key=lambda job: job.order):
            if job.is_ready(wall) and not job.is_late(wall) and self._is_known(claim, job):
                lines.setdefault(job.lane, []).append(job)
        return lines

    def _is_known(self, claim: Claim, job: ModelJob) -> bool:
        return (
            job.new.queue in claim.free_slots
            and job.new.task in claim.tasks
            and all(ref.limit in claim.rules for ref in job.asked)
        )

    def _is_impossible(self, job: ModelJob, now: int) -> bool:
        try:
            self._opens_at(job, job.asked, now)
        except CostExceedsLimit:
            return True
        return False

    def _opens_at(self, job: ModelJob, buckets: Sequence[BucketRef], now: int) -> int:
        return max(self.opens_at(ref, now, job.cost(ref), job.holder(ref)) for ref in buckets)

    def _is_mixed(self, buckets: Sequence[BucketRef]) -> bool:
        return any(ref.limit in self.mixed for ref in buckets)

    def _is_shared(self, job: ModelJob) -> bool:
        """Whether its owner has a permit already: a lane that waits behind it is not notified."""
        return any(job.holder(ref) in self.bucket(ref).holders for ref in job.asked)

    def _judge_room(self, claim: Claim, claimed: Claimed, ungated_ready: dict[str, int]) -> None:
        for queue, free in claim.free_slots.items():
            jobs = [job for job in claimed.jobs if job.queue == queue]
            gated = sum(1 for job in jobs if job.gated)
            assert len(jobs) <= free.slots
            assert gated <= gated_share(free, ungated_ready[queue])
        assert claim.shared_slots is None or len(claimed.jobs) <= claim.shared_slots

    def _judge_idleness(self, claim: Claim, claimed: Claimed, wall: int, now: int) -> None:
        """Check that no job is left that could start now, unless the claim says that there are more."""
        waits: list[int] = []
        for (queue, buckets, discards, _), jobs in self._lines(claim, wall).items():
            started = sum(1 for job in claimed.jobs if job.queue == queue)
            if started >= claim.free_slots[queue].slots or len(claimed.jobs) == claim.shared_slots:
                continue
            head = jobs[0]
            assert buckets, f"{head.new.id} could have started"
            assert not discards, f"{head.new.id} waits, and is not to"
            if not self._is_mixed(buckets) and not self._is_shared(head):
                opens_at = self._opens_at(head, buckets, now)
                assert opens_at > now, f"{head.new.id} could have started"
                waits.append(opens_at - now)
        for job in self.jobs.values():
            if job.waits_in_lane and self._is_known(claim, job) and job.delayed and job.run_at > wall:
                ready = any(
                    other.lane == job.lane and other.is_ready(wall) and not other.is_late(wall)
                    for other in self.jobs.values()
                )
                if not ready:
                    waits.append(self._startable_in(job, wall, now))
        assert claimed.next_in is None or 0 <= claimed.next_in < NEVER // 2
        waits = [wait for wait in waits if wait < NEVER // 2]
        if waits:
            assert claimed.next_in is not None
            assert claimed.next_in <= min(waits), "the next claim would come too late"

    def _startable_in(self, job: ModelJob, wall: int, now: int) -> int:
        if self._is_mixed(job.asked):
            # Kept closed for a costlier job, for as long as its rule can take at most.
            return NEVER
        waits = [self.opens_at(ref, now, job.cost(ref), job.holder(ref)) - now for ref in job.asked]
        return max(job.run_at - wall, *waits, 0)

    # ------------------------------------------------------------------------------------------- rules

    def judge_budgets(self) -> None:
        """No bucket has started more than its rule may in any stretch of time, by looking at all of them."""
        for ref, bucket in self.buckets.items():
            rule = self.rules[ref.limit]
            if bucket.is_steered or ref.limit in self.steered or rule.orders_turns:
                continue
            if isinstance(rule, Semaphore):
                assert bucket.held <= rule.count, f"{ref} is held by {bucket.holders}"
                continue
            for first, (begin, _) in enumerate(bucket.starts):
                total = 0
                for at, cost in bucket.starts[first:]:
                    total += cost
                    match rule:
                        case SlidingLog():
                            assert at - begin >= rule.period or total <= rule.count, f"{ref} in one window: {total}"
                        case Gcra():
                            assert (total - rule.burst) * rule.period <= (at - begin) * rule.count, f"{ref}: {total}"
                        case _:
                            raise AssertionError(f"no bound is known for {rule}")


def _holder(new: NewJob, ref: BucketRef) -> str | None:
    """Who would hold the permit of a bucket, None if it is not on permits."""
    holding = new.terms.holds[new.buckets.index(ref)] if new.terms is not None and new.terms.holds else None
    return None if holding is None else holding.holder(new.id)
