"""Waiting, in real time, for what other processes, threads and servers do. All deadlines of the tests come from here.

A deadline is written as the time that a quiet machine needs at most, and HEADGATE_TEST_PATIENCE (default 4) multiplies
it: a busy machine is no error. Waiting ends as soon as there is something to see, so patience costs a success nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

PATIENCE = float(os.environ.get("HEADGATE_TEST_PATIENCE", "4"))
LONGEST = 240.0
"""Deadlines end before the guard of pytest against tests that hang (300 s), since their errors say more."""


def patient(seconds: float) -> float:
    """Return the deadline, in seconds, for what takes at most `seconds` on a quiet machine."""
    return max(seconds, min(seconds * PATIENCE, LONGEST))


async def until(
    holds: Callable[[], bool | Awaitable[bool]], seconds: float = 15, missing: Callable[[], Any] = str
) -> float:
    """Ask again until the answer is yes; return how many seconds that took.

    Fails after `patient(seconds)` with what `missing` returns. Both functions may be coroutine functions.
    """
    began = time.monotonic()
    while not await _answer(holds()):
        if time.monotonic() - began > patient(seconds):
            raise AssertionError(f"waited {patient(seconds):g} s in vain: {await _answer(missing())}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def until_now(holds: Callable[[], object], seconds: float = 15, missing: Callable[[], object] = str) -> float:
    """As `until`, for threads and tests without a loop."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patient(seconds):
            raise AssertionError(f"waited {patient(seconds):g} s in vain: {missing()}")
        time.sleep(0.01)
    return time.monotonic() - began


async def becomes(question: Callable[[], Awaitable[Any]], expected: object, seconds: float = 10) -> None:
    """Ask again until that is the answer; fails after `patient(seconds)` with the last answer."""
    began = time.monotonic()
    while (answer := await question()) != expected:
        if time.monotonic() - began > patient(seconds):
            raise AssertionError(f"it is {answer!r} after {patient(seconds):g} s, not {expected!r}")
        await asyncio.sleep(0.02)


class HasResult(Protocol[T_co]):
    """A handle of a job."""

    async def result(self, timeout: float | None = None) -> T_co: ...


async def result_within(job: HasResult[T], seconds: float = 10) -> T:
    """Wait for the job to end, and return its result; raises TimeoutError after `patient(seconds)`."""
    return await job.result(timeout=patient(seconds))


async def _answer(said: Any) -> Any:
    return await said if isinstance(said, Awaitable) else said
