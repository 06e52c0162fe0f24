"""Stop signals: SIGTERM and SIGINT end a worker process; and how a process has ended, in words."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat


@contextmanager
def on_stop_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` on the first SIGTERM or SIGINT and `second` on each one after it, until the block ends."""
    loop = asyncio.get_running_loop()
    calls = chain([first], repeat(second))
    caught = (signal.SIGTERM, signal.SIGINT)
    for number in caught:
        loop.add_signal_handler(number, lambda: next(calls)())
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def exit_worded(code: int) -> str:
    """Return an exit code, or minus a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    # Most real-time signals have no name.
    return next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
