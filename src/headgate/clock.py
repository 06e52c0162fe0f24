"""Clocks: the only module that reads the time.

Two scales, both in integer microseconds. `now()` is wall time since the Unix epoch, which people and cron use; it can
step. `monotonic()` runs since boot, counts sleep, is the same for all processes of a machine and never steps.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

SECOND = 1_000_000

FARTHEST = 100 * 365 * 86400 * SECOND
"""A hundred years in microseconds: a longer wait is a mistake, and instants beyond it do not fit a database."""

Duration = float | timedelta | str
"""Seconds, a `timedelta`, or text like "5m", as users pass it; `headgate.arguments` parses it."""


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The current time, and timers."""

    def now(self) -> int:
        """Wall time, microseconds since the Unix epoch."""
        ...

    def monotonic(self) -> int:
        """Microseconds since boot; never steps."""
        ...

    def boot_id(self) -> str:
        """The boot that `monotonic()` counts from; only readings with the same id can be compared."""
        ...

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the running loop when `monotonic()` reaches `when`, never before."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        # CLOCK_BOOTTIME counts while the machine sleeps, as a limit must; macOS's monotonic clock does the same.
        self._source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        # Read once: it never changes, and a process without free file descriptors could not read it again.
        self._boot_id = self._read_boot_id()

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.clock_gettime_ns(self._source) // 1000

    def boot_id(self) -> str:
        return self._boot_id

    def _read_boot_id(self) -> str:
        path = Path("/proc/sys/kernel/random/boot_id")
        if path.exists():
            return path.read_text().strip()
        # Without a boot id, the minute of the boot is the id. A step of the wall clock looks like a new boot, which
        # only re-anchors limit time, never below the last one used.
        return f"booted-{(self.now() - self.monotonic()) // (60 * SECOND)}"

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return _ExactTimer(self, when, callback)


class CurrentClock:
    """Finds the current clock at each call and passes the call on."""

    def __init__(self, find: Callable[[], Clock]) -> None:
        self._find = find

    def now(self) -> int:
        return self._find().now()

    def monotonic(self) -> int:
        return self._find().monotonic()

    def boot_id(self) -> str:
        return self._find().boot_id()

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return self._find().call_at(when, callback)


class _ExactTimer:
    """A timer that never fires early: asyncio and uvloop round to their own ticks, so it checks the time again."""

    def __init__(self, clock: SystemClock, when: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._arm()

    def _arm(self) -> None:
        # A long wait is split: the machine may sleep, and loop time does not count sleep on every system.
        seconds = min((self._when - self._clock.monotonic()) / SECOND, 60.0)
        self._handle = self._loop.call_later(max(seconds, 0.0), self._fire)

    def _fire(self) -> None:
        if self._clock.monotonic() < self._when:
            self._arm()
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()


async def sleep(clock: Clock, seconds: float) -> None:
    """Return after `seconds` on the clock's monotonic scale."""
    await sleep_until(clock, clock.monotonic() + microseconds(seconds))


async def sleep_until(clock: Clock, when: int) -> None:
    """Return once `clock.monotonic()` has reached `when` (microseconds)."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = clock.call_at(when, wake)
    try:
        await waiter
    finally:
        timer.cancel()


async def wait_for_event(clock: Clock, event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for `event`, at most `seconds`; return True if it was set, False after the timeout."""
    if event.is_set():
        return True
    if seconds is None:
        return await event.wait()
    waiting = asyncio.ensure_future(event.wait())
    timer = clock.call_at(clock.monotonic() + microseconds(seconds), waiting.cancel)
    try:
        await asyncio.wait([waiting])
        # Set and cleared again counts as set, as it does for `event.wait()`.
        return event.is_set() or (not waiting.cancelled() and waiting.result())
    finally:
        timer.cancel()
        waiting.cancel()


async def wait_until_done(clock: Clock, work: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for the end of `work`, at most `seconds`; return whether it has ended. It goes on, and raises nothing."""
    ended = asyncio.Event()
    work.add_done_callback(lambda _: ended.set())
    return await wait_for_event(clock, ended, seconds)


async def within(clock: Clock, seconds: float, work: Awaitable[R]) -> R:
    """Return the result of `work`. If that takes longer than `seconds`, cancel it and raise TimeoutError."""
    running = asyncio.ensure_future(work)
    try:
        if not await wait_until_done(clock, running, seconds):
            raise TimeoutError
        return running.result()
    finally:
        running.cancel()


def microseconds(duration: float | timedelta) -> int:
    """Return a duration as integer microseconds, rounded. Raises ValueError for one that is not finite."""
    if isinstance(duration, timedelta):
        return timedelta.__floordiv__(duration, _MICROSECOND)
    length = duration * SECOND
    if isinstance(length, float) and not math.isfinite(length):
        raise ValueError(f"{duration!r} is not a finite duration")
    return round(length)


def from_datetime(instant: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch, within the years 1 to 9999 of UTC.

    Its class may have operators of its own, as pendulum's. Raises ValueError for a naive one.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; pass an aware datetime, for example datetime.now(UTC)")
    return min(max(_FIRST, datetime.__sub__(instant, _EPOCH) // _MICROSECOND), LAST)


def to_datetime(instant: int) -> datetime:
    """Return microseconds since the epoch as an aware UTC datetime, bounded to the range of datetime."""
    return _EPOCH + timedelta(microseconds=min(max(_FIRST, instant), LAST))


def optional_datetime(instant: int | None) -> datetime | None:
    """As `to_datetime`; None stays None."""
    return None if instant is None else to_datetime(instant)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of the year 9999: the last instant of a `datetime`."""
