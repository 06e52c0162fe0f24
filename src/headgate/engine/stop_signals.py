"""Stop signals: SIGTERM and SIGINT end a worker process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from headgate.engine.node import Node


def stopped_by_signals(node: Node) -> AbstractContextManager[None]:
    """Let SIGTERM and SIGINT stop the node until the block ends; the second signal aborts it."""
    return on_stop_signals(node.stop, node.abort)


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
