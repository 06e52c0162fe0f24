"""Runs plain functions in the waiting thread, so that code that cannot await is tested in one thread.

The event loop runs in a helper thread meanwhile. Frameworks that keep their database connection in a thread, and those
that refuse to run in a thread with an event loop, then behave as without Headgate.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from headgate.tasks.portal import Leave, Portal

P = ParamSpec("P")
T = TypeVar("T")

_waiting: contextvars.ContextVar[CallerThread | None] = contextvars.ContextVar("headgate_caller_thread", default=None)


def waiting_thread() -> CallerThread | None:
    """Return the thread that waits for this event loop to end, if any."""
    return _waiting.get()


class CallerThread(Executor):
    """Runs a coroutine on its own event loop, and submitted functions in the thread that called `run`."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(call)
        return future

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result; blocks this thread."""
        outcome: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(_waiting.set, self)

        def serve() -> None:
            try:
                result = context.run(asyncio.run, coroutine)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)
            finally:
                self._calls.put(None)

        thread = threading.Thread(target=serve, name="headgate-testing", daemon=True)
        thread.start()
        while (call := self._calls.get()) is not None:
            call()
        thread.join()
        return outcome.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the thread belongs to the caller."""


class CallingPortal(Portal):
    """The portal of an app under test: each call has its own event loop, which ends with it."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.require_other_loop(coroutine)
        return CallerThread().run(coroutine)

    def enter(self, context: AbstractAsyncContextManager[Any]) -> Leave:
        """Do nothing: the app is open during the whole test, and runs nothing by itself."""
        return lambda: None

    def open(self) -> None:
        """Do nothing: the app is open during the whole test."""

    def close(self) -> None:
        """Do nothing: no loop stays open between calls."""
