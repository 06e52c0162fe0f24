"""The decision of a limiter about a start."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from headgate.clock import SECOND
from headgate.limits.bucket_store import Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER, Snapshot


class Decision(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Whether a start may go, and what the bucket has left. Truthy when it may.

    Only `allowed` is computed at once. The other values are computed on access, for the instant of the decision.
    """

    allowed: bool
    decided_at: int
    opens_at: int
    _rule: AnyRule | FromStore
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


def full_again_at(rule: AnyRule | FromStore, state: Any) -> int:
    """Return the limit time from which a bucket has its whole budget, or more than a new one that starts empty."""
    return 0 if state is None else rule.full_at(state)


class FromStore:
    """In place of a rule, for a store that returns what is left: the state is its answer."""

    @staticmethod
    def snapshot(state: Taken, now: int) -> Snapshot:
        return Snapshot(used=0, available=state.available, opens_at=state.opens_at)

    @staticmethod
    def full_at(state: Taken) -> int:
        return state.full_at


FROM_STORE = FromStore()


def _seconds(duration: int, instant: int) -> float:
    return math.inf if instant >= NEVER else duration / SECOND
