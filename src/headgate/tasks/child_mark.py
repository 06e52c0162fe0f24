"""The mark of a child process: there, process tasks are run by a node elsewhere, and no node may be started."""

from contextvars import ContextVar

IN_CHILD: ContextVar[bool] = ContextVar("headgate_in_child", default=False)
"""Whether this is the main thread of a process that runs process tasks, or was started from it."""
