"""Waiting, in real time, for what other processes, threads and servers bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(
    holds: Callable[[], bool | Awaitable[bool]], seconds: float = 15, missing: Callable[[], Any] = str
) -> float:
    """Ask again until the answer is yes; how many seconds that took. Fails after `seconds`, and says what is missing.

    The question, and what tells what is missing, may have to be awaited.
    """
    began = time.monotonic()
    while not await _answer(holds()):
        if time.monotonic() - began > seconds:
            raise AssertionError(f"waited {seconds:g} s in vain: {await _answer(missing())}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def _answer(said: Any) -> Any:
    return await said if isinstance(said, Awaitable) else said
