"""What Headgate can do for a Django task and Django has no word for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any, NamedTuple, TypeVar

from headgate import DeclarationError, RetryPolicy
from headgate.clock import Duration
from headgate.limits.limit import Limit

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "headgate_options"


class TaskOptions(NamedTuple):
    """How the jobs of one Django task run, where it is said."""

    limits: Sequence[Limit | str] = ()
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    aliases: Sequence[str] = ()


def task_options(
    *,
    limits: Sequence[Limit | str] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    aliases: Sequence[str] = (),
) -> Callable[[F], F]:
    """Give a Django task limits, a retry policy, a timeout and the paths it had before: below `@task`.

    Options are those of `@app.task`. Under any other backend the task runs without them.
    """

    def decorate(function: F) -> F:
        if not isfunction(function):
            raise DeclarationError(f"@task_options needs the function itself, not {function!r}; write it below @task")
        setattr(function, _ATTRIBUTE, TaskOptions(limits, retry, timeout, aliases))
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> TaskOptions:
    """What was said of a function; nothing, if nothing was."""
    found: TaskOptions = getattr(function, _ATTRIBUTE, TaskOptions())
    return found
