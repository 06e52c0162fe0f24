"""The verbs of the memory storage.

Each decides and writes synchronously, so no other coroutine ever sees half of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import StorageUnusable, UnfitConnection
from headgate.jobs.audit import AuditEntry, AuditFilter, Deed
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import NO_GATES, GatedJob, KnownGates, Regated
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending, is_poisonous, require_retriable, require_scheduled
from headgate.jobs.report import LogLine, Report
from headgate.jobs.rescheduling import require_waiting
from headgate.limits.concurrency import without_unused
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import BucketVisit
from headgate.storage.endings import poison_error
from headgate.storage.facts import MemoryFacts
from headgate.storage.fetched import Balance
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.live_rules import EditSetting, LimitSetting, edited
from headgate.storage.memory.claim import Claiming
from headgate.storage.memory.contradictions import contradictions
from headgate.storage.memory.gates import Gates
from headgate.storage.memory.history import History
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, WAITING, Job
from headgate.storage.memory.jobs import Jobs
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.listing import passes_filter, view_of
from headgate.storage.memory.node import Node
from headgate.storage.memory.notes import Notes
from headgate.storage.memory.records import (
    bucket_record,
    gated_job,
    is_used,
    job_record,
    outlook,
    recorded_starts,
    standing,
)
from headgate.storage.memory.schedules import is_open
from headgate.storage.memory.trail import Trail
from headgate.storage.memory.unique import add_unique
from headgate.storage.migrations import Migration
from headgate.storage.protocol import (
    FINAL_STATES,
    GATE_LIVES,
    Amendment,
    Beat,
    BucketPlace,
    BucketRecord,
    Claim,
    Claimed,
    Deposit,
    Dropped,
    JobFilter,
    NodeRecord,
    Obstacle,
    QueueCounts,
    QueueRecord,
    R,
    RecordedStart,
    Recovered,
    Standing,
    ViewCount,
    WaitingCount,
)
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord


class MemoryStorage:
    """The Storage protocol in plain objects: one process, one event loop, nothing durable."""

    is_in_process = True
    place = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()
        self._last_limit_time = 0
        self._lanes = Lanes()
        self._history = History()
        self._jobs = Jobs(self._lanes, self._history)
        self._nodes: dict[str, Node] = {}
        self._notes = Notes()
        self._gates = Gates()
        self._trail = Trail()
        self._wakes: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of; what was stored can be read on."""

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        return []

    def scratch(self) -> AbstractAsyncContextManager[Callable[[], MemoryStorage]]:
        raise StorageUnusable("no store can be made beside one that is in memory")

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        raise UnfitConnection("jobs in memory are in no database, so no connection has a transaction for them")

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._wakes.append(wake)

        def unwatch() -> None:
            if wake in self._wakes:
                self._wakes.remove(wake)

        return unwatch

    def now(self) -> int:
        return self._clock.now()

    def limit_now(self) -> int:
        now = self._clock.monotonic() + self._ahead
        self._last_limit_time = max(self._last_limit_time, now)
        return self._last_limit_time

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        now, wall = self.limit_now(), self._clock.now()
        others: Mapping[str, str] = {}
        if any(job.unique_key is not None for job in jobs):
            others = add_unique(self._jobs, jobs, now, batches, wall)
        else:
            self._jobs.add(jobs, now, batches, wall)
        self._wake()
        return others

    async def claim(self, claim: Claim) -> Claimed:
        node = self._nodes.get(claim.node)
        if node is None:
            # Its jobs would belong to nobody: a node that was declared dead has to join again.
            return Claimed(jobs=(), next_in=None)
        claiming = Claiming(
            self._lanes, self._jobs, node, claim, self._gates.newest, self._clock.now(), self.limit_now()
        )
        claimed = claiming.run()
        if claimed.dropped:
            self._wake()
        return claimed

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool]:
        wall, now = self._clock.now(), self.limit_now()
        owner = self._nodes.get(node)
        written = [
            (owner is not None and self._jobs.finish(owner, ending, wall, now)) or self._jobs.has_ended(node, ending)
            for ending in endings
        ]
        self._jobs.tell_followers(wall, now)
        self._wake()
        return written

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        now = self.limit_now()
        is_refunded = False
        for amendment in amendments:
            declared = rules.get(amendment.draw.limit)
            if declared is None:
                continue
            bucket = self._lanes.bucket(amendment.draw)
            self._lanes.judge(bucket, declared, now)
            bucket.amend(amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual)
            if amendment.actual < amendment.cost:
                self._lanes.reopen(bucket, now)
                is_refunded = True
        if is_refunded:
            self._wake()

    async def cancel(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        before = job.state
        if not before.is_final:
            self._trail.note(deed, self._clock.now(), job)
        if before is WAITING:
            wall, now = self._clock.now(), self.limit_now()
            self._jobs.stop_waiting(job, CANCELLED, wall, now, error=job.error)
            self._jobs.tell_followers(wall, now)
            self._wake()
        elif before is RUNNING:
            job.cancel_requested = True
            self._wake()
        return before

    async def retry(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        before = job.state
        require_retriable(job_id, before)
        # What is refused changes nothing.
        self._jobs.require_leader(job)
        self._jobs.require_place(job)
        self._jobs.schedules.note_retry(job)
        job.run_at = wall = self._clock.now()
        job.delayed = False
        job.progress = None
        self._trail.note(deed, wall, job)
        self._jobs.retry(job, wall, self.limit_now())
        self._wake()
        return before

    async def run_now(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        wall = self._clock.now()
        require_scheduled(
            job_id,
            job.state,
            is_ahead=job.delayed and job.run_at > wall,
            follows=job.leader if job.is_blocked else None,
        )
        self._jobs.be_ready(job, wall, self.limit_now())
        self._trail.note(deed, wall, job)
        self._wake()
        return job.state

    async def reschedule(
        self, job_id: str, *, run_at: int | None = None, priority: int | None = None, deed: Deed | None = None
    ) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        require_waiting(job_id, job.state)
        wall = self._clock.now()
        self._jobs.reschedule(job, run_at, priority, wall, self.limit_now())
        self._trail.note(deed, wall, job)
        self._wake()
        return job.state

    async def report(self, node: str, reports: Sequence[Report], most_lines: int) -> Sequence[bool]:
        return [self._report(node, report, most_lines) for report in reports]

    def _report(self, node: str, report: Report, most_lines: int) -> bool:
        job = self._jobs.by_id.get(report.id)
        if job is None or job.state is not RUNNING or (job.node, job.fence) != (node, report.fence):
            return False
        if report.progress is not None:
            job.progress = report.progress
        self._trail.keep_lines(report, most_lines)
        return True

    async def logs(self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False) -> Sequence[LogLine]:
        return self._trail.lines(job_id, after, count, newest=newest)

    async def note(self, deed: Deed) -> None:
        self._trail.note(deed, self._clock.now())

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        return list(islice(self._trail.entries(filter), filter.count))

    async def job(self, job_id: str) -> JobRecord | None:
        job = self._jobs.by_id.get(job_id)
        return None if job is None else self._record(job)

    async def batch(self, batch_id: str) -> BatchRecord | None:
        batch = self._jobs.following.batches.get(batch_id)
        return None if batch is None else batch.record()

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        found = (
            batch
            for batch in self._jobs.following.batches.values()
            if (cursor is None or batch.id < cursor) and (batch.pending or not pending_only)
        )
        return [batch.record() for batch in nlargest(count, found, key=lambda batch: batch.id)]

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        found = (self._jobs.by_id.get(id) for id in job_ids)
        return [self._record(job) for job in found if job is not None and job.state.is_final]

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        job = self._jobs.by_id.get(job_id)
        return () if job is None or job.attempts is None else tuple(job.attempts)

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        return [self._record(job) for job in islice(self._passing(filter), filter.count)]

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        return sum(1 for _ in islice(self._passing(filter), most))

    def _passing(self, filter: JobFilter) -> Iterator[Job[Lane]]:
        wall, now = self._clock.now(), self.limit_now()
        if filter.oldest_first:
            jobs = self._jobs.oldest_first(filter.cursor or "")
        else:
            jobs = self._jobs.newest_first(filter.cursor)
        return (job for job in jobs if passes_filter(filter, job, wall, now))

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        wall, now = self._clock.now(), self.limit_now()
        waiting = islice((job for job in self._jobs.by_id.values() if job.state is WAITING), most)
        found = Counter((job.new.queue, job.new.task, view_of(job, wall, now)) for job in waiting)
        return [WaitingCount(queue, task, view, jobs) for (queue, task, view), jobs in sorted(found.items())]

    async def views(self) -> Sequence[ViewCount]:
        wall, now = self._clock.now(), self.limit_now()
        waiting = (job for job in self._jobs.by_id.values() if job.state is WAITING)
        found = Counter((job.new.queue, view_of(job, wall, now)) for job in waiting)
        return [ViewCount(queue, view, jobs) for (queue, view), jobs in sorted(found.items())]

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        found = [queue for name, queue in self._lanes.queues.items() if name in queues]
        if any(queue.tally.running for queue in found):
            return True
        served = {queue.name for queue in found if queue.paused_at is None and queue.tally.waiting}
        wall, now = self._clock.now(), self.limit_now()
        return bool(served) and any(
            job.state is WAITING
            and job.new.queue in served
            and job.new.task in tasks
            and (not ready_only or view_of(job, wall, now) == "ready")
            for job in self._jobs.by_id.values()
        )

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        tallies = ((name, queue.tally) for name, queue in sorted(self._lanes.queues.items()))
        return [
            QueueCounts(name, tally.waiting, tally.running, tally.succeeded, tally.failed, tally.cancelled)
            for name, tally in tallies
            if tally.has_jobs
        ]

    async def queues(self) -> Sequence[QueueRecord]:
        wall, now = self._clock.now(), self.limit_now()
        return [
            queue.record(wall, now)
            for _, queue in sorted(self._lanes.queues.items())
            if queue.tally.waiting or queue.paused_at is not None
        ]

    async def backlog(self, queue: str) -> int:
        found = self._lanes.queues.get(queue)
        return 0 if found is None else sum(lane.waiting for lane in found.lanes.values())

    async def pause_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        found = self._lanes.queue(queue)
        if found.paused_at is not None:
            return False
        self._trail.note(deed, self._clock.now())
        found.paused_at = self._clock.now()
        return True

    async def resume_queue(self, queue: str, *, deed: Deed | None = None) -> bool:
        found = self._lanes.queue(queue)
        was_paused = found.paused_at is not None
        if was_paused:
            self._trail.note(deed, self._clock.now())
        found.paused_at = None
        self._wake()
        return was_paused

    async def obstacles(self) -> Sequence[Obstacle]:
        return ()

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        wanted = (
            bucket_record(self._lanes, bucket.draw)
            for bucket in self._lanes.buckets.values()
            if (limit is None or bucket.draw.limit == limit)
            and (key is None or bucket.draw.key == key)
            and (prefix is None or bucket.draw.key.startswith(prefix))
            and is_used(bucket)
        )
        if after is not None:
            place = not after.opens, -after.waiting, (after.limit, after.key)
            wanted = (record for record in wanted if _most_waiting_first(record) > place)
        return nsmallest(count, wanted, key=_most_waiting_first)

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        return [each for each in await self.buckets(count=count) if each.opens_at is not None]

    async def standing(self, job_id: str) -> Standing | None:
        job = self._jobs.by_id.get(job_id)
        if job is None or job.state is not WAITING or job.is_blocked:
            return None
        return standing(self._lanes, job)

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> Standing:
        return outlook(self._lanes, queue, tuple(draws), variant)

    async def starts(
        self, limit: str, key: str | None, since: int, *, until: int = NEVER, skip: int = 0, count: int = 10_000
    ) -> Sequence[RecordedStart]:
        found = [
            start
            for job in self._jobs.by_id.values()
            for start in recorded_starts(job, limit, key)
            if since <= start.started_at <= until
        ]
        found.sort(key=lambda start: (-start.started_at, start.key, start.cost))
        return found[skip : skip + count]

    # --------------------------------------------------------------------------------------------- limits

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        return self._gates.note(gates, self._clock.now(), lives)

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        self._gates.done(gates)

    async def gated_jobs(
        self,
        tasks: frozenset[str],
        *,
        unknown_to: frozenset[str] | None = None,
        other_than: KnownGates = NO_GATES,
        ids: Sequence[str] | None = None,
        after: str = "",
        count: int = 100,
    ) -> Sequence[GatedJob]:
        wanted = (
            gated_job(job)
            for job in (self._jobs.oldest_first(after) if ids is None else self._jobs.found(ids))
            if job.state is WAITING
            and job.new.task in tasks
            and (ids is not None or job.new.gate not in other_than)
            and (unknown_to is None or any(draw.limit not in unknown_to for draw in _asked(job)))
        )
        return list(islice(wanted, count))

    async def regate(self, jobs: Sequence[Regated]) -> int:
        moved = sum(self._jobs.regate(job, self.limit_now()) for job in jobs)
        self._wake()
        return moved

    async def settings(self) -> Sequence[LimitSetting]:
        return self._lanes.settings.all()

    async def change(self, setting: LimitSetting, *, remove: bool = False, deed: Deed | None = None) -> None:
        self._trail.note(deed, self._clock.now())
        self._lanes.settings.change(setting, remove=remove)
        self._lanes.reopen_limit(setting.limit, setting.target if setting.scope == "key" else None, self.limit_now())
        self._wake()

    async def edit_setting(self, about: LimitSetting, edit: EditSetting, *, deed: Deed | None = None) -> bool:
        becomes = edited(self._lanes.settings.all(), about, edit)
        if becomes is not None:
            await self.change(becomes, remove=becomes.sets_nothing, deed=deed)
        return becomes is not None

    async def penalize(self, draw: Draw, until: int, *, deed: Deed | None = None) -> None:
        self._trail.note(deed, self._clock.now())
        self._lanes.bucket(draw).penalize(until)

    async def reset(self, draw: Draw, *, deed: Deed | None = None) -> int:
        self._trail.note(deed, self._clock.now())
        now = self.limit_now()
        self._jobs.take_back(draw, now)
        bucket = self._lanes.bucket(draw)
        if bucket.permits.holders:
            bucket.state = without_unused(bucket.permits)
        held = bucket.permits.held
        bucket.renew(keep_state=held > 0)
        self._lanes.reopen_limit(draw.limit, draw.key or None, now)
        self._wake()
        return held

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        now = self.limit_now()
        bucket = self._lanes.bucket(draw)
        self._lanes.judge(bucket, rules[draw.limit], now)
        visit = BucketVisit(bucket, now, None if id is None else self._notes.find(draw, id, now))
        answer = look(visit)
        if id is not None and visit.noted_until is not None:
            self._notes.keep(draw, id, visit.note, visit.noted_until)
        self._lanes.list_unused(bucket)
        if visit.reopens:
            self._lanes.reopen(bucket, now)
            self._wake()
        return answer

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        now = self.limit_now()
        for deposit in deposits:
            bucket = self._lanes.bucket(deposit.draw)
            bucket.state = deposit.balance
            if bucket.waiters:
                self._lanes.open_at(bucket, now if deposit.balance.left else deposit.balance.opens_at, now)
        self._wake()

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        return [self._withdraw(deposit) for deposit in deposits]

    def _withdraw(self, deposit: Deposit) -> int:
        bucket = self._lanes.buckets.get(deposit.draw)
        balance = None if bucket is None else bucket.state
        # Another deposit may lie there by now, and is another's to withdraw.
        if bucket is None or not isinstance(balance, Balance) or balance.charged_at != deposit.balance.charged_at:
            return 0
        bucket.state = replace(balance, left=0)
        return balance.left

    async def forget(self, limit: str, *, deed: Deed | None = None) -> bool:
        blocked = sum(
            job.is_blocked and any(draw.limit == limit for draw in job.new.draws) for job in self._jobs.by_id.values()
        )
        was_there = self._lanes.forget(limit, blocked)
        if was_there:
            self._trail.note(deed, self._clock.now())
        return was_there

    # ------------------------------------------------------------------------------------------ schedules

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        open_jobs = sum(is_open(job, record.name) for job in self._jobs.by_id.values()) if replaces is None else 0
        written = self._jobs.schedules.put(record, replaces, open_jobs, anew=anew)
        self._wake()
        return written

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        written = self._jobs.schedules.take_over(record, was, replaces, self._jobs.by_id.values())
        self._wake()
        return written

    async def schedules(
        self, *, name: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        return self._jobs.schedules.page(name, after, count)

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        return self._jobs.schedules.due(self._clock.now(), tasks, unable, count)

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        return self._jobs.schedules.overdue(tasks, before, unable, count)

    async def schedules_formerly(self, name: str) -> Sequence[ScheduleRecord]:
        return self._jobs.schedules.formerly(name)

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        written = [self._jobs.schedules.is_unchanged(each) for each in fired]
        for each, is_unchanged in zip(fired, written, strict=True):
            if is_unchanged:
                self._jobs.add(each.jobs, self.limit_now())
                for job in each.jobs:
                    self._history.note_enqueued(job, self._clock.now())
                self._jobs.schedules.advance(each)
        self._wake()
        return written

    async def remove_schedule(self, name: str) -> bool:
        return self._jobs.schedules.by_name.pop(name, None) is not None

    # ---------------------------------------------------------------------------------------------- nodes

    async def nodes(self) -> Sequence[NodeRecord]:
        return [node.record() for node in self._nodes.values()]

    async def join(self, node: str, name: str, *, queues: Mapping[str, int] | None = None, version: str = "") -> None:
        if node not in self._nodes:
            self._nodes[node] = Node(node, name, self._clock.now(), queues or {}, version)

    async def beat(self, node: str, *, lingering: Sequence[str] = ()) -> Beat:
        known = self._nodes.get(node)
        if known is not None:
            known.beat += 1
            known.beat_at = self._clock.now()
            known.lingering = tuple(lingering)
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
        for job in sorted(gone.running.values(), key=lambda job: job.seq):
            self._jobs.keep_attempt(job, "interrupted", None, wall)
            if self._jobs.wait_or_cancel(job, wall, now, is_unspent=True):
                returned.append(job.id)
        self._jobs.tell_followers(wall, now)
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
        for job in sorted(dead.running.values(), key=lambda job: job.seq):
            self._jobs.keep_attempt(job, "lost", None, wall)
            job.lost += 1
            if is_poisonous(job.lost) and not job.cancel_requested:
                self._jobs.stop_running(job)
                self._jobs.end_unrun(job, FAILED, wall, now, error=poison_error(job.lost))
                poisonous.append(job.id)
            elif self._jobs.wait_or_cancel(job, wall, now):
                returned.append(job.id)
        self._jobs.tell_followers(wall, now)
        self._wake()
        return Recovered(returned, poisonous)

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        wall, now = self._clock.now(), self.limit_now()
        dropped = self._jobs.expire(wall, now, count)
        self._jobs.tell_followers(wall, now)
        if dropped:
            self._wake()
        return dropped

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        # Nobody waits for a commit here: all of them are told at once.
        return 0

    async def prune(
        self,
        finished_before: int,
        count: int = 1000,
        states: frozenset[JobState] = FINAL_STATES,
        *,
        ids: Sequence[str] | None = None,
    ) -> int:
        now = self.limit_now()
        if ids is None:
            pruned = self._jobs.prune(finished_before, now, count, states)
        else:
            pruned = self._jobs.prune_these(ids, finished_before, now, count, states)
        for job_id in pruned:
            self._trail.forget(job_id)
        return len(pruned)

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        return self._trail.prune(before, count)

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        self._history.add(jobs, limits, flush)

    async def gather_history(self, count: int = 1000) -> int:
        return 0

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        return self._history.jobs(step, queue, task, since)

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        return self._history.limit(step, limit, key, since)

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        return self._history.prune(step, before, count)

    async def evict(self, count: int = 1000) -> int:
        now = self.limit_now()
        return self._lanes.evict(count, now) + self._notes.evict(count, now)

    async def facts(self) -> MemoryFacts:
        return MemoryFacts()

    async def check(self) -> Sequence[str]:
        return list(contradictions(self._jobs, self._lanes, self._nodes))

    def _record(self, job: Job[Lane]) -> JobRecord:
        return job_record(job, self._clock.now(), self.limit_now())

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()


def _asked(job: Job[Lane]) -> Sequence[Draw]:
    """The draws that it asks for when it starts next."""
    return job.new.draws if job.is_blocked else job.lane.draws


def _most_waiting_first(record: BucketRecord) -> tuple[bool, int, tuple[str, str]]:
    return record.opens_at is None, -record.waiting, (record.draw.limit, record.draw.key)
