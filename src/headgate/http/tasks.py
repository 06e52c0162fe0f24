"""Tasks: what this app declares, and enqueueing a job of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, cast
from uuid import UUID, uuid5

import msgspec

from headgate.admin import Activity, ActivityReport, DeclaredLimit, DeclaredTask, EnqueuedJob
from headgate.admin.enqueueing import ArgumentKind, TaskArgument
from headgate.clock import to_datetime
from headgate.http.caller import Caller
from headgate.http.endpoint import JsonBody, bad_request
from headgate.http.http_error import HttpError
from headgate.http.page import Name
from headgate.http.redaction import HIDDEN, REQUEST, Redaction
from headgate.jobs.audit import AuditWord
from headgate.jobs.job import MAX_PRIORITY, OnConflict
from headgate.jobs.query import Instant
from headgate.tasks.options import EnqueueOptions
from headgate.tasks.unique_key import UniqueState
from headgate.views import view_of

MOST_COUNTED = 100_000
"""How many waiting jobs `Admin.waiting` counts at most."""

NAMESPACE = UUID("5b0e3f4c-6d0a-4f0e-9c57-0d1c6a1f7e42")
"""The namespace of the ids that are made from idempotency keys."""

Arguments = Annotated[Mapping[str, Any], msgspec.Meta(description="The arguments of the job by name.")]


ShortText = Annotated[str, msgspec.Meta(max_length=100)]

Length = Annotated[float | ShortText, msgspec.Meta(description='A duration: seconds, or text such as "5m".')]


class NewJobBody(JsonBody, frozen=True, kw_only=True):
    """A job to enqueue: its arguments, and what differs from its task, as the options of `task.using(…)`.

    `delay` is in seconds. `retention` is a duration, "forever", or these by state. `id` is a UUID of your own: if a job
    of the task is stored under it, that one is the answer. At most one job of the task waits under a `unique_key`;
    `on_conflict` is what happens to the next one. Jobs are found by their `tags` and `headers`.
    """

    payload: Arguments | None = None
    queue: Name | None = None
    delay: Annotated[float, msgspec.Meta(ge=0, le=100 * 365 * 86400)] | None = None
    at: Instant | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] | None = None
    expires_in: Length | None = None
    expires_at: Instant | None = None
    timeout: Length | None = None
    id: ShortText | None = None
    unique_key: Name | None = None
    on_conflict: OnConflict | None = None
    unique_for: Length | None = None
    unique_while: Sequence[UniqueState] | None = None
    debounce: Length | None = None
    debounce_max: Length | None = None
    tags: Sequence[Name] | None = None
    headers: Mapping[str, str] | None = None
    retention: Length | Mapping[str, Length] | None = None
    keep_result: bool | None = None
    audit: AuditWord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView(DeclaredTask):
    """A task with the number of its waiting jobs, null if they are not counted yet.

    `oldest` is for how many seconds the first of these has been due; null: none is. `throughput` is how many of its
    jobs finished per second since `active_since`, `failure_share` the part of these that failed, `run_p95` the seconds
    that 95 of 100 attempts took at most, and `trend` the jobs that finished in each minute. These are null if the
    history is not read yet.
    """

    waiting: int | None
    oldest: float | None
    throughput: float | None
    failure_share: float | None
    run_p95: float | None
    trend: Sequence[int]


class TaskPage(msgspec.Struct, frozen=True):
    """All tasks that this app declares. The waiting jobs were counted at `counted_at`, null: not yet.

    With more than 100,000 waiting jobs the counts are lower bounds, not `is_exact`. What the tasks have done is known
    from `active_since` on: the last 15 minutes; null: not yet.
    """

    items: Sequence[TaskView]
    now: datetime
    counted_at: datetime | None
    active_since: datetime | None
    is_exact: bool
    next: None = None


class ArgumentView(msgspec.Struct, frozen=True):
    """An argument of a task: the kind of its field in a form, and its default, if it has one that may be shown.

    `choices` are the values of a Literal or an Enum. A UUID and a decimal are text, and `json` is anything else.
    """

    name: str
    kind: ArgumentKind
    is_required: bool
    is_nullable: bool
    default: Any
    choices: Sequence[Any]


class TaskDetails(msgspec.Struct, frozen=True):
    """A task: its queue, null if this app does not declare it, the limits that its jobs use, and its arguments.

    `requires` are the labels that a node needs to run its jobs, `tags` those of all its jobs, `unique_key` the template
    of their unique keys, or the name of its function.
    """

    task: str
    queue: str | None
    limits: Sequence[DeclaredLimit]
    requires: Sequence[str] = ()
    tags: Sequence[str] = ()
    unique_key: str | None = None
    arguments: Sequence[ArgumentView] = ()


async def tasks(caller: Caller) -> TaskPage:
    """Return the tasks that this app declares, by name, with their waiting jobs and what they have done."""
    caller.counts.tasks.begin(caller.admin.waiting, caller.admin.now)
    recent = await activity(caller)
    counted = await caller.counts.tasks.read()
    waiting = Counter[str]()
    due_at: dict[str, int] = {}
    for each in () if counted is None else counted.found:
        waiting[each.task] += each.jobs
        if each.due_at is not None and each.view in ("ready", "throttled"):
            due_at[each.task] = min(each.due_at, due_at.get(each.task, each.due_at))
    now = caller.admin.now()
    done = {} if recent is None else recent.tasks
    return TaskPage(
        items=[
            view_of(
                TaskView,
                each,
                waiting=None if counted is None else waiting[each.task],
                oldest=_age(due_at.get(each.task), now),
                throughput=None if recent is None else found.throughput,
                failure_share=found.failure_share,
                run_p95=found.run_p95,
                trend=found.trend,
            )
            for each in caller.admin.declared_tasks
            for found in (done.get(each.task, Activity()),)
        ],
        now=now,
        counted_at=None if counted is None else counted.at,
        active_since=None if recent is None else recent.since,
        is_exact=waiting.total() < MOST_COUNTED,
    )


async def activity(caller: Caller) -> ActivityReport | None:
    """Return what the tasks and queues have done, as it was last read; None: not yet."""
    caller.counts.activity.begin(caller.admin.history.activity, caller.admin.now)
    read = await caller.counts.activity.read()
    return None if read is None else read.found


def _age(due_at: int | None, now: datetime) -> float | None:
    return None if due_at is None else max(0.0, (now - to_datetime(due_at)).total_seconds())


async def task(caller: Caller, name: str) -> TaskDetails:
    """Return a task with the limits of its jobs; another app may declare it, so any name has an answer."""
    found = next((each for each in caller.admin.declared_tasks if each.task == name), None)
    if found is None:
        return TaskDetails(name, None, ())
    limits = limits_named(caller, found.limits)
    arguments = [view_of(ArgumentView, each, default=_default(caller, each)) for each in caller.admin.arguments(name)]
    return TaskDetails(name, found.queue, limits, found.requires, found.tags, found.unique_key, arguments)


def _default(caller: Caller, argument: TaskArgument) -> Any:
    """Return the default of an argument; None if its name is one whose values are hidden."""
    if argument.default is None:
        return None
    default = msgspec.json.decode(argument.default)
    shown = caller.redaction.json(msgspec.json.encode({argument.name: default}).decode())
    return None if caller.redaction.has_mark(msgspec.json.decode(shown or b"null")) else default


def limits_named(caller: Caller, names: Sequence[str]) -> Sequence[DeclaredLimit]:
    """Return the declared limits of these names, each once, in their order."""
    declared = {each.limit: each for each in caller.admin.limits.all_declared()}
    return [declared[name] for name in dict.fromkeys(names) if name in declared]


async def enqueue_job(caller: Caller, task: str, body: NewJobBody, idempotency_key: str | None) -> EnqueuedJob:
    """Enqueue a job of a task; its arguments and options are checked as in a program.

    With an idempotency key, the job has an id that is made from it, and keeps a digest of the body in a header.
    """
    require_no_mark(body.payload, caller.redaction)
    require_no_mark(body.headers, caller.redaction)
    options = msgspec.structs.asdict(body)
    payload = options.pop("payload") or {}
    if idempotency_key is None:
        return await caller.admin.enqueue(task, payload, **cast(EnqueueOptions, options))
    if body.id is not None:
        raise bad_request("send either an id or an Idempotency-Key: both say which job it is", pointer="/id")
    id = str(uuid5(NAMESPACE, f"{task}\n{idempotency_key}"))
    # The id is in it, because another job that replaces this one under a unique key replaces its headers as well. What
    # is not set is not in it: a later release may have further options.
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
    digests = caller.codecs.digests(msgspec.json.encode(given, order="sorted").decode(), "the body")
    requests = (f"{id}:{each}" for each in digests)
    request = next(requests)
    options |= {"id": id, "headers": {**(body.headers or {}), REQUEST: request}}
    job = await caller.admin.enqueue(task, payload, **cast(EnqueueOptions, options))
    if not job.is_new and job.id == id:
        stored = ((await caller.admin.job(id)).record.headers or {}).get(REQUEST, "")
        if stored.startswith(f"{id}:") and stored not in (request, *requests):
            message = f"job {id} was enqueued with this Idempotency-Key and another body; make another key for each job"
            raise HttpError(422, "idempotency_key_reused", message)
    return job


def require_no_mark(payload: Mapping[str, Any] | None, redaction: Redaction) -> None:
    """Raise HttpError for values that were copied with a redacted one: the job would get the mark itself."""
    if payload is not None and redaction.has_mark(dict(payload)):
        raise HttpError(
            422,
            "payload_is_redacted",
            f"a value contains {HIDDEN!r}, which this dashboard shows in place of a hidden value; write the value",
        )
