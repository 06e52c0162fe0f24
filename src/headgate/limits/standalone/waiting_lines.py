"""Lines: those who wait, first come, first served, threads and tasks of any event loop alike."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import OrderedDict
from typing import Protocol

from headgate.clock import SECOND, Clock
from headgate.errors import GateClosed

LONGEST_REST = 60.0
"""Seconds after which a resting thread looks again: the machine may have slept, or who is first may be gone."""

ONLY_WHEN_CALLED = math.inf
"""No clock time: nothing but a call wakes this one. (An integer would be reached by some clock.)"""


class Acquisition(Protocol):
    """What one waiter wants."""

    def is_closed(self) -> bool:
        """Whether it has to be given up."""
        ...

    def try_now(self) -> float | None:
        """Go, and return None; or say at what clock time (µs) to try again. The lines' lock is held."""
        ...


class WaitingLines:
    """A line for each key. Only the first of a line tries, when it is awake, and sets the line's one timer.

    So each passes at an instant at which the rule let it, however late it woke, and one that is cancelled or runs out
    of time has taken nothing. `lock` is the one that also guards what they wait for.
    """

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        # By arrival. Unlike a deque this lets one in the middle leave at the same price.
        self.by_key: dict[str, OrderedDict[_Waiter, None]] = {}

    def wait(self, key: str, attempt: Acquisition, until: int | None) -> bool:
        """Block this thread until the attempt goes; False once clock time `until` has come. Raises GateClosed."""
        waiter = _Thread(self._clock)
        self._join(key, waiter)
        try:
            while (rest_until := self._try(key, waiter, attempt, until)) is not None:
                waiter.rest(rest_until)
            return waiter.went
        finally:
            self._leave(key, waiter)

    async def wait_async(self, key: str, attempt: Acquisition, until: int | None) -> bool:
        """The same for a task."""
        waiter = _Task(self._clock)
        self._join(key, waiter)
        try:
            while (rest_until := self._try(key, waiter, attempt, until)) is not None:
                await waiter.rest(rest_until)
            return waiter.went
        finally:
            self._leave(key, waiter)

    def call_first(self, key: str) -> None:
        """Let the first one try again, if there is any; the caller has the lock."""
        if (first := self._first(key)) is not None:
            first.wake()

    def call_all(self) -> None:
        """Let everybody see whether to give up; the caller has the lock."""
        for line in self.by_key.values():
            for waiter in line:
                waiter.wake()

    def _try(self, key: str, waiter: _Waiter, attempt: Acquisition, until: int | None) -> float | None:
        """Until what clock time the waiter has to rest; None when its wait is over."""
        with self._lock:
            if attempt.is_closed():
                raise GateClosed
            try_again_at: float | None = ONLY_WHEN_CALLED
            if self._first(key) is waiter:
                try_again_at = attempt.try_now()
            if try_again_at is None:
                waiter.went = True
                return None
        if until is None:
            return try_again_at
        return min(try_again_at, until) if self._clock.monotonic() < until else None

    def _first(self, key: str) -> _Waiter | None:
        line = self.by_key.get(key)
        passed_over = False
        while line:
            first = next(iter(line))
            if not first.is_gone():
                if passed_over:
                    first.wake()
                return first
            # Its event loop was closed around it: it will never come, and its timer went with it.
            del line[first]
            passed_over = True
        self.by_key.pop(key, None)
        return None

    def _join(self, key: str, waiter: _Waiter) -> None:
        with self._lock:
            self.by_key.setdefault(key, OrderedDict())[waiter] = None

    def _leave(self, key: str, waiter: _Waiter) -> None:
        if waiter.is_gone():
            # Perhaps the garbage collector calls this, in a thread that has the lock; it is passed over anyway.
            return
        with self._lock:
            line = self.by_key.get(key)
            if line is None or waiter not in line:
                # It was passed over.
                return
            was_first = next(iter(line)) is waiter
            del line[waiter]
            if was_first:
                self.call_first(key)


class _Thread:
    """A thread that waits."""

    __slots__ = ("_bell", "_clock", "went")

    def __init__(self, clock: Clock) -> None:
        self.went = False
        self._clock = clock
        self._bell = threading.Lock()
        self._bell.acquire()

    def rest(self, until: float) -> None:
        seconds = max(0, until - self._clock.monotonic()) / SECOND
        self._bell.acquire(timeout=min(seconds, LONGEST_REST))

    def wake(self) -> None:
        # Only ever called under the lines' lock, so nobody else releases it in between.
        if self._bell.locked():
            self._bell.release()

    def is_gone(self) -> bool:
        return False


class _Task:
    """A task that waits, on whatever event loop."""

    __slots__ = ("_called", "_clock", "_is_called", "_loop", "went")

    def __init__(self, clock: Clock) -> None:
        self.went = False
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._is_called = False
        self._called: asyncio.Future[None] | None = None

    async def rest(self, until: float) -> None:
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
        """From any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._call()
        else:
            # A loop that is closed this very moment has no more waiters.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call)

    def is_gone(self) -> bool:
        return self._loop.is_closed()

    def _call(self) -> None:
        self._is_called = True
        if self._called is not None and not self._called.done():
            self._called.set_result(None)


_Waiter = _Thread | _Task
