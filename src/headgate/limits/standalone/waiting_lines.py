"""Lines of waiters, first come, first served: threads, and tasks of any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import OrderedDict
from typing import Protocol
from weakref import WeakSet

from headgate.clock import SECOND, Clock
from headgate.errors import GateClosed

LONGEST_SLEEP = 60.0
"""Seconds after which a sleeping thread tries again: the machine may have slept, or the first in line may be gone."""

ONLY_WHEN_CALLED = math.inf
"""No clock time: only a call wakes this waiter. (A clock could reach any integer.)"""


class Acquisition(Protocol):
    """The request of one waiter."""

    def is_closed(self) -> bool:
        """Return whether the wait must end with GateClosed."""
        ...

    def try_now(self) -> float | None:
        """Start and return None, or return the clock time (µs) of the next try. The lines' lock is held."""
        ...


_all_lines: WeakSet[WaitingLines] = WeakSet()
_inherited: list[object] = []


def _forget_parent() -> None:
    """Empty all lines in a fork, and free their locks: the threads and loops that wait, or hold one, are not there."""
    for lines in _all_lines:
        # Kept: a task that nothing refers to any more would be closed here, and run its `finally` in the fork.
        _inherited.append(lines.by_key.copy())
        lines.by_key.clear()
        if lines._lock.locked():
            lines._lock.release()


os.register_at_fork(after_in_child=_forget_parent)


class WaitingLines:
    """A line for each key. Only the first of a line tries, when it is awake, and sets the line's one timer.

    So each starts at an instant at which the rule allowed it, however late it woke, and a waiter that is cancelled or
    times out has taken nothing. `lock` also guards what they wait for.
    """

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        # By arrival. Unlike a deque, it removes a waiter in the middle at the same cost.
        self.by_key: dict[str, OrderedDict[_Waiter, None]] = {}
        _all_lines.add(self)

    def wait(self, key: str, attempt: Acquisition, until: int | None) -> bool:
        """Block this thread until the attempt goes; False once clock time `until` has come. Raises GateClosed."""
        waiter = _Thread(self._clock)
        try:
            self._join(key, waiter)
            while (sleep_until := self._try(key, waiter, attempt, until)) is not None:
                waiter.sleep(sleep_until)
            return waiter.has_started
        finally:
            # Before any call: if an interrupt comes in one of these, `_first` removes it, and the next one is called.
            waiter.has_left = True
            try:
                with self._lock:
                    self._remove(key, waiter)
            except BaseException:
                with self._lock:
                    self.call_first(key)
                raise

    async def wait_async(self, key: str, attempt: Acquisition, until: int | None) -> bool:
        """Do the same in a task."""
        waiter = _Task(self._clock)
        self._join(key, waiter)
        try:
            while (sleep_until := self._try(key, waiter, attempt, until)) is not None:
                await waiter.sleep(sleep_until)
            return waiter.has_started
        finally:
            # If its loop was closed, the garbage collector calls this, maybe in a thread that holds the lock; then
            # `_first` removes the waiter.
            if self._lock.acquire(blocking=not waiter.is_gone()):
                try:
                    self._remove(key, waiter)
                finally:
                    self._lock.release()

    def has_waiter(self, key: str) -> bool:
        """Return whether anybody waits for the key; the caller holds the lock."""
        return key in self.by_key and self._first(key) is not None

    def call_first(self, key: str) -> None:
        """Wake the first waiter, if there is one, to try again; the caller holds the lock."""
        if (first := self._first(key)) is not None:
            first.wake()

    def call_all(self) -> None:
        """Wake all waiters, to check whether to end; the caller holds the lock."""
        for line in self.by_key.values():
            for waiter in line:
                waiter.wake()

    def _try(self, key: str, waiter: _Waiter, attempt: Acquisition, until: int | None) -> float | None:
        """Return until what clock time the waiter sleeps; None when its wait is over."""
        with self._lock:
            if attempt.is_closed():
                raise GateClosed
            try_again_at = attempt.try_now() if self._first(key) is waiter else ONLY_WHEN_CALLED
            if try_again_at is None:
                waiter.has_started = True
                return None
        if until is None:
            return try_again_at
        return min(try_again_at, until) if self._clock.monotonic() < until else None

    def _first(self, key: str) -> _Waiter | None:
        line = self.by_key.get(key)
        removed_any = False
        while line:
            first = next(iter(line))
            if not first.is_gone():
                if removed_any:
                    first.wake()
                return first
            # Its event loop was closed, or its thread was interrupted, so it will never try.
            del line[first]
            removed_any = True
        self.by_key.pop(key, None)
        return None

    def _join(self, key: str, waiter: _Waiter) -> None:
        with self._lock:
            self.by_key.setdefault(key, OrderedDict())[waiter] = None

    def _remove(self, key: str, waiter: _Waiter) -> None:
        line: dict[_Waiter, None] = self.by_key.get(key, {})
        was_first = next(iter(line), None) is waiter
        # `_first` may have removed it.
        line.pop(waiter, None)
        if was_first:
            self.call_first(key)


class _Thread:
    """A waiting thread."""

    __slots__ = ("_clock", "_wakeup", "has_left", "has_started")

    def __init__(self, clock: Clock) -> None:
        self.has_started = self.has_left = False
        self._clock = clock
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def sleep(self, until: float) -> None:
        seconds = max(0, until - self._clock.monotonic()) / SECOND
        self._wakeup.acquire(timeout=min(seconds, LONGEST_SLEEP))

    def wake(self) -> None:
        # Only called under the lines' lock, so no other thread releases it in between.
        if self._wakeup.locked():
            self._wakeup.release()

    def is_gone(self) -> bool:
        return self.has_left


class _Task:
    """A waiting task, on any event loop."""

    __slots__ = ("_called", "_clock", "_is_called", "_loop", "has_started")

    def __init__(self, clock: Clock) -> None:
        self.has_started = False
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._is_called = False
        self._called: asyncio.Future[None] | None = None

    async def sleep(self, until: float) -> None:
        if not self._is_called:
            self._called = self._loop.create_future()
            timer = None if until == ONLY_WHEN_CALLED else self._clock.call_at(int(until), self._call)
            try:
                await self._called
            finally:
                if timer is not None:
                    timer.cancel()
        self._is_called = False

    def wake(self) -> None:
        """Wake it, from any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._call()
        else:
            # A loop that closes at this moment has no more waiters.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call)

    def is_gone(self) -> bool:
        return self._loop.is_closed()

    def _call(self) -> None:
        self._is_called = True
        if self._called is not None and not self._called.done():
            self._called.set_result(None)


_Waiter = _Thread | _Task
