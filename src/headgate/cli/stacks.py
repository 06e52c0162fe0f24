"""Print the stacks of all threads and asyncio tasks on a signal."""

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
    """Write all stacks to stderr on each signal, also while a function blocks the loop.

    `faulthandler` is not used: it reads threads that run meanwhile, and has ended the process.
    """

    def write(_number: int, _frame: FrameType | None) -> None:
        # Not through the buffer of sys.stderr: the signal may have interrupted a write to it.
        os.write(2, stacks_as_text(loop).encode(errors="backslashreplace"))

    signal.signal(number, write)


def stacks_as_text(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stacks of all threads and tasks as text."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f"Thread {names.get(ident, ident)}:\n")
        traceback.print_stack(frame, file=text)
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=text)
    return text.getvalue()
