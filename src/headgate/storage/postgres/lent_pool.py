"""A pool of connections that the user has made, instead of one that the store makes from its URL."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from headgate.errors import DeclarationError, StorageUnavailable, StorageUnusable

ACQUIRE_TIMEOUT = 10.0
"""Seconds until a connection of the pool has to be free."""


class LentPool:
    """Lends connections of a pool. `source` is the pool, or an async function that makes it.

    A pool that was passed stays open; one that the function has made is closed with the store. Raises DeclarationError
    for anything else.
    """

    def __init__(self, source: object, name: str) -> None:
        if not isinstance(source, asyncpg.Pool) and not callable(source):
            raise DeclarationError(
                f"pool={source!r:.80} is neither an asyncpg pool nor an async function that returns one; write "
                "pool=await asyncpg.create_pool(…), or pool=make_pool"
            )
        self._source: Any = source
        self._name = name
        self._pool: asyncpg.Pool[Any] | None = None

    @property
    def size(self) -> int:
        """How many connections it has at most; 0 while it is not open."""
        return 0 if self._pool is None else self._pool.get_max_size()

    async def open(self) -> None:
        """Check the pool, or make it. Raises StorageUnusable for one that cannot be used."""
        pool = self._source
        if not isinstance(pool, asyncpg.Pool):
            made = self._source()
            pool = await made if inspect.isawaitable(made) else made
            if not isinstance(pool, asyncpg.Pool):
                raise StorageUnusable(
                    f"the function pool= of {self._name} returned {pool!r:.80}, which is not an asyncpg pool; let it "
                    "return await asyncpg.create_pool(…)"
                )
        if pool.is_closing():
            raise StorageUnusable(
                f"the pool of {self._name} is closed; open the app inside of the pool's block, or pass a function that "
                "makes a new one: pool=make_pool"
            )
        if getattr(pool, "_loop", None) not in (None, asyncio.get_running_loop()):
            raise StorageUnusable(
                f"the pool of {self._name} belongs to another event loop than the one that opens the app; pass an "
                "async function that makes the pool: pool=make_pool"
            )
        self._pool = pool

    async def close(self, timeout: float) -> None:
        """Return to the user what is his: a pool that was passed stays open."""
        pool, self._pool = self._pool, None
        if pool is not None and pool is not self._source:
            await close_pool(pool, timeout)

    def require_size(self, least: int) -> None:
        """Raise StorageUnusable for a pool of fewer connections."""
        if self.size < least:
            raise StorageUnusable(
                f"the pool of {self._name} has at most {self.size} connections, and Headgate needs at least {least}: "
                f"claims must not wait for endings, and one listens; write asyncpg.create_pool(…, max_size={least})"
            )

    async def require_plain(self, connection: Any) -> None:
        """Raise StorageUnusable for connections on which the statements of the store would mean something else."""
        json, numbers, isolation = await connection.fetchrow(
            "SELECT '[1]'::json, ARRAY[1]::bigint[], current_setting('default_transaction_isolation')"
        )
        echoed = await connection.fetchval("SELECT $1::json::text", "[1]") if isinstance(json, str) else None
        if (json, numbers, echoed) != ("[1]", [1], "[1]"):
            raise StorageUnusable(
                f"the pool of {self._name} sets its own codecs (set_type_codec), so Headgate cannot share its "
                "connections; give Headgate a pool without them"
            )
        if isolation != "read committed":
            raise StorageUnusable(
                f"the pool of {self._name} makes its transactions {isolation}, and Headgate needs read committed; "
                "give it a pool without default_transaction_isolation"
            )

    async def acquire(self, *, timeout: float) -> Any:
        """Return a free connection. Raises StorageUnavailable if the pool was closed, TimeoutError if none is free."""
        if self._pool is None:
            raise StorageUnavailable(f"{self._name} is not open")
        try:
            return await self._pool.acquire(timeout=timeout)
        except asyncpg.InterfaceError as error:
            raise StorageUnavailable(
                f"the pool of {self._name} gives no connection: {error}; keep it open as long as the app"
            ) from error

    @property
    def is_used_up(self) -> bool:
        """Whether all of its connections are in use."""
        return self._pool is not None and is_used_up(self._pool)

    def none_free(self, timeout: float, users: str = "") -> str:
        """Return the error of who has waited so long for one of them; `users` is what Headgate uses some for."""
        users = f", the last statements of Headgate in it: {users}" if users else ""
        return (
            f"the pool of {self._name} had no free connection for {timeout:g} s: all {self.size} were in use{users}; "
            "raise its max_size, or hold its connections and current_job().transaction() for less time"
        )

    async def release(self, connection: Any) -> None:
        """Give a connection back to the pool."""
        # A task that is cancelled while the store is closed gives its connection back later.
        pool = self._source if isinstance(self._source, asyncpg.Pool) else self._pool
        # A connection that was lost is already back, as are all of a pool that was closed meanwhile.
        with contextlib.suppress(asyncpg.InterfaceError):
            if pool is not None:
                await pool.release(connection)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Lend a connection for the block; if the block raises, it is closed, as its state is not known."""
        is_lent_here = self._pool is None
        if is_lent_here:
            await self.open()
        try:
            try:
                connection = await self.acquire(timeout=ACQUIRE_TIMEOUT)
            except TimeoutError as error:
                if self.is_used_up:
                    raise StorageUnavailable(self.none_free(ACQUIRE_TIMEOUT)) from error
                raise
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(asyncpg.InterfaceError):
                    connection.terminate()
                raise
            finally:
                await self.release(connection)
        finally:
            if is_lent_here:
                await self.close(2.0)


def is_used_up(pool: asyncpg.Pool[Any]) -> bool:
    """Whether a pool has all of its connections, and all are in use. One that is being made is not."""
    return pool.get_size() - pool.get_idle_size() == pool.get_max_size()


async def close_pool(pool: asyncpg.Pool[Any], timeout: float) -> None:
    """Close a pool in order, if its server answers within so many seconds."""
    try:
        async with asyncio.timeout(timeout):  # noqa: TID251  # real connections, real time
            await pool.close()
    finally:
        pool.terminate()
