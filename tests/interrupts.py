"""Signals that come at any point of a call."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable


def call_with_signal(call: Callable[[], object], handle: Callable[[], object], at: int) -> bool:
    """Call `handle` in the middle of `call`, at the given point of it (1: the first); return whether it has so many.

    Python handles signals when it enters a function, and after a call of a function in C. A KeyboardInterrupt of
    `handle` ends the call.
    """
    left = at

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                handle()

    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.setprofile(count)
            call()
        finally:
            sys.setprofile(None)
    return left <= 0


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt
