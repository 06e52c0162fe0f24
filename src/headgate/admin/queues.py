"""Queues as operators see and pause them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.clock import SECOND, to_datetime
from headgate.errors import UnknownQueue
from headgate.jobs.audit import AuditRecord
from headgate.storage.records import QueueCounts, QueueRecord
from headgate.storage.store import Store
from headgate.suggestion import did_you_mean


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue: its jobs by state, and how long waiting jobs have waited; durations in seconds.

    `oldest` is how long the waiting job has been ready that has been ready for longest, whatever its limits (None: no
    job is ready). `lag` is how long the oldest ready job has waited for a free slot: if it grows, there are too few
    slots. It is 0 if all jobs that could start have started, and while the queue is paused. It is paused since
    `paused_at`.
    """

    queue: str
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    oldest: float | None = None
    lag: float = 0.0
    paused_at: datetime | None = None

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def has_jobs(self) -> bool:
        """Whether it has jobs in any state."""
        return any((self.waiting, self.running, self.succeeded, self.failed, self.cancelled))


class QueuesAdmin:
    """The queues of one app, and all others that have jobs in its store, whichever process runs them."""

    def __init__(self, storage: Store, declared: frozenset[str], actor: str) -> None:
        self._storage = storage
        self._declared = declared
        self.actor = actor

    async def list(self, *, finals: bool = True) -> Sequence[QueueStatus]:
        """Return all queues by name: those that are declared, have jobs or are paused.

        Without `finals`, the counts of final jobs may be missing if counting them would take long.
        """
        counts = {each.queue: each for each in await self._storage.counts(finals=finals)}
        records = {each.queue: each for each in await self._storage.queues()}
        now = self._storage.now()
        names = sorted(self._declared | counts.keys() | records.keys())
        return [_status(name, counts.get(name), records.get(name), now) for name in names]

    async def paused(self) -> Mapping[str, datetime]:
        """Return the paused queues, and since when; no job is counted for it."""
        return {queue: to_datetime(at) for queue, at in (await self._storage.paused_queues()).items()}

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return await self._storage.is_paused(queue)

    async def pause(self, queue: str) -> bool:
        """Start none of its jobs on any node until `resume`; running jobs continue, enqueued jobs wait.

        False if it was already paused. Raises UnknownQueue for a queue that is not declared and has no job.
        """
        if queue not in self._declared:
            known = self._declared | {each.queue for each in await self._storage.counts()}
            if queue not in known:
                raise UnknownQueue(
                    f"queue {queue!r} is not declared by this app and has no job, so there is nothing to pause"
                    f"{did_you_mean(queue, known)} Check its name, or declare it with app.queue({queue!r}). "
                    f"There are: {', '.join(sorted(known))}"
                )
        return await self._storage.pause_queue(queue, audit_record=AuditRecord(self.actor, "pause", "queue", queue))

    async def resume(self, queue: str) -> bool:
        """End a pause. Returns whether there was one."""
        return await self._storage.resume_queue(queue, audit_record=AuditRecord(self.actor, "resume", "queue", queue))


def _status(name: str, counts: QueueCounts | None, record: QueueRecord | None, now: int) -> QueueStatus:
    counts = counts or QueueCounts(name, 0, 0, 0, 0, 0)
    record = record or QueueRecord(name, None, None, None)
    return QueueStatus(
        queue=name,
        waiting=counts.waiting,
        running=counts.running,
        succeeded=counts.succeeded,
        failed=counts.failed,
        cancelled=counts.cancelled,
        oldest=None if record.oldest_at is None else max(0, now - record.oldest_at) / SECOND,
        lag=0.0 if record.ready_at is None else max(0, now - record.ready_at) / SECOND,
        paused_at=None if record.paused_at is None else to_datetime(record.paused_at),
    )
