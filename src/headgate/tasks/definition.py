"""The definition of a task, as the registry and the engine use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, cast
from uuid import UUID

from headgate.arguments import parse_duration, parse_instant, require_storable
from headgate.errors import DeclarationError
from headgate.jobs.annotation import plain
from headgate.jobs.audit import AuditLevel, audit_level
from headgate.jobs.job import JobOptions, RetentionTerms
from headgate.jobs.retention import own_retention
from headgate.jobs.retry import RetryPolicy, require_policy
from headgate.jobs.words import parse_tags
from headgate.limits.key import named_arguments
from headgate.tasks.callbacks import Callbacks
from headgate.tasks.chunk import Chunk
from headgate.tasks.executor_kind import Executor
from headgate.tasks.limit_set import LimitSet
from headgate.tasks.options import (
    NO_OPTIONS,
    EnqueueOptions,
    checked_expiry,
    checked_timeout,
    merged,
    plain_headers,
    require_names,
    require_priority,
    require_switch,
)
from headgate.tasks.payload import PayloadType
from headgate.tasks.resource import Resource
from headgate.tasks.unique_key import MAX_UNIQUE_KEY, Uniqueness, uniqueness


class JobTemplate(NamedTuple):
    """The stored fields that are the same for all jobs of a task and its options.

    `fields` are those of a `NewJob`, without its `headers`. `delay` and `at` are in microseconds, and at most one of
    them is set; the same is true of `expires_in` and `expires_at`. `unique` is set for jobs with a unique key, `id` for
    a job with its own id.
    """

    fields: Mapping[str, Any]
    headers: dict[str, str] | None = None
    delay: int | None = None
    at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    unique: Uniqueness | None = None
    id: str | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class TaskDefinition:
    """A named function with its payload type, its limits and its options. It enqueues nothing: `Task` does.

    `own_retry` and `own_timeout` (seconds) are None if those of its queue or the app apply, which the registry returns.
    The states that `retention` of a call leaves out have `default_retention`. `options` are those of `using(…)`, which
    override the declaration, and `template` is computed from both.
    """

    function: Callable[..., Any]
    name: str
    queue: str
    payload: PayloadType
    limit_set: LimitSet
    own_retry: RetryPolicy | None
    own_timeout: float | None
    priority: int
    unique: Mapping[str, Any]
    audit: AuditLevel
    expires_in: int | None
    retention: RetentionTerms | None
    default_retention: RetentionTerms
    keep_result: bool
    aliases: tuple[str, ...]
    requires: frozenset[str]
    tags: tuple[str, ...]
    executor: Executor
    needs: dict[str, Resource]
    handler: type[Any] | None
    callbacks: Callbacks
    chunk: Chunk | None
    options: EnqueueOptions = field(init=False)
    template: JobTemplate = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.options = NO_OPTIONS
        self.template = job_template(self, NO_OPTIONS)
        self.is_async = self.executor is Executor.LOOP
        self._is_bare = self.is_async and self.handler is None and not self.needs and self.chunk is None
        self.__doc__ = self.function.__doc__

    @property
    def unique_template(self) -> str | None:
        """The template for the unique key that it declares, or the name of its function; None without one."""
        key = self.unique.get("unique_key")
        return None if key is None else str(key.template)

    @property
    def is_plain(self) -> bool:
        """Whether an attempt is only the call of a coroutine function."""
        return self._is_bare and not self.callbacks.exist

    def with_options(self, changes: EnqueueOptions) -> Self:
        """Return the same task with other options of enqueueing. Raises TypeError, DeclarationError.

        `Registry.with_options` also checks the queue.
        """
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.options = _options_over(self, changes)
        changed.template = job_template(changed, changed.options)
        return changed


def _options_over(task: TaskDefinition, changes: EnqueueOptions) -> EnqueueOptions:
    """Return the options of a task, overridden by others. Raises TypeError, DeclarationError."""
    require_names(changes, EnqueueOptions.__annotations__, "Task.using()")
    where, before = f"task {task.name!r}", task.options
    new = {name: plain(value) for name, value in changes.items() if value is not None}
    if "delay" in new and "at" in new:
        raise DeclarationError(f"{where}: pass delay or at, not both")
    if "expires_in" in new and "expires_at" in new:
        raise DeclarationError(f"{where}: pass expires_in or expires_at, not both")
    if "headers" in new:
        headers = new["headers"]
        if not isinstance(headers, Mapping):
            raise DeclarationError(
                f'{where}: headers={headers!r:.80} is not a dict of texts; write headers={{"tenant": "acme"}}'
            )
        new["headers"] = {**(before.get("headers") or {}), **headers}
    if "tags" in new:
        new["tags"] = (*parse_tags(new["tags"], where), *(before.get("tags") or ()))
    if "id" in new:
        new["id"] = _own_id(new["id"], task.name)
    options = merged(before, new)
    if options.get("predict") and options.get("connection") is not None:
        raise DeclarationError(f"{where}: predict= needs a committed job; leave it out with connection=")
    if "unique_key" in new:
        _require_unique_key(cast(str, new["unique_key"]), task, where)
    return options


def job_template(task: TaskDefinition, options: EnqueueOptions) -> JobTemplate:
    """Return what is the same for all jobs of the task under these options. Raises DeclarationError."""
    where = f"task {task.name!r}"
    delay, at = options.get("delay"), options.get("at")
    expires_in, expires_at = options.get("expires_in"), options.get("expires_at")
    expiry = task.expires_in if expires_in is None else checked_expiry(expires_in, where)
    priority, headers, audit = options.get("priority"), options.get("headers"), options.get("audit")
    if priority is not None:
        require_priority(priority, where)
    unique = uniqueness(task.unique, options, where)
    debounce = None if unique is None else unique.debounce
    if debounce is not None and (delay is not None or at is not None):
        raise DeclarationError(f"{where}: debounce sets when the job starts; pass neither delay nor at with it")
    return JobTemplate(
        {
            "task": task.name,
            "priority": task.priority if priority is None else priority,
            "options": _job_options(task, options, where),
            "audit": task.audit if audit is None else audit_level(audit, where),
        },
        plain_headers(headers, where) if headers else None,
        debounce if delay is None else parse_duration(delay, "delay", where),
        None if at is None else parse_instant(at, "at", where),
        None if expires_at is not None else expiry,
        None if expires_at is None else parse_instant(expires_at, "expires_at", where),
        unique,
        cast("str | None", options.get("id")),
    )


def _job_options(task: TaskDefinition, options: EnqueueOptions, where: str) -> JobOptions | None:
    retry, timeout, retention = options.get("retry"), options.get("timeout"), options.get("retention")
    keep_result, tags = options.get("keep_result"), task.tags
    if own_tags := options.get("tags"):
        tags = parse_tags((*tags, *own_tags), where)
    if retry is not None:
        require_policy(retry, where)
    if keep_result is not None:
        require_switch(keep_result, "keep_result", where)
    kept = task.retention
    if retention is not None:
        kept = own_retention(retention, kept or task.default_retention, where)
    if retry is None and timeout is None and kept is None and keep_result is None and not tags:
        return None
    return JobOptions(
        timeout=None if timeout is None else checked_timeout(timeout, where),
        retry=None if retry is None else retry.terms(where),
        retention=kept,
        keep_result=keep_result,
        tags=tags,
    )


def _own_id(id: object, task: str) -> str:
    """Return an id in the form in which ids are stored. Raises DeclarationError."""
    try:
        return str(id if isinstance(id, UUID) else UUID(cast(str, id)))
    except (ValueError, TypeError, AttributeError):
        raise DeclarationError(
            f"task {task!r}: id={id!r:.80} is not a UUID; make one from it: "
            f"from uuid import NAMESPACE_URL, uuid5; id=uuid5(NAMESPACE_URL, {f'{task}:{id}'!r:.80})"
        ) from None


def _require_unique_key(key: str, task: TaskDefinition, where: str) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_UNIQUE_KEY or "\x00" in key:
        raise DeclarationError(
            f"{where}: unique_key={key!r:.80} must be 1 to {MAX_UNIQUE_KEY} characters of text without NUL; "
            "hash what is longer"
        )
    require_storable(key, f"{where}: unique_key")
    payload = task.payload
    named = named_arguments(key, payload.parameters, payload.fields) if "{" in key else []
    if named:
        raise DeclarationError(
            f"{where}: unique_key={key!r:.80} is text, not a template, so all jobs would have this key; "
            f'write the value of {named[0]} into it: unique_key=f"…{{{named[0]}}}"'
        )
