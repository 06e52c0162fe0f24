"""Shutdown: whether the server of this process was requested to stop, and waits for its requests."""

from __future__ import annotations

import signal


def is_leaving() -> bool:
    """Whether the server was requested to stop, as far as this can be detected.

    A server notifies an app of its shutdown only when all requests have ended, and never notifies a mounted app.
    uvicorn gets a signal, handled by a method of its server, whose `should_exit` then is true. This reads it and
    changes nothing. Without such a server, the result is always False.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", None) is True
