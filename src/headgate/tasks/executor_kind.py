"""Where the function of a task runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any


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
