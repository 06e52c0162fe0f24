"""Permits shared with other programs: leases that a block renews while it runs.

The session of one event loop waits for leases, renews them, and notices that one is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

from headgate.clock import SECOND, Clock, Duration, sleep_until, wait_for_event
from headgate.errors import GateClosed, HeadgateError, LeaseLost, StorageUnavailable
from headgate.limits.bucket_store import BucketStore
from headgate.limits.limit import AnyRule
from headgate.limits.standalone.holding import HeldStart, Lease, SyncHeldStart
from headgate.limits.standalone.shared_budget import SharedBudget
from headgate.limits.standalone.shared_session import SharedSession
from headgate.shielding import OutageLock, read_error, shield_until_done

POLL = SECOND // 5
"""How often (µs) a waiter asks for a lease that another program may give back."""

RETRY_PAUSE = SECOND // 5
"""How long (µs) after a renewal that the store did not answer."""

logger = logging.getLogger("headgate.limiter")


class LeaseSession(SharedSession):
    """A shared session whose bucket grants leases; `rule` is a `Leases`.

    The waiters of one key in this process are served first come, first served; one of them asks the store. Each lease
    is renewed by a task until it is given back.

    Each lock and each lease has one owner at each instant, and only the owner gives it back: the task that waits for it
    until that task has ended, then the call of `lease`, then the block. `HomeLoop` returns the lease of a call whose
    caller has left, and a closed session renews nothing.
    """

    def __init__(self, store: BucketStore, limit: str, rule: AnyRule, clock: Clock, *, closes_store: bool) -> None:
        super().__init__(store, limit, rule, clock, closes_store=closes_store)
        self._turns: defaultdict[str, _Turn] = defaultdict(_Turn)
        self._keepers: dict[Lease, asyncio.Task[None]] = {}

    async def lease(self, key: str, cost: int, until: int | None) -> Lease | None:
        """Wait for a lease until clock time `until`; None if there was none."""
        await self._ready(cost)
        turn = self._turns[key]
        turn.waiters += 1
        try:
            async with AsyncExitStack() as locked:
                if not await self._enter(locked.enter_async_context(turn.lock), until):
                    return None
                return await self._poll(turn, key, cost, until)
        finally:
            turn.waiters -= 1
            if not turn.waiters:
                self._turns.pop(key, None)

    async def give_back(self, lease: Lease) -> None:
        """End a lease. If the store does not answer, that is logged, and it ends by itself."""
        lease.is_given_back = True
        keeper = self._keepers.pop(lease, None)
        if keeper is not None:
            keeper.cancel()
        try:
            if not self._is_closed:
                # The loop whose session has granted it may have ended.
                await self._ready()
            for start in lease.starts:
                await self._store.amend(self._bucket(lease.key), start, lease.cost, start, 0)
        except StorageUnavailable as error:
            seconds = lease.duration / SECOND
            logger.warning("%r could not be given back, and ends by itself within %g s: %s", lease.key, seconds, error)
        if lease.key in self._turns:
            self._turns[lease.key].called.set()

    def undo_lease(self, lease: Lease | None) -> None:
        """Give back, in the background, a lease whose caller has left without it."""
        if lease is not None:
            self._in_background(self.give_back(lease))

    async def close(self) -> None:
        for lease, keeper in self._keepers.items():
            keeper.cancel()
            lease.lose()
        self._keepers.clear()
        for turn in self._turns.values():
            turn.called.set()
        await super().close()

    # -------------------------------------------------------------------------------------------------- waiting

    async def _enter(self, locking: Awaitable[None], until: int | None) -> bool:
        """Wait for the lock of the waiters; False if clock time `until` came first. Raises what the lock raises."""
        entering = asyncio.ensure_future(locking)
        entering.add_done_callback(read_error)
        timer = None if until is None else self._clock.call_at(until, entering.cancel)
        try:
            await asyncio.wait([entering])
        finally:
            entering.cancel()
            if timer is not None:
                timer.cancel()
        return not entering.cancelled() and entering.result() is None

    async def _poll(self, turn: _Turn, key: str, cost: int, until: int | None) -> Lease | None:
        while True:
            await self._ready(cost)
            turn.called.clear()
            asked_at = self._clock.monotonic()
            taken = await self._take(key, cost)
            if taken.granted:
                lease = Lease(key, cost, taken.now, asked_at, self._rule.period)
                if self._is_closed:
                    self._in_background(self.give_back(lease))
                    raise GateClosed
                self._keepers[lease] = asyncio.ensure_future(self._keep(lease))
                return lease
            if until is not None and asked_at >= until:
                return None
            wakes_at = asked_at + min(POLL, max(1, taken.opens_at - taken.now))
            if until is not None:
                wakes_at = min(wakes_at, until)
            await wait_for_event(self._clock, turn.called, (wakes_at - self._clock.monotonic()) / SECOND)

    async def _refund(self, key: str, cost: int, charged_at: int) -> None:
        await self.give_back(Lease(key, cost, charged_at, self._clock.monotonic(), self._rule.period))

    # ------------------------------------------------------------------------------------------------- renewing

    async def _keep(self, lease: Lease) -> None:
        """Renew a lease until it is given back or lost."""
        try:
            while not lease.is_lost:
                await sleep_until(self._clock, min(lease.renewal_at, lease.relied_on_until))
                await self._renew(lease)
        finally:
            # Whatever ended the renewing, nothing renews it any more.
            lease.lose()
            self._keepers.pop(lease, None)

    async def _renew(self, lease: Lease) -> None:
        asked_at = self._clock.monotonic()
        if asked_at >= lease.relied_on_until:
            # This process was stopped for long, or the store has not answered.
            lease.lose()
            return
        renewing = asyncio.ensure_future(self._move(lease, lease.start_for(asked_at)))
        timer = self._clock.call_at(lease.relied_on_until, renewing.cancel)
        try:
            await asyncio.wait([renewing])
        finally:
            timer.cancel()
            renewing.cancel()
        if renewing.cancelled() or self._clock.monotonic() >= lease.relied_on_until:
            # An answer that comes later may be of a renewal that found nothing left to renew.
            lease.lose()
            return
        error = renewing.exception()
        if error is None:
            lease.renewed(asked_at, renewing.result())
        elif isinstance(error, StorageUnavailable):
            if len(lease.starts) == 2:  # the first failure since a renewal
                logger.warning("the lease of %r could not be renewed; trying again: %s", lease.key, error)
            await sleep_until(self._clock, min(self._clock.monotonic() + RETRY_PAUSE, lease.relied_on_until))
        else:
            raise error

    async def _move(self, lease: Lease, start: int) -> int | None:
        """Move the lease to this start; return the limit time of that, 0 if it is not there any more."""
        before = list(lease.starts)
        lease.starts.append(start)
        bucket, cost = self._bucket(lease.key), lease.cost
        answers = [await self._store.amend(bucket, each, cost, start, cost) for each in before]
        return None if None in answers else max(each or 0 for each in answers)


class _Turn:
    """The waiters of one key in this process."""

    def __init__(self) -> None:
        self.lock = OutageLock()
        self.called = asyncio.Event()
        self.waiters = 0


class LeaseBudget(SharedBudget):
    """A budget of leases on an async store. Only `hold` takes one: something has to renew it, and to end it."""

    hands_out_permits = True
    session_kind = LeaseSession

    @asynccontextmanager
    async def hold_async(self, key: str, cost: int, timeout: Duration | None) -> AsyncIterator[HeldStart | None]:
        """Run the block with a lease; None if there was none in time. Raises LeaseLost, and cancels the block."""
        undo = LeaseSession.undo_lease
        lease = await self._run_async(LeaseSession.lease, key, cost, self._end_of(timeout), undo=undo)
        if lease is None:
            yield None
            return
        block = _Block(lease)
        try:
            yield HeldStart(self, lease.key, lease.cost, lease.decision, lease)
        except asyncio.CancelledError:
            if block.end():
                raise _lost(lease) from None
            raise
        finally:
            block.end()
            with suppress(GateClosed):  # then it ends by itself
                await shield_until_done(self._run_async(LeaseSession.give_back, lease))
        if lease.is_lost:
            raise _lost(lease)

    @contextmanager
    def hold(self, key: str, cost: int, timeout: Duration | None) -> Iterator[SyncHeldStart | None]:
        """As `hold_async`. A thread cannot be cancelled, so LeaseLost is raised at the end of the block."""
        lease = self._run(LeaseSession.lease, key, cost, self._end_of(timeout), undo=LeaseSession.undo_lease)
        if lease is None:
            yield None
            return
        try:
            yield SyncHeldStart(self, lease.key, lease.cost, lease.decision, lease)
        finally:
            with suppress(GateClosed):
                self._run(LeaseSession.give_back, lease)
        if lease.is_lost:
            raise _lost(lease)

    def release(self, key: str, cost: int) -> None:
        raise _needs_hold()

    def _check(self, verb: Callable[..., object]) -> None:
        if verb in _NOT_OF_LEASES:
            raise _needs_hold()
        super()._check(verb)


_NOT_OF_LEASES = (SharedSession.try_acquire, SharedSession.acquire, SharedSession.reserve, SharedSession.reset)


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


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(lease.key, lease.token, lease.duration / SECOND)


def _needs_hold() -> HeadgateError:
    return HeadgateError(
        "a permit on a shared store is a lease, which has to be renewed and given back: use `hold()`; a permit of "
        'this process alone, store="memory://", has the other verbs'
    )
