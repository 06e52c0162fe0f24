"""A budget in this process: decisions are immediate, and waiters form a line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from headgate.arguments import parse_until, parse_wait
from headgate.clock import Duration
from headgate.errors import GateClosed, HeadgateError
from headgate.limits.bucket_store import Taken
from headgate.limits.rate import PermitRule, counted_snapshot
from headgate.limits.rule import NEVER, Snapshot
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.memory_buckets import BucketTable, check_cost
from headgate.limits.standalone.waiting_lines import ONLY_WHEN_CALLED


class LocalBudget:
    """The budget of a limiter in one table; only `acquire` waits."""

    decides_at_once = True
    """Whether `try_acquire` returns without blocking, so that a task need not await it."""

    def __init__(self, table: BucketTable) -> None:
        self.table = table
        self.hands_out_permits: bool = table.rule.holds_permits
        """Whether what is acquired must be released; a start need not be."""
        self.is_closed: bool = False
        self.try_acquire: Callable[[str, int], Decision] = table.take_nowait
        self.add_holder: Callable[[str], None] = table.add_holder
        self.remove_holder: Callable[[str], None] = table.remove_holder

    def acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        attempt = _Attempt(self, key, cost, timeout)
        if attempt.should_wait() and not self.table.lines.wait(key, attempt, attempt.until):
            return self.table.refusal(key, cost)
        return attempt.decision

    def release(self, key: str, cost: int) -> None:
        if not self.hands_out_permits:
            raise HeadgateError("a rate counts starts, so there is nothing to give back; use `hold()` and `settle()`")
        check_cost(cost)
        self.table.give_back(key, cost)

    def reserve(self, key: str, cost: int, id: str) -> Taken:
        if self.is_closed:
            raise GateClosed
        if self.hands_out_permits:
            raise HeadgateError(
                "a permit comes back when its holder is done, so its slot cannot be predicted; use `hold()`"
            )
        return self.table.reserve(key, cost, id)

    def cancel(self, key: str, id: str) -> bool:
        return self.table.cancel(key, id)

    def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        # Also when closed: the charge matters to others that use the same buckets.
        self.table.amend(key, charged_at, cost, charged_at, actual)

    def penalize(self, key: str, until: datetime | Duration) -> None:
        if self.is_closed:
            raise GateClosed
        closed_for = parse_until(until, self.table.clock.now())
        if self.table.rule.adapts:
            # Before it is closed: while a bucket is closed, a refusal of an unknown start is not counted again.
            self.table.refuse(key, None)
        self.table.penalize(key, closed_for)

    def snapshot(self, key: str) -> Snapshot:
        if self.is_closed:
            raise GateClosed
        return self.table.snapshot(key)

    def reset(self, key: str) -> None:
        if self.is_closed:
            raise GateClosed
        self.table.reset(key)

    def close(self) -> None:
        self.is_closed = True
        self.try_acquire = _closed
        with self.table.lock:
            self.table.lines.call_all()

    async def try_acquire_async(self, key: str, cost: int) -> Decision:
        return self.try_acquire(key, cost)

    async def acquire_async(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        attempt = _Attempt(self, key, cost, timeout)
        if attempt.should_wait() and not await self.table.lines.wait_async(key, attempt, attempt.until):
            return self.table.refusal(key, cost)
        return attempt.decision

    async def reserve_async(self, key: str, cost: int, id: str) -> Taken:
        return self.reserve(key, cost, id)

    async def cancel_async(self, key: str, id: str) -> bool:
        return self.cancel(key, id)

    async def settle_async(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        self.settle(key, charged_at, cost, actual)

    async def penalize_async(self, key: str, until: datetime | Duration) -> None:
        self.penalize(key, until)

    async def snapshot_async(self, key: str) -> Snapshot:
        return self.snapshot(key)

    async def reset_async(self, key: str) -> None:
        self.reset(key)

    async def close_async(self) -> None:
        self.close()


def _closed(key: str, cost: int) -> Decision:
    raise GateClosed


class _Attempt:
    """One call of `acquire`: tried at once, and if needed again from the line."""

    def __init__(self, budget: LocalBudget, key: str, cost: int, timeout: Duration | None) -> None:
        self._budget = budget
        self._table = budget.table
        self._key = key
        self._cost = cost
        wait = None if timeout is None else parse_wait(timeout, "timeout", "a limiter")
        self.until = None if wait is None else self._table.clock.monotonic() + wait
        self.decision = budget.try_acquire(key, cost)

    def should_wait(self) -> bool:
        """Return whether to wait: not if allowed, nor if the slot is too late and nothing can be given back."""
        if self.decision.allowed or self.until is None:
            return not self.decision.allowed
        table = self._table
        if self.decision.opens_at - table.ahead <= self.until:
            return True
        if table.is_closed_until(self._key, self.until + table.ahead):
            return False
        return self._budget.hands_out_permits or not table.opens_only_by_time(self._key)

    def is_closed(self) -> bool:
        return self._budget.is_closed

    def try_now(self) -> float | None:
        self.decision = self._table.take_first(self._key, self._cost, self.decision.decided_at)
        if self.decision.allowed:
            return None
        opens_at = self.decision.opens_at
        return ONLY_WHEN_CALLED if opens_at >= NEVER else opens_at - self._table.ahead


class LocalPermits(PermitRule[int], frozen=True):
    """Grants a permit while fewer than `count` are held. The state is the number held; time returns none."""

    kind: ClassVar[str] = "permits"
    holds_permits: ClassVar[bool] = True

    def take(self, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        if cost > self.count:
            self.check_cost(cost)
        held = (state or 0) + cost
        return now if held <= self.count else NEVER, held

    def snapshot(self, state: int | None, now: int) -> Snapshot:
        return counted_snapshot(self, state, now, state or 0)

    def idle_at(self, state: int) -> int:
        return NEVER if state else 0

    def dump(self, state: int) -> str:
        return f"1:{self.kind}:{state}"

    def load(self, stored: str, now: int) -> int:
        # Under another kind of rule there were no permits.
        head = f"1:{self.kind}:"
        return int(stored[len(head) :]) if stored.startswith(head) else 0
