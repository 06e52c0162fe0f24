"""Leaving: whether the server that serves this process was told to end, and waits for its requests."""

from __future__ import annotations

import signal


def is_leaving() -> bool:
    """Whether it was told to end, as far as that can be seen from here.

    A server tells an app of its end only when its requests have ended, and a mounted app never. uvicorn is told by a
    signal, which a method of its server takes, and `should_exit` of that server says so: it is looked at, and nothing
    is changed. Where there is no such server the answer is always no.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", None) is True
