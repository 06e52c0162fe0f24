"""Places: where the function of a task runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any


class Executor(StrEnum):
    """Waiting costs a loop nothing, blocking calls take a thread each, computing takes a process each."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


def place_of(function: Callable[..., Any], *, process: bool) -> Executor:
    """Return where a function runs, by its kind and what was declared."""
    if process:
        return Executor.PROCESS
    return Executor.LOOP if inspect.iscoroutinefunction(function) else Executor.THREAD
