"""Calls the functions of an app around some work, each around the next one, the first declared outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from headgate.errors import HeadgateError
from headgate.tasks.hooks import hook_name

S = TypeVar("S")
R = TypeVar("R")

Around = Callable[[S, Callable[[], Awaitable[R]]], Awaitable[R]]


async def call_around(functions: Sequence[Around[S, R]], subject: S, work: Callable[[], Awaitable[R]]) -> R:
    """Call each function with the subject and the rest, down to `work`; return what the outermost returns.

    A function that calls the rest twice gets HeadgateError.
    """
    rest = work
    for function in reversed(functions):
        rest = partial(_call, function, subject, rest)
    return await rest()


# Plain functions: tracebacks of jobs show only the frames of the user's functions.


def _call(function: Around[S, R], subject: S, rest: Callable[[], Awaitable[R]]) -> Awaitable[R]:
    is_called = False

    def rest_once() -> Awaitable[R]:
        nonlocal is_called
        if is_called:
            raise HeadgateError(f"{hook_name(function)!r} called its second argument twice; it may be called once")
        is_called = True
        return rest()

    return function(subject, rest_once)
