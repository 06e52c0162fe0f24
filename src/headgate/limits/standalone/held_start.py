"""What a limiter granted, and how to settle it."""

from __future__ import annotations

from headgate.errors import HeadgateError
from headgate.limits.standalone.budget import Budget
from headgate.limits.standalone.decision import Decision


class _Holding:
    def __init__(self, budget: Budget, key: str, cost: int, decision: Decision) -> None:
        self._budget = budget
        self._key = key
        self.cost: int = cost
        """What was charged for it so far."""
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
            raise ValueError(f"an actual cost of {actual!r} must be a whole number of at least 0")
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
