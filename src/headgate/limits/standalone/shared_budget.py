"""A budget shared with other programs: one line per key requests starts from the store for all its waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from headgate.arguments import parse_until, parse_wait
from headgate.clock import Clock, Duration
from headgate.errors import GateClosed, HeadgateError
from headgate.limits.bucket_store import Bucket, BucketStore, Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.bucket_table import check_cost
from headgate.limits.standalone.decision import FROM_STORE, Decision
from headgate.limits.standalone.home_loop import HomeLoop
from headgate.limits.standalone.shared_line import SharedLine

T = TypeVar("T")


class SharedBudget:
    """A Budget that draws on an async store. Its lines and the store belong to one event loop."""

    hands_out_permits = False
    decides_at_once = False

    def __init__(
        self, store: BucketStore, limit: str, rule: AnyRule, clock: Clock, *, closes_store: bool = False
    ) -> None:
        self._store = store
        self._limit = limit
        self._rule = rule
        self._clock = clock
        self._closes_store = closes_store
        self._home = HomeLoop()
        self._opening = asyncio.Lock()
        self._is_open = False
        self._is_closed = False
        self._lines: dict[str, SharedLine] = {}
        self._refunds: set[asyncio.Task[None]] = set()

    def try_acquire(self, key: str, cost: int) -> Decision:
        return self._run(self._try_acquire(key, cost))

    async def try_acquire_async(self, key: str, cost: int) -> Decision:
        return await self._run_async(self._try_acquire(key, cost))

    def acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return self._run(self._acquire(key, cost, timeout))

    async def acquire_async(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return await self._run_async(self._acquire(key, cost, timeout))

    def release(self, key: str, cost: int) -> None:
        raise HeadgateError("a rate counts starts, so there is nothing to give back; use `hold()` and `settle()`")

    def reserve(self, key: str, cost: int, id: str) -> Taken:
        return self._run(self._reserve(key, cost, id))

    async def reserve_async(self, key: str, cost: int, id: str) -> Taken:
        return await self._run_async(self._reserve(key, cost, id))

    def cancel(self, key: str, id: str) -> bool:
        return self._run(self._cancel(key, id))

    async def cancel_async(self, key: str, id: str) -> bool:
        return await self._run_async(self._cancel(key, id))

    def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        self._run(self._settle(key, charged_at, cost, actual))

    async def settle_async(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._run_async(self._settle(key, charged_at, cost, actual))

    def penalize(self, key: str, until: datetime | Duration) -> None:
        self._run(self._penalize(key, until))

    async def penalize_async(self, key: str, until: datetime | Duration) -> None:
        await self._run_async(self._penalize(key, until))

    def snapshot(self, key: str) -> Snapshot:
        return self._run(self._snapshot(key))

    async def snapshot_async(self, key: str) -> Snapshot:
        return await self._run_async(self._snapshot(key))

    def reset(self, key: str) -> None:
        self._run(self._reset(key))

    async def reset_async(self, key: str) -> None:
        await self._run_async(self._reset(key))

    def close(self) -> None:
        if not self._is_closed:
            self._home.run_sync(self._close())
            self._home.close()

    async def close_async(self) -> None:
        if not self._is_closed:
            await self._home.run(self._close())
            self._home.close()

    def add_holder(self, key: str) -> None:
        """Do nothing: other programs may give something back at any time, so a line asks again now and then."""

    def remove_holder(self, key: str) -> None:
        pass

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._check_open(coroutine)
        return self._home.run_sync(coroutine)

    async def _run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._check_open(coroutine)
        return await self._home.run(coroutine)

    def _check_open(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        # Not in the coroutine: its home loop may have ended.
        if self._is_closed:
            coroutine.close()
            raise GateClosed

    # ------------------------------------------------------------------------------------------------ on the home loop

    async def _try_acquire(self, key: str, cost: int) -> Decision:
        await self._ready(cost)
        if (line := self._lines.get(key)) is not None:
            # Others wait; a new caller would wait at least as long as the store's last refusal says.
            return _decision(line.refusal, allowed=False)
        taken = await self._store.take(self._bucket(key), cost)
        return _decision(taken, allowed=taken.granted > 0)

    async def _acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        until = None if timeout is None else self._clock.monotonic() + parse_wait(timeout, "timeout", "a limiter")
        await self._ready(cost)
        if until is not None and until <= self._clock.monotonic():
            return await self._try_acquire(key, cost)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._new_line(key)
        taken, granted = await line.wait(cost, until)
        return _decision(taken, allowed=granted)

    async def _reserve(self, key: str, cost: int, id: str) -> Taken:
        await self._ready(cost)
        return await self._store.reserve(self._bucket(key), cost, id=id)

    async def _cancel(self, key: str, id: str) -> bool:
        await self._ready()
        cancelled = await self._store.cancel(self._bucket(key), id=id)
        self._notify(key)
        return cancelled

    async def _settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._store.amend(self._bucket(key), charged_at, cost, charged_at, actual)
        self._notify(key)

    async def _penalize(self, key: str, until: datetime | Duration) -> None:
        # Computed first: an invalid instant is refused before any request, and the time to connect counts.
        opens_at = self._clock.monotonic() + parse_until(until, "until", "penalize", self._clock.now())
        await self._ready()
        await self._store.penalize(self._bucket(key), max(0, opens_at - self._clock.monotonic()))

    async def _snapshot(self, key: str) -> Snapshot:
        await self._ready()
        return await self._store.snapshot(self._bucket(key))

    async def _reset(self, key: str) -> None:
        await self._ready()
        await self._store.reset(self._bucket(key))
        self._notify(key)

    async def _close(self) -> None:
        self._is_closed = True
        for line in list(self._lines.values()):
            line.fail(GateClosed())
        if self._refunds:
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
            # In the background: the caller that it was granted to is being cancelled.
            task = asyncio.ensure_future(self._settle(key, taken.now, cost, 0))
            self._refunds.add(task)
            task.add_done_callback(self._refunds.discard)

        def ended() -> None:
            del self._lines[key]

        return SharedLine(self._clock, ask, refund, ended)


def _decision(taken: Taken, *, allowed: bool) -> Decision:
    return Decision(allowed, taken.now, taken.now if allowed else taken.opens_at, FROM_STORE, taken)
