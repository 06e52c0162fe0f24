"""Parts: the calls of one commit, in their order, by the options that they are enqueued under."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from headgate.errors import DeclarationError
from headgate.tasks.options import NO_OPTIONS, EnqueueOptions, JobTemplate, job_template, options_of_call
from headgate.tasks.task import Call, Task


class CallGroup(NamedTuple):
    """Calls of a task, one after the other, that are enqueued under the same options.

    `queue` is the one that they are for.
    """

    options: EnqueueOptions
    template: JobTemplate
    queue: str
    calls: Sequence[Call[Any]]


def group_calls(task: Task[Any, Any], calls: Sequence[Call[Any]]) -> list[CallGroup]:
    """The calls under their own options, else under those of the task. Raises DeclarationError."""
    options = task.options
    for called in {call.task for call in calls}:
        if called is not None and called.options is not options and called.options is not NO_OPTIONS:
            return _parts_by_options(task, calls)
    # Nearly always it is one part.
    return [CallGroup(options, task.template, options.get("queue") or task.queue, calls)] if calls else []


def _parts_by_options(task: Task[Any, Any], calls: Sequence[Call[Any]]) -> list[CallGroup]:
    options = task.options

    def asked(call: Call[Any]) -> EnqueueOptions:
        own = NO_OPTIONS if call.task is None else call.task.options
        return options if own is NO_OPTIONS or own is options else options_of_call(own, options)

    parts = [
        CallGroup(own, job_template(task, own), own.get("queue") or task.queue, list(same))
        for own, same in groupby(calls, asked)
    ]
    if options.get("connection") is not None and any(part.options.get("promise") for part in parts):
        raise DeclarationError(f"task {task.name!r}: nothing is promised of a job before your own transaction commits")
    return parts


def queue_counts(parts: Sequence[CallGroup]) -> dict[str, int]:
    """How many of the calls are for which queue."""
    counts: dict[str, int] = {}
    for part in parts:
        counts[part.queue] = counts.get(part.queue, 0) + len(part.calls)
    return counts
