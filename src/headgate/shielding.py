"""Waiting for work that a cancellation must not interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def shield_until_done(work: Awaitable[T]) -> T:
    """Return the result of `work`. A cancellation of the caller does not reach it, and is raised once it is done.

    An error of `work` takes precedence over the cancellation.
    """
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    result = running.result()
    if cancelled is not None:
        raise cancelled
    return result
