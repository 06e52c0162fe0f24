"""Waiting to the end for what must not be left half done."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def outlast(running: asyncio.Future[T]) -> T:
    """What it comes to; who is cancelled meanwhile waits on, and the cancellation is raised after the end.

    An error of `running` itself goes before that.
    """
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
