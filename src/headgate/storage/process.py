"""Processes of this machine, told apart although their ids are used again."""

from __future__ import annotations

import os
from pathlib import Path


def process_started(pid: int) -> str:
    """When a process began, in the kernel's own ticks; empty if it has ended or it cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold anything, so count fields from its end.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def pid_space() -> str:
    """Which process ids this process sees: the same number means another process in another container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "one"


def is_running(pid: int, started: str) -> bool:
    """Whether the process that had this id and start is still there."""
    found = process_started(pid)
    if started and found:
        return found == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It is another user's, of whose processes /proc may show nothing (hidepid).
        return True
    # One of this user's, that has a start and shows none, has ended and was not waited for yet.
    return not started
