"""Calls in threads, for handlers and callbacks that are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from typing import TypeVar

T = TypeVar("T")


def in_thread(pool: Pool | None, call: Callable[[], T]) -> asyncio.Future[T]:
    """Run `call` in a thread of `pool` (None: of the event loop) and return its future."""
    return asyncio.get_running_loop().run_in_executor(pool, _guarded, call)


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except StopIteration as error:
        # A future cannot hold it: the waiter would wait for ever. Coroutines convert it in the same way.
        raise RuntimeError("the function raised StopIteration") from error
