"""The part of a shared budget that belongs to one event loop: the connection to the store, and a line per key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from headgate.clock import Clock
from headgate.errors import GateClosed, StorageUnavailable
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.bucket_table import check_cost
from headgate.limits.standalone.budget import FROM_STORE, Decision
from headgate.limits.standalone.shared_line import SharedLine

logger = logging.getLogger("headgate.limiter")


class SharedSession:
    """Buckets on an async store, on one event loop. With `closes_store` the store is closed with the session."""

    def __init__(self, store: BucketStore, limit: str, rule: AnyRule, clock: Clock, *, closes_store: bool) -> None:
        self._store = store
        self._limit = limit
        self._rule = rule
        self._clock = clock
        self._closes_store = closes_store
        self._opening = asyncio.Lock()
        self._is_open = False
        self._is_closed = False
        self._lines: dict[str, SharedLine] = {}
        self._refunds: set[asyncio.Task[None]] = set()

    async def try_acquire(self, key: str, cost: int) -> Decision:
        await self._ready(cost)
        if (line := self._lines.get(key)) is not None:
            # Others wait; a new caller would wait at least as long as the store's last refusal says.
            return _decision(line.refusal, allowed=False)
        taken = await self._take(key, cost)
        return _decision(taken, allowed=taken.granted > 0)

    async def acquire(self, key: str, cost: int, until: int | None) -> Decision:
        """Wait for a start until clock time `until` (monotonic µs), or without an end."""
        await self._ready(cost)
        if until is not None and until <= self._clock.monotonic():
            return await self.try_acquire(key, cost)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._new_line(key)
        taken, granted = await line.wait(cost, until)
        return _decision(taken, allowed=granted)

    def undo_start(self, key: str, cost: int, decision: Decision) -> None:
        """Refund, in the background, a start whose caller has left without it."""
        if decision.allowed:
            self._in_background(self._refund(key, cost, decision.decided_at))

    async def reserve(self, key: str, cost: int, id: str) -> Taken:
        await self._ready(cost)
        return await self._store.reserve(self._bucket(key), cost, id=id)

    async def cancel(self, key: str, id: str) -> bool:
        await self._ready()
        cancelled = await self._store.cancel(self._bucket(key), id=id)
        self._notify(key)
        return cancelled

    async def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._ready()
        await self._amend(key, charged_at, cost, actual)

    async def _take(self, key: str, cost: int) -> Taken:
        """Request one start. If it is granted to a caller that is being cancelled, it is refunded."""
        taking = asyncio.ensure_future(self._store.take(self._bucket(key), cost))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._in_background(self._refund_late(key, cost, taking))
            raise

    async def _refund_late(self, key: str, cost: int, taking: asyncio.Future[Taken]) -> None:
        await asyncio.wait([taking])
        if not taking.cancelled() and taking.exception() is None and taking.result().granted:
            await self._refund(key, cost, taking.result().now)

    async def _refund(self, key: str, cost: int, charged_at: int) -> None:
        try:
            await self._amend(key, charged_at, cost, 0)
        except StorageUnavailable as error:
            logger.warning("a start of %r that was not used stays charged: %s", key, error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` after its caller has left. `close` waits for it."""
        task = asyncio.ensure_future(work)
        self._refunds.add(task)
        task.add_done_callback(self._refunds.discard)

    async def _amend(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._store.amend(self._bucket(key), charged_at, cost, charged_at, actual)
        self._notify(key)

    async def penalize(self, key: str, opens_at: int) -> None:
        """Close the bucket until clock time `opens_at` (monotonic µs); the time to connect counts."""
        await self._ready()
        if isinstance(self._store, NotesRefusals) and self._rule.adapts:
            # Before it is closed: while a bucket is closed, a refusal of an unknown start is not counted again.
            await self._store.refuse(self._bucket(key))
        await self._store.penalize(self._bucket(key), max(0, opens_at - self._clock.monotonic()))

    async def snapshot(self, key: str) -> Snapshot:
        await self._ready()
        return await self._store.snapshot(self._bucket(key))

    async def reset(self, key: str) -> None:
        await self._ready()
        await self._store.reset(self._bucket(key))
        self._notify(key)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for line in list(self._lines.values()):
            line.fail(GateClosed())
        while self._refunds:
            await asyncio.wait(self._refunds)
        if self._closes_store:
            await self._store.close()

    async def _ready(self, cost: int = 1) -> None:
        check_cost(cost)
        self._rule.check_cost(cost)
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await self._store.open()
                    self._is_open = True
        if self._is_closed:
            raise GateClosed

    def _bucket(self, key: str) -> Bucket:
        return Bucket(self._limit, key, self._rule)

    def _notify(self, key: str) -> None:
        if (line := self._lines.get(key)) is not None:
            line.call()

    def _new_line(self, key: str) -> SharedLine:
        def ask(cost: int, count: int) -> Awaitable[Taken]:
            return self._store.take(self._bucket(key), cost, count=count)

        def refund(taken: Taken, cost: int) -> None:
            self._in_background(self._refund(key, cost, taken.now))

        def ended() -> None:
            del self._lines[key]

        return SharedLine(self._clock, ask, refund, ended)


def _decision(taken: Taken, *, allowed: bool) -> Decision:
    return Decision(allowed, taken.now, taken.now if allowed else taken.opens_at, FROM_STORE, taken)
