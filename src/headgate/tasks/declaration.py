"""The declaration of a task: what `@app.task` and `@app.handler` are told, checked and made a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditLevel, AuditWord, audit_level
from headgate.jobs.retry import RetryPolicy, require_policy
from headgate.limits.limit import Limit
from headgate.tasks.gate import bind_limits
from headgate.tasks.handler import handler_function
from headgate.tasks.name import require_name
from headgate.tasks.payload import PayloadType, Upgrade
from headgate.tasks.place import Place, place_of
from headgate.tasks.process_body import require_importable
from headgate.tasks.registry import Registry
from headgate.tasks.resource import needs_of
from headgate.tasks.task import Task, checked_timeout, require_priority

if TYPE_CHECKING:
    from headgate.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task is declared; what is None is as its function, its queue or its app has it."""

    name: str | None
    aliases: Sequence[str]
    queue: str
    limits: Sequence[Limit | str]
    retry: RetryPolicy | None
    timeout: Duration | None
    priority: int
    audit: AuditWord | None
    upgrade: Upgrade | None

    def name_of(self, subject: object) -> str:
        """The name of the task that is made of this function or class."""
        return self.name if self.name is not None else str(getattr(subject, "__name__", ""))


class Body(NamedTuple):
    """What is to be a task: a function, the name it will have, where it runs, and the class that it is `run` of."""

    name: str
    function: Callable[..., Any]
    place: Place
    handler: type[Any] | None = None


def body_of_function(function: Callable[..., Any], options: TaskOptions, *, process: bool) -> Body:
    """A function that is to be a task. Raises DeclarationError."""
    if isinstance(function, Task):
        raise DeclarationError(f"{function!r} is a task already; @app.task needs a function")
    if not callable(function):
        raise DeclarationError(f"@app.task needs a function, not {function!r}")
    name = options.name_of(function)
    if process:
        require_importable(function, f"task {name!r}")
    return Body(name, function, place_of(function, process=process))


def body_of_handler(handler: type[Any], options: TaskOptions) -> Body:
    """The `run` of a class that is to be a task. Raises DeclarationError."""
    name = options.name_of(handler)
    function = handler_function(handler, f"handler {name!r}")
    return Body(name, function, place_of(function, process=False), handler)


def declare_task(
    body: Body, options: TaskOptions, client: Client, registry: Registry, *, max_payload: int, audit: AuditLevel
) -> Task[Any, Any]:
    """The task that is declared so; `audit` is for one that does not say it. Raises DeclarationError."""
    where = f"task {body.name!r}"
    require_name(body.name, "task")
    needs = needs_of(body.function, registry.resources, where)
    if needs and body.place is Place.PROCESS:
        raise DeclarationError(
            f"{where} runs in a child process, where resource {next(iter(needs))!r} is not open; "
            "open what it needs in the function itself"
        )
    payload = PayloadType(body.function, where, max_payload, options.upgrade, injected=needs)
    if options.retry is not None:
        require_policy(options.retry, where)
    require_priority(options.priority, where)
    return Task(
        client,
        body.function,
        name=body.name,
        queue=options.queue,
        payload=payload,
        gate=bind_limits(options.limits, registry.shared, body.name, payload.parameters, payload.fields),
        retry=options.retry,
        timeout=None if options.timeout is None else checked_timeout(options.timeout, where),
        priority=options.priority,
        audit=audit if options.audit is None else audit_level(options.audit, where),
        aliases=_checked_aliases(options.aliases, where),
        place=body.place,
        needs=needs,
        handler=body.handler,
    )


def _checked_aliases(aliases: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(aliases, str) or not all(isinstance(alias, str) for alias in aliases):
        raise DeclarationError(f'{where}: aliases={aliases!r} is not a list of names; write aliases=["old_name"]')
    return tuple(aliases)
