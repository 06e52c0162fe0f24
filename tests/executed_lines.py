"""Work counted rather than timed: how many lines Python executes for something."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any


def lines_of(doing: Awaitable[Any]) -> int:
    """How many lines are executed for a coroutine that has to wait for nothing."""
    assert inspect.iscoroutine(doing)

    def run() -> None:
        try:
            doing.send(None)
        except StopIteration:
            return
        raise AssertionError("it waits for something")

    return lines_of_call(run)


def lines_of_call(function: Callable[[], object]) -> int:
    """How many lines are executed by a function and by all that it calls in this thread."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines
