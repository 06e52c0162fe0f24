"""Tasks: what this app declares, and enqueueing a job of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headgate.admin import DeclaredLimit, DeclaredTask
from headgate.admin.query import Instant
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, JsonBody, acts, reads
from headgate.http.http_error import HttpError
from headgate.http.page import Name, Page
from headgate.http.redaction import HIDDEN, Redaction
from headgate.jobs.job import MAX_PRIORITY
from headgate.tasks.options import EnqueueOptions

Arguments = Annotated[Mapping[str, Any], msgspec.Meta(description="The arguments of the job by name.")]


class NewJobBody(JsonBody, frozen=True, kw_only=True):
    """A job to enqueue: its arguments, and what differs from its task. `delay` is in seconds."""

    payload: Arguments | None = None
    queue: Name | None = None
    delay: Annotated[float, msgspec.Meta(ge=0, le=100 * 365 * 86400)] | None = None
    at: Instant | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] | None = None


class EnqueuedJobView(msgspec.Struct, frozen=True):
    """The id of the job; under a unique key it may be one that was there before."""

    job: str


class TaskDetails(msgspec.Struct, frozen=True):
    """A task: its queue, null if this app does not declare it, and the limits that its jobs draw on."""

    task: str
    queue: str | None
    limits: Sequence[DeclaredLimit]


async def tasks(caller: Caller) -> Page[DeclaredTask]:
    """Return the tasks that this app declares, by name."""
    return Page(caller.admin.declared_tasks)


async def task(caller: Caller, name: str) -> TaskDetails:
    """Return a task with the limits of its jobs; another app may declare it, so any name has an answer."""
    found = next((each for each in caller.admin.declared_tasks if each.task == name), None)
    if found is None:
        return TaskDetails(name, None, ())
    return TaskDetails(name, found.queue, limits_named(caller, found.limits))


def limits_named(caller: Caller, names: Sequence[str]) -> Sequence[DeclaredLimit]:
    """Return the declared limits of these names, each once, in their order."""
    declared = {each.limit: each for each in caller.admin.limits.all_declared()}
    return [declared[name] for name in dict.fromkeys(names) if name in declared]


async def enqueue_job(caller: Caller, task: str, body: NewJobBody) -> EnqueuedJobView:
    """Enqueue a job of a task; its arguments are checked as in a program."""
    require_no_mark(body.payload, caller.redaction)
    options: EnqueueOptions = {
        "queue": body.queue, "delay": body.delay, "at": body.at, "priority": body.priority
    }  # fmt: skip
    return EnqueuedJobView(await caller.admin.enqueue(task, body.payload or {}, **options))


def require_no_mark(payload: Mapping[str, Any] | None, redaction: Redaction) -> None:
    """Raise HttpError for arguments that were copied with a redacted value: the job would get the mark itself."""
    if payload is not None and redaction.has_mark(dict(payload)):
        raise HttpError(
            422,
            "payload_is_redacted",
            f"the arguments contain {HIDDEN!r}, which this dashboard shows in place of a hidden value; write the value",
        )


ENDPOINTS: Sequence[Endpoint] = (
    reads("/tasks", tasks),
    reads("/tasks/{name}", task),
    acts("/tasks/{task}/enqueue", enqueue_job, refuses=(404, 409, 422)),
)
