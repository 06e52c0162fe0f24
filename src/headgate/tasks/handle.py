"""Handles: what `enqueue` returns, and the status of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from headgate.arguments import parse_wait
from headgate.clock import SECOND, Duration, to_datetime
from headgate.jobs.annotation import Annotation
from headgate.jobs.job import JobError, JobRecord, JobState

if TYPE_CHECKING:
    from headgate.client import Client

R_co = TypeVar("R_co", covariant=True)


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
    100,000), `predicted_start` is when its limits will let it start if nothing changes (None if that depends on others,
    as on the turns of a fair queue), and `lane_waiting` is how many jobs wait in the same lane, this one included. A
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


def status_of(record: JobRecord, now: int) -> JobStatus:
    """Return a stored job as its status, at wall time `now` (microseconds)."""
    last = record.progress
    return JobStatus(
        id=record.id,
        task=record.task,
        queue=record.queue,
        state=record.state,
        attempt=record.attempt,
        priority=record.priority,
        enqueued_at=to_datetime(record.enqueued_at),
        run_at=to_datetime(record.run_at),
        is_scheduled=record.state is JobState.WAITING and record.delayed and record.run_at > now,
        started_at=_optional(record.started_at),
        finished_at=_optional(record.finished_at),
        throttled_until=_optional(record.throttled_until),
        waits_for=None if record.waits_for is None else (record.waits_for.limit, record.waits_for.key),
        lane_waiting=record.lane_waiting,
        error=record.error,
        progress=None if last is None else JobProgress(last.fraction, last.message, to_datetime(last.at)),
        is_blocked=record.is_blocked,
        follows=None if record.origin is None else record.origin.follows,
        enqueued_by=record.enqueued_by,
        deferrals=record.deferrals or 0,
        unreadable=record.unreadable,
        tags=() if record.options is None else record.options.tags,
        annotations=record.annotations or {},
    )


def _optional(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


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


def wait_seconds(timeout: Duration | None, where: str) -> float | None:
    """Return a timeout in seconds; None: no timeout. Raises DeclarationError if it is not a duration."""
    return None if timeout is None else parse_wait(timeout, "timeout", where) / SECOND


class Job(Generic[R_co]):
    """A stored job: its id, and the ways to follow and cancel it.

    `prediction` is what its limits predict if it was enqueued with `using(predict=True)`, else None. `is_new` is False
    if `enqueue` stored no job, because one with its unique key or its id was there: this is that one.
    """

    __slots__ = ("_client", "id", "is_new", "prediction")

    def __init__(
        self, id: str, client: Client, prediction: EnqueuePrediction | None = None, *, is_new: bool = True
    ) -> None:
        self.id: str = id
        self.is_new: bool = is_new
        self.prediction: EnqueuePrediction | None = prediction
        self._client = client

    @property
    def leader_id(self) -> str:
        """What a call follows that is after this job."""
        return self.id

    async def status(self) -> JobStatus:
        """Return the job as it is now. Raises JobNotFound once it has been pruned."""
        return await self._client.admin.status(self.id)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job has succeeded, and return what its handler returned.

        Waits up to `timeout` (seconds, a timedelta, or text like "5m"; default: no timeout). Raises JobFailed,
        JobCancelled, JobSkipped, TimeoutError, JobNotFound; PayloadError for a result that another release has stored
        and that does not fit the current annotation.
        """
        result: R_co = await self._client.job_result(self.id, wait_seconds(timeout, "job.result"))
        return result

    async def cancel(self) -> bool:
        """Cancel the job. A waiting one never runs and charges nothing; a running one is asked to end.

        Return False if it was already final: then nothing has changed. Raises JobNotFound.
        """
        return await self._client.cancel_job(self.id)

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
