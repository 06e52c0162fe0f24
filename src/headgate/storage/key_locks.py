"""Locks by key, for what must not happen twice at once within this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterable


class KeyLocks:
    """One lock a key, kept for as long as somebody wants it. Several are taken in one order by everybody."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def held(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Hold the locks of these keys."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys), key=repr):
                await stack.enter_async_context(self._held(key))
            yield

    @contextlib.asynccontextmanager
    async def _held(self, key: Hashable) -> AsyncIterator[None]:
        lock, wanted = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, wanted + 1
        try:
            async with lock:
                yield
        finally:
            lock, wanted = self._locks[key]
            if wanted == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, wanted - 1
