"""Plain values that describe a job, a batch and a schedule to people, without a way to change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from headgate.clock import to_datetime
from headgate.jobs.annotation import Annotation
from headgate.jobs.batch import BatchRecord
from headgate.jobs.job import JobError, JobRecord, JobState
from headgate.jobs.query import JobView
from headgate.schedules.schedule import Misfire, Overlap, Skipped
from headgate.views import view_of


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The last progress that a handler reported, from 0 to 1, with its message and time."""

    fraction: float
    message: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it is now. Instants are aware UTC datetimes.

    `state` is waiting, running, succeeded, failed, cancelled or skipped. While the job waits behind a closed limit,
    `waits_for` is that limit, as (limit, key), and `throttled_until` is when it opens (None: when a permit comes back).
    For a waiting job with limits, `position` is how many starts of its lane it is away (1 is next; None beyond
    100,000). `predicted_start` is when its limits will let it start if nothing changes (None if that depends on others,
    as in a fair queue). `lane_waiting` is how many jobs wait in the same lane, this one included. A
    waiting job whose `run_at` is ahead is `is_scheduled`. `progress` is what its handler reported last. A job that
    `is_blocked` waits until the job or batch that it `follows` (an id) is final; it is in no lane before that.
    `enqueued_by` is the process that enqueued it, as `host:pid`, or the node of its schedule. `deferrals` is how many
    of its starts a limit delayed, without a wait that still lasts. `tags` are those of its task and its call,
    `annotations` what its handler has noted. `unreadable` names the parts of its stored row that cannot be read, with
    the reason: its attempts fail with a `PayloadError` until they are repaired.
    """

    id: str
    task: str
    queue: str
    state: JobState
    attempt: int
    priority: int
    enqueued_at: datetime
    run_at: datetime
    is_scheduled: bool
    started_at: datetime | None
    finished_at: datetime | None
    throttled_until: datetime | None
    waits_for: tuple[str, str] | None
    lane_waiting: int
    error: JobError | None
    position: int | None = None
    predicted_start: datetime | None = None
    progress: JobProgress | None = None
    is_blocked: bool = False
    follows: str | None = None
    enqueued_by: str | None = None
    deferrals: int = 0
    unreadable: str | None = None
    tags: Sequence[str] = ()
    annotations: Mapping[str, Annotation] = field(default_factory=dict)

    @property
    def view(self) -> JobView | None:
        """What a waiting job waits for, as far as its row shows it; None if it does not wait."""
        if self.state is not JobState.WAITING:
            return None
        if self.is_blocked:
            return "blocked"
        if self.is_scheduled:
            return "scheduled"
        return "ready" if self.waits_for is None else "throttled"


def status_of(record: JobRecord, now: int) -> JobStatus:
    """Return a stored job as its status, at wall time `now` (microseconds)."""
    last = record.progress
    return view_of(
        JobStatus,
        record,
        is_scheduled=record.state is JobState.WAITING and record.delayed and record.run_at > now,
        waits_for=None if record.waits_for is None else (record.waits_for.limit, record.waits_for.key),
        position=None,
        predicted_start=None,
        progress=None if last is None else JobProgress(last.fraction, last.message, to_datetime(last.at)),
        follows=None if record.origin is None else record.origin.follows,
        deferrals=record.deferrals or 0,
        tags=() if record.options is None else record.options.tags,
        annotations=record.annotations or {},
    )


@dataclass(frozen=True, slots=True)
class EnqueuePrediction:
    """The predicted start of a new job, if nothing else changes and a slot is free.

    It is `position` starts away in its lane (1 is next), and its limits let it start at `predicted_start` (None if that
    depends on when other jobs end, or on the turns of a fair queue); `waits_for` is the limit that decides it, as
    (limit, key), None if none does.
    """

    position: int | None
    predicted_start: datetime | None
    waits_for: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """A batch as it is now. Instants are aware UTC datetimes.

    `pending` of its `total` members are not final: its jobs, and the batches in it, each as one. `state` is None while
    any is pending; then it is failed if one has failed, else cancelled if one was cancelled, else succeeded. Skipped
    members change nothing, but the batch is skipped if all are. A retried job makes the batch pending again. `batch` is
    the id of the batch around it, `schedule` the name of the schedule that enqueued it, `name` its own name.
    """

    id: str
    state: JobState | None
    total: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    enqueued_at: datetime
    finished_at: datetime | None
    batch: str | None = None
    schedule: str | None = None
    name: str | None = None


def batch_status(record: BatchRecord) -> BatchStatus:
    """Return a stored batch as its status."""
    return view_of(BatchStatus, record, state=record.ended_as)


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule as it is now; instants are aware UTC datetimes.

    `state` is active, paused or finished. `runs` of its jobs have run, `open` wait or run. `next_run` is None without a
    further one. At `last_occurrence` it was last due, whether that ran or was skipped. At `skipped_at` an occurrence
    was last skipped, because of `misfire`, `overlap`, `max_runs` or its `limit`; `skips` were counted (except of
    `Every`, at most 1,000 at once). `problem` says what is wrong as this app sees it: no node fires it (`is_overdue`),
    or this app does not declare it. `unreadable` names the parts of its stored row that cannot be read, with the
    reason: only the release that stored it runs it. `tz` is the time zone on whose wall clock its trigger is (None: it
    has none). Its jobs are ready up to `jitter` seconds after their occurrences. With `is_declared`, code has declared
    it, and only the code changes it. Each occurrence has `jobs` jobs with these `tasks`. If the
    schedule enqueues a chain or a batch, they are several, in the batch `last_batch` in place of `last_job`.
    """

    name: str
    task: str
    trigger: str
    state: Literal["active", "paused", "finished"]
    next_run: datetime | None
    last_occurrence: datetime | None
    last_job: str | None
    runs: int
    open: int
    max_runs: int | None
    until: datetime | None
    misfire: Misfire
    overlap: Overlap
    started_at: datetime
    skipped: Skipped | None = None
    skipped_at: datetime | None = None
    skips: int = 0
    is_overdue: bool = False
    problem: str | None = None
    unreadable: str | None = None
    tz: str | None = None
    jitter: float | None = None
    is_declared: bool = False
    last_batch: str | None = None
    tasks: Sequence[str] = ()
    jobs: int = 1
