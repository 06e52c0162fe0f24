"""PostgresBuckets: the buckets of one schema, for plain code and for apps with their jobs in another store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlencode

from headgate.arguments import parse_seconds
from headgate.clock import SECOND, Clock, Duration, SystemClock, sleep
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.limits.bucket_store import ServerReport
from headgate.shielding import LoopLock
from headgate.storage.postgres.database import checked_url
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.stored_buckets import StoredBuckets
from headgate.urls import displayed_url, without_secrets

R = TypeVar("R")

logger = logging.getLogger("headgate.storage")

SWEEP_EVERY = 60.0
"""Seconds after which idle buckets are deleted. Workers delete them too, but there may be no workers."""


class PostgresBuckets(StoredBuckets):
    """The BucketStore in a schema of a PostgreSQL database: its tables and buckets are those of the jobs there.

    Connecting, and each request, may take `timeout` seconds, after which StorageUnavailable is raised.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        schema: str = "headgate",
        timeout: Duration = 5.0,
        connections: int = 4,
    ) -> None:
        seconds = parse_seconds(timeout, "timeout", "buckets in PostgreSQL", allow_zero=False)
        if connections < 1:
            raise DeclarationError(f"connections={connections!r} of buckets in PostgreSQL must be at least 1")
        self._clock = clock or SystemClock()
        self._timeout = seconds
        self._tables = PostgresStorage(url, self._clock, schema=schema, connections=connections, is_watched=False)
        self._opening = LoopLock()
        self._sweeping: asyncio.Task[None] | None = None
        super().__init__(self._tables)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the buckets at `postgresql://user:password@host/database`.

        The URL may have `?schema=`, `?timeout=` and `?connections=`; other options are passed to the driver. Raises
        DeclarationError for a URL that cannot be parsed.
        """
        address, _, query = checked_url(url).partition("?")
        options = parse_qsl(query, keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in options if name not in _OPTIONS])
        try:
            given: dict[str, Any] = {name: _OPTIONS[name](value) for name, value in options if name in _OPTIONS}
        except ValueError as error:
            raise DeclarationError(
                f"{displayed_url(url)} is not a PostgreSQL URL: {without_secrets(str(error), url)}"
            ) from None
        return cls(f"{address}?{rest}" if rest else address, **given)

    @property
    def place(self) -> object:
        """As `PostgresStorage.place`."""
        return self._tables.place

    async def open(self) -> None:
        """Connect, and create the tables if there are none. Raises StorageUnusable if the user may not."""
        if self._sweeping is not None:
            return
        async with self._opening.here():
            if self._sweeping is None:
                # In time, which the creation of the tables need not be.
                await self._ask(self._tables.probe)
                await self._tables.open()
                self._sweeping = asyncio.create_task(self._sweep(), name="headgate-sweep")

    async def report(self) -> ServerReport:
        """Connect and return how many migrations are missing. Raises as `open`."""
        missing = await self._tables.migrate(dry_run=True)
        tables = f"migrations missing: {len(missing)}" if missing else "tables up to date"
        return ServerReport(f"PostgreSQL, {tables}")

    async def close(self) -> None:
        async with self._opening.here():
            sweeping, self._sweeping = self._sweeping, None
            if sweeping is not None:
                sweeping.cancel()
                await asyncio.wait([sweeping])
                await self._tables.close()

    async def _ask(self, request: Callable[[], Awaitable[R]], *, may_repeat: bool = False) -> R:
        try:
            async with asyncio.timeout(self._timeout):  # noqa: TID251  # real connections, real time
                return await (self._repeat_until_answered(request) if may_repeat else request())
        except TimeoutError as error:
            raise StorageUnavailable(f"{self._tables} did not answer within {self._timeout:g} s") from error

    async def _repeat_until_answered(self, request: Callable[[], Awaitable[R]]) -> R:
        """Repeat a request whose answer is the same each time while the connection is lost, for `timeout` seconds."""
        until = self._clock.monotonic() + round(self._timeout * SECOND)
        pause = 0.01
        while True:
            try:
                return await request()
            except StorageUnavailable:
                if self._sweeping is None or self._clock.monotonic() + pause * SECOND > until:
                    raise
            await sleep(self._clock, pause)
            pause = min(pause * 2, 0.5)

    async def _sweep(self) -> None:
        while True:
            await sleep(self._clock, SWEEP_EVERY)
            try:
                while await self._tables.evict(1000) >= 1000:
                    pass
            except StorageUnavailable as error:
                logger.debug("idle buckets were not deleted: %s", error)


_OPTIONS: dict[str, Callable[[str], Any]] = {"timeout": str, "connections": int}
