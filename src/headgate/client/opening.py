"""The opening of an app for a block of code, with `async with` or, in code that cannot await, with `with`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from headgate.client.portal import Leave, Portal

A = TypeVar("A")


class Opening(Generic[A]):
    """Keeps an app open for a block: `async with app.open():`, or `with app.open():` in a thread without an event loop.

    The value of the block is the app. With `with`, the app is open on an event loop of its own in the background.
    """

    def __init__(self, app: A, portal: Portal, enter: Callable[[], AbstractAsyncContextManager[A]]) -> None:
        self._app = app
        self._portal = portal
        self._enter = enter
        self._entered: list[AbstractAsyncContextManager[A]] = []
        self._leave: list[Leave] = []

    async def __aenter__(self) -> A:
        context = self._enter()
        await context.__aenter__()
        self._entered.append(context)
        return self._app

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, traceback)

    def __enter__(self) -> A:
        require_no_loop("async with app.open():")
        self._leave.append(self._portal.enter(self._enter()))
        return self._app

    def __exit__(self, *details: object) -> None:
        self._leave.pop()()


def require_no_loop(instead: str) -> None:
    """Raise TypeError in a thread that runs an event loop, which a block that cannot await would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise TypeError(f"an event loop runs in this thread, and `with` would block it: write `{instead}`")
