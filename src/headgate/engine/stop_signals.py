"""Stop signals: SIGTERM and SIGINT end a worker process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` on the first SIGTERM or SIGINT and `second` on each one after it, until the block ends."""
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            first()
        else:
            second()

    caught = (signal.SIGTERM, signal.SIGINT)
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
