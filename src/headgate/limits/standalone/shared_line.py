"""The waiters of one process for a bucket that is shared with other programs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import StorageUnavailable, own_error
from headgate.limits.bucket_store import Taken

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
    again, so the cost of a start does not depend on the number of waiters. It ends when nothing waits.
    """

    def __init__(
        self,
        clock: Clock,
        ask: Callable[[int, int], Awaitable[Taken]],
        refund: Callable[[Taken, int], None],
        ended: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._ask = ask
        self._refund = refund
        self._ended = ended
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._called = asyncio.Event()
        self._task = asyncio.ensure_future(self._serve())
        self.refusal = NOT_ANSWERED
        """The store's latest answer that granted less than requested."""

    async def wait(self, cost: int, until: int | None) -> tuple[Taken, bool]:
        """Wait for one start; return the store's answer, and whether it was granted.

        Refused when clock time `until` has come, or as soon as the slot is known to be later.
        """
        waiter = _Waiter(cost, until)
        self._waiters[waiter] = None
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

    def fail(self, error: Exception) -> None:
        """Raise the error in all waiters."""
        for waiter in self._waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(own_error(error))
        self._waiters.clear()
        self.call()

    async def _serve(self) -> None:
        try:
            while (first := self._first()) is not None:
                self._called.clear()
                count = self._count_same_cost(first.cost)
                asked_at = self._clock.monotonic()
                taken = await self._ask(first.cost, count)
                self._grant(taken, first.cost)
                if taken.granted < count:
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
            self._ended()

    def _count_same_cost(self, cost: int) -> int:
        """Return how many waiters in front have the same cost."""
        count = 0
        for waiter in islice(self._waiters, MAX_PER_REQUEST):
            if waiter.cost != cost:
                break
            count += 1
        return count

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
