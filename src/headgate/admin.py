"""Admin: what operators see and steer. The command line speaks only to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.clock import Clock, to_datetime
from headgate.errors import JobNotFound
from headgate.jobs.job import Attempt, JobRecord, JobState
from headgate.limits.limit import AnyRule
from headgate.storage.protocol import JobFilter, NodeRecord, QueueCounts, Storage
from headgate.tasks.handle import JobStatus, status_of


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One limit for one key: how many starts count now, how many are left, how many jobs wait, when the next may go.

    `used` and `available` are None for a limit that this program does not declare.
    """

    limit: str
    key: str
    rule: str | None
    used: int | None
    available: int | None
    waiting: int
    next_slot_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its payload, its result and the attempts that did not succeed."""

    status: JobStatus
    record: JobRecord
    attempts: Sequence[Attempt]


class Admin:
    """Reads and steers one app's storage, whichever process runs the jobs."""

    def __init__(self, storage: Storage, rules: Mapping[str, AnyRule], clock: Clock) -> None:
        self._storage = storage
        self._rules = rules
        self._clock = clock

    async def counts(self) -> Sequence[QueueCounts]:
        """Jobs by queue and state."""
        return await self._storage.counts()

    async def nodes(self) -> Sequence[NodeRecord]:
        """The engine processes, also those that died and are not recovered yet."""
        return await self._storage.nodes()

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
        now = self._clock.now()
        return [status_of(record, now) for record in await self._storage.jobs(filter)]

    async def job(self, job_id: str) -> JobDetails:
        """One job with everything that is known of it. Raises JobNotFound."""
        record = await self._storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id)
        return JobDetails(
            status=status_of(record, self._clock.now()), record=record, attempts=await self._storage.attempts(job_id)
        )

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

    async def buckets(
        self, *, limit: str | None = None, key: str | None = None, count: int = 100
    ) -> Sequence[BucketStatus]:
        """The buckets of the limits, those with most waiting jobs first."""
        limit_now = self._storage.limit_now()
        now = self._clock.now()
        found: list[BucketStatus] = []
        for record in await self._storage.buckets(limit, key, count):
            rule = self._rules.get(record.draw.limit)
            snapshot = None
            if rule is not None:
                state = None if record.state is None else rule.load(record.state, limit_now)
                snapshot = rule.snapshot(state, limit_now)
            found.append(
                BucketStatus(
                    limit=record.draw.limit,
                    key=record.draw.key,
                    rule=None if rule is None else rule.describe(),
                    used=None if snapshot is None else snapshot.used,
                    available=None if snapshot is None else snapshot.available,
                    waiting=record.waiting,
                    next_slot_at=None
                    if record.opens_at is None
                    else to_datetime(now + max(0, record.opens_at - limit_now)),
                )
            )
        return found
