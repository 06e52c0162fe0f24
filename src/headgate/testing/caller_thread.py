"""Runs plain functions in the waiting thread, so that code that cannot await is tested in one thread.

The event loop runs in a helper thread meanwhile. Frameworks that keep their database connection in a thread, and those
that refuse to run in a thread with an event loop, then behave as without Headgate.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from headgate.client.portal import Leave, Portal, WaitingThread

T = TypeVar("T")

_waiting: contextvars.ContextVar[CallerThread | None] = contextvars.ContextVar("headgate_caller_thread", default=None)


def waiting_thread() -> CallerThread | None:
    """Return the thread that waits for this event loop to end, if any."""
    return _waiting.get()


class CallerThread(WaitingThread):
    """Runs a coroutine on its own event loop, and submitted functions in the thread that called `run`."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; blocks this thread."""
        outcome: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(_waiting.set, self)

        def run() -> None:
            try:
                result = context.run(asyncio.run, coroutine)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        thread = threading.Thread(target=run, name="headgate-testing", daemon=True)
        thread.start()
        try:
            return self.serve(outcome)
        finally:
            if outcome.done():
                thread.join()


class CallingPortal(Portal):
    """The portal of an app under test: each call has its own event loop, which ends with it."""

    def run(self, coroutine: Coroutine[Any, Any, T], caller: WaitingThread | None = None) -> T:
        self.require_other_loop(coroutine)
        return CallerThread().run(coroutine)

    def enter(self, context: AbstractAsyncContextManager[Any]) -> Leave:
        """Do nothing: the app is open during the whole test, and runs nothing by itself."""
        return lambda: None

    def open(self) -> None:
        """Do nothing: the app is open during the whole test."""

    def close(self) -> None:
        """Do nothing: no loop stays open between calls."""
