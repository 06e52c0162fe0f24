"""The part of a shared budget that belongs to one event loop: the connection to the store, and a line per key."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import islice, takewhile
from typing import Any

from msgspec.structs import replace

from headgate.clock import FARTHEST, SECOND, Clock, wait_for_event
from headgate.errors import CostExceedsLimit, GateClosed, StorageUnavailable, own_error
from headgate.limits.bucket_store import Bucket, BucketStore, NotesRefusals, Taken, TakenOrBooked, take_turn
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.decision import FROM_STORE, Decision
from headgate.limits.standalone.memory_buckets import check_cost
from headgate.shielding import OutageLock

logger = logging.getLogger("headgate.limiter")


class SharedSession:
    """Buckets on an async store, on one event loop. With `closes_store` the store is closed with the session."""

    def __init__(self, store: BucketStore, limit: str, rule: AnyRule, clock: Clock, *, closes_store: bool) -> None:
        self._store = store
        self._limit = limit
        self._rule = rule
        self._clock = clock
        self._closes_store = closes_store
        self._opening = OutageLock()
        self.is_open: bool = False
        self._is_closed = False
        self._lines: dict[str, SharedLine] = {}
        self._refunds: set[asyncio.Task[None]] = set()

    async def try_acquire(self, key: str, cost: int) -> Decision:
        await self._ready(cost)
        if (line := self._lines.get(key)) is not None:
            # Others wait; a new caller would wait at least as long as the store's last refusal says.
            return _decision(line.refusal, allowed=False)
        taken = await self._take(key, cost)
        return _decision(taken, allowed=taken.granted > 0)

    async def acquire(self, key: str, cost: int, until: int | None) -> Decision:
        """Wait for a start until clock time `until` (monotonic µs), or without an end."""
        await self._ready(cost)
        if until is not None and until <= self._clock.monotonic():
            return await self.try_acquire(key, cost)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = SharedLine(
                self._clock,
                ask=partial(take_turn, self._store, self._bucket(key)),
                refund=lambda taken, cost: self._in_background(self._refund(key, cost, taken.now)),
                ended=lambda: self._lines.pop(key),
            )
        taken, granted = await line.wait(cost, until)
        return _decision(taken, allowed=granted)

    def undo_start(self, key: str, cost: int, decision: Decision) -> None:
        """Refund, in the background, a start whose caller has left without it."""
        if decision.allowed:
            self._in_background(self._refund(key, cost, decision.decided_at))

    async def reserve(self, key: str, cost: int, id: str) -> Taken:
        await self._ready(cost)
        return await self._store.reserve(self._bucket(key), cost, id=id)

    async def cancel(self, key: str, id: str) -> bool:
        await self._ready()
        cancelled = await self._store.cancel(self._bucket(key), id=id)
        self._notify(key)
        return cancelled

    async def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._ready()
        await self._amend(key, charged_at, cost, actual)

    async def _take(self, key: str, cost: int) -> Taken:
        """Request one start. If it is granted to a caller that is being cancelled, it is refunded."""
        taking = asyncio.ensure_future(self._store.take(self._bucket(key), cost))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._in_background(self._refund_late(key, cost, taking))
            raise

    async def _refund_late(self, key: str, cost: int, taking: asyncio.Future[Taken]) -> None:
        await asyncio.wait([taking])
        if not taking.cancelled() and taking.exception() is None and taking.result().granted:
            await self._refund(key, cost, taking.result().now)

    async def _refund(self, key: str, cost: int, charged_at: int) -> None:
        try:
            await self._amend(key, charged_at, cost, 0)
        except StorageUnavailable as error:
            logger.warning("a start of %r that was not used stays charged: %s", key, error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` after its caller has left. `close` waits for it."""
        task = asyncio.ensure_future(work)
        self._refunds.add(task)
        task.add_done_callback(self._refunds.discard)

    async def _amend(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._store.amend(self._bucket(key), charged_at, cost, charged_at, actual)
        self._notify(key)

    async def penalize(self, key: str, opens_at: int) -> None:
        """Close the bucket until clock time `opens_at` (monotonic µs); the time to connect counts."""
        await self._ready()
        if isinstance(self._store, NotesRefusals) and self._rule.adapts:
            # Before it is closed: while a bucket is closed, a refusal of an unknown start is not counted again.
            await self._store.refuse(self._bucket(key))
        await self._store.penalize(self._bucket(key), max(0, opens_at - self._clock.monotonic()))

    async def snapshot(self, key: str) -> Snapshot:
        await self._ready()
        return await self._store.snapshot(self._bucket(key))

    async def reset(self, key: str) -> None:
        await self._ready()
        await self._store.reset(self._bucket(key))
        self._notify(key)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for line in list(self._lines.values()):
            line.fail(GateClosed())
            line.give_booked()
        while self._refunds:
            await asyncio.wait(self._refunds)
        if self._closes_store:
            await self._store.close()

    async def _ready(self, cost: int = 1) -> None:
        check_cost(cost)
        self._rule.check_cost(cost)
        if not self.is_open:
            async with self._opening:
                if not self.is_open:
                    await self._store.open()
                    self.is_open = True
        if self._is_closed:
            raise GateClosed

    def _bucket(self, key: str) -> Bucket:
        return Bucket(self._limit, key, self._rule)

    def _notify(self, key: str) -> None:
        if (line := self._lines.get(key)) is not None:
            line.call()


def _decision(taken: Taken, *, allowed: bool) -> Decision:
    return Decision(allowed, taken.now, taken.now if allowed else taken.opens_at, FROM_STORE, taken)


MAX_PER_REQUEST = 1000
"""The maximum of waiters per request."""

LONGEST_SLEEP = 10 * SECOND
"""The longest (µs) that a line sleeps: another program may have given something back."""

SLEEP_AFTER_CONTRADICTION = SECOND
"""How long (µs) a line sleeps when the store granted nothing although it reports the bucket open."""

NOT_ANSWERED = Taken(granted=0, opens_at=1, now=0, available=0, full_at=1)


class SharedLine:
    """First come, first served: one task sends the requests to the store for all waiters.

    It requests as many starts as there are waiters of the first one's cost, sleeps until the bucket opens and requests
    again, so the cost of a start does not depend on the number of waiters. Starts that the store has booked go at their
    time. It ends when nothing waits.
    """

    def __init__(
        self,
        clock: Clock,
        ask: Callable[..., Awaitable[TakenOrBooked]],
        refund: Callable[[Taken, int], None],
        ended: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._ask = ask
        self._refund = refund
        self._ended = ended
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._called = asyncio.Event()
        self._task: asyncio.Future[None] | None = None
        self._booked: tuple[Taken, int] | None = None
        self.refusal = NOT_ANSWERED
        """The store's latest answer that granted less than requested."""

    async def wait(self, cost: int, until: int | None) -> tuple[Taken, bool]:
        """Wait for one start; return the store's answer, and whether it was granted.

        Refused when clock time `until` has come, or as soon as the slot is known to be later.
        """
        waiter = _Waiter(cost, until)
        self._waiters[waiter] = None
        # Begun with a waiter: a loop may run a task before it returns it, and one without waiters ends.
        self._task = self._task or asyncio.ensure_future(self._serve())
        timer = None if until is None else self._clock.call_at(until, lambda: waiter.settle(self.refusal))
        try:
            return await waiter.answer, waiter.granted is not None
        except asyncio.CancelledError:
            if waiter.granted is not None:
                self._refund(waiter.granted, cost)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(waiter)

    def call(self) -> None:
        """Request again: something may have been given back."""
        self._called.set()

    def fail(self, error: Exception, cost: int | None = None) -> None:
        """Raise the error in all waiters, or in those of that cost."""
        for waiter in self._waiters:
            if cost in (None, waiter.cost) and not waiter.answer.done():
                waiter.answer.set_exception(own_error(error))
        self.call()

    async def _serve(self) -> None:
        try:
            while (first := self._first()) is not None:
                self._called.clear()
                count = self._count_same_cost(first.cost)
                asked_at = self._clock.monotonic()
                patience = FARTHEST if first.until is None else first.until - asked_at
                try:
                    taken, booked = await self._ask(first.cost, count=count, patience=patience)
                except CostExceedsLimit as error:
                    # The rule in force grants less than the one that was declared. Others may need less.
                    self.fail(error, first.cost)
                    continue
                self._grant(taken, first.cost)
                if booked:
                    self._booked = replace(taken, granted=booked, now=taken.opens_at), first.cost
                    # From the time of the answer: no start may be early.
                    await self._sleep_until_booked(taken, self._clock.monotonic() + taken.opens_at - taken.now)
                elif taken.granted < count:
                    # From the time of the request: the next one should arrive as the bucket opens. If it arrives too
                    # early, the answer says by how much.
                    opens_in = taken.opens_at - taken.now
                    if not taken.granted and opens_in <= 0:
                        opens_in = SLEEP_AFTER_CONTRADICTION
                    await self._sleep(taken, first.cost, asked_at + opens_in)
        except Exception as error:
            self.fail(error)
        except BaseException as error:
            # The store cancelled itself, or the event loop ends: the waiters must be woken.
            self.fail(StorageUnavailable(f"the question was ended by {type(error).__name__}"))
            if not isinstance(error, SystemExit | KeyboardInterrupt):
                raise
        finally:
            self.give_booked()
            self._ended()

    def give_booked(self) -> None:
        """Grant booked starts to the waiters, and give back those that nobody waits for."""
        booked, self._booked = self._booked, None
        if booked is not None:
            self._grant(*booked)

    async def _sleep_until_booked(self, taken: Taken, starts_at: int) -> None:
        self.refusal = taken
        while self._booked is not None and self._first() is not None:
            duration = starts_at - self._clock.monotonic()
            if duration <= 0:
                break
            self._called.clear()
            await wait_for_event(self._clock, self._called, min(duration, LONGEST_SLEEP) / SECOND)
        self.give_booked()

    def _count_same_cost(self, cost: int) -> int:
        """Return how many waiters in front have the same cost."""
        first = islice(self._waiters, MAX_PER_REQUEST)
        return sum(1 for _ in takewhile(lambda waiter: waiter.cost == cost, first))

    def _grant(self, taken: Taken, cost: int) -> None:
        for _ in range(taken.granted):
            first = self._first()
            if first is None or first.cost != cost:
                # Its waiter has left meanwhile.
                self._refund(taken, cost)
            else:
                first.granted = taken
                first.settle(taken)
                del self._waiters[first]

    async def _sleep(self, taken: Taken, cost: int, opens_at: int) -> None:
        self.refusal = taken
        while (first := self._first()) is not None and first.cost == cost:
            if first.until is None or first.until >= opens_at:
                duration = min(opens_at - self._clock.monotonic(), LONGEST_SLEEP)
                if duration > 0:
                    await wait_for_event(self._clock, self._called, duration / SECOND)
                return
            first.settle(taken)

    def _first(self) -> _Waiter | None:
        """Return the first waiter that still waits."""
        while self._waiters:
            first = next(iter(self._waiters))
            if not first.answer.done():
                return first
            del self._waiters[first]
        return None

    def _remove(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            if next(iter(self._waiters)) is waiter:
                # The next waiter may need less.
                self.call()
            del self._waiters[waiter]


class _Waiter:
    def __init__(self, cost: int, until: int | None) -> None:
        self.cost = cost
        self.until = until
        self.granted: Taken | None = None
        self.answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Taken) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)
