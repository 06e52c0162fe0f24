"""Enqueueing by operators: a job of any declared task, from its arguments as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from headgate.errors import PayloadError, UnknownTask
from headgate.jobs.audit import AuditWord
from headgate.jobs.job import JobRecord, RetryTerms
from headgate.jobs.retry import RetryPolicy
from headgate.suggestion import did_you_mean
from headgate.tasks.call import Call
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.options import EnqueueOptions
from headgate.tasks.registry import Registry


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """The id of a job; not `is_new` if nothing was enqueued, because a job with its unique key or its id was there."""

    id: str
    is_new: bool


EnqueueCalls = Callable[[TaskDefinition, Sequence[Call[Any]]], Awaitable[Sequence[EnqueuedJob]]]
"""Stores the calls of a task as jobs in one commit."""

Payload = str | bytes | Mapping[str, Any]
"""The arguments of a job by name: as JSON text, or as values that JSON has."""


def declared_task(registry: Registry, name: str) -> TaskDefinition:
    """Return the task of that name or alias. Raises UnknownTask."""
    task = registry.find(name)
    if task is None:
        known = ", ".join(sorted(registry.tasks)) or "none"
        raise UnknownTask(
            f"this app declares no task {name!r}{did_you_mean(name, registry.tasks)} It declares: {known}; use the "
            "app that declares the task"
        )
    return task


def call_of(task: TaskDefinition, payload: Payload) -> Call[Any]:
    """Return the call of a task with these arguments. Raises PayloadError, which names the argument."""
    if isinstance(payload, Mapping):
        try:
            payload = msgspec.json.encode(payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"the arguments of task {task.name!r} are not JSON: {error}") from None
    positional, named = task.payload.parse(payload)
    return Call(tuple(positional), named, task)


def stored_call_of(task: TaskDefinition, record: JobRecord) -> Call[Any]:
    """Return the call of a stored job, for another one. Raises PayloadError if it does not fit the task any more."""
    positional, named = task.payload.decode(record.payload)
    return Call(tuple(positional), named, task)


def options_of(record: JobRecord) -> EnqueueOptions:
    """Return the options that another run of a job shares: not its time, its id, its key, nor what it follows."""
    options: EnqueueOptions = {
        "queue": record.queue,
        "priority": record.priority,
        "headers": record.headers,
        "audit": cast(AuditWord, record.audit.word),
    }
    own = record.options
    if own is None:
        return options
    options |= {"timeout": own.timeout, "keep_result": own.keep_result, "tags": own.tags}
    if own.retry is not None:
        options["retry"] = _policy(own.retry)
    if own.retention is not None:
        kept = msgspec.structs.asdict(own.retention)
        options["retention"] = {state: "forever" if seconds is None else seconds for state, seconds in kept.items()}
    return options


def _policy(terms: RetryTerms) -> RetryPolicy:
    if terms.delays is not None:
        return RetryPolicy(delays=terms.delays)
    if terms.delay is not None:
        return RetryPolicy(retries=terms.retries, delay=terms.delay)
    return RetryPolicy(retries=terms.retries, base=terms.base, cap=terms.cap, jitter=terms.jitter)
