"""One thread that runs calls in order and returns each result to the event loop of its caller."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")

_Waiting = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class CallThread(Executor):
    """An executor with one thread for `run_in_executor`. `submit` returns a future of the running event loop.

    A `ThreadPoolExecutor` has a future of its own, with a lock, which is then copied into one of the loop: that took a
    lone commit 52 Python calls. The interpreter does not wait for this thread when it exits.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Waiting | None] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[..., R], /, *arguments: Any) -> asyncio.Future[R]:  # type: ignore[override]
        """Run the call in the thread, after all calls before it, unless the future is cancelled before its turn.

        It must be called on the loop that awaits the future.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()
        self._calls.put((loop, done, call, arguments))
        return done

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the thread end after the calls that wait; this does not wait for it."""
        self._end()


def _serve(calls: SimpleQueue[_Waiting | None]) -> None:
    while (waiting := calls.get()) is not None:
        _run(*waiting)
        # An idle thread must not keep the last call alive.
        del waiting


def _run(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], call: Callable[..., Any], arguments: Any) -> None:
    if done.cancelled():
        return
    # The loop may be closed by now, and then the result is dropped.
    with contextlib.suppress(RuntimeError):
        try:
            result = call(*arguments)
        except BaseException as error:
            loop.call_soon_threadsafe(_answer, done, done.set_exception, error)
        else:
            loop.call_soon_threadsafe(_answer, done, done.set_result, result)


def _answer(done: asyncio.Future[Any], settle: Callable[[Any], None], answer: Any) -> None:
    if not done.done():
        settle(answer)
