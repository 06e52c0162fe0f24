"""Enqueueing by operators: a job of any declared task, from its arguments as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec

from headgate.engine.enqueuer import StoredCall
from headgate.errors import USER_CODE_ERRORS, PayloadError, UnknownTask
from headgate.jobs.audit import AuditWord
from headgate.jobs.job import JobRecord, RetryTerms
from headgate.jobs.retry import RetryPolicy
from headgate.suggestion import did_you_mean
from headgate.tasks.call import Call
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.options import EnqueueOptions
from headgate.tasks.registry import Registry
from headgate.tasks.values import to_json


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """The id of a job; not `is_new` if nothing was enqueued, because a job with its unique key or its id was there."""

    id: str
    is_new: bool


ArgumentKind = Literal["text", "integer", "number", "boolean", "choice", "datetime", "date", "time", "json"]
"""The field of a form: `json` is any value, written as JSON."""

_KINDS: Mapping[Any, ArgumentKind] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    datetime: "datetime",
    date: "date",
    time: "time",
    UUID: "text",
    Decimal: "text",
}


@dataclass(frozen=True, slots=True)
class TaskArgument:
    """An argument of a task: what a form needs to ask for it.

    `default` is JSON text; None if it is required, has no JSON form, or is hidden. `choices` are the values of a
    Literal or an Enum. One that is not required may be left out; one that `is_nullable` may be null.
    """

    name: str
    kind: ArgumentKind
    is_required: bool
    is_nullable: bool = False
    default: str | None = None
    choices: Sequence[Any] = ()


EnqueueCalls = Callable[[TaskDefinition, Sequence[Call[Any]]], Awaitable[Sequence[StoredCall]]]
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


def arguments_of(task: TaskDefinition) -> Sequence[TaskArgument]:
    """Return the arguments of a task, in their order, as a form shows them."""
    payload, found = task.payload, list[TaskArgument]()
    for name in payload.parameters:
        kind, choices, is_nullable = _form_of(payload.kinds[name])
        default = None
        if name in payload.defaults and not payload.hides_values:
            with suppress(*USER_CODE_ERRORS):  # the code of a model or a class can raise anything
                default = to_json(payload.defaults[name]).decode()
        found.append(TaskArgument(name, kind, name in payload.required, is_nullable, default, choices))
    return found


def _form_of(annotation: Any) -> tuple[ArgumentKind, Sequence[Any], bool]:
    """Return the kind of an annotation, the values that it allows if these are few, and whether None is one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _form_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        parts = [each for each in get_args(annotation) if each is not NoneType]
        kind, choices, _ = _form_of(parts[0]) if len(parts) == 1 else ("json", (), False)
        return kind, choices, len(parts) < len(get_args(annotation))
    if origin is Literal:
        values = get_args(annotation)
        return "choice", [_plain(each) for each in values if each is not None], None in values
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "choice", [_plain(each) for each in annotation], False
    return _KINDS.get(annotation, "json"), (), False


def _plain(choice: Any) -> Any:
    return choice.value if isinstance(choice, Enum) else choice


def call_of(task: TaskDefinition, payload: Payload) -> Call[Any]:
    """Return the call of a task with these arguments. Raises PayloadError, which names the argument."""
    if isinstance(payload, Mapping):
        try:
            given = msgspec.to_builtins(payload, str_keys=True)
            payload = msgspec.json.encode(given)
            # A number that JSON lacks, such as nan, would be null.
            task.payload.require_survival(given, msgspec.json.decode(payload), loose=True)
        except PayloadError:
            raise
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
