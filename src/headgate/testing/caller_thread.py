"""The thread that waits runs the plain functions: so code that cannot await is tested in one thread, as it looks.

The event loop lives in a helper thread meanwhile. Frameworks that keep their database connection in a thread, and those
that refuse to work in one with a running event loop, find what they would find without Headgate.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from headgate.tasks.portal import Portal

P = ParamSpec("P")
T = TypeVar("T")

_waiting: contextvars.ContextVar[CallerThread | None] = contextvars.ContextVar("headgate_caller_thread", default=None)


def waiting_thread() -> CallerThread | None:
    """The thread that waits for this event loop to be done, if one does."""
    return _waiting.get()


class CallerThread(Executor):
    """Runs a coroutine on a loop of its own, and what is submitted to it in the thread that called `run`."""

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
        """What the coroutine returns; blocks this thread."""
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
        """Nothing to end: the thread is the caller's."""


class CallingPortal(Portal):
    """The portal of an app under test: each call has a loop of its own, and none stays behind."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.require_elsewhere(coroutine)
        return CallerThread().run(coroutine)

    def open(self) -> None:
        """It is open as long as the test has it."""

    def close(self) -> None:
        """Nothing stays open from one call to the next."""
