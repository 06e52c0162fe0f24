"""Work counted rather than timed: how many lines Python executes for something."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable
from types import FrameType
from typing import Any


def lines_of(doing: Awaitable[Any]) -> int:
    """How many lines are executed for a coroutine that has to wait for nothing."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return trace

    assert inspect.iscoroutine(doing)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        doing.send(None)
    except StopIteration:
        return lines
    finally:
        sys.settrace(before)
    raise AssertionError("it waits for something")
