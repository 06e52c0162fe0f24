"""A lease that a block of code holds."""

from __future__ import annotations

from headgate.limits.bucket_store import Taken
from headgate.limits.standalone.budget import Budget
from headgate.limits.standalone.decision import FROM_STORE, Decision
from headgate.limits.standalone.held_start import HeldStart, SyncHeldStart
from headgate.limits.standalone.lease_session import Lease


class HeldLease(HeldStart):
    """A permit on a shared store: a lease, renewed until the block ends."""

    def __init__(self, budget: Budget, lease: Lease) -> None:
        super().__init__(budget, lease.key, lease.cost, _decision(lease))
        self._lease = lease

    @property
    def fencing_token(self) -> int:
        return self._lease.token

    @property
    def is_lost(self) -> bool:
        return self._lease.is_lost


class SyncHeldLease(SyncHeldStart):
    """A permit on a shared store, held by a thread."""

    def __init__(self, budget: Budget, lease: Lease) -> None:
        super().__init__(budget, lease.key, lease.cost, _decision(lease))
        self._lease = lease

    @property
    def fencing_token(self) -> int:
        return self._lease.token

    @property
    def is_lost(self) -> bool:
        return self._lease.is_lost


def _decision(lease: Lease) -> Decision:
    ends_at = lease.token + lease.duration
    return Decision(True, lease.token, lease.token, FROM_STORE, Taken(1, ends_at, lease.token, 0, ends_at))
