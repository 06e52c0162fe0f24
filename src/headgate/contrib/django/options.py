"""Headgate's options for Django tasks that Django does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any, TypedDict, TypeVar, Unpack

from headgate import DeclarationError, RetryPolicy
from headgate.clock import Duration
from headgate.limits.limit import Limit
from headgate.tasks.options import require_names

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "headgate_options"


class DjangoOptions(TypedDict, total=False):
    """The job options of a Django task that `@app.task` has and Django does not.

    The `aliases` are the earlier paths of the task.
    """

    limits: Sequence[Limit | str]
    retry: RetryPolicy | None
    timeout: Duration | None
    aliases: Sequence[str]


def task_options(**options: Unpack[DjangoOptions]) -> Callable[[F], F]:
    """Give a Django task limits, a retry policy, a timeout and its earlier paths; put it below `@task`.

    Options are those of `@app.task`. Under any other backend the task runs without them.
    """
    require_names(options, DjangoOptions.__annotations__, "task_options()")

    def decorate(function: F) -> F:
        if not isfunction(function):
            raise DeclarationError(f"@task_options needs the function itself, not {function!r}; write it below @task")
        setattr(function, _ATTRIBUTE, options)
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> DjangoOptions:
    """Return the options of a function; empty without any."""
    found: DjangoOptions = getattr(function, _ATTRIBUTE, DjangoOptions())
    return found
