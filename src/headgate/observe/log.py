"""The log: the one subscriber that turns events into log lines. Payloads and results never appear in it."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from headgate.clock import to_datetime
from headgate.escaping import INDENT, as_fields, indented, one_line
from headgate.jobs.event import (
    AlertFailed,
    AlertSent,
    AttemptLingers,
    CallbackFailed,
    ClockSkewed,
    EndingRefused,
    Event,
    JobFailure,
    JobFinished,
    JobNotMigrated,
    JobRetried,
    JobReturned,
    JobsMigrated,
    JobStarted,
    LeaseNotRenewed,
    LimiterBypassed,
    LimiterRefused,
    LimitSkipped,
    LimitStoreFailed,
    LimitStoreMisconfigured,
    LimitStoreRecovered,
    LimitThrottled,
    LoopBlocked,
    NodeChanged,
    NodeCrashed,
    NodeDeclaredDead,
    NodeLost,
    NodeStarted,
    NodeStopped,
    NodeStopping,
    OccurrencesSkipped,
    QueueUnserved,
    ReportDropped,
    ResourceFailed,
    RetryPolicyFailed,
    ScheduleFailed,
    ScheduleOverdue,
    ScheduleRenamed,
    ScheduleSuperseded,
    ScheduleTooFast,
    ShutdownFailed,
    StorageFailed,
    TaskUnknown,
)
from headgate.plural import counted

logger = logging.getLogger("headgate")

NO_TASKS = (
    'no tasks, so it runs no jobs: name the modules that declare them, by Headgate(…, imports=["myproject.tasks"]) or '
    "`headgate worker --import myproject.tasks`"
)

MOST_NAMES = 10
"""The most queues, tasks or limits that a log line names."""


MOST_TRACEBACK_LINES = 30
"""The most lines of the traceback of a failed job that the log shows, without its first line."""


def log_event(event: Event) -> None:
    """Write the log line of an event; its fields are in `extra["headgate"]`."""
    described = _level_and_line(event)
    if described is not None:
        level, line = described
        if logger.isEnabledFor(level):
            logger.log(
                level,
                _escaped(line, event),
                extra={"headgate": msgspec.structs.asdict(event), "event": type(event).__name__},
            )


def _escaped(line: str, event: Event) -> str:
    """Return one line, whatever errors and keys contain; after a final failure or a crash the traceback follows."""
    if isinstance(event, NodeCrashed) and event.error.traceback:
        return f"{one_line(line)}\n{INDENT}{indented(event.error.traceback.rstrip())}"
    if isinstance(event, JobFailure) and event.error is not None and event.error.traceback:
        return f"{one_line(line)}\n{INDENT}{indented(_shortened(event.error.traceback.rstrip()))}"
    return one_line(line)


def _shortened(traceback: str) -> str:
    """Return the traceback; of a long one its first line and the last lines, where the error is."""
    first, *lines = traceback.splitlines()
    omitted = len(lines) - MOST_TRACEBACK_LINES
    return traceback if omitted <= 0 else "\n".join([first, f"({omitted} lines left out)", *lines[omitted:]])


def logged_kinds(*, jobs: bool = False) -> tuple[type[Event], ...]:
    """Return the kinds of events that the log needs at its level, with `jobs` also the end of each job.

    When debugging, all events of each job.
    """
    each_job: tuple[type[Event], ...] = ()
    if logger.isEnabledFor(logging.DEBUG):
        each_job = (JobStarted, JobFinished, JobReturned)
    elif jobs and logger.isEnabledFor(logging.INFO):
        each_job = (JobFinished,)
    return (
        *each_job,
        JobFailure,
        JobRetried,
        LimitThrottled,
        LimiterBypassed,
        LimiterRefused,
        LimitSkipped,
        JobsMigrated,
        JobNotMigrated,
        LimitStoreFailed,
        LimitStoreMisconfigured,
        LimitStoreRecovered,
        OccurrencesSkipped,
        ScheduleOverdue,
        ScheduleRenamed,
        ScheduleSuperseded,
        ScheduleTooFast,
        ScheduleFailed,
        ReportDropped,
        EndingRefused,
        RetryPolicyFailed,
        AttemptLingers,
        CallbackFailed,
        ResourceFailed,
        ShutdownFailed,
        TaskUnknown,
        QueueUnserved,
        NodeStarted,
        NodeChanged,
        NodeStopping,
        NodeStopped,
        NodeCrashed,
        NodeLost,
        NodeDeclaredDead,
        AlertSent,
        AlertFailed,
        LeaseNotRenewed,
        ClockSkewed,
        StorageFailed,
        LoopBlocked,
    )


def start_lines(event: NodeStarted) -> list[str]:
    """Return what a node that starts reports: its store, then its queues, tasks and limits, a line each."""
    return [
        f"{event.node} works on {event.storage} with Headgate {event.version}",
        _queues(event.queues),
        _listed("task", event.tasks) if event.tasks else NO_TASKS,
        _listed("limit", [f"{name} ({rule})" for name, rule in event.limits.items()]),
    ]


def _queues(queues: Mapping[str, int]) -> str:
    return _listed("queue", [f"{name} ({counted(slots, 'slot')})" for name, slots in queues.items()])


def _listed(noun: str, names: Sequence[str]) -> str:
    if not names:
        return f"no {noun}s"
    omitted = len(names) - MOST_NAMES
    more = f" and {omitted} more" if omitted > 0 else ""
    return f"{counted(len(names), noun)}: {', '.join(names[:MOST_NAMES])}{more}"


def _level_and_line(event: Event) -> tuple[int, str] | None:
    match event:
        case JobStarted():
            return logging.DEBUG, f"job {event.job_id} ({event.task}) started, attempt {event.attempt}"
        case JobFailure():
            error = "" if event.error is None else f": {event.error.type}: {event.error.message}"
            return logging.ERROR, f"job {event.job_id} ({event.task}) failed at attempt {event.attempt}{error}"
        case JobFinished():
            times = "" if event.ran is None else f" in {event.ran:.3f} s, waited {event.waited or 0:.3f} s"
            reason = "" if event.error is None else f": {event.error.message}"
            return logging.INFO, f"job {event.job_id} ({event.task}) {event.state}{times}{reason}"
        case JobRetried():
            error = "" if event.error is None else f": {event.error.type}: {event.error.message}"
            when = to_datetime(event.run_at).isoformat(timespec="seconds")
            return (
                logging.WARNING,
                f"job {event.job_id} ({event.task}) failed at attempt {event.attempt}, runs again {when}{error}",
            )
        case JobReturned():
            return logging.DEBUG, f"job {event.job_id} ({event.task}) waits again: {event.reason}"
        case LimitThrottled():
            when = (
                "when a permit is free"
                if event.opens_at is None
                else to_datetime(event.opens_at).isoformat(timespec="milliseconds")
            )
            keys = f"key {event.key!r}" if event.keys == 1 else f"{event.keys} keys, most behind {event.key!r}"
            fields = as_fields(
                limit=event.limit, key=event.key, keys=event.keys, waiting=event.waiting, count=event.count
            )
            # Without a time, the slot is a permit's.
            opens = "" if event.opens_at is None else f" opens_at={when}"
            return (
                logging.INFO,
                f"limit {event.limit}: {counted(event.waiting, 'job')} waiting behind {keys}, next slot {when} "
                f"[throttled {fields}{opens}]",
            )
        case LimiterRefused():
            refused = f"refused plain code {counted(event.count, 'start')}"
            fields = as_fields(limit=event.limit, key=event.key, count=event.count)
            return (
                logging.INFO,
                f"limit {event.limit} {refused}, the latest for key {event.key!r} [refused {fields}]",
            )
        case LimiterBypassed():
            passed = f"{counted(event.count, 'request')} passed without it, as its store does not answer"
            return logging.WARNING, f"limit {event.limit}: {passed}; the latest for key {event.key!r}"
        case JobsMigrated():
            return logging.INFO, f"{counted(event.jobs, 'waiting job')} moved to the current limits of their tasks"
        case JobNotMigrated():
            return logging.WARNING, (
                f"{event.task} {event.job_id} waits and is not started: the limits of its task have changed and "
                f"cannot be computed from its arguments: {event.error}; let upgrade= make them fit, or cancel the job"
            )
        case LimitStoreFailed():
            share = f"its jobs use one of {event.sharers} shares" if event.sharers else "its jobs wait"
            doing = "jobs run without it" if event.jobs_run else share
            return logging.WARNING, f"limit {event.limit}: its store does not answer, {doing}: {event.error}"
        case LimitStoreMisconfigured():
            return logging.WARNING, f"limit {event.limit}: {event.advice}"
        case LimitStoreRecovered():
            return logging.INFO, f"limit {event.limit}: its store answers again"
        case LimitSkipped():
            return logging.WARNING, f"jobs of {event.task} run without limit {event.limit}: {event.reason}"
        case OccurrencesSkipped():
            reasons = {
                "misfire": "no node was running",
                "overlap": "the previous run has not ended",
                "max_runs": "the running jobs may be its last",
                "limit": "its limit is closed, and its jobs do not wait",
            }
            goes_on = (
                "" if event.next_at is None else f"; next {to_datetime(event.next_at).isoformat(timespec='seconds')}"
            )
            return (
                logging.INFO,
                f"schedule {event.schedule} skipped {counted(event.count, 'occurrence')}: "
                f"{reasons.get(event.reason, event.reason)}{goes_on}",
            )
        case ScheduleTooFast():
            return logging.WARNING, (
                f"schedule {event.schedule} comes more often than limit {event.limit} lets its jobs start; the "
                "others are skipped or late"
            )
        case AlertSent():
            return logging.INFO, f"alert {event.alert} sent: {event.text}"
        case AlertFailed():
            again = to_datetime(event.retry_at).isoformat(timespec="seconds")
            return logging.ERROR, (
                f"alert {event.alert} was not delivered at try {event.tried}, and is tried again at {again}: "
                f"{event.error} ({event.text})"
            )
        case ScheduleFailed():
            return logging.ERROR, f"schedule {event.schedule} is not run by this node: {event.error}"
        case ScheduleOverdue():
            since = to_datetime(event.due_at).isoformat(timespec="seconds")
            lacks = (
                f"no task {event.task} is declared here: declare it, name it in the aliases= of the task that it has "
                "become,"
                if event.lacks == "task"
                else "its trigger is declared by no code here: declare it with @app.schedule"
            )
            return logging.ERROR, (
                f"schedule {event.schedule} is overdue since {since}, and {lacks} or remove it: "
                f"headgate schedules remove {event.schedule}"
            )
        case ScheduleRenamed():
            return logging.INFO, f"schedule {event.schedule} continues schedule {event.was}, which was renamed"
        case ScheduleSuperseded():
            return logging.INFO, (
                f"schedule {event.schedule} stays as a newer release declares it, until none has run for three minutes"
            )
        case ReportDropped():
            return (
                logging.WARNING,
                f"a report of job {event.job_id} ({event.task}) at attempt {event.attempt} was dropped: {event.error}",
            )
        case EndingRefused():
            return (
                logging.WARNING,
                f"job {event.job_id} ({event.task}) ended here, but is no longer this node's: its result was refused",
            )
        case RetryPolicyFailed():
            return (
                logging.ERROR,
                f"the retry policy of task {event.task} raised {event.error}; its job is retried with the default "
                "delays",
            )
        case AttemptLingers():
            why = _LINGERS.get(event.executor, "")
            return (
                logging.WARNING,
                f"job {event.job_id} ({event.task}) was asked to end ({event.cause}) and still runs {event.seconds:g} "
                f"s later, in a slot of queue {event.queue}{why}",
            )
        case CallbackFailed():
            return logging.ERROR, f"{event.callback} of {event.task} failed on job {event.job_id}: {event.error}"
        case ResourceFailed():
            return logging.ERROR, f"resource {event.resource} raised when it was closed: {event.error}"
        case ShutdownFailed():
            return logging.ERROR, f"shutdown function {event.function} failed: {event.error}"
        case TaskUnknown():
            return (
                logging.ERROR,
                f"jobs of task {event.task} wait, and no such task is declared here: {_how_to_declare(event.task)}; if "
                "it was renamed, name it in the aliases= of the task that it has become; or cancel the jobs. This node "
                f"declares {_listed('task', event.declared)}",
            )
        case QueueUnserved():
            return logging.WARNING, f"a result is awaited, and {unserved_text(event.queue, event.seconds)}"
        case NodeStarted():
            return logging.INFO if event.tasks else logging.WARNING, "; ".join(start_lines(event))
        case NodeChanged():
            return logging.INFO, (
                f"{event.node} is quiet: it claims no more jobs until it is resumed"
                if event.is_quiet
                else f"{event.node} runs at most {counted(event.slots, 'job')} now; {_queues(event.queues)}"
            )
        case NodeStopping():
            why = " at the request of an operator" if event.by_operator else ""
            line = f"{event.node} is stopping{why}: it claims no more jobs"
            if not event.running:
                return logging.INFO, line
            # A warning, so that a program without any logging shows it too, in place of silence for the whole grace.
            return (
                logging.WARNING,
                f"{line} and waits up to {event.grace:g} s for {counted(event.running, 'running job')}; Ctrl+C or "
                "SIGTERM once more ends it at once",
            )
        case NodeStopped():
            return logging.INFO, f"{event.node} stopped, {counted(event.returned, 'job')} returned"
        case NodeCrashed():
            return (
                logging.CRITICAL,
                f"{event.node} crashed and runs no more jobs; other nodes take over its jobs: "
                f"{event.error.type}: {event.error.message}",
            )
        case NodeLost():
            return (
                logging.WARNING,
                f"{event.node} died: {event.returned} of its jobs wait again, {event.poisonous} failed as poisonous"
                f"{f', {event.completed} were complete and succeeded' if event.completed else ''}",
            )
        case NodeDeclaredDead():
            return (
                logging.ERROR,
                f"{event.node} was declared dead while alive; it cancelled {counted(event.cancelled, 'running job')}",
            )
        case LeaseNotRenewed():
            return (
                logging.ERROR,
                f"{event.node} could not renew its lease for {event.seconds:.1f} s: it cancelled "
                f"{counted(event.cancelled, 'job')} that held permits or had not started, and starts nothing until "
                "the store answers",
            )
        case ClockSkewed():
            apart = f"{abs(event.seconds):.1f} s {'ahead of' if event.seconds > 0 else 'behind'}"
            return (
                logging.WARNING,
                f"the clock of {event.node} is {apart} the store's; jobs use the store's clock, log lines this one",
            )
        case StorageFailed():
            return logging.ERROR, f"storage failure while {event.doing}: {event.error}"
        case LoopBlocked():
            return (
                logging.WARNING,
                f"the event loop was blocked for {event.seconds:.1f} s: a handler blocks it; make it a plain def task",
            )
    return None


def _how_to_declare(task: str) -> str:
    module = task.rpartition(".")[0]
    known = f"module {module!r}" if module else "the module that declares it"
    name = module or "your.module"
    return f"import {known} by Headgate(imports=[{name!r}]) or `headgate worker --import {name}`"


def unserved_text(queue: str, seconds: float | None, *, is_any_alive: bool = False) -> str:
    """Return what to say of a queue that no worker serves; `is_any_alive`: workers of other queues run."""
    since = (
        f"no worker serves queue {queue!r}"
        if seconds is None
        else (f"no worker has served queue {queue!r} for {seconds:.0f} s")
    )
    command = f"headgate worker --queue {shlex.quote(queue)}" if is_any_alive else "headgate worker"
    return f"{since}; start one: `{command}`, or `with app:`"


_LINGERS = {
    "loop": ": its handler swallows CancelledError; let it pass",
    "thread": ": threads cannot be stopped; check current_job().cancelled, or use process=True",
}
