"""Queues as operators see and pause them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Unpack

from msgspec.structs import asdict

from headgate.admin.bulk import CANCEL_WAITING, BulkOptions, BulkResult, change_many
from headgate.admin.columns import Column
from headgate.clock import SECOND, optional_datetime, to_datetime
from headgate.errors import UnknownQueue
from headgate.jobs.audit import AuditRecord
from headgate.jobs.query import JobQuery
from headgate.jobs.state import JobState
from headgate.limits.key import shown_template, stored_level
from headgate.limits.limit import OnLimit
from headgate.plural import counted
from headgate.storage.records import QueueCounts, QueueRecord
from headgate.storage.store import Store
from headgate.suggestion import did_you_mean
from headgate.tasks.queue import Queue, WhenFull
from headgate.views import view_of

SHOWN_KEYS = 20
"""How many keys of a fair queue are shown."""


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue as an app declares it; see `app.queue`. Durations are in seconds.

    `concurrency` is the slots per node; None: by the kind of its tasks. `fair_by` are the keys that take turns, one or
    two; a function is shown by its name. `max_wait` and `on_limit` are None if the queue sets neither.
    """

    queue: str
    concurrency: int | None = None
    global_concurrency: int | None = None
    max_backlog: int | None = None
    when_full: WhenFull = "wait"
    fair_by: Sequence[str] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    weight: int = 1
    aging: float | None = None
    on_limit: OnLimit | None = None
    max_wait: float | None = None


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A key of a fair queue: how many of its jobs wait, and how many turns it has for each turn of weight 1."""

    key: str
    waiting: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys with most waiting jobs in a fair queue, out of `count`; with two levels, the keys of the first.

    Keys that only have jobs for later are left out. If more than 2,000 keys have jobs, the first ones in line are
    ranked, and it is not `is_exact`: there are more keys, and more jobs may wait.
    """

    keys: Sequence[QueueKey]
    count: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue: its jobs by state, and how long waiting jobs have waited; durations in seconds.

    `oldest` is how long the waiting job has been ready that has been ready for longest, whatever its limits (None: no
    job is ready). `lag` is how long the oldest ready job has waited for a free slot: if it grows, there are too few
    slots. It is 0 if all jobs that could start have started, and while the queue is paused. It is paused since
    `paused_at`. It is `declared` unless only the store has it.
    """

    queue: str
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int = 0
    oldest: float | None = None
    lag: float = 0.0
    paused_at: datetime | None = None
    declared: DeclaredQueue | None = None

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


QUEUE_COLUMNS = (
    Column("queue", "Queue"),
    Column("lag", "Lag", "duration"),
    Column("oldest", "Oldest", "duration"),
    Column("waiting", "Waiting", "count"),
    Column("running", "Running", "count"),
    Column("throughput", "Throughput", "rate", only="dashboard"),
    Column("failure_share", "Failures", "share", only="dashboard"),
    Column("wait_p95", "Wait, p95", "duration", only="dashboard"),
    Column("succeeded", "Succeeded", "count", only="cli"),
    Column("failed", "Failed", "count"),
    Column("cancelled", "Cancelled", "count", only="cli"),
    Column("skipped", "Skipped", "count", only="cli"),
    Column("note", "Note", only="cli"),
)


class QueuesAdmin:
    """The queues of one app, and all others that have jobs in its store, whichever process runs them."""

    def __init__(self, storage: Store, declared: Mapping[str, DeclaredQueue], actor: str) -> None:
        self._storage = storage
        self._declared = declared
        self.actor = actor

    def declared(self, queue: str) -> DeclaredQueue | None:
        """Return a queue as this app declares it; None if it does not."""
        return self._declared.get(queue)

    async def list(self, *, finals: bool = True) -> Sequence[QueueStatus]:
        """Return all queues by name: those that are declared, have jobs or are paused.

        Without `finals`, the counts of final jobs may be missing if counting them would take long.
        """
        counts = {each.queue: each for each in await self._storage.counts(finals=finals)}
        records = {each.queue: each for each in await self._storage.queues()}
        now = self._storage.now()
        names = sorted(self._declared.keys() | counts.keys() | records.keys())
        return [_status(name, counts.get(name), records.get(name), self.declared(name), now) for name in names]

    async def keys(self, queue: str, *, count: int = SHOWN_KEYS) -> QueueKeys:
        """Return the `count` keys of a fair queue with most waiting jobs; none for a queue that is not fair.

        It reads lanes, never jobs, and takes milliseconds however many keys there are.
        """
        found = await self._storage.waiting_by_key(queue, min(max(count, 1), 500))
        declared = self.declared(queue)
        weights = {} if declared is None else declared.weights
        keys = [QueueKey(each.key, each.jobs, weights.get(each.key, 1)) for each in found.counts]
        return QueueKeys(keys, found.keys, found.is_exact)

    async def paused(self) -> Mapping[str, datetime]:
        """Return the paused queues, and since when; no job is counted for it."""
        return {queue: to_datetime(at) for queue, at in (await self._storage.paused_queues()).items()}

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return queue in await self._storage.paused_queues()

    async def pause(self, queue: str) -> bool:
        """Start none of its jobs on any node until `resume`; running jobs continue, enqueued jobs wait.

        False if it was already paused. Raises UnknownQueue for a queue that is not declared and has no job.
        """
        if queue not in self._declared:
            known = self._declared.keys() | {each.queue for each in await self._storage.counts()}
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

    async def purge(self, queue: str, **options: Unpack[BulkOptions]) -> BulkResult:
        """Cancel the waiting jobs of a queue, scheduled and blocked ones included; running jobs continue.

        The oldest first, 200 at a time; it may be stopped and repeated. Jobs that are enqueued meanwhile stay. The
        cancelled jobs are kept for their retention and can be retried. The queue gets an audit entry with their number.
        """
        query = JobQuery(queue=queue, state=JobState.WAITING, enqueued_before=to_datetime(self._storage.now() + 1))
        options.setdefault("most", 1_000_000)

        async def cancel(job_id: str) -> object:
            record = AuditRecord(self.actor, "cancel", "job", job_id)
            state = await self._storage.cancel(job_id, audit_record=record, waiting_only=True)
            return False if state in (None, JobState.RUNNING) else state

        async def audit(result: BulkResult) -> None:
            # If it is stopped, these jobs are cancelled all the same.
            if result.changed and not result.is_dry_run:
                detail = f"{counted(result.changed, 'waiting job')} cancelled"
                await self._storage.add_audit_record(AuditRecord(self.actor, "purge", "queue", queue, detail))

        return await change_many(self._storage, query, CANCEL_WAITING, cancel, on_end=audit, **options)


def describe_queue(queue: Queue) -> DeclaredQueue:
    """Return a declared queue in plain values."""
    levels = queue.fair_by if isinstance(queue.fair_by, tuple) else (queue.fair_by,)
    weights = queue.weights or {}
    waits = queue.waits
    return view_of(
        DeclaredQueue,
        queue,
        queue=queue.name,
        fair_by=[shown_template(level) for level in levels if level is not None],
        weights=dict(weights) if len(levels) == 1 else {stored_level(key): weight for key, weight in weights.items()},
        aging=None if queue.aging is None else queue.aging / SECOND,
        on_limit=None if waits is None else waits.on_limit,
        max_wait=None if waits is None or waits.max_wait is None else waits.max_wait / SECOND,
    )


def _status(
    name: str, counts: QueueCounts | None, record: QueueRecord | None, declared: DeclaredQueue | None, now: int
) -> QueueStatus:
    counts = counts or QueueCounts(name, 0, 0, 0, 0, 0)
    record = record or QueueRecord(name, None, None, None)
    return QueueStatus(
        **asdict(counts),
        oldest=None if record.oldest_at is None else max(0, now - record.oldest_at) / SECOND,
        lag=0.0 if record.ready_at is None else max(0, now - record.ready_at) / SECOND,
        paused_at=optional_datetime(record.paused_at),
        declared=declared,
    )
