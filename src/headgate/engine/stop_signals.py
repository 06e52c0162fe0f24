"""Stop signals: SIGTERM, SIGINT and SIGHUP end a worker process; its forks, and how a process has ended, in words."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager


@contextmanager
def on_stop_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` on the first SIGTERM, SIGINT or SIGHUP and `second` on each one after it, until the block ends.

    A later SIGHUP has no effect: a terminal that is closed may send two. Under `nohup` it stays ignored.
    """
    loop = asyncio.get_running_loop()
    calls = [second, first]

    def stop() -> None:
        (calls.pop() if len(calls) > 1 else second)()

    def hang_up() -> None:
        if len(calls) > 1:
            stop()

    caught = dict.fromkeys((signal.SIGTERM, signal.SIGINT), stop)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        caught[signal.SIGHUP] = hang_up
    for number, call in caught.items():
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


_forks = 0
"""How many forks lead to this process. To ask the system for its id costs each attempt more."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class EndsForks(ContextDecorator):
    """Ends a fork that was made in the block where it leaves it: it has the event loop and sockets of its parent."""

    def __enter__(self) -> None:
        self._forks = _forks

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A fork may also close what other handlers of its parent were doing.
        if _forks != self._forks and not isinstance(error, GeneratorExit):
            code = error.code if isinstance(error, SystemExit) else None if error is None else 1
            try:
                if not isinstance(error, SystemExit | None):
                    traceback.print_exception(error)
            finally:
                os._exit(code if isinstance(code, int) else code is not None)


def exit_worded(code: int) -> str:
    """Return an exit code, or minus a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    # Most real-time signals have no name.
    return next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
