"""The types of the decorators `@app.task(…)` and `@app.schedule(…)`, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar, overload

from headgate.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """The decorator that `@app.task(…)` with options returns: function to task."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ScheduleDecorator(Protocol):
    """The decorator that `@app.schedule(…)` returns: it takes a task, or a function that it makes a task."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
