"""A budget shared with other programs: one line per key requests starts from the store for all its waiters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from headgate.arguments import parse_until, parse_wait
from headgate.clock import Clock, Duration
from headgate.errors import GateClosed, HeadgateError
from headgate.limits.bucket_store import BucketStore, Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.budget import Decision
from headgate.limits.standalone.home_loop import HomeLoop
from headgate.limits.standalone.shared_session import SharedSession

T = TypeVar("T")


class SharedBudget:
    """A Budget that uses an async store. Its lines and the store belong to one event loop.

    `open_store` returns the store. If it returns a new one each time, the budget survives the end of its event loop:
    another loop takes its place, with another store, and a store is closed with its loop or with the budget.
    """

    hands_out_permits = False
    decides_at_once = False
    session_kind: type[SharedSession] = SharedSession

    def __init__(
        self, open_store: Callable[[], BucketStore], limit: str, rule: AnyRule, clock: Clock, *, is_new: bool
    ) -> None:
        def begin() -> SharedSession:
            return self.session_kind(open_store(), limit, rule, clock, closes_store=is_new)

        self.clock: Clock = clock
        self._home = HomeLoop(begin, renews=is_new)
        self._is_closed = False

    def try_acquire(self, key: str, cost: int) -> Decision:
        return self._run(SharedSession.try_acquire, key, cost, undo=_undo(key, cost))

    async def try_acquire_async(self, key: str, cost: int) -> Decision:
        return await self._run_async(SharedSession.try_acquire, key, cost, undo=_undo(key, cost))

    def acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return self._run(SharedSession.acquire, key, cost, self._end_of(timeout), undo=_undo(key, cost))

    async def acquire_async(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return await self._run_async(SharedSession.acquire, key, cost, self._end_of(timeout), undo=_undo(key, cost))

    def release(self, key: str, cost: int) -> None:
        raise HeadgateError("a rate counts starts, so there is nothing to give back; use `hold()` and `settle()`")

    def reserve(self, key: str, cost: int, id: str) -> Taken:
        return self._run(SharedSession.reserve, key, cost, id)

    async def reserve_async(self, key: str, cost: int, id: str) -> Taken:
        return await self._run_async(SharedSession.reserve, key, cost, id)

    def cancel(self, key: str, id: str) -> bool:
        return self._run(SharedSession.cancel, key, id, may_repeat=False)

    async def cancel_async(self, key: str, id: str) -> bool:
        return await self._run_async(SharedSession.cancel, key, id, may_repeat=False)

    def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        self._run(SharedSession.settle, key, charged_at, cost, actual, may_repeat=False)

    async def settle_async(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._run_async(SharedSession.settle, key, charged_at, cost, actual, may_repeat=False)

    def penalize(self, key: str, until: datetime | Duration) -> None:
        self._run(SharedSession.penalize, key, self._opening(until))

    async def penalize_async(self, key: str, until: datetime | Duration) -> None:
        await self._run_async(SharedSession.penalize, key, self._opening(until))

    def snapshot(self, key: str) -> Snapshot:
        return self._run(SharedSession.snapshot, key)

    async def snapshot_async(self, key: str) -> Snapshot:
        return await self._run_async(SharedSession.snapshot, key)

    def reset(self, key: str) -> None:
        self._run(SharedSession.reset, key)

    async def reset_async(self, key: str) -> None:
        await self._run_async(SharedSession.reset, key)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._home.run_sync(self.session_kind.close)
            self._home.close()

    async def close_async(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._home.run(self.session_kind.close)
            self._home.close()

    def add_holder(self, key: str) -> None:
        """Do nothing: other programs may give something back at any time, so a line asks again now and then."""

    def remove_holder(self, key: str) -> None:
        pass

    def _run(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        self._check_open()
        result: T = self._home.run_sync(verb, *args, **options)
        return result

    async def _run_async(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        self._check_open()
        result: T = await self._home.run(verb, *args, **options)
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise GateClosed

    def _end_of(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self.clock.monotonic() + parse_wait(timeout, "timeout", "a limiter")

    def _opening(self, until: datetime | Duration) -> int:
        """Return the clock time of an instant; an invalid one is refused before any request."""
        return self.clock.monotonic() + parse_until(until, "until", "penalize", self.clock.now())


def _undo(key: str, cost: int) -> Callable[[SharedSession, Decision], None]:
    """Return what refunds a start that its caller has not received."""
    return lambda session, decision: session.undo_start(key, cost, decision)
