"""Limiter: a limit for plain code, without an app."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, cast

from headgate.arguments import parse_duration, parse_wait
from headgate.clock import SECOND, Clock, Duration, SystemClock
from headgate.errors import DeclarationError, needing
from headgate.keywords import names_keywords
from headgate.limits.bucket_store import BucketStore, check_rule
from headgate.limits.limit import Limit
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.holding import Budget, HeldStart, SyncHeldStart
from headgate.limits.standalone.local_budget import LocalBudget, LocalPermits
from headgate.limits.standalone.memory_buckets import MemoryBuckets
from headgate.limits.standalone.refusal_log import RefusalLog
from headgate.limits.standalone.shared_budget import SharedBudget
from headgate.urls import displayed_url

if TYPE_CHECKING:
    from headgate.limits.standalone.lease_budget import LeaseBudget


class _ReservedStart:
    def __init__(self, budget: Budget, key: str, id: str, delay: float) -> None:
        self._budget = budget
        self._key = key
        self.id = id
        """The id of the booking; booking again with it returns the same slot."""
        self.delay = delay
        """Seconds from the booking to the slot."""


class Reservation(_ReservedStart):
    """A booked slot: wait for `delay` seconds and start, without asking again."""

    async def cancel(self) -> bool:
        """Give the slot back and return True, if it is still ahead and nothing of the key was booked after it."""
        return await self._budget.cancel_async(self._key, self.id)


class SyncReservation(_ReservedStart):
    """A slot booked by a thread; see `Reservation`."""

    def cancel(self) -> bool:
        """Same as `Reservation.cancel`."""
        return self._budget.cancel(self._key, self.id)


DEFAULT_LEASE = 30 * SECOND
SHORTEST_LEASE = SECOND


@names_keywords
class Limiter:
    """A limit for plain code, without jobs: `Limiter(RateLimit("15/m"))`.

    Each key has its own budget. The caller passes the key, so the limit's own `key`, `cost` and the options for jobs do
    not apply. `store` is where the buckets live: `"memory://"` for this process alone, `"redis://…"` or
    `"postgresql://…"` to share them with programs that declare the same limit under the same name, or a BucketStore;
    default: the limit's own store, else `"memory://"`.
    Waiters for a key are served in the order of arrival, also across event loops and threads; `.sync` has the same
    verbs for threads. Refusals are logged by `headgate.limiter`, one line every 30 s at most.

    A `Concurrency` grants permits: `hold()` returns them by itself; return those of `acquire()` with `release()`. On a
    shared store a permit is a lease of `lease` seconds (default 30), which only `hold()` takes, and renews until the
    block ends. Raises DeclarationError for a limit that cannot work.
    """

    def __init__(
        self,
        limit: Limit,
        store: str | BucketStore | None = None,
        *,
        lease: Duration | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._budget = _budget(limit, store, lease, clock)
        self.limit: Limit = limit
        """The limit that it was made with."""
        self._refusals = RefusalLog(f"limiter {limit.name or limit.rule.describe()}")
        self.sync: SyncLimiter = SyncLimiter(self._budget, self._refusals)

    @property
    def has_leases(self) -> bool:
        """Whether it grants permits on a shared store, which are leases; only `hold` takes them."""
        return _leases(self._budget) is not None

    def note_bypass(self, key: str) -> None:
        """Note a call that went on without the limit because its store failed: a limiter of an app publishes it."""

    async def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        """Return whether one start may go now; if so it is charged. Never waits; refused while other callers wait."""
        budget = self._budget
        decision = (
            budget.try_acquire(key, cost) if budget.decides_at_once else await budget.try_acquire_async(key, cost)
        )
        if not decision.allowed:
            # The same as `note`, without a call: there may be a million refusals a second.
            log = self._refusals
            log.count += 1
            if decision.decided_at >= log.next_at:
                log.write(key, decision.decided_at)
        return decision

    async def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        """Wait until one start may go; it is charged when it goes.

        With a `timeout` (seconds) the answer may be no: when the time is up, or at once if the slot is known to come
        later. Nothing is charged then, nor when the waiting task is cancelled. Raises CostExceedsLimit if `cost` can
        never be granted.
        """
        decision = await self._budget.acquire_async(key, cost, timeout)
        if not decision.allowed:
            self._refusals.note(key, decision.decided_at)
        return decision

    def release(self, key: str = "", cost: int = 1) -> None:
        """Return permits of a `Concurrency` that `acquire` took. Raises ValueError below 1 and above those held."""
        self._budget.release(key, cost)

    async def reserve(self, key: str = "", cost: int = 1, id: str | None = None) -> Reservation:
        """Book the next slot, now or later. The same `id` returns the same slot, until a period after it."""
        id = id or os.urandom(16).hex()
        taken = await self._budget.reserve_async(key, cost, id)
        return Reservation(self._budget, key, id, max(0, taken.opens_at - taken.now) / SECOND)

    @asynccontextmanager
    async def hold(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> AsyncIterator[HeldStart]:
        """Wait for a start, or a permit, and run the block with it; a permit is returned however the block ends.

        Raises TimeoutError if a `timeout` (seconds) was given and cannot be met. If a lease is lost, the block is
        cancelled, and LeaseLost is raised.
        """
        if (leases := _leases(self._budget)) is not None:
            async with leases.hold_async(key, cost, timeout) as lease:
                if lease is None:
                    self._refusals.note(key, leases.clock.monotonic())
                    raise _too_late(key, timeout)
                yield lease
            return
        decision = await self.acquire(key, cost, timeout)
        if not decision:
            raise _too_late(key, timeout)
        held = HeldStart(self._budget, key, cost, decision)
        try:
            yield held
        finally:
            held._end()

    async def penalize(self, key: str, until: datetime | Duration) -> None:
        """Let nothing start on a key until then: an aware datetime, or seconds from now. `reset` ends it.

        For the refusals of a server. It applies to all that use the same bucket, in other programs and in jobs,
        too. A bucket that is closed for longer stays so, and slots that were booked before are kept.
        """
        await self._budget.penalize_async(key, until)

    async def snapshot(self, key: str = "") -> Snapshot:
        """Return the state of the key's bucket for display."""
        return await self._budget.snapshot_async(key)

    async def reset(self, key: str = "") -> None:
        """Give the key its whole budget again."""
        await self._budget.reset_async(key)

    async def close(self) -> None:
        """Raise GateClosed in all waiting callers, and in later calls. A second call does nothing."""
        await self._budget.close_async()

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncLimiter:
    """The verbs of a `Limiter` for threads; they block instead of being awaited."""

    def __init__(self, budget: Budget, refusals: RefusalLog) -> None:
        self._budget = budget
        self._refusals = refusals

    def try_acquire(self, key: str = "", cost: int = 1) -> Decision:
        """Same as `Limiter.try_acquire`."""
        decision = self._budget.try_acquire(key, cost)
        if not decision.allowed:
            # The same as `note`, without a call: there may be a million refusals a second.
            log = self._refusals
            log.count += 1
            if decision.decided_at >= log.next_at:
                log.write(key, decision.decided_at)
        return decision

    def acquire(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Decision:
        """Same as `Limiter.acquire`."""
        decision = self._budget.acquire(key, cost, timeout)
        if not decision.allowed:
            self._refusals.note(key, decision.decided_at)
        return decision

    def release(self, key: str = "", cost: int = 1) -> None:
        """Same as `Limiter.release`."""
        self._budget.release(key, cost)

    def reserve(self, key: str = "", cost: int = 1, id: str | None = None) -> SyncReservation:
        """Same as `Limiter.reserve`."""
        id = id or os.urandom(16).hex()
        taken = self._budget.reserve(key, cost, id)
        return SyncReservation(self._budget, key, id, max(0, taken.opens_at - taken.now) / SECOND)

    @contextmanager
    def hold(self, key: str = "", cost: int = 1, timeout: Duration | None = None) -> Iterator[SyncHeldStart]:
        """Same as `Limiter.hold`."""
        if (leases := _leases(self._budget)) is not None:
            with leases.hold(key, cost, timeout) as lease:
                if lease is None:
                    self._refusals.note(key, leases.clock.monotonic())
                    raise _too_late(key, timeout)
                yield lease
            return
        decision = self.acquire(key, cost, timeout)
        if not decision:
            raise _too_late(key, timeout)
        held = SyncHeldStart(self._budget, key, cost, decision)
        try:
            yield held
        finally:
            held._end()

    def penalize(self, key: str, until: datetime | Duration) -> None:
        """Same as `Limiter.penalize`."""
        self._budget.penalize(key, until)

    def snapshot(self, key: str = "") -> Snapshot:
        """Same as `Limiter.snapshot`."""
        return self._budget.snapshot(key)

    def reset(self, key: str = "") -> None:
        """Same as `Limiter.reset`."""
        self._budget.reset(key)

    def close(self) -> None:
        """Same as `Limiter.close`."""
        self._budget.close()


def _budget(limit: Limit, store: str | BucketStore | None, lease: Duration | None, clock: Clock | None) -> Budget:
    if not isinstance(limit, Limit):
        raise DeclarationError(f"{limit!r} is not a limit; write Limiter(RateLimit('15/m'))")
    if store is None:
        store = "memory://" if limit.store is None else cast("str | BucketStore", limit.store)
    # Without a name, the numbers are the name: programs that share a store and declare the same limit share its budget.
    name = limit.name or f"{limit.rule.kind} {limit.rule.describe()}"
    if limit.may_repeat and isinstance(limit.key, str):
        # Mutexes have one name, and are known by their resources.
        name = f"{name}:{limit.key}"
    url = store if isinstance(store, str) else None
    opened = open_store(store, clock) if isinstance(store, str) else store
    again = (lambda: opened) if url is None else (lambda: open_store(url, clock))
    if limit.rule.holds_permits and not isinstance(opened, MemoryBuckets):
        return _lease_budget(name, limit.rule.bound(1), opened, again, lease, clock, is_new=url is not None)
    if lease is not None:
        raise DeclarationError(f"lease={lease!r} is of permits on a shared store: Limiter(Mutex(…), store='redis://…')")
    if isinstance(opened, MemoryBuckets):
        if limit.rule.holds_permits:
            # Apart from a rate of that name, as leases are.
            return LocalBudget(opened.table(f"permits:{name}", LocalPermits(limit.rule.bound(1))))
        return LocalBudget(opened.table(name, limit.rule))
    check_rule(opened, limit.rule, name)
    return SharedBudget(again, name, limit.rule, clock or SystemClock(), is_new=url is not None)


def _lease_budget(
    name: str,
    count: int,
    opened: BucketStore,
    open_again: Callable[[], BucketStore],
    lease: Duration | None,
    clock: Clock | None,
    *,
    is_new: bool,
) -> LeaseBudget:
    # Few limiters have leases; the others need not load what they do not use.
    from headgate.limits.leases import Leases
    from headgate.limits.standalone.lease_budget import LeaseBudget

    duration = DEFAULT_LEASE if lease is None else parse_duration(lease, "lease", "a limiter", allow_zero=False)
    if duration < SHORTEST_LEASE:
        raise DeclarationError(f"lease={lease!r} of a limiter must be at least {SHORTEST_LEASE / SECOND:g} s")
    # Apart from the permits of jobs, which are no leases.
    name, rule = f"lease:{name}", Leases(count, duration)
    check_rule(opened, rule, name)
    return LeaseBudget(open_again, name, rule, clock or SystemClock(), is_new=is_new)


def _leases(budget: Budget) -> LeaseBudget | None:
    """Return the budget if its permits are leases."""
    return cast("LeaseBudget", budget) if budget.hands_out_permits and not budget.decides_at_once else None


def open_store(url: str, clock: Clock | None) -> BucketStore:
    """Return the store of a URL; it connects on first use."""
    # An unused store does not need its package. A server has its own time, and connection timeouts run in real time,
    # whatever clock the caller has.
    match url.partition("://")[0]:
        case "memory":
            return MemoryBuckets(clock)
        case "redis" | "rediss" | "unix":
            from headgate.limits.redis.redis_buckets import RedisBuckets

            return RedisBuckets.from_url(url)
        case "postgresql" | "postgres":
            # By its name: it uses the tables of jobs, in a layer above limits.
            with needing("store='postgresql://…' needs", "asyncpg", install="'headgate[postgres]'"):
                module = import_module("headgate.storage.postgres.shared_buckets")
            return cast(BucketStore, module.PostgresBuckets.from_url(url))
    raise DeclarationError(
        f'store="{displayed_url(url)}" or HEADGATE_LIMITS_URL is not known; use memory://, redis://… or postgresql://…'
    )


def _too_late(key: str, timeout: Duration | None) -> TimeoutError:
    assert timeout is not None
    waited = parse_wait(timeout, "timeout", "a limiter") / SECOND
    return TimeoutError(f"nothing was free for {key!r} within {waited:g} s")
