"""Calls in threads, for handlers and callbacks that are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from typing import TypeVar

T = TypeVar("T")


def in_thread(pool: Pool, call: Callable[[], T]) -> asyncio.Future[T]:
    """The future of a call that a thread of `pool` makes."""
    return asyncio.get_running_loop().run_in_executor(pool, _guarded, call)


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except StopIteration as error:
        # No future can carry one: whoever waits for it would wait for ever. Coroutines turn it into the same.
        raise RuntimeError("the function raised StopIteration") from error
