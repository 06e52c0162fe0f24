"""What a process is doing right now, told on a signal: every thread, every asyncio task."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import traceback
from types import FrameType


def print_stacks_on_signal(number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
    """From now on the signal writes all stacks to stderr, also while the loop is stuck in a function.

    Not by `faulthandler`: it looks at threads that go on meanwhile, and was seen to end the process.
    """

    def tell(_number: int, _frame: FrameType | None) -> None:
        # Past the buffer of sys.stderr, in the middle of which the signal may have come.
        os.write(2, told(loop).encode(errors="backslashreplace"))

    signal.signal(number, tell)


def told(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all threads and tasks as text."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f"Thread {names.get(ident, ident)}:\n")
        traceback.print_stack(frame, file=text)
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=text)
    return text.getvalue()
