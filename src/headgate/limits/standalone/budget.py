"""The budget of a limiter: what it decides and grants, and the protocol of its verbs."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Protocol

import msgspec

from headgate.clock import SECOND, Duration
from headgate.errors import HeadgateError
from headgate.limits.bucket_store import Taken
from headgate.limits.rule import NEVER, Snapshot


class BucketAnswer(Protocol):
    """The protocol of an object that computes how much a bucket has left."""

    def snapshot(self, state: Any, now: int) -> Snapshot: ...

    def full_at(self, state: Any) -> int: ...


class Decision(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Whether a start may go, and what the bucket has left. Truthy when it may.

    Only `allowed` is computed at once. The other values are computed on access, for the instant of the decision.
    """

    allowed: bool
    decided_at: int
    opens_at: int
    _rule: BucketAnswer
    _state: Any

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> float:
        """Seconds until a retry may succeed; 0 when allowed, infinite if time does not help."""
        return 0.0 if self.allowed else _seconds(self.opens_at - self.decided_at, self.opens_at)

    @property
    def remaining(self) -> int:
        """How many starts of cost 1 are left."""
        return self._rule.snapshot(self._state, self.decided_at).available

    @property
    def next_after(self) -> float:
        """Seconds until one more start may go, if nothing else is taken; infinite if time does not help.

        It is for a start of cost 1; on a shared store, for the same cost.
        """
        opens_at = self._rule.snapshot(self._state, self.decided_at).opens_at
        return _seconds(max(0, opens_at - self.decided_at), opens_at)

    @property
    def reset_after(self) -> float:
        """Seconds until the bucket has its whole budget if nothing else is taken; infinite if time does not help."""
        full_at = full_again_at(self._rule, self._state)
        return _seconds(max(0, full_at - self.decided_at), full_at)

    def __repr__(self) -> str:
        return (
            f"Decision(allowed={self.allowed}, retry_after={self.retry_after}, "
            f"remaining={self.remaining}, reset_after={self.reset_after})"
        )


def full_again_at(rule: BucketAnswer, state: Any) -> int:
    """Return the limit time from which a bucket has its whole budget, or more than a new one that starts empty."""
    return 0 if state is None else rule.full_at(state)


class FromStore:
    """The `BucketAnswer` of a store that returns what is left: the state is its answer."""

    @staticmethod
    def snapshot(state: Taken, now: int) -> Snapshot:
        return Snapshot(used=0, available=state.available, opens_at=state.opens_at)

    @staticmethod
    def full_at(state: Taken) -> int:
        return state.full_at


FROM_STORE = FromStore()


def _seconds(duration: int, instant: int) -> float:
    return math.inf if instant >= NEVER else duration / SECOND


class Budget(Protocol):
    """The verbs of a limiter, for threads and (`…_async`) for tasks. Raises GateClosed once it is closed."""

    @property
    def hands_out_permits(self) -> bool:
        """Whether what is acquired must be released; a start need not be."""
        ...

    @property
    def decides_at_once(self) -> bool:
        """Whether `try_acquire` returns without blocking, so that a task need not await it."""
        ...

    def try_acquire(self, key: str, cost: int) -> Decision: ...
    def acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision: ...
    def release(self, key: str, cost: int) -> None: ...
    def reserve(self, key: str, cost: int, id: str) -> Taken: ...
    def cancel(self, key: str, id: str) -> bool: ...
    def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None: ...
    def penalize(self, key: str, until: datetime | Duration) -> None: ...
    def snapshot(self, key: str) -> Snapshot: ...
    def reset(self, key: str) -> None: ...
    def close(self) -> None: ...

    async def try_acquire_async(self, key: str, cost: int) -> Decision: ...
    async def acquire_async(self, key: str, cost: int, timeout: Duration | None) -> Decision: ...
    async def reserve_async(self, key: str, cost: int, id: str) -> Taken: ...
    async def cancel_async(self, key: str, id: str) -> bool: ...
    async def settle_async(self, key: str, charged_at: int, cost: int, actual: int) -> None: ...
    async def penalize_async(self, key: str, until: datetime | Duration) -> None: ...
    async def snapshot_async(self, key: str) -> Snapshot: ...
    async def reset_async(self, key: str) -> None: ...
    async def close_async(self) -> None: ...

    def add_holder(self, key: str) -> None:
        """Count a holder that may give something back to this bucket."""
        ...

    def remove_holder(self, key: str) -> None:
        """Stop counting a holder."""
        ...


class _Holding:
    def __init__(self, budget: Budget, key: str, cost: int, decision: Decision) -> None:
        self._budget = budget
        self._key = key
        self.cost: int = cost
        """The cost that was charged for it so far."""
        self.decision = decision
        self._budget.add_holder(key)

    @property
    def fencing_token(self) -> int:
        """The number of a lease, higher for each later holder of its key. Raises HeadgateError for other starts."""
        raise HeadgateError(
            "only a permit on a shared store has a fencing token: Limiter(Mutex(…), store='redis://…'), or "
            "'postgresql://…'"
        )

    @property
    def is_lost(self) -> bool:
        """Whether a lease was not renewed in time, so that another holder may have it; False for other starts."""
        return False

    def _end(self) -> None:
        """Return a permit; a start stays charged."""
        self._budget.remove_holder(self._key)
        if self._budget.hands_out_permits:
            self._budget.release(self._key, self.cost)

    def _checked(self, actual: int) -> int:
        if self._budget.hands_out_permits:
            raise HeadgateError("a permit is given back whole when its block ends; only a start has a cost to settle")
        if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
            raise ValueError(f"actual={actual!r} must be a whole number, at least 0")
        return actual


class HeldStart(_Holding):
    """A start that was granted, or a permit."""

    async def settle(self, actual: int) -> None:
        """Count the start as `actual` from now on: the difference is charged or given back. May be repeated."""
        cost, self.cost = self.cost, self._checked(actual)
        await self._budget.settle_async(self._key, self.decision.decided_at, cost, actual)


class SyncHeldStart(_Holding):
    """A start that was granted, or a permit, held by a thread."""

    def settle(self, actual: int) -> None:
        """Same as `HeldStart.settle`."""
        cost, self.cost = self.cost, self._checked(actual)
        self._budget.settle(self._key, self.decision.decided_at, cost, actual)
