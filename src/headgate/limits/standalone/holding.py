"""What the caller of `hold` has: a start, or a permit, which on a shared store is a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.errors import HeadgateError
from headgate.limits.bucket_store import Taken
from headgate.limits.standalone.decision import FROM_STORE, Decision
from headgate.limits.standalone.local_budget import LocalBudget
from headgate.limits.standalone.shared_budget import SharedBudget

RENEWALS = 3
"""How often a lease is renewed before it would end."""

DRIFT = 50
"""A holder relies on its lease for 1/50 less: the clocks of machines do not run at exactly the same speed."""

Budget = LocalBudget | SharedBudget
"""The verbs of a limiter, for threads and (`…_async`) for tasks. They raise GateClosed once it is closed."""


class Lease:
    """A lease that was granted at limit time `token`, to a request of clock time `asked_at` (monotonic µs).

    The store granted or renewed it after it was asked, so its holder, who relies on it for `duration` from then on,
    never relies on it for longer than the store does. That is checked on the clock of the holder, and with each renewal
    on that of the store, which may have gone further: the machine was paused, or the server's clock was set.
    """

    def __init__(self, key: str, cost: int, token: int, asked_at: int, duration: int) -> None:
        self.key: str = key
        self.cost: int = cost
        self.token: int = token
        self.asked_at: int = asked_at
        self.duration: int = duration
        self.starts: list[int] = [token]
        """The instants at which the store may count its start; several if the reply to a renewal was lost."""
        self.is_lost: bool = False
        self.is_given_back: bool = False
        self.on_lost: Callable[[], object] | None = None
        """Is called once when it is lost, on the event loop of the session."""
        # How far the store's limit time is ahead of the holder's clock, at most.
        self._ahead = token - asked_at

    @property
    def decision(self) -> Decision:
        """The decision that granted it."""
        ends_at = self.token + self.duration
        return Decision(True, self.token, self.token, FROM_STORE, Taken(1, ends_at, self.token, 0, ends_at))

    @property
    def relied_on_until(self) -> int:
        """The clock time until which the holder may rely on it."""
        return self.asked_at + self.duration - self.duration // DRIFT

    @property
    def renewal_at(self) -> int:
        """The clock time of the next renewal."""
        return self.asked_at + self.duration // RENEWALS

    def start_for(self, asked_at: int) -> int:
        """Return the start that a renewal of that clock time moves it to; it is not before that time on the store."""
        return asked_at + self._ahead

    def renewed(self, asked_at: int, now: int | None) -> None:
        """Note that a renewal was answered in time, at limit time `now` (None: the store does not say).

        0: there was nothing to renew, as the lease had ended and another holder has got it.
        """
        if now == 0:
            self.lose()
            return
        start = self.starts[-1]
        now = start if now is None else now
        self.starts = [start]
        # The store counts from `start`: where that is late already, it ends so much sooner.
        self.asked_at, self._ahead = asked_at - max(0, now - start), now - asked_at

    def lose(self) -> None:
        """Note that it may have been granted to another holder."""
        if not self.is_lost and not self.is_given_back:
            self.is_lost = True
            if self.on_lost is not None:
                self.on_lost()


class Holding:
    """What the caller of `hold` has."""

    def __init__(self, budget: Budget, key: str, cost: int, decision: Decision, lease: Lease | None = None) -> None:
        self._budget = budget
        self._key = key
        self._lease = lease
        self.cost: int = cost
        """The cost that was charged for it so far."""
        self.decision = decision
        self._budget.add_holder(key)

    @property
    def fencing_token(self) -> int:
        """The number of a lease, higher for each later holder of its key. Raises HeadgateError for other starts."""
        if self._lease is None:
            raise HeadgateError(
                "only a permit on a shared store has a fencing token: Limiter(Mutex(…), store='redis://…'), or "
                "'postgresql://…'"
            )
        return self._lease.token

    @property
    def is_lost(self) -> bool:
        """Whether a lease was not renewed in time, so that another holder may have it; False for other starts."""
        return self._lease is not None and self._lease.is_lost

    def _end(self) -> None:
        """Return a permit; a start stays charged."""
        self._budget.remove_holder(self._key)
        if self._budget.hands_out_permits:
            self._budget.release(self._key, self.cost)

    @contextmanager
    def _changing_cost(self, actual: int) -> Iterator[int]:
        """Set the cost, and yield the one before."""
        if self._budget.hands_out_permits:
            raise HeadgateError("a permit is given back whole when its block ends; only a start has a cost to settle")
        if isinstance(actual, bool) or not isinstance(actual, int) or actual < 0:
            raise ValueError(f"actual={actual!r} must be a whole number, at least 0")
        before, self.cost = self.cost, actual
        try:
            yield before
        except BaseException:
            # Whether it was charged is not known. A repeat charges it, so that it never counts as less.
            self.cost -= max(0, actual - before)
            raise


class HeldStart(Holding):
    """A start that was granted, or a permit."""

    async def settle(self, actual: int) -> None:
        """Count the start as `actual` from now on: the difference is charged or given back. May be repeated."""
        with self._changing_cost(actual) as before:
            await self._budget.settle_async(self._key, self.decision.decided_at, before, actual)


class SyncHeldStart(Holding):
    """A start that was granted, or a permit, held by a thread."""

    def settle(self, actual: int) -> None:
        """Same as `HeldStart.settle`."""
        with self._changing_cost(actual) as before:
            self._budget.settle(self._key, self.decision.decided_at, before, actual)
