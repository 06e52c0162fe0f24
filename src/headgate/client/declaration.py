"""The declaration of a task: checks the options of `@app.task` and `@app.handler`, makes the task, and types both."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from headgate.client.client import Client
from headgate.client.handler import Handler, handler_function
from headgate.client.task import Task
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditLevel, audit_level
from headgate.jobs.retention import own_retention
from headgate.jobs.retry import require_policy
from headgate.jobs.words import parse_labels, parse_tags
from headgate.tasks.callbacks import Callbacks
from headgate.tasks.chunk import Chunk, function_of_one
from headgate.tasks.executor_kind import Executor, executor_of, require_importable, require_no_generator
from headgate.tasks.limit_set import bind_limits
from headgate.tasks.options import (
    HandlerOptions,
    TaskOptions,
    checked_expiry,
    checked_timeout,
    require_names,
    require_priority,
    require_switch,
)
from headgate.tasks.payload import PayloadType
from headgate.tasks.queue import DEFAULT_QUEUE, require_name
from headgate.tasks.registry import Registry
from headgate.tasks.resource import needs_of
from headgate.tasks.unique_key import UNIQUE_OPTIONS, computed_key

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskBody(NamedTuple):
    """The body of a task: a function, its name, where it runs, and the handler class if it is a `run` method."""

    name: str
    function: Callable[..., Any]
    executor: Executor
    handler: type[Any] | None = None


def body_of_function(function: Callable[..., Any], options: TaskOptions) -> TaskBody:
    """Return the body of a function that becomes a task. Raises TypeError, DeclarationError."""
    require_names(options, TaskOptions.__annotations__, "Headgate.task()")
    if isinstance(function, Task):
        raise DeclarationError(f"{function!r} is a task already; @app.task needs a function")
    if not callable(function) or not hasattr(function, "__name__"):
        raise DeclarationError(f"@app.task needs a function, not {function!r}")
    name, process = _name_of(function, options), options.get("process", False)
    require_switch(process, "process", f"task {name!r}")
    if process:
        require_importable(function, f"task {name!r}")
    if isinstance(function, type):
        kind = function.__name__
        raise DeclarationError(f"{kind} is a class; write @app.handler above class {kind}(Handler[…])")
    _require_no_method(function, f"task {name!r}")
    require_no_generator(function, f"task {name!r}")
    return TaskBody(name, function, executor_of(function, process=process))


def _require_no_method(function: Callable[..., Any], where: str) -> None:
    first = next(iter(inspect.signature(function).parameters), None)
    if first in ("self", "cls"):
        raise DeclarationError(
            f"{where} takes {first!r}, which no job can store; write a function outside of the class, where "
            "current_job() returns the job, or a handler: @app.handler above class Name(Handler[…]) with "
            "`async def run(self, payload)`"
        )


def body_of_handler(handler: type[Any], options: HandlerOptions) -> TaskBody:
    """Return the body of a handler class, its `run`. Raises TypeError, DeclarationError."""
    require_names(options, HandlerOptions.__annotations__, "Headgate.handler()")
    name = _name_of(handler, options)
    function = handler_function(handler, f"handler {name!r}")
    return TaskBody(name, function, executor_of(function, process=False), handler)


def _name_of(subject: object, options: HandlerOptions) -> str:
    name = options.get("name")
    return name if name is not None else str(getattr(subject, "__name__", ""))


def declare_task(
    body: TaskBody,
    options: HandlerOptions,
    client: Client,
    registry: Registry,
    *,
    max_payload: int,
    audit: AuditLevel,
    chunk: Chunk | None = None,
) -> Task[Any, Any]:
    """Return the declared task; `audit` is the level for a task without its own. Raises DeclarationError."""
    where = f"task {body.name!r}"
    retry, timeout, priority = options.get("retry"), options.get("timeout"), options.get("priority", 0)
    own_audit, expires_in, retention = options.get("audit"), options.get("expires_in"), options.get("retention")
    keep_result = options.get("keep_result", True)
    require_name(body.name, "task")
    needs = needs_of(body.function, registry.resources, where)
    if needs and body.executor is Executor.PROCESS:
        raise DeclarationError(
            f"{where} runs in a child process, where resource {next(iter(needs))!r} is not open; "
            "open what it needs in the function itself"
        )
    if chunk is not None and body.executor is Executor.PROCESS:
        raise DeclarationError(f"{where} handles chunks, which a child process cannot: leave process=True out")
    function = body.function if chunk is None else function_of_one(body.function, where)
    payload = PayloadType(function, where, max_payload, options.get("upgrade"), injected=needs, codecs=registry.codecs)
    if retry is not None:
        require_policy(retry, where)
    require_priority(priority, where)
    require_switch(keep_result, "keep_result", where)
    return Task(
        client,
        function=body.function,
        name=body.name,
        queue=options.get("queue", DEFAULT_QUEUE),
        payload=payload,
        limit_set=bind_limits(options.get("limits", ()), registry.shared, body.name, payload, chunk),
        own_retry=retry,
        own_timeout=None if timeout is None else checked_timeout(timeout, where),
        priority=priority,
        unique=_unique(options, payload, where),
        audit=audit if own_audit is None else audit_level(own_audit, where),
        expires_in=None if expires_in is None else checked_expiry(expires_in, where),
        retention=(
            registry.retention.own_terms
            if retention is None
            else own_retention(retention, registry.retention.terms, where)
        ),
        default_retention=registry.retention.terms,
        keep_result=keep_result,
        aliases=_checked_aliases(options.get("aliases", ()), where),
        requires=parse_labels(options.get("requires", ()), f"{where}: requires"),
        tags=parse_tags(options.get("tags", ()), where),
        executor=body.executor,
        needs=needs,
        handler=body.handler,
        callbacks=Callbacks(body.handler, Handler),
        chunk=chunk,
    )


def _unique(options: HandlerOptions, payload: PayloadType, where: str) -> dict[str, Any]:
    """Return the options of unique keys, with the key as it is computed from the arguments."""
    unique: dict[str, Any] = {
        name: value for name, value in options.items() if name in UNIQUE_OPTIONS and value is not None
    }
    if "unique_key" in unique:
        unique["unique_key"] = computed_key(unique["unique_key"], payload.parameters, where, payload.fields)
    return unique


def _checked_aliases(aliases: Sequence[str], where: str) -> tuple[str, ...]:
    if (
        isinstance(aliases, str)
        or not isinstance(aliases, Iterable)
        or not all(isinstance(alias, str) for alias in aliases)
    ):
        raise DeclarationError(f'{where}: aliases={aliases!r} is not a list of names; write aliases=["old_name"]')
    return tuple(aliases)


class TaskDecorator(Protocol):
    """The decorator that `@app.task(…)` with options returns: function to task."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R | Awaitable[R]], /) -> Task[P, R]: ...


class ChunkDecorator(Protocol):
    """The decorator that `@app.chunked(…)` returns: function of a list to task of one element."""

    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[None]], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[Sequence[R | Exception]]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R | Exception]], /) -> Task[[T], R]: ...


class ScheduleDecorator(Protocol):
    """The decorator that `@app.schedule(…)` returns: it takes a task, or a function that it makes a task."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R | Awaitable[R]], /) -> Task[P, R]: ...
