"""Admin: what operators see and steer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from headgate.admin.explain import Explanation, LimitInfo, reason_for
from headgate.admin.limits import LimitsAdmin
from headgate.admin.queues import QueuesAdmin
from headgate.clock import to_datetime
from headgate.errors import JobNotFound
from headgate.jobs.job import Attempt, JobRecord, JobState
from headgate.limits.bucket_store import BucketStore
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.live_rules import LiveRules
from headgate.storage.prediction import predict
from headgate.storage.protocol import BucketRecord, JobFilter, NodeRecord, Obstacle, QueueCounts, Standing, Storage
from headgate.tasks.handle import JobStatus, status_of


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its payload, its result and the attempts that did not succeed."""

    status: JobStatus
    record: JobRecord
    attempts: Sequence[Attempt]


class Admin:
    """Reads and steers one app's storage, whichever process runs the jobs; `limits` and `queues` steer those."""

    def __init__(
        self,
        storage: Storage,
        rules: Mapping[str, AnyRule],
        elsewhere: Mapping[str, BucketStore],
        tasks: frozenset[str],
        queues: frozenset[str],
    ) -> None:
        self._storage = storage
        self._rules = rules
        self._tasks = tasks
        self.queues = QueuesAdmin(storage, queues)
        self.limits = LimitsAdmin(storage, rules, elsewhere)

    def now(self) -> datetime:
        """Wall time as the store has it, aware: what the instants of its answers are to be compared with."""
        return to_datetime(self._storage.now())

    async def counts(self) -> Sequence[QueueCounts]:
        """Jobs by queue and state."""
        return await self._storage.counts()

    async def nodes(self) -> Sequence[NodeRecord]:
        """The engine processes, also those that died and are not recovered yet."""
        return await self._storage.nodes()

    async def obstacles(self) -> Sequence[Obstacle]:
        """What stands in the way of the store: transactions that are long open, connections that block others."""
        return await self._storage.obstacles()

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: str | None = None,
        key: str | None = None,
        before: str | None = None,
        count: int = 50,
    ) -> Sequence[JobStatus]:
        """A page of jobs, newest first; `before` is the last id of the page before it."""
        filter = JobFilter(state=state, queue=queue, task=task, limit=limit, key=key, before=before, count=count)
        now = self._storage.now()
        return [status_of(record, now) for record in await self._storage.jobs(filter)]

    async def status(self, job_id: str) -> JobStatus:
        """One job as it is now: where it stands, and when its limits will let it start. Raises JobNotFound."""
        record = await self._record(job_id)
        return self._foretold(
            status_of(record, self._storage.now()), await self._standing(record), await self._live(record)
        )

    async def job(self, job_id: str) -> JobDetails:
        """One job with everything that is known of it. Raises JobNotFound."""
        record = await self._record(job_id)
        status = status_of(record, self._storage.now())
        status = self._foretold(status, await self._standing(record), await self._live(record))
        return JobDetails(status=status, record=record, attempts=await self._storage.attempts(job_id))

    async def explain(self, job_id: str) -> Explanation:
        """Why a job has not started, or what became of it, from live state. Raises JobNotFound."""
        record = await self._record(job_id)
        standing, live = await self._standing(record), await self._live(record)
        status = self._foretold(status_of(record, self._storage.now()), standing, live)
        limits = [] if standing is None else [await self._info(bucket, live) for bucket in standing.buckets]
        now = to_datetime(self._storage.now())
        nodes = await self._storage.nodes()
        reason = reason_for(
            record,
            status,
            limits,
            nodes,
            is_known=record.task in self._tasks,
            is_paused=record.state is JobState.WAITING and await self.queues.is_paused(record.queue),
            now=now,
        )
        return Explanation(status=status, reason=reason, limits=limits)

    async def retry(self, job_id: str) -> None:
        """Let a failed or cancelled job wait again, with all its tries. Raises JobNotFound, IllegalTransition."""
        if await self._storage.retry(job_id) is None:
            raise JobNotFound(job_id)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a waiting job, or ask a running one to end; False if it was final. Raises JobNotFound."""
        state = await self._storage.cancel(job_id)
        if state is None:
            raise JobNotFound(job_id)
        return not state.is_final

    async def _record(self, job_id: str) -> JobRecord:
        record = await self._storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id)
        return record

    async def _standing(self, record: JobRecord) -> Standing | None:
        if record.state is not JobState.WAITING or not record.draws:
            return None
        return await self._storage.standing(record.id)

    async def _live(self, record: JobRecord) -> LiveRules:
        return LiveRules(await self._storage.settings() if record.draws else ())

    def _foretold(self, status: JobStatus, standing: Standing | None, live: LiveRules) -> JobStatus:
        """The status with what the limits promise."""
        if standing is None:
            return status
        now, limit_now = self._storage.now(), self._storage.limit_now()
        prediction = predict(standing, self._rules, live, limit_now)
        start = None
        if prediction.starts_at is not None:
            start = max(to_datetime(now + prediction.starts_at - limit_now), status.run_at)
        waits_for = status.waits_for
        if prediction.waits_for is not None:
            waits_for = (prediction.waits_for.limit, prediction.waits_for.key)
        return replace(status, place=standing.place, predicted_start=start, waits_for=waits_for)

    async def _info(self, bucket: BucketRecord, live: LiveRules) -> LimitInfo:
        limit_now = self._storage.limit_now()
        declared = self._rules.get(bucket.draw.limit)
        rule = None if declared is None else live.rule(bucket.draw, declared)
        snapshot = None if rule is None else await self.limits.snapshot(bucket, rule)
        opens_at = max(bucket.opens_at or 0, bucket.closed_until, 0 if snapshot is None else snapshot.opens_at)
        known = limit_now < opens_at < NEVER
        return LimitInfo(
            limit=bucket.draw.limit,
            key=bucket.draw.key,
            rule=None if rule is None else rule.describe(),
            used=None if snapshot is None else snapshot.used,
            available=None if snapshot is None else snapshot.available,
            opens_at=to_datetime(self._storage.now() + opens_at - limit_now) if known else None,
            is_paused=live.is_paused(bucket.draw),
            waiting=bucket.waiting,
        )
