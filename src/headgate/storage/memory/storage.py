"""The verbs of the memory storage.

Each decides and writes synchronously, so no other coroutine ever sees half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import IllegalTransition
from headgate.jobs.gating import GatedJob, Regated
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending, is_poisonous, require_transition
from headgate.limits.limit import AnyRule
from headgate.storage.admission import BucketVisit
from headgate.storage.endings import poison_error
from headgate.storage.fetched import Balance
from headgate.storage.live_rules import LimitSetting
from headgate.storage.memory.claim import Claiming
from headgate.storage.memory.contradictions import contradictions
from headgate.storage.memory.gates import Gates
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, WAITING, Job
from headgate.storage.memory.jobs import Jobs
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.memory.notes import Notes
from headgate.storage.memory.records import (
    bucket_record,
    gated_job,
    is_used,
    job_record,
    outlook,
    passes_filter,
    recorded_starts,
    standing,
)
from headgate.storage.protocol import (
    Amendment,
    Beat,
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
        self._notes = Notes()
        self._gates = Gates()
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

    def now(self) -> int:
        return self._clock.now()

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
        if claimed.dropped:
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

    async def cancel(self, job_id: str) -> JobState | None:
        job = self._jobs.by_id.get(job_id)
        if job is None:
            return None
        before = job.state
        if before is WAITING:
            self._jobs.stop_waiting(job, CANCELLED, self._clock.now(), self.limit_now(), error=job.error)
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
        job.attempt = job.lost = job.passed = 0
        job.run_at = wall = self._clock.now()
        job.delayed = False
        job.finished_at = job.result = job.expires_at = None
        self._jobs.wait_elsewhere(job, wall)
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
            if passes_filter(filter, job):
                page.append(self._record(job))
        return page

    async def counts(self) -> Sequence[QueueCounts]:
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

    async def pause_queue(self, queue: str) -> bool:
        found = self._lanes.queue(queue)
        if found.paused_at is not None:
            return False
        found.paused_at = self._clock.now()
        return True

    async def resume_queue(self, queue: str) -> bool:
        found = self._lanes.queue(queue)
        was_paused = found.paused_at is not None
        found.paused_at = None
        self._wake()
        return was_paused

    async def obstacles(self) -> Sequence[Obstacle]:
        return ()

    async def buckets(
        self, limit: str | None = None, key: str | None = None, count: int = 100
    ) -> Sequence[BucketRecord]:
        wanted = (
            bucket_record(self._lanes, bucket.draw)
            for bucket in self._lanes.buckets.values()
            if (limit is None or bucket.draw.limit == limit)
            and (key is None or bucket.draw.key == key)
            and is_used(bucket)
        )
        return nsmallest(count, wanted, key=_most_waiting_first)

    async def standing(self, job_id: str) -> Standing | None:
        job = self._jobs.by_id.get(job_id)
        return standing(self._lanes, job) if job is not None and job.state is WAITING else None

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> Standing:
        return outlook(self._lanes, queue, tuple(draws), variant)

    async def starts(self, limit: str, key: str | None, since: int) -> Sequence[RecordedStart]:
        found = [start for job in self._jobs.by_id.values() for start in recorded_starts(job, limit, key, since)]
        return sorted(found, key=lambda start: start.started_at)

    # --------------------------------------------------------------------------------------------- limits

    async def note_gates(self, signatures: Mapping[str, str]) -> Mapping[str, bool]:
        return self._gates.note(signatures, self._clock.now())

    async def gates_done(self, signatures: Mapping[str, str]) -> None:
        self._gates.done(signatures)

    async def gated_jobs(
        self, tasks: frozenset[str], *, unknown_to: frozenset[str] | None = None, after: str = "", count: int = 100
    ) -> Sequence[GatedJob]:
        wanted = (
            gated_job(job)
            for job in self._jobs.oldest_first(after)
            if job.state is WAITING
            and job.new.task in tasks
            and (unknown_to is None or any(draw.limit not in unknown_to for draw in job.lane.draws))
        )
        return list(islice(wanted, count))

    async def regate(self, jobs: Sequence[Regated]) -> int:
        moved = sum(self._jobs.regate(job, self.limit_now()) for job in jobs)
        self._wake()
        return moved

    async def settings(self) -> Sequence[LimitSetting]:
        return self._lanes.settings.all()

    async def change(self, setting: LimitSetting, *, remove: bool = False) -> None:
        self._lanes.settings.change(setting, remove=remove)
        self._lanes.reopen_limit(setting.limit, setting.target if setting.scope == "key" else None, self.limit_now())
        self._wake()

    async def penalize(self, draw: Draw, until: int) -> None:
        self._lanes.bucket(draw).penalize(until)

    async def reset(self, draw: Draw) -> int:
        now = self.limit_now()
        self._jobs.take_back(draw, now)
        bucket = self._lanes.bucket(draw)
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
                self._lanes.open_at(bucket, now if deposit.balance.left else deposit.balance.opens_at)
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

    async def forget(self, limit: str) -> None:
        self._lanes.forget(limit)

    # ---------------------------------------------------------------------------------------------- nodes

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
                self._jobs.end(job, FAILED, wall, now, error=poison_error(job.lost))
                poisonous.append(job.id)
            elif self._jobs.wait_or_cancel(job, wall, now):
                returned.append(job.id)
        self._wake()
        return Recovered(returned, poisonous)

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        dropped = self._jobs.expire(self._clock.now(), self.limit_now(), count)
        if dropped:
            self._wake()
        return dropped

    async def prune(self, finished_before: int, count: int = 1000) -> int:
        return self._jobs.prune(finished_before, self.limit_now(), count)

    async def evict(self, count: int = 1000) -> int:
        now = self.limit_now()
        return self._lanes.evict(count, now) + self._notes.evict(count, now)

    async def check(self) -> Sequence[str]:
        return list(contradictions(self._jobs, self._lanes, self._nodes))

    def _record(self, job: Job[Lane]) -> JobRecord:
        return job_record(job, self._clock.now(), self.limit_now())

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()


def _most_waiting_first(record: BucketRecord) -> tuple[bool, int, tuple[str, str]]:
    return record.opens_at is None, -record.waiting, (record.draw.limit, record.draw.key)
