"""Stop signals: how an operator, or a supervisor, ends a worker process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.engine.node import Node


@contextmanager
def stopped_by_signals(node: Node) -> Iterator[None]:
    """Until the block ends, SIGTERM and SIGINT stop the node; the second of them ends it at once."""
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            node.stop()
        else:
            node.abort()

    caught = (signal.SIGTERM, signal.SIGINT)
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
