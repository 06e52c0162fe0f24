"""Decorators: what `@app.task(…)` and `@app.schedule(…)` do to what they stand on, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar, overload

from headgate.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """What `@app.task(…)` with options does to a function."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ScheduleDecorator(Protocol):
    """What `@app.schedule(…)` does to a task, or to a function, which it makes a task."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
