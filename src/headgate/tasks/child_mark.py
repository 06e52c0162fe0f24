"""The mark of a child process: it does not start process tasks of its own, and no node."""

from contextvars import ContextVar

IN_CHILD: ContextVar[bool] = ContextVar("headgate_in_child", default=False)
"""Whether this is the main thread of a process that runs process tasks, or was started from it."""
