"""Events: published after something happened; a subscriber cannot change it. Instants are wall microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headgate.jobs.alert import AlertState
from headgate.jobs.job import JobError, JobState


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened, at `at`."""

    at: int


class JobEnqueued(Event, frozen=True):
    """A job was stored durably."""

    job_id: str
    task: str
    queue: str
    run_at: int


class JobReplaced(Event, frozen=True):
    """A waiting job with a unique key got new arguments, a new time and new options."""

    job_id: str
    task: str
    queue: str
    run_at: int


class JobStarted(Event, frozen=True):
    """An attempt starts on this node, `waited` seconds after it was due; it was charged to these `limits`.

    For the first `throttled` of these seconds it waited for a limit, after that for a free slot. Of its limits, the
    `unlimited` ones were not charged, because their store was unavailable.
    """

    job_id: str
    task: str
    queue: str
    attempt: int
    waited: float = 0.0
    throttled: float = 0.0
    limits: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()


class JobProgressed(Event, frozen=True):
    """A running job has reported progress, from 0 to 1; published about once a second, with the latest message."""

    job_id: str
    task: str
    queue: str
    attempt: int
    fraction: float
    message: str | None


class JobFinished(Event, frozen=True):
    """A job is final. Its last attempt `ran` for so many seconds after it `waited`; None if it did not run."""

    job_id: str
    task: str
    queue: str
    attempt: int
    state: JobState
    error: JobError | None = None
    ran: float | None = None
    waited: float | None = None


class JobFailure(JobFinished, frozen=True):
    """A job has failed for good."""


class JobRetried(Event, frozen=True):
    """An attempt failed; the next one starts not before `run_at`."""

    job_id: str
    task: str
    queue: str
    attempt: int
    run_at: int
    error: JobError | None
    ran: float | None = None


class JobReturned(Event, frozen=True):
    """A job was returned without spending the attempt: snoozed, refused by the callee, or interrupted by a shutdown."""

    job_id: str
    task: str
    queue: str
    reason: str
    ran: float | None = None


class JobThrottled(Event, frozen=True):
    """Jobs wait for a closed bucket. Published at once, then at most each 30 s with how often lanes met it closed.

    What was met since the last one is published when the node stops. `job_id` is the job that met it last: the first of
    the `waiting` ones in its lane. `opens_at` is None for a bucket that opens when a permit is given back.
    """

    limit: str
    key: str
    job_id: str
    opens_at: int | None
    waiting: int
    count: int


class LimitThrottled(Event, frozen=True):
    """Jobs wait for closed buckets of a limit. Published at once, then at most each 30 s, and when the node stops.

    Since the last one, lanes met closed buckets `count` times. Behind the buckets of `keys` keys (at most 10,000)
    `waiting` jobs waited; `key` is the one with the most, and its bucket opens at `opens_at` (as of `JobThrottled`).
    """

    limit: str
    keys: int
    waiting: int
    count: int
    key: str
    opens_at: int | None


class LimitsClosed(Event, frozen=True):
    """A claim of this node met closed buckets of these limits, one entry per bucket; their jobs stay throttled."""

    limits: tuple[str, ...]


class LimiterGranted(Event, frozen=True):
    """A limiter of `app.limiter(…)` granted plain code `count` starts since the last one, the latest for `key`.

    Published as `LimiterRefused` is. Reservations are not counted.
    """

    limit: str
    key: str
    count: int


class LimiterRefused(Event, frozen=True):
    """A limiter of `app.limiter(…)` refused plain code `count` times since the last one, the latest time for `key`.

    Published at once for each limit, then at most each 30 s, and when the app is closed.
    """

    limit: str
    key: str
    count: int


class LimiterBypassed(Event, frozen=True):
    """A middleware passed `count` requests without a limit of `app.limiter(…)`, because the limit's store failed.

    The latest one was for `key`. Published as `LimiterRefused` is.
    """

    limit: str
    key: str
    count: int


class LimitSkipped(Event, frozen=True):
    """A job runs without a limit because its key is empty or could not be computed; published once per limit."""

    task: str
    limit: str
    reason: str


class JobsMigrated(Event, frozen=True):
    """Waiting jobs were moved to the current limits of their tasks."""

    jobs: int


class JobNotMigrated(Event, frozen=True):
    """The limits of a task have changed and cannot be computed for a waiting job, so the job does not start.

    Published once per task.
    """

    task: str
    job_id: str
    error: str


class LimitStoreFailed(Event, frozen=True):
    """The remote store of a limit is unavailable; by its `on_store_error` jobs run without it, share it, or wait.

    `sharers` is set if they use an equal share of the limit meanwhile.
    """

    limit: str
    error: str
    jobs_run: bool
    sharers: int | None = None


class LimitStoreRecovered(Event, frozen=True):
    """The remote store of a limit answers again."""

    limit: str


class LimitStoreMisconfigured(Event, frozen=True):
    """The remote store of a limit is configured so that budget may be lost or exceeded; published once."""

    limit: str
    advice: str


class OccurrencesSkipped(Event, frozen=True):
    """`count` occurrences of a schedule do not run: no node ran when they were due ("misfire"), the previous one is not
    final ("overlap"), the open ones may be its last ("max_runs"), or its limit is closed until then ("limit").

    The next one is due at `next_at`. Of another trigger than `Every`, at most 1,000 are counted at once.
    """

    schedule: str
    task: str
    reason: str
    count: int
    next_at: int | None


class ScheduleTooFast(Event, frozen=True):
    """A schedule is due more often than a limit of its task allows; published when it is declared."""

    schedule: str
    task: str
    limit: str


class ScheduleFailed(Event, frozen=True):
    """This node cannot compute when a schedule is due and leaves it to other nodes; published once."""

    schedule: str
    error: str


class ScheduleOverdue(Event, frozen=True):
    """No node has fired a schedule that was due at `due_at` (wall microseconds), more than a minute ago, and this one
    cannot: it `lacks` the task, or the custom trigger, which only the declaring code has. Published once per schedule.
    """

    schedule: str
    task: str
    lacks: Literal["task", "trigger"]
    due_at: int


class ScheduleRenamed(Event, frozen=True):
    """A schedule has replaced the one that was named after an alias of its task."""

    schedule: str
    was: str


class ScheduleSuperseded(Event, frozen=True):
    """A newer release, live or seen within three minutes, declares the schedule differently; its declaration holds."""

    schedule: str


class EndingRefused(Event, frozen=True):
    """The ending of an attempt was refused: another node owns the job, or it was cancelled."""

    job_id: str
    task: str


class RetryPolicyFailed(Event, frozen=True):
    """A function of a task's retry policy raised; the job is retried with the default delays."""

    task: str
    error: str


class AttemptLingers(Event, frozen=True):
    """A cancelled attempt still runs after `seconds`, and its slot stays taken; published once.

    `executor` is where it runs: "loop" (it suppressed its cancellation), "thread" (which nothing can stop), "process".
    """

    job_id: str
    task: str
    queue: str
    attempt: int
    executor: str
    cause: str
    seconds: float


class CallbackFailed(Event, frozen=True):
    """A callback of a task, such as `on_error`, raised or could not be called; the job is not affected."""

    job_id: str
    task: str
    callback: str
    error: str


class ResourceFailed(Event, frozen=True):
    """A resource of scope "node" raised when it was closed."""

    resource: str
    error: str


class ShutdownFailed(Event, frozen=True):
    """A function of `@app.on_shutdown` raised, or took too long and was cancelled."""

    function: str
    error: str


class TaskUnknown(Event, frozen=True):
    """Stored jobs name a task that this node does not declare; they stay waiting. Published once per task.

    `declared` are the names of the tasks that it declares.
    """

    task: str
    declared: Sequence[str] = ()


class QueueUnserved(Event, frozen=True):
    """A result is awaited of a job in a queue that no worker serves, as has been so for `seconds`, if one ever did."""

    queue: str
    seconds: float | None


class NodeStarted(Event, frozen=True):
    """This node starts to claim jobs.

    `queues` maps the queues that it serves to their slots, `limits` the limits of the app to their rules in words.
    Running jobs may continue for `grace` seconds after a stop was requested. `version` is that of Headgate.
    """

    node: str
    storage: str
    version: str
    queues: Mapping[str, int]
    tasks: tuple[str, ...]
    limits: Mapping[str, str]
    grace: float


class NodeChanged(Event, frozen=True):
    """An operator has changed what this node claims: its slots by `queues`, at most `slots` at once.

    While it is quiet it claims nothing. Running jobs continue.
    """

    node: str
    queues: Mapping[str, int]
    slots: int
    is_quiet: bool


class NodeStopping(Event, frozen=True):
    """This node is stopping: it claims no more jobs and lets its `running` ones finish within `grace` seconds.

    `by_operator`: as an operator requested by `headgate nodes stop`, the dashboard or the API.
    """

    node: str
    running: int
    by_operator: bool = False
    grace: float = 0.0


class NodeStopped(Event, frozen=True):
    """This node has stopped; `returned` unfinished jobs wait again."""

    node: str
    returned: int


class NodeCrashed(Event, frozen=True):
    """An error in one of its services ended this node; other nodes recover its jobs when its lease has ended."""

    node: str
    error: JobError


class NodeLost(Event, frozen=True):
    """A node is dead; its jobs wait again, except the poisonous ones, which fail, and complete ones, which succeed."""

    node: str
    returned: int
    poisonous: int
    completed: int = 0


class AlertSent(Event, frozen=True):
    """A message of an alert was delivered to its target; `alert_id` and `number` are those of the message."""

    alert: str
    alert_id: str
    number: int
    state: AlertState
    text: str


class AlertFailed(Event, frozen=True):
    """A message of an alert was not delivered, at this try, counted from 1; it is tried again at `retry_at`."""

    alert: str
    alert_id: str
    number: int
    text: str
    tried: int
    error: str
    retry_at: int


class NodeDeclaredDead(Event, frozen=True):
    """Another node declared this one dead while it was alive; it has cancelled its jobs and joined again."""

    node: str
    cancelled: int


class LeaseNotRenewed(Event, frozen=True):
    """This node could not renew its lease for `seconds`, and others may soon recover its jobs; published each time.

    It has cancelled the `cancelled` attempts that hold permits or have not started, and starts no job until a heartbeat
    succeeds again. Jobs without permits continue.
    """

    node: str
    seconds: float
    cancelled: int


class ClockSkewed(Event, frozen=True):
    """The clock of this node is `seconds` ahead of the store's (below 0: behind it); published once.

    Jobs use the store's clock; `at` of the events, and the log, use the clock of the node.
    """

    node: str
    seconds: float


class ReportDropped(Event, frozen=True):
    """The store cannot keep output of an attempt: log lines or progress are lost, nothing else."""

    job_id: str
    task: str
    attempt: int
    error: str


class NodeMeasured(Event, frozen=True):
    """The load of this node, published each second: its `slots` and the `busy` ones, by queue.

    `lingering` is the number of slots taken by cancelled attempts, `unrecorded` of endings that wait for the store. The
    event loop was `loop_lag` seconds late, and the clock is `clock_skew` seconds ahead of the store's.
    """

    node: str
    slots: Mapping[str, int]
    busy: Mapping[str, int]
    lingering: int
    unrecorded: int
    loop_lag: float
    clock_skew: float


class StorageUsed(Event, frozen=True):
    """A call to the store, "add", "claim" or "finish", took so many seconds for so many jobs."""

    verb: str
    seconds: float
    jobs: int


class StorageFailed(Event, frozen=True):
    """A call to the store failed; the node tries again."""

    doing: str
    error: str


class LoopBlocked(Event, frozen=True):
    """The event loop did not run for so many seconds, because a handler blocked it."""

    seconds: float
