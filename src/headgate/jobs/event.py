"""Events: published after something happened; a subscriber cannot change it. Instants are wall microseconds.

An event is declared once: its fields, and the level and the text of its log line. `observe.tally` counts events, where
there is a metric.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

import msgspec

from headgate.clock import to_datetime
from headgate.escaping import as_fields
from headgate.jobs.alert import AlertState
from headgate.jobs.job import JobError, JobState
from headgate.plural import counted

Kind = TypeVar("Kind", bound="type[Event]")

NO_TASKS = (
    'no tasks, so it runs no jobs: name the modules that declare them, by Headgate(…, imports=["myproject.tasks"]) or '
    "`headgate worker --import myproject.tasks`"
)

MOST_NAMES = 10
"""The most queues, tasks, limits or jobs that a text of an event names."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened, at `at`; it is logged if it is declared with `@logged(level)`."""

    at: int

    level: ClassVar[int | None] = None
    """The level of its log line. An event without a level is not logged."""

    is_of_each_job: ClassVar[bool] = False
    """Whether each job publishes it, so that it is logged only at the level DEBUG, or on request."""

    @property
    def own_level(self) -> int | None:
        """The level of this one."""
        return self.level

    def line(self) -> str:
        """Return the text of its log line, before it is escaped. It contains no payload and no result."""
        raise NotImplementedError

    def traceback(self) -> str | None:
        """Return a traceback that follows the line in the log."""
        return None


def logged(level: int, *, of_each_job: bool = False) -> Callable[[Kind], Kind]:
    """Decorate a kind of event that has a log line, of this level."""

    def declare(kind: Kind) -> Kind:
        kind.level, kind.is_of_each_job = level, of_each_job
        return kind

    return declare


class JobEvent(Event, frozen=True):
    """Something that happened to a job; a subscriber of this kind gets all of these."""

    job_id: str
    task: str
    queue: str


class JobEnqueued(JobEvent, frozen=True):
    """A job was stored durably."""

    run_at: int


class JobReplaced(JobEvent, frozen=True):
    """A waiting job with a unique key got new arguments, new options and the time `run_at`, or an earlier one."""

    run_at: int


@logged(logging.DEBUG, of_each_job=True)
class JobStarted(JobEvent, frozen=True):
    """An attempt starts on this node, `waited` seconds after it was due; it was charged to these `limits`.

    It waited for a limit during the first `throttled` seconds, then for a free slot. Its `unlimited` limits were not
    charged, because their store was unavailable.
    """

    attempt: int
    waited: float = 0.0
    throttled: float = 0.0
    limits: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()

    def line(self) -> str:
        return f"job {self.job_id} ({self.task}) started, attempt {self.attempt}"


class JobProgressed(JobEvent, frozen=True):
    """A running job has reported progress, from 0 to 1; published about once a second, with the latest message."""

    attempt: int
    fraction: float
    message: str | None


@logged(logging.INFO, of_each_job=True)
class JobFinished(JobEvent, frozen=True):
    """A job is final. Its last attempt `ran` for so many seconds after it `waited`; None if it did not run."""

    attempt: int
    state: JobState
    error: JobError | None = None
    ran: float | None = None
    waited: float | None = None

    def line(self) -> str:
        times = "" if self.ran is None else f" in {self.ran:.3f} s, waited {self.waited or 0:.3f} s"
        reason = "" if self.error is None else f": {self.error.message}"
        return f"job {self.job_id} ({self.task}) {self.state}{times}{reason}"


@logged(logging.ERROR)
class JobFailure(JobFinished, frozen=True):
    """A job has failed for good."""

    def line(self) -> str:
        return f"job {self.job_id} ({self.task}) failed at attempt {self.attempt}{_reason(self.error)}"

    def traceback(self) -> str | None:
        return None if self.error is None else self.error.traceback


@logged(logging.WARNING)
class JobRetried(JobEvent, frozen=True):
    """An attempt failed; the next one starts not before `run_at`."""

    attempt: int
    run_at: int
    error: JobError | None
    ran: float | None = None

    def line(self) -> str:
        failed = f"job {self.job_id} ({self.task}) failed at attempt {self.attempt}"
        return f"{failed}, runs again {_second(self.run_at)}{_reason(self.error)}"


@logged(logging.DEBUG, of_each_job=True)
class JobReturned(JobEvent, frozen=True):
    """A job was returned without spending the attempt: snoozed, refused by the callee, or interrupted by a shutdown."""

    reason: str
    ran: float | None = None

    def line(self) -> str:
        return f"job {self.job_id} ({self.task}) waits again: {self.reason}"


class JobThrottled(Event, frozen=True):
    """Jobs wait for a closed bucket. Published at once, then at most every 30 s with how often lanes met it closed.

    The node publishes the rest when it stops. `job_id` is the job that met it last: the first of the `waiting` ones in
    its lane. `opens_at` is None for a bucket that opens when a permit is given back.
    """

    limit: str
    key: str
    job_id: str
    opens_at: int | None
    waiting: int
    count: int


@logged(logging.INFO)
class LimitThrottled(Event, frozen=True):
    """Jobs wait for closed buckets of a limit. Published at once, then at most every 30 s, and when the node stops.

    Since the last one, lanes met closed buckets `count` times. Behind the buckets of `keys` keys (at most 10,000)
    `waiting` jobs wait, as far as this node knows; `key` is the one with the most, and its bucket opens at `opens_at`
    (as of `JobThrottled`). If it knows of none any more, it is the one that was met last.
    """

    limit: str
    keys: int
    waiting: int
    count: int
    key: str
    opens_at: int | None

    def line(self) -> str:
        opens_at = None if self.opens_at is None else to_datetime(self.opens_at).isoformat(timespec="milliseconds")
        keys = f"key {self.key!r}" if self.keys == 1 else f"{self.keys} keys, most behind {self.key!r}"
        fields = as_fields(limit=self.limit, key=self.key, keys=self.keys, waiting=self.waiting, count=self.count)
        if not self.waiting:
            return f"limit {self.limit}: this node knows of no more waiting jobs [throttled {fields}]"
        # Without a time, the slot is a permit's.
        opens = "" if opens_at is None else f" opens_at={opens_at}"
        return (
            f"limit {self.limit}: {counted(self.waiting, 'job')} waiting behind {keys}, "
            f"next slot {opens_at or 'when a permit is free'} [throttled {fields}{opens}]"
        )


class LimitsClosed(Event, frozen=True):
    """A claim on this node met closed buckets, one entry per bucket; their jobs stay throttled."""

    limits: tuple[str, ...]


class LimiterEvent(Event, frozen=True):
    """Something that a limiter of `app.limiter(…)` did `count` times since its last event, the latest for `key`."""

    limit: str
    key: str
    count: int


class LimiterGranted(LimiterEvent, frozen=True):
    """A limiter of `app.limiter(…)` granted plain code `count` starts since the last one, the latest for `key`.

    Published as `LimiterRefused` is. Reservations are not counted.
    """


@logged(logging.INFO)
class LimiterRefused(LimiterEvent, frozen=True):
    """A limiter of `app.limiter(…)` refused plain code `count` times since the last one, the latest time for `key`.

    Published at once for each limit, then at most every 30 s, and when the app is closed.
    """

    def line(self) -> str:
        refused = f"refused plain code {counted(self.count, 'start')}"
        fields = as_fields(limit=self.limit, key=self.key, count=self.count)
        return f"limit {self.limit} {refused}, the latest for key {self.key!r} [refused {fields}]"


@logged(logging.WARNING)
class LimiterBypassed(LimiterEvent, frozen=True):
    """A middleware passed `count` requests without a limit of `app.limiter(…)`, because the limit's store failed.

    The latest one was for `key`. Published as `LimiterRefused` is.
    """

    def line(self) -> str:
        passed = f"{counted(self.count, 'request')} passed without it, as its store does not answer"
        return f"limit {self.limit}: {passed}; the latest for key {self.key!r}"


@logged(logging.WARNING)
class LimitSkipped(Event, frozen=True):
    """A job runs without a limit because its key is empty or could not be computed; published once per limit."""

    task: str
    limit: str
    reason: str

    def line(self) -> str:
        return f"jobs of {self.task} run without limit {self.limit}: {self.reason}"


@logged(logging.INFO)
class JobsMigrated(Event, frozen=True):
    """Waiting jobs were moved to the current limits of their tasks."""

    jobs: int

    def line(self) -> str:
        return f"{counted(self.jobs, 'waiting job')} moved to the current limits of their tasks"


@logged(logging.WARNING)
class JobNotMigrated(Event, frozen=True):
    """The limits of a task have changed and cannot be computed for a waiting job, so the job does not start.

    Published once per task.
    """

    task: str
    job_id: str
    error: str

    def line(self) -> str:
        return (
            f"{self.task} {self.job_id} waits and is not started: the limits of its task have changed and "
            f"cannot be computed from its arguments: {self.error}; let upgrade= make them fit, or cancel the job"
        )


@logged(logging.WARNING)
class LimitUnknown(Event, frozen=True):
    """A batch holds a limit that no worker declares, so its jobs stay waiting. Published once per limit."""

    limit: str
    job_id: str

    def line(self) -> str:
        return (
            f"no running worker declares limit {self.limit}, and the batch of job {self.job_id} holds it: the jobs of "
            "the batch wait; declare it again with app.limit(…), or cancel the batch"
        )


@logged(logging.WARNING)
class LimitStoreFailed(Event, frozen=True):
    """The remote store of a limit is unavailable; by its `on_store_error` jobs run without it, share it, or wait.

    `sharers` is set if they use an equal share of the limit meanwhile.
    """

    limit: str
    error: str
    jobs_run: bool
    sharers: int | None = None

    def line(self) -> str:
        share = f"its jobs use one of {self.sharers} shares" if self.sharers else "its jobs wait"
        doing = "jobs run without it" if self.jobs_run else share
        return f"limit {self.limit}: its store does not answer, {doing}: {self.error}"


@logged(logging.INFO)
class LimitStoreRecovered(Event, frozen=True):
    """The remote store of a limit answers again."""

    limit: str

    def line(self) -> str:
        return f"limit {self.limit}: its store answers again"


@logged(logging.WARNING)
class LimitStoreMisconfigured(Event, frozen=True):
    """The remote store of a limit is configured so that budget may be lost or exceeded; published once."""

    limit: str
    advice: str

    def line(self) -> str:
        return f"limit {self.limit}: {self.advice}"


@logged(logging.INFO)
class OccurrencesSkipped(Event, frozen=True):
    """`count` occurrences of a schedule do not run, for a `reason`; the next one is due at `next_at`.

    "misfire": no node ran when they were due. "overlap": the previous one is not final. "max_runs": the open ones may
    be its last. "limit": its limit is closed until then. A trigger other than `Every` counts at most 1,000 at once.
    """

    schedule: str
    task: str
    reason: str
    count: int
    next_at: int | None

    def line(self) -> str:
        reason = SKIPPED_BECAUSE.get(self.reason, self.reason)
        goes_on = "" if self.next_at is None else f"; next {_second(self.next_at)}"
        return f"schedule {self.schedule} skipped {counted(self.count, 'occurrence')}: {reason}{goes_on}"


@logged(logging.WARNING)
class ScheduleTooFast(Event, frozen=True):
    """A schedule is due more often than a limit of its task allows; published when it is declared."""

    schedule: str
    task: str
    limit: str

    def line(self) -> str:
        return (
            f"schedule {self.schedule} comes more often than limit {self.limit} lets its jobs start; the "
            "others are skipped or late"
        )


@logged(logging.ERROR)
class ScheduleFailed(Event, frozen=True):
    """This node cannot compute when a schedule is due and leaves it to other nodes; published once."""

    schedule: str
    error: str

    def line(self) -> str:
        return f"schedule {self.schedule} is not run by this node: {self.error}"


@logged(logging.ERROR)
class ScheduleOverdue(Event, frozen=True):
    """No node has fired a schedule that was due at `due_at` (wall microseconds), more than a minute ago, and this one
    cannot: it `lacks` the task, or the custom trigger, which only the declaring code has. Published once per schedule.
    """

    schedule: str
    task: str
    lacks: Literal["task", "trigger"]
    due_at: int

    def line(self) -> str:
        lacks = (
            f"no task {self.task} is declared here: declare it, name it in the aliases= of the task that it has become,"
            if self.lacks == "task"
            else "its trigger is declared by no code here: declare it with @app.schedule"
        )
        return (
            f"schedule {self.schedule} is overdue since {_second(self.due_at)}, and {lacks} or remove it: "
            f"headgate schedules remove {shlex.quote(self.schedule)}"
        )


@logged(logging.INFO)
class ScheduleRenamed(Event, frozen=True):
    """A schedule has replaced the one that was named after an alias of its task."""

    schedule: str
    was: str

    def line(self) -> str:
        return f"schedule {self.schedule} continues schedule {self.was}, which was renamed"


@logged(logging.INFO)
class ScheduleSuperseded(Event, frozen=True):
    """A newer release, live or seen within three minutes, declares the schedule differently; its declaration holds."""

    schedule: str

    def line(self) -> str:
        return f"schedule {self.schedule} stays as a newer release declares it, until none has run for three minutes"


@logged(logging.WARNING)
class EndingRefused(Event, frozen=True):
    """The ending of an attempt was refused: another node owns the job, or it was cancelled."""

    job_id: str
    task: str

    def line(self) -> str:
        return f"job {self.job_id} ({self.task}) ended here, but is no longer this node's: its result was refused"


@logged(logging.ERROR)
class RetryPolicyFailed(Event, frozen=True):
    """A function of a task's retry policy raised; the job is retried with the default delays."""

    task: str
    error: str

    def line(self) -> str:
        return f"the retry policy of task {self.task} raised {self.error}; its job is retried with the default delays"


@logged(logging.WARNING)
class AttemptLingers(JobEvent, frozen=True):
    """A cancelled attempt still runs after `seconds`, and its slot stays taken; published once.

    `executor` is where it runs: "loop" (it suppressed its cancellation, or its chunk call goes on for other jobs),
    "thread" (which nothing can stop), "process".
    """

    attempt: int
    executor: str
    cause: str
    seconds: float

    def line(self) -> str:
        return (
            f"job {self.job_id} ({self.task}) was asked to end ({self.cause}) and still runs {self.seconds:g} s later, "
            f"in a slot of queue {self.queue}{_LINGERS.get(self.executor, '')}"
        )


@logged(logging.ERROR)
class CallbackFailed(Event, frozen=True):
    """A callback of a task, such as `on_error`, raised or could not be called; the job is not affected."""

    job_id: str
    task: str
    callback: str
    error: str

    def line(self) -> str:
        return f"{self.callback} of {self.task} failed on job {self.job_id}: {self.error}"


@logged(logging.ERROR)
class ResourceFailed(Event, frozen=True):
    """A resource of scope "node" raised when it was closed."""

    resource: str
    error: str

    def line(self) -> str:
        return f"resource {self.resource} raised when it was closed: {self.error}"


@logged(logging.ERROR)
class ShutdownFailed(Event, frozen=True):
    """A function of `@app.on_shutdown` raised, or took too long and was cancelled."""

    function: str
    error: str

    def line(self) -> str:
        return f"shutdown function {self.function} failed: {self.error}"


@logged(logging.ERROR)
class TaskUnknown(Event, frozen=True):
    """Stored jobs name a task that no running node declares; they stay waiting. Published once per task by each node.

    `declared` are the names of the tasks that it declares.
    """

    task: str
    declared: Sequence[str] = ()

    def line(self) -> str:
        module = self.task.rpartition(".")[0] or "your.module"
        known = f"module {module!r}" if "." in self.task else "the module that declares it"
        return (
            f"jobs of task {self.task} wait, and no such task is declared here: import {known} by "
            f"Headgate(imports=[{module!r}]) or `headgate worker --import {module}`; if it was renamed, name it in the "
            "aliases= of the task that it has become; or cancel the jobs. This node declares "
            f"{_listed('task', self.declared)}"
        )


@logged(logging.WARNING)
class QueueUnserved(Event, frozen=True):
    """A result is awaited of a job in a queue that no worker serves, as has been so for `seconds`, if one ever did.

    `runs_here`: this program runs a worker, of other queues.
    """

    queue: str
    seconds: float | None
    runs_here: bool = False

    def line(self) -> str:
        return f"a result is awaited, and {unserved_text(self.queue, self.seconds, runs_here=self.runs_here)}"


@logged(logging.INFO)
class NodeStarted(Event, frozen=True):
    """This node starts to claim jobs.

    `queues` maps the queues that it serves to their slots, `limits` the limits of the app to their rules in words.
    Running jobs may continue for `grace` seconds after a stop was requested. `version` is that of Headgate. A node
    `in_session` runs in a notebook or at a prompt, where tasks are declared after it has started.
    """

    node: str
    storage: str
    version: str
    queues: Mapping[str, int]
    tasks: tuple[str, ...]
    limits: Mapping[str, str]
    grace: float
    in_session: bool = False

    @property
    def own_level(self) -> int:
        return logging.INFO if self.tasks or self.in_session else logging.WARNING

    def line(self) -> str:
        return "; ".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield its store, then its queues, tasks and limits, a line each."""
        yield f"{self.node} works on {self.storage} with Headgate {self.version}"
        yield _queues(self.queues)
        yield _listed("task", self.tasks) if self.tasks else "no tasks yet" if self.in_session else NO_TASKS
        yield _listed("limit", [f"{name} ({rule})" for name, rule in self.limits.items()])


@logged(logging.INFO)
class NodeChanged(Event, frozen=True):
    """An operator has changed what this node claims: its slots by `queues`, at most `slots` at once.

    While it is quiet it claims nothing. Running jobs continue.
    """

    node: str
    queues: Mapping[str, int]
    slots: int
    is_quiet: bool

    def line(self) -> str:
        if self.is_quiet:
            return f"{self.node} is quiet: it claims no more jobs until it is resumed"
        return f"{self.node} runs at most {counted(self.slots, 'job')} now; {_queues(self.queues)}"


@logged(logging.INFO)
class NodeStopping(Event, frozen=True):
    """This node is stopping: it claims no more jobs and lets its `running` ones finish within `grace` seconds.

    Those `in_threads` cannot be interrupted. `by_operator`: as an operator requested by `headgate nodes stop`, the
    dashboard or the API.
    """

    node: str
    running: int
    by_operator: bool = False
    grace: float = 0.0
    in_threads: int = 0

    @property
    def own_level(self) -> int:
        # A warning, so that a program without any logging shows it too, in place of silence for the whole grace.
        return logging.WARNING if self.running else logging.INFO

    def line(self) -> str:
        why = " at the request of an operator" if self.by_operator else ""
        line = f"{self.node} is stopping{why}: it claims no more jobs"
        if not self.running:
            return line
        threads = f", but for {self.in_threads} in threads, which end by themselves" if self.in_threads else ""
        return (
            f"{line} and waits up to {self.grace:g} s for {counted(self.running, 'running job')}; Ctrl+C or "
            f"SIGTERM once more ends it at once{threads}"
        )


@logged(logging.INFO)
class NodeStopped(Event, frozen=True):
    """This node has stopped; `returned` unfinished jobs wait again."""

    node: str
    returned: int

    def line(self) -> str:
        return f"{self.node} stopped, {counted(self.returned, 'job')} returned"


@logged(logging.CRITICAL)
class NodeCrashed(Event, frozen=True):
    """An error in one of its services ended this node; other nodes recover its jobs when its lease has ended."""

    node: str
    error: JobError

    def line(self) -> str:
        return (
            f"{self.node} crashed and runs no more jobs; other nodes take over its jobs: "
            f"{self.error.type}: {self.error.message}"
        )

    def traceback(self) -> str | None:
        # A store that is away, whose disk is full or whose file was removed: the message says what to do.
        return None if self.error.type.startswith("headgate.errors.Storage") else self.error.traceback


@logged(logging.WARNING)
class NodeLost(Event, frozen=True):
    """A node is dead; its jobs wait again, but poisonous ones fail, complete ones succeed, and some are cancelled.

    These were to be cancelled, or another job waits under their unique key. `poisonous_jobs` has the ids of the
    poisonous ones. `known`: it had left, or was found dead, before, and other transactions had locked these jobs.
    """

    node: str
    returned: int
    poisonous: int
    completed: int = 0
    cancelled: int = 0
    poisonous_jobs: tuple[str, ...] = ()
    known: Literal["left", "dead"] | None = None

    def line(self) -> str:
        ended = f", {self.completed} were complete and succeeded" if self.completed else ""
        ended += f", {self.cancelled} cancelled" if self.cancelled else ""
        poisonous = f", {self.poisonous} failed as poisonous (three lost attempts)" if self.poisonous else ""
        if self.poisonous_jobs:
            more = ", …" if len(self.poisonous_jobs) > MOST_NAMES else ""
            poisonous += f": {', '.join(self.poisonous_jobs[:MOST_NAMES])}{more}"
        gone = "had left" if self.known == "left" else "died"
        if not (self.returned or poisonous or ended):
            return f"{self.node} {gone}; it ran no job"
        return f"{self.node} {gone}: {self.returned} of its jobs wait again{ended}{poisonous}"


@logged(logging.INFO)
class AlertSent(Event, frozen=True):
    """A message of an alert was delivered to its target; `alert_id` and `number` are those of the message."""

    alert: str
    alert_id: str
    number: int
    state: AlertState
    text: str

    def line(self) -> str:
        return f"alert {self.alert} sent: {self.text}"


@logged(logging.ERROR)
class AlertFailed(Event, frozen=True):
    """A message of an alert was not delivered, at this try, counted from 1; it is tried again at `retry_at`."""

    alert: str
    alert_id: str
    number: int
    text: str
    tried: int
    error: str
    retry_at: int

    def line(self) -> str:
        return (
            f"alert {self.alert} was not delivered at try {self.tried}, and is tried again at "
            f"{_second(self.retry_at)}: {self.error} ({self.text})"
        )


@logged(logging.ERROR)
class NodeDeclaredDead(Event, frozen=True):
    """Another node declared this one dead while it was alive; it has cancelled its jobs and joined again."""

    node: str
    cancelled: int

    def line(self) -> str:
        return f"{self.node} was declared dead while alive; it cancelled {counted(self.cancelled, 'running job')}"


@logged(logging.ERROR)
class LeaseNotRenewed(Event, frozen=True):
    """This node could not renew its lease for `seconds`, and others may soon recover its jobs; published each time.

    It has cancelled the `cancelled` attempts that hold permits or have not started, and starts no job until a heartbeat
    succeeds again. Jobs without permits continue.
    """

    node: str
    seconds: float
    cancelled: int

    def line(self) -> str:
        return (
            f"{self.node} could not renew its lease for {self.seconds:.1f} s: it cancelled "
            f"{counted(self.cancelled, 'job')} that held permits or had not started, and starts nothing until "
            "the store answers"
        )


@logged(logging.WARNING)
class ClockSkewed(Event, frozen=True):
    """This node's clock is `seconds` ahead of the store's (below 0: behind it); published once.

    Jobs use the store's clock; the log, and `at` in events, use the node's clock.
    """

    node: str
    seconds: float

    def line(self) -> str:
        apart = f"{abs(self.seconds):.1f} s {'ahead of' if self.seconds > 0 else 'behind'}"
        return f"the clock of {self.node} is {apart} the store's; jobs use the store's clock, log lines this one"


@logged(logging.WARNING)
class ReportDropped(Event, frozen=True):
    """The store cannot keep output of an attempt: log lines or progress are lost, nothing else."""

    job_id: str
    task: str
    attempt: int
    error: str

    def line(self) -> str:
        return f"a report of job {self.job_id} ({self.task}) at attempt {self.attempt} was dropped: {self.error}"


class NodeMeasured(Event, frozen=True):
    """The load of this node, published every second: its `slots`, busy or free, and the `busy` ones, by queue.

    `lingering` is how many slots cancelled attempts take, `unrecorded` how many endings wait for the store. The
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


@logged(logging.ERROR)
class StorageFailed(Event, frozen=True):
    """A call to the store failed; the node tries again."""

    doing: str
    error: str

    def line(self) -> str:
        return f"storage failure while {self.doing}: {self.error}"


@logged(logging.WARNING)
class StorageRecovered(Event, frozen=True):
    """The store answers heartbeats of this node again; the first one had failed so many seconds before."""

    seconds: float

    def line(self) -> str:
        return f"the store answers again, {self.seconds:.1f} s after a heartbeat failed"


@logged(logging.WARNING)
class LoopBlocked(Event, frozen=True):
    """The event loop did not run for so many seconds: a handler or an unread log blocked it, or it was frozen."""

    seconds: float

    def line(self) -> str:
        cause = "a handler blocked it (make it a plain def task), its log was not read, or the process was frozen"
        return f"the event loop was blocked for {self.seconds:.1f} s: {cause}"


SKIPPED_BECAUSE = {
    "misfire": "no node was running",
    "overlap": "the previous job had not ended",
    "max_runs": "the running jobs may be its last",
    "limit": "its limit was closed, and its jobs do not wait",
}

_LINGERS = {
    "loop": ": its handler swallows CancelledError (let it pass), or its chunk call goes on for other jobs",
    "thread": ": threads cannot be stopped; check current_job().cancelled, or use process=True",
}


def unserved_text(queue: str, seconds: float | None, *, is_any_alive: bool = False, runs_here: bool = False) -> str:
    """Return what to say of a queue that no worker serves; `is_any_alive`: workers of other queues run, or one here."""
    since = f"no worker serves queue {queue!r}"
    if seconds is not None:
        since = f"no worker has served queue {queue!r} for {seconds:.0f} s"
    if runs_here:
        return f"{since}, and the one of this program was started without it; stop the app and start it again"
    command = worker_of(queue) if is_any_alive else "headgate worker"
    return f"{since}; start one: `{command}`, or `with app:`"


def worker_of(queue: str) -> str:
    """Return the command for a worker of a queue. A colon ends a name that has one: what follows it would be slots."""
    return f"headgate worker --queue {shlex.quote(f'{queue}:' if ':' in queue else queue)}"


def _reason(error: JobError | None) -> str:
    return "" if error is None else f": {error.type}: {error.message}"


def _second(instant: int) -> str:
    return to_datetime(instant).isoformat(timespec="seconds")


def _queues(queues: Mapping[str, int]) -> str:
    return _listed("queue", [f"{name} ({counted(slots, 'slot')})" for name, slots in queues.items()])


def _listed(noun: str, names: Sequence[str]) -> str:
    if not names:
        return f"no {noun}s"
    omitted = len(names) - MOST_NAMES
    more = f" and {omitted} more" if omitted > 0 else ""
    return f"{counted(len(names), noun)}: {', '.join(names[:MOST_NAMES])}{more}"
