"""The types of the decorators `@app.task(…)`, `@app.chunked(…)` and `@app.schedule(…)`, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar, overload

from headgate.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskDecorator(Protocol):
    """The decorator that `@app.task(…)` with options returns: function to task."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ChunkDecorator(Protocol):
    """The decorator that `@app.chunked(…)` returns: function of a list to task of one element."""

    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[None]], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[Sequence[R]]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R]], /) -> Task[[T], R]: ...


class ScheduleDecorator(Protocol):
    """The decorator that `@app.schedule(…)` returns: it takes a task, or a function that it makes a task."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
