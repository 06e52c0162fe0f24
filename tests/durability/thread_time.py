"""Virtual time for threads: it stands still while one of them is awake, and jumps to the next instant waited for."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headgate.clock import SECOND, SystemClock
from headgate.limits.standalone import waiting_lines
from tests.durability.threads import InThread
from tests.until import patient


class ThreadTime(SystemClock):
    """The clock of threads that `run` has started, and of what waits in lines by it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._now = 0
        self._change = threading.Condition()
        self._threads = 0
        # What each thread that is not awake waits for, and until when.
        self._waiting: dict[object, float] = {}
        patch.setattr(waiting_lines, "threading", SimpleNamespace(Lock=lambda: _LockInThreadTime(self)))

    def monotonic(self) -> int:
        return self._now

    def seconds(self) -> float:
        return self._now / SECOND

    def sleep(self, seconds: float) -> None:
        self.wait(object(), seconds, lambda: False)

    def run(self, *functions: Callable[[], object], one_by_one: bool = False) -> None:
        """Run each in a thread of its own, to the end; `one_by_one` starts each when those before it wait.

        An error in one is an error of the caller.
        """
        self._threads = len(functions)
        started = []
        for function in functions:
            started.append(InThread(functools.partial(self._run, function)))
            if one_by_one and len(started) < len(functions):
                with self._change:
                    assert self._change.wait_for(functools.partial(self._are_waiting, len(started)), patient(15))
        for running in started:
            running.end()

    def wait(self, what: object, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until it is over, or for so many seconds; -1 is for ever."""
        with self._change:
            until = math.inf if seconds < 0 else self._now + round(seconds * SECOND)
            while not is_over() and self._now < until:
                self._waiting[what] = until
                self._jump()
                self._change.notify_all()
                if not is_over() and self._now < until:
                    self._change.wait()
            self._waiting.pop(what, None)

    def wake(self, what: object, change: Callable[[], None]) -> None:
        """Change what a thread waits for; it counts as awake from now on."""
        with self._change:
            change()
            self._waiting.pop(what, None)
            self._change.notify_all()

    def _are_waiting(self, count: int) -> bool:
        return len(self._waiting) == count

    def _run(self, function: Callable[[], object]) -> None:
        try:
            function()
        finally:
            with self._change:
                self._threads -= 1
                self._jump()
                self._change.notify_all()

    def _jump(self) -> None:
        if len(self._waiting) < self._threads or not self._waiting:
            return
        next_instant = min(self._waiting.values())
        assert next_instant < math.inf, "all threads wait for each other"
        self._now = max(self._now, int(next_instant))


class _LockInThreadTime:
    """A lock as waiters have one; its timeouts are of that time."""

    def __init__(self, time: ThreadTime) -> None:
        self._time = time
        self._is_locked = False

    def locked(self) -> bool:
        return self._is_locked

    def acquire(self, timeout: float = -1) -> bool:
        self._time.wait(self, timeout, lambda: not self._is_locked)
        # Only its owner acquires it.
        was_locked, self._is_locked = self._is_locked, True
        return not was_locked

    def release(self) -> None:
        self._time.wake(self, self._unlock)

    def _unlock(self) -> None:
        self._is_locked = False
