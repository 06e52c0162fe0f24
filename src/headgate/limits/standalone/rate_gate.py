"""RateGate: never more than N passes in any window, for calls anywhere in a program, and for the items of a loop."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from typing import Any, ParamSpec, TypeVar, cast, overload

from headgate.arguments import parse_wait
from headgate.clock import SECOND, Clock, Duration, SystemClock
from headgate.errors import DeclarationError, GateClosed
from headgate.keywords import names_keywords
from headgate.limits.rate import parse_rate
from headgate.limits.standalone.refusal_log import RefusalLog
from headgate.limits.standalone.waiting_lines import WaitingLines

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_LINE = ""


@names_keywords
class RateGate:
    """Lets at most N through in any window of that length: `RateGate("15/m")` or `RateGate(15, per=60)`.

    Any number of threads, and tasks on any number of event loops, may wait at once; they pass in the order in which
    they arrive. A pass counts from the instant at which the waiter is awake, so no window ever holds more, however late
    it wakes. `with RateGate(…) as gate:` closes it at the end of the block; `@gate` makes each call of a function wait
    first. The last N passes are kept in memory of this process. Waits that end without a pass are logged by
    `headgate.limiter`, one line every 30 s at most. Raises DeclarationError for an invalid rate.
    """

    def __init__(self, rate: str | int, per: Duration | None = None, *, clock: Clock | None = None) -> None:
        parsed = parse_rate(rate, per)
        self._count = parsed.count
        self._period = parsed.period
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._lines = WaitingLines(self._lock, self._clock)
        # The rule of StrictRate for a cost of 1, as a ring: a start has room when the start N before it has left the
        # window.
        self._passes: deque[int] = deque(maxlen=parsed.count)
        self._is_closed = False
        self._refusals = RefusalLog(f"rate gate {parsed}")

    def wait(self, timeout: Duration | None = None) -> bool:
        """Block this thread until it may pass.

        With a `timeout` (seconds), return False when it cannot pass in that time, at once if that is known; nothing is
        charged then. Raises GateClosed, also when the gate is closed during the wait.
        """
        until = self._until(timeout)
        return (
            self._pass_nowait()
            or (self._can_pass_before(until) and self._lines.wait(_LINE, self, until))
            or self._refuse()
        )

    async def wait_async(self, timeout: Duration | None = None) -> bool:
        """Wait in this task until it may pass, as `wait` does for a thread. A cancelled task is not charged."""
        until = self._until(timeout)
        return (
            self._pass_nowait()
            or (self._can_pass_before(until) and await self._lines.wait_async(_LINE, self, until))
            or self._refuse()
        )

    def delay(self) -> float:
        """Return how many seconds a new caller would wait, behind those that wait already; 0 if it may pass.

        Raises GateClosed.
        """
        with self._lock:
            if self._is_closed:
                raise GateClosed
            now = self._clock.monotonic()
            # Each window lets N of the waiters through; the first of them follow those that have passed.
            windows, ahead = divmod(len(self._lines.by_key.get(_LINE, ())), self._count)
            place = len(self._passes) + ahead - self._count
            opens_at = now if place < 0 else max(now, self._passes[place] + self._period)
            return (opens_at + windows * self._period - now) / SECOND

    def close(self) -> None:
        """Raise GateClosed in all waiting callers, and in later calls. A second call does nothing."""
        self._is_closed = True
        with self._lock:
            self._lines.call_all()

    def __enter__(self) -> RateGate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RateGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make each call of the function, plain or `async`, wait for the gate first."""
        if inspect.isasyncgenfunction(function):
            raise DeclarationError(f"{function!r} makes an async generator; pace its items with limit_rate()")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
                await self.wait_async()
                return await function(*args, **kwargs)

            return cast(Callable[P, R], later)

        @functools.wraps(function)
        def then(*args: P.args, **kwargs: P.kwargs) -> R:
            self.wait()
            return function(*args, **kwargs)

        return then

    # ---------------------------------------------------------------------------------- the Acquisition protocol

    def is_closed(self) -> bool:
        return self._is_closed

    def try_now(self) -> int | None:
        """Pass and return None, or return the clock time (µs) of the next try. Call it first in line, with the lock."""
        now = self._clock.monotonic()
        opens_at = self._opens_at()
        if opens_at > now:
            return opens_at
        self._passes.append(now)
        return None

    # --------------------------------------------------------------------------------------------------- within

    def _pass_nowait(self) -> bool:
        with self._lock:
            if self._is_closed:
                raise GateClosed
            return _LINE not in self._lines.by_key and self.try_now() is None

    def _refuse(self) -> bool:
        self._refusals.note("", self._clock.monotonic())
        return False

    def _opens_at(self) -> int:
        return self._passes[0] + self._period if len(self._passes) == self._count else 0

    def _until(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self._clock.monotonic() + parse_wait(timeout, "timeout", "RateGate")

    def _can_pass_before(self, until: int | None) -> bool:
        # A pass is never given back, so a gate that opens too late does so for every caller.
        return until is None or self._opens_at() <= until


@overload
def limit_rate(
    iterable: AsyncIterable[T], rate: str | int, per: Duration | None = None, *, clock: Clock | None = None
) -> AsyncGenerator[T, None]: ...


@overload
def limit_rate(
    iterable: Iterable[T], rate: str | int, per: Duration | None = None, *, clock: Clock | None = None
) -> Generator[T, None, None]: ...


@names_keywords
def limit_rate(
    iterable: Iterable[T] | AsyncIterable[T],
    rate: str | int,
    per: Duration | None = None,
    *,
    clock: Clock | None = None,
) -> Generator[T, None, None] | AsyncGenerator[T, None]:
    """Return the same items, at most N in any window: `limit_rate(urls, 5, per=1)` or `limit_rate(urls, "5/s")`.

    It paces its consumer, so it does not slow down a consumer that pulls ahead of its work (`executor.map`,
    `asyncio.gather`): put a RateGate inside the call instead. It waits in the thread for a plain iterable, in the task
    for an async one. It takes one item ahead from the source. Raises DeclarationError for an invalid rate.
    """
    gate = RateGate(rate, per=per, clock=clock)
    return _paced_async(iterable, gate) if isinstance(iterable, AsyncIterable) else _paced(iterable, gate)


def _paced(iterable: Iterable[T], gate: RateGate) -> Generator[T, None, None]:
    for item in iterable:
        gate.wait()
        yield item


async def _paced_async(iterable: AsyncIterable[T], gate: RateGate) -> AsyncGenerator[T, None]:
    async for item in iterable:
        await gate.wait_async()
        yield item
