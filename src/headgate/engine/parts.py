"""Parts: the calls of one commit, in their order, by the options that they are enqueued under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headgate.errors import DeclarationError
from headgate.tasks.task import AS_DECLARED, Call, EnqueueOptions, Task


@dataclass(frozen=True, slots=True)
class Part:
    """Calls of a task, one after the other, that are enqueued under the same options."""

    options: EnqueueOptions
    calls: Sequence[Call[Any]]


def parts_of(task: Task[Any, Any], calls: Sequence[Call[Any]]) -> list[Part]:
    """The calls under their own options, else under those of the task. Raises DeclarationError."""
    options = task.options

    def asked(call: Call[Any]) -> EnqueueOptions:
        own = AS_DECLARED if call.task is None else call.task.options
        return options if own is AS_DECLARED else own.over(options)

    # Nearly always it is one part.
    alike = (AS_DECLARED, options)
    if all(call.task is None or any(call.task.options is known for known in alike) for call in calls):
        return [Part(options, calls)] if calls else []
    parts = [Part(own, list(same)) for own, same in groupby(calls, asked)]
    if options.connection is not None and any(part.options.promise for part in parts):
        raise DeclarationError(f"task {task.name!r}: nothing is promised of a job before your own transaction commits")
    return parts


def queue_counts(task: Task[Any, Any], parts: Sequence[Part]) -> Counter[str]:
    """How many of the calls are for which queue."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.options.queue or task.queue] += len(part.calls)
    return counts
