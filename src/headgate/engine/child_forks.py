"""What processes that a function starts inherit from its child: neither its connection nor its deafness to signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

UNHEARD = (signal.SIGINT, signal.SIGTERM)
"""Signals that are the node's to answer, as they are sent to whole groups of processes."""


def keep_from_forks(descriptor: int, on_fork: Callable[[], None]) -> None:
    """Ignore these signals and hold the connection, both in this process alone; a fork calls `on_fork` first.

    A fork that held the connection could speak for its job, and would keep the death of the child from its node.
    """
    # It is closed by exec. And a handler that does nothing ends there, too, where SIG_IGN would last: whoever asks a
    # program to terminate that a function has started would wait for ever.
    os.set_inheritable(descriptor, False)
    before = {number: signal.signal(number, _ignore) for number in UNHEARD}
    for number in UNHEARD:
        signal.siginterrupt(number, False)
    masks = threading.local()
    is_fork = False

    def hold_signals() -> None:
        # A fork may be told to terminate as soon as it has a number, so that has to wait for its own answer to it.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)

    def release_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def part() -> None:
        nonlocal is_fork
        # Only once: a fork of a fork may have the number in use for something else.
        if not is_fork:
            is_fork = True
            on_fork()
            # The number stays taken, as the objects that know it still close it some time.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)
            for number, handler in before.items():
                if signal.getsignal(number) is _ignore:
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
        release_signals()

    os.register_at_fork(before=hold_signals, after_in_parent=release_signals, after_in_child=part)


def _ignore(_number: int, _frame: object) -> None:
    """Heard, and not followed."""
