"""Events: facts after they happened; subscribers are told and cannot change them. Instants are wall microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headgate.jobs.job import JobError, JobState


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened, at `at`."""

    at: int


class JobEnqueued(Event, frozen=True):
    """A job is stored, durably."""

    job_id: str
    task: str
    queue: str
    run_at: int


class JobReplaced(Event, frozen=True):
    """A job that waits under a unique key was given new arguments, a new time and new options."""

    job_id: str
    task: str
    queue: str
    run_at: int


class JobStarted(Event, frozen=True):
    """An attempt begins on this node, `waited` seconds after it was due; it was charged to these `limits`.

    The first `throttled` of these seconds it waited for a limit, and for a free slot since.
    """

    job_id: str
    task: str
    queue: str
    attempt: int
    waited: float = 0.0
    throttled: float = 0.0
    limits: tuple[str, ...] = ()


class JobProgressed(Event, frozen=True):
    """A running job has said how far it is, from 0 to 1; told about once a second, with the latest word."""

    job_id: str
    task: str
    queue: str
    attempt: int
    fraction: float
    message: str | None


class JobFinished(Event, frozen=True):
    """A job is final, after a last attempt that `ran` for so many seconds; None for a job that did not run."""

    job_id: str
    task: str
    queue: str
    attempt: int
    state: JobState
    error: JobError | None = None
    ran: float | None = None


class JobFailure(JobFinished, frozen=True):
    """A job is final, and it failed."""


class JobRetried(Event, frozen=True):
    """An attempt failed and another follows, not before `run_at`."""

    job_id: str
    task: str
    queue: str
    attempt: int
    run_at: int
    error: JobError | None
    ran: float | None = None


class JobReturned(Event, frozen=True):
    """An attempt was put back unspent: snoozed, refused by the callee, or interrupted by a shutdown."""

    job_id: str
    task: str
    queue: str
    reason: str
    ran: float | None = None


class JobThrottled(Event, frozen=True):
    """Jobs wait for budget: told at once for a bucket, then at most each 30 s with how often lanes met it closed.

    `opens_at` is None for a bucket that opens when a permit is given back.
    """

    limit: str
    key: str
    opens_at: int | None
    waiting: int
    count: int


class LimitsClosed(Event, frozen=True):
    """A claim of this node met buckets of these limits closed, one entry for each: jobs stay throttled there."""

    limits: tuple[str, ...]


class LimitSkipped(Event, frozen=True):
    """A job runs without a limit, because its key came out empty or could not be computed; told once per limit."""

    task: str
    limit: str
    reason: str


class BacklogMoved(Event, frozen=True):
    """Waiting jobs were moved to the limits that their tasks have now."""

    jobs: int


class BacklogLeft(Event, frozen=True):
    """The limits of its task have changed, and cannot be computed for a waiting job: it is not started.

    Published once per task.
    """

    task: str
    job_id: str
    error: str


class LimitStoreTroubled(Event, frozen=True):
    """The store of a limit that is kept elsewhere cannot be asked; jobs run without it, or wait, as the limit says."""

    limit: str
    error: str
    jobs_run: bool


class LimitStoreAnswers(Event, frozen=True):
    """The store of a limit that is kept elsewhere answers again."""

    limit: str


class LimitStoreAdvised(Event, frozen=True):
    """The store of a limit that is kept elsewhere is set up in a way that can cost budget or exceed it; told once."""

    limit: str
    advice: str


class OccurrencesSkipped(Event, frozen=True):
    """Occurrences of a schedule do not run: nobody was there ("misfire"), the one before is not over ("overlap"), or
    those that are under way may be its last ("max_runs"). The next one is due at `next_at`.
    """

    schedule: str
    task: str
    reason: str
    next_at: int | None


class ScheduleTooFast(Event, frozen=True):
    """A schedule comes more often than a limit of its task lets its jobs start; told when it is declared."""

    schedule: str
    task: str
    limit: str


class ScheduleTroubled(Event, frozen=True):
    """This node cannot tell when a schedule is due, and leaves it to others; told once."""

    schedule: str
    error: str


class ScheduleOverdue(Event, frozen=True):
    """Nobody has fired a schedule that was due at `due_at` (wall microseconds), more than a minute ago, and this node
    cannot: it `lacks` its task, or its trigger, which only code knows that declares it. Told once per schedule.
    """

    schedule: str
    task: str
    lacks: Literal["task", "trigger"]
    due_at: int


class ScheduleRenamed(Event, frozen=True):
    """A schedule has taken the place of the one that had the name of an alias of its task."""

    schedule: str
    was: str


class ScheduleSuperseded(Event, frozen=True):
    """A newer release that runs, or has run within three minutes, declares a schedule otherwise: that holds."""

    schedule: str


class EndingRefused(Event, frozen=True):
    """A finished attempt was not recorded: the job had been taken over by another node, or cancelled."""

    job_id: str
    task: str


class BackoffFailed(Event, frozen=True):
    """A task's own backoff function raised; its job is retried with the default delays."""

    task: str
    error: str


class AttemptLingers(Event, frozen=True):
    """An attempt was told to end, and still runs `seconds` later: its slot stays taken. Told once.

    `place` is what it runs in: "loop" (it swallowed its cancellation), "thread" (which cannot be stopped) or "process".
    """

    job_id: str
    task: str
    queue: str
    attempt: int
    place: str
    cause: str
    seconds: float


class CallbackFailed(Event, frozen=True):
    """A callback of a task, as `on_error`, raised or could not be called; nothing else is changed by that."""

    job_id: str
    task: str
    callback: str
    error: str


class ResourceTroubled(Event, frozen=True):
    """A resource that was open for the whole node raised when it was closed."""

    resource: str
    error: str


class TaskUnknown(Event, frozen=True):
    """Stored jobs name a task that this node does not know; they stay waiting. Told once per task."""

    task: str


class NodeStarted(Event, frozen=True):
    """This node begins to claim jobs."""

    node: str
    storage: str


class NodeStopping(Event, frozen=True):
    """This node was told to end: it claims nothing more and lets its `running` jobs finish within the grace."""

    node: str
    running: int


class NodeStopped(Event, frozen=True):
    """This node has left; `returned` jobs were handed back unfinished."""

    node: str
    returned: int


class NodeCrashed(Event, frozen=True):
    """This node was ended by an error in one of its own parts; others take its jobs back when its lease is over."""

    node: str
    error: JobError


class NodeLost(Event, frozen=True):
    """A node died; its jobs wait again, except the poisonous ones, which are failed."""

    node: str
    returned: int
    poisonous: int


class NodeDisowned(Event, frozen=True):
    """This node was declared dead by another while it was alive; it has cancelled its jobs and joined anew."""

    node: str
    cancelled: int


class LeaseNotRenewed(Event, frozen=True):
    """This node could not renew its lease for `seconds`, and others may take its jobs soon; told once each time.

    It has cancelled the `cancelled` attempts that hold permits or had not begun, and starts nothing until a heartbeat
    succeeds again. Jobs without permits go on.
    """

    node: str
    seconds: float
    cancelled: int


class ClockSkewed(Event, frozen=True):
    """The clock of this node is `seconds` ahead of the store's (below 0: behind it); told once.

    Jobs go by the store's clock; `at` of the events, and the log, by this one.
    """

    node: str
    seconds: float


class ReportDropped(Event, frozen=True):
    """The storage does not keep what an attempt says of itself: lines or progress are lost, and nothing else."""

    job_id: str
    task: str
    attempt: int
    error: str


class NodeMeasured(Event, frozen=True):
    """What this node has to do, told each second: the `slots` that it has, and those `busy`, by queue.

    In so many of the busy ones attempts are `lingering`: they were told to end. `unrecorded` endings wait for the
    store. The event loop came back `loop_lag` seconds late, and the clock is `clock_skew` seconds ahead of the store's.
    """

    node: str
    slots: Mapping[str, int]
    busy: Mapping[str, int]
    lingering: int
    unrecorded: int
    loop_lag: float
    clock_skew: float


class StorageUsed(Event, frozen=True):
    """A verb of the storage took so many seconds, for so many jobs: "add", "claim" or "finish"."""

    verb: str
    seconds: float
    jobs: int


class StorageTroubled(Event, frozen=True):
    """The storage could not be used; the node keeps trying."""

    doing: str
    error: str


class LoopBlocked(Event, frozen=True):
    """The event loop did not run for so many seconds: some handler blocks it."""

    seconds: float
