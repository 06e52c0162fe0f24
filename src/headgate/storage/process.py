"""Processes of this machine, told apart although their ids are used again."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def process_started(pid: int) -> str:
    """When a process began, in the kernel's own ticks; empty if it has ended or it cannot be told."""
    try:
        return _started(pid)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Empty if it has ended. Raises OSError if that cannot be told, as where no more files can be opened."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name in parentheses may hold anything, so count fields from its end.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def pid_space() -> str:
    """Which process ids this process sees: the same number means another process in another container."""
    try:
        return _own_space()
    except OSError:
        return "one"


def is_running(pid: int, started: str) -> bool:
    """Whether the process that had this id and start is still there."""
    is_told = bool(started)
    try:
        found = (_own_start() if pid == os.getpid() else _started(pid)) if started else ""
    except OSError:
        # A process that cannot open files sees no others: it must not take all of them for ended.
        found, is_told = "", False
    if found:
        return found == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It is another user's, of whose processes /proc may show nothing (hidepid).
        return True
    # One of this user's, that has a start and shows none, has ended and was not waited for yet.
    return not is_told


@functools.cache
def _own_space() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


@functools.cache
def _own_start() -> str:
    return _started(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_space.cache_clear)
    os.register_at_fork(after_in_child=_own_start.cache_clear)
