"""The place where the function of a task runs: the event loop, a thread, or a child process.

A child process must find the function by import.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from headgate.errors import DeclarationError
from headgate.tasks.modules import is_session

IN_CHILD = threading.Event()
"""Set in a process that runs process tasks, for all its threads, and in its forks."""


class Executor(StrEnum):
    """A coroutine runs on the event loop, a blocking function in a thread, a computing function in a process."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


def executor_of(function: Callable[..., Any], *, process: bool) -> Executor:
    """Return where a function runs, by its kind and its declaration."""
    if process:
        return Executor.PROCESS
    return Executor.LOOP if inspect.iscoroutinefunction(function) else Executor.THREAD


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use: those it is bound to, at most the CPU limit of its container."""
    bound_to = getattr(os, "sched_getaffinity", None)
    cores = os.cpu_count() or 1 if bound_to is None else len(bound_to(0))
    # Of version 2, and of version 1. No limit is "max", or less than 0.
    for names in ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = map(int, " ".join((cgroup / name).read_text() for name in names).split())
            cores = min(cores, math.ceil(quota / period)) if quota > 0 else cores
    return cores


def require_no_generator(function: Callable[..., Any], where: str) -> None:
    """Raise DeclarationError for a function that yields: calling it runs none of its code."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"{where} is a generator, and calling it runs nothing; write return in place of yield, such as "
            "`return list(rows)`, or enqueue a job for each item: await task.enqueue_many([(item,) for item in items])"
        )


def require_importable(function: Callable[..., Any], where: str) -> None:
    """Raise DeclarationError unless a new process can find it by its module and name."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"{where}: process=True is for a plain def that computes; an async def waits, so leave it out"
        )
    if not inspect.isfunction(function):
        raise DeclarationError(f"{where}: a child process needs a plain function, not {function!r}")
    name = function.__qualname__
    if not all(part.isidentifier() for part in name.split(".")):
        # `<locals>` or `<lambda>`
        raise DeclarationError(
            f"{where}: a child process has to find {name!r} by import, and it cannot be found in a function or lambda; "
            "define it at the top of its module"
        )
    spec, file = (getattr(sys.modules.get(function.__module__), name, None) for name in ("__spec__", "__file__"))
    has_file = spec is not None or not (file or "<stdin>").startswith("<")
    # `python -m asyncio` and the prompt of Python 3.13 have a file, but not of what is typed in.
    is_typed = is_session() and function.__code__.co_filename.startswith("<")
    if function.__module__ == "__main__" and (is_typed or not has_file):
        raise DeclarationError(
            f"{where}: a child process has to find {name!r} by import, and what was typed in has no file; put it in one"
        )


def have_one_name(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether a child process would find the later of two functions in the place of the other."""
    names = ("__module__", "__qualname__")
    return function is not other and all(getattr(function, name, None) == getattr(other, name, None) for name in names)


def find_function(module: str, name: str) -> Any:
    """Return the task or function of that name. Raises ImportError or AttributeError if there is none."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
