"""Permits shared with other programs: leases that a block renews while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn

from headgate.clock import SECOND, Clock, Duration
from headgate.errors import GateClosed, HeadgateError, LeaseLost
from headgate.limits.bucket_store import BucketStore, Taken
from headgate.limits.leases import Leases
from headgate.limits.standalone.budget import FROM_STORE, Budget, Decision, HeldStart, SyncHeldStart
from headgate.limits.standalone.lease_session import Lease, LeaseSession
from headgate.limits.standalone.shared_budget import SharedBudget
from headgate.shielding import shield_until_done


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


class LeaseBudget(SharedBudget):
    """A Budget of leases on an async store. Only `hold` takes one: something has to renew it, and to end it."""

    hands_out_permits = True
    session_kind = LeaseSession

    def __init__(
        self, open_store: Callable[[], BucketStore], limit: str, rule: Leases, clock: Clock, *, is_new: bool
    ) -> None:
        super().__init__(open_store, limit, rule, clock, is_new=is_new)
        self._duration = rule.period

    @asynccontextmanager
    async def hold_async(self, key: str, cost: int, timeout: Duration | None) -> AsyncIterator[HeldLease | None]:
        """Run the block with a lease; None if there was none in time. Raises LeaseLost, and cancels the block."""
        undo = LeaseSession.undo_lease
        lease = await self._run_async(LeaseSession.lease, key, cost, self._end_of(timeout), undo=undo)
        if lease is None:
            yield None
            return
        block = _Block(lease)
        try:
            yield HeldLease(self, lease)
        except asyncio.CancelledError:
            if block.end():
                raise self._lost(lease) from None
            raise
        finally:
            block.end()
            with suppress(GateClosed):  # then it ends by itself
                await shield_until_done(self._run_async(LeaseSession.give_back, lease))
        if lease.is_lost:
            raise self._lost(lease)

    @contextmanager
    def hold(self, key: str, cost: int, timeout: Duration | None) -> Iterator[SyncHeldLease | None]:
        """As `hold_async`. A thread cannot be cancelled, so LeaseLost is raised at the end of the block."""
        lease = self._run(LeaseSession.lease, key, cost, self._end_of(timeout), undo=LeaseSession.undo_lease)
        if lease is None:
            yield None
            return
        try:
            yield SyncHeldLease(self, lease)
        finally:
            with suppress(GateClosed):
                self._run(LeaseSession.give_back, lease)
        if lease.is_lost:
            raise self._lost(lease)

    def _lost(self, lease: Lease) -> LeaseLost:
        return LeaseLost(lease.key, lease.token, self._duration / SECOND)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise HeadgateError(
            "a permit on a shared store is a lease, which has to be renewed and given back: use `hold()`; a permit of "
            'this process alone, store="memory://", has the other verbs'
        )

    async def _refuse_async(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse()

    try_acquire = acquire = release = reserve = penalize = reset = _refuse
    try_acquire_async = acquire_async = reserve_async = penalize_async = reset_async = _refuse_async


class _Block:
    """The block of a task under a lease: it is cancelled when the lease is lost."""

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        self._has_ended = False
        self._is_cancelled = False
        loop = asyncio.get_running_loop()
        lease.on_lost = lambda: loop.call_soon_threadsafe(self._cancel)
        if lease.is_lost:
            self._cancel()

    def end(self) -> bool:
        """Cancel the block no more; return whether it was cancelled for its lease, and for nothing else."""
        self._has_ended = True
        if not self._is_cancelled:
            return False
        self._is_cancelled = False
        return self._task.uncancel() <= self._cancels

    def _cancel(self) -> None:
        if not self._has_ended and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()
