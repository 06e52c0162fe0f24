"""Events: facts after they happened; subscribers are told and cannot change them. Instants are wall microseconds."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import JobError, JobState


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, at `at`."""

    at: int


class JobEnqueued(Event, frozen=True):
    """A job is stored, durably."""

    job_id: str
    task: str
    queue: str
    run_at: int


class JobStarted(Event, frozen=True):
    """An attempt begins on this node."""

    job_id: str
    task: str
    queue: str
    attempt: int


class JobFinished(Event, frozen=True):
    """A job is final."""

    job_id: str
    task: str
    queue: str
    attempt: int
    state: JobState
    error: JobError | None = None


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


class JobReturned(Event, frozen=True):
    """An attempt was put back unspent: snoozed, refused by the callee, or interrupted by a shutdown."""

    job_id: str
    task: str
    queue: str
    reason: str


class JobThrottled(Event, frozen=True):
    """Jobs wait for budget: told at once for a bucket, then at most each 30 s with how often lanes met it closed.

    `opens_at` is None for a bucket that opens when a permit is given back.
    """

    limit: str
    key: str
    opens_at: int | None
    waiting: int
    count: int


class LimitSkipped(Event, frozen=True):
    """A job runs without a limit, because its key came out empty or could not be computed; told once per limit."""

    task: str
    limit: str
    reason: str


class BacklogMoved(Event, frozen=True):
    """Waiting jobs were moved to the limits that their tasks have now."""

    jobs: int


class BacklogLeft(Event, frozen=True):
    """A waiting job cannot be asked which limits its task has now, and keeps those it had; told once per task."""

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


class EndingRefused(Event, frozen=True):
    """A finished attempt was not recorded: the job had been taken over by another node, or cancelled."""

    job_id: str
    task: str


class BackoffFailed(Event, frozen=True):
    """A task's own backoff function raised; its job is retried with the default delays."""

    task: str
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


class NodeLost(Event, frozen=True):
    """A node died; its jobs wait again, except the poisonous ones, which are failed."""

    node: str
    returned: int
    poisonous: int


class NodeDisowned(Event, frozen=True):
    """This node was declared dead by another while it was alive; it has cancelled its jobs and joined anew."""

    node: str
    cancelled: int


class ClockSkewed(Event, frozen=True):
    """The clock of this node is `seconds` ahead of the store's (below 0: behind it); told once.

    Jobs go by the store's clock; `at` of the events, and the log, by this one.
    """

    node: str
    seconds: float


class StorageTroubled(Event, frozen=True):
    """The storage could not be used; the node keeps trying."""

    doing: str
    error: str


class LoopBlocked(Event, frozen=True):
    """The event loop did not run for so many seconds: some handler blocks it."""

    seconds: float
