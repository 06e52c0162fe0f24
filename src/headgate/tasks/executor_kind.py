"""Where the function of a task runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from headgate.errors import DeclarationError


class Executor(StrEnum):
    """A coroutine runs on the event loop, a blocking function in a thread, a computing function in a process."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


def executor_of(function: Callable[..., Any], *, process: bool) -> Executor:
    """Return where a function runs, by its kind and its declaration."""
    if process:
        return Executor.PROCESS
    return Executor.LOOP if inspect.iscoroutinefunction(function) else Executor.THREAD


def require_no_generator(function: Callable[..., Any], where: str) -> None:
    """Raise DeclarationError for a function that yields: calling it runs none of its code."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"{where} is a generator, of which a call runs nothing; write return in place of yield, such as "
            "`return list(rows)`, or enqueue a job for each item: await task.enqueue_many([(item,) for item in items])"
        )
