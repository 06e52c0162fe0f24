"""Keeps processes that a function starts from inheriting the connection and the signal handlers of the child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that the node handles; they are sent to whole groups of processes."""


def keep_from_forks(descriptor: int, on_fork: Callable[[], None]) -> None:
    """Ignore these signals and hold the connection in this process only; a fork calls `on_fork` first.

    A fork that held the connection could send messages for the job, and would hide the death of the child from the
    node.
    """
    # `exec` closes the connection and resets a handler that does nothing, but would keep SIG_IGN: a program that a
    # function has started could not be terminated then.
    os.set_inheritable(descriptor, False)
    before = {number: signal.signal(number, _ignore) for number in IGNORED_SIGNALS}
    for number in IGNORED_SIGNALS:
        signal.siginterrupt(number, False)
    masks = threading.local()
    is_fork = False

    def hold_signals() -> None:
        # A fork may be terminated as soon as it has a process id; the signal waits until the fork's handlers are set.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)

    def release_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def detach_fork() -> None:
        nonlocal is_fork
        # Only once: a fork of a fork may use the descriptor for something else.
        if not is_fork:
            is_fork = True
            on_fork()
            # The descriptor stays open on /dev/null: objects that hold its number close it later.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)
            for number, handler in before.items():
                if signal.getsignal(number) is _ignore:
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
        release_signals()

    os.register_at_fork(before=hold_signals, after_in_parent=release_signals, after_in_child=detach_fork)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing."""
