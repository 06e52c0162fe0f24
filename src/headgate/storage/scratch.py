"""Scratch stores: beside a real one, on the same ground, for measuring; gone when they are no longer needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from headgate.storage.protocol import Storage


@runtime_checkable
class HasScratch(Protocol):
    """A storage beside which another, empty one can be made for a while."""

    def scratch(self) -> AbstractAsyncContextManager[Callable[[], Storage]]:
        """A place of its own, on the same disk or server; what is given opens it, as often as it is called.

        It is deleted when the block ends, however it ends; all that was opened has to be closed by then. Raises
        StorageUnusable where none can be made.
        """
        ...


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await what a cancellation must not cut off, as the making and the deleting of a store; then it gets through."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
