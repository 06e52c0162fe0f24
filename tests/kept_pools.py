"""Pools of sessions on PostgreSQL that outlive the stores that use them."""

from __future__ import annotations

from typing import Any

import asyncpg


class KeptPools:
    """In place of `asyncpg.create_pool`: a store that is closed leaves its sessions to the next one of its event loop.

    A new session reads the catalogue and plans each statement again, which takes longer than most tests.
    """

    _make = staticmethod(asyncpg.create_pool)

    def __init__(self) -> None:
        self._free: dict[str, list[asyncpg.Pool[Any]]] = {}

    async def create(self, url: str, **options: Any) -> Any:
        described = {name: value for name, value in options.items() if name != "init"}
        free = self._free.setdefault(f"{url} {described}", [])
        return _Kept(free.pop() if free else await self._make(url, **options), free)

    async def close(self) -> None:
        for free in self._free.values():
            for pool in free:
                await pool.close()


class _Kept:
    def __init__(self, pool: asyncpg.Pool[Any], free: list[asyncpg.Pool[Any]]) -> None:
        self._pool = pool
        self._free = free
        self._is_kept = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def close(self) -> None:
        self._is_kept = self._pool.get_idle_size() == self._pool.get_size()
        if self._is_kept:
            self._free.append(self._pool)
        else:
            await self._pool.close()

    def terminate(self) -> None:
        """A store that is closed also does this."""
        if not self._is_kept:
            self._pool.terminate()
