"""Call groups: the calls of one commit, in order, grouped by their enqueue options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from headgate.errors import DeclarationError
from headgate.tasks.call import Call
from headgate.tasks.definition import JobTemplate, TaskDefinition, job_template
from headgate.tasks.options import NO_OPTIONS, EnqueueOptions, options_of_call


class CallGroup(NamedTuple):
    """Consecutive calls of a task that have the same options; `queue` is the queue of those options."""

    options: EnqueueOptions
    template: JobTemplate
    queue: str
    calls: Sequence[Call[Any]]


def group_calls(task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[CallGroup]:
    """Group the calls by their own options, or by those of the task. Raises DeclarationError."""
    options = task.options
    for called in {call.task for call in calls}:
        if called is not None and called.options is not options and called.options is not NO_OPTIONS:
            return _groups_by_options(task, calls)
    # Nearly always it is one group.
    return [CallGroup(options, task.template, options.get("queue") or task.queue, calls)] if calls else []


def _groups_by_options(task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[CallGroup]:
    options = task.options

    def options_for(call: Call[Any]) -> EnqueueOptions:
        own = NO_OPTIONS if call.task is None else call.task.options
        return options if own is NO_OPTIONS or own is options else options_of_call(own, options)

    groups = [
        CallGroup(own, job_template(task, own), own.get("queue") or task.queue, list(same))
        for own, same in groupby(calls, options_for)
    ]
    for id, count in Counter(group.template.id for group in groups).items():
        if id is not None and count > 1:
            raise DeclarationError(f"task {task.name!r}: id={id!r} is the id of one job, and is passed {count} times")
    if options.get("connection") is not None and any(group.options.get("predict") for group in groups):
        raise DeclarationError(f"task {task.name!r}: predict= needs a committed job; leave it out with connection=")
    return groups


def queue_counts(groups: Sequence[CallGroup]) -> dict[str, int]:
    """Return the number of calls by queue."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.queue] = counts.get(group.queue, 0) + len(group.calls)
    return counts
