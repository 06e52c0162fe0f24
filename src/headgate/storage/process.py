"""Processes of this machine, identified by their id and start, because ids are reused."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def process_started(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; empty if it has ended or this cannot be read."""
    try:
        return _started(pid)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start of a process; empty if it has ended. Raises OSError if no more files can be opened."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name in parentheses may contain anything, so count fields from its end.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def pid_space() -> str:
    """Return the PID namespace of this process: the same number is another process in another container."""
    try:
        return _own_space()
    except OSError:
        return "one"


def is_running(pid: int, started: str) -> bool:
    """Whether the process with this id and start is still running."""
    is_told = bool(started)
    try:
        found = (_own_start() if pid == os.getpid() else _started(pid)) if started else ""
    except OSError:
        # This process can open no files, so it cannot read whether others have ended.
        found, is_told = "", False
    if found:
        return found == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A process of another user, which /proc may hide (hidepid).
        return True
    # A process of this user whose start cannot be read any more has ended, and its parent has not waited for it yet.
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
