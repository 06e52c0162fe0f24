"""Waiting for work that a cancellation must not interrupt, for work in a thread, and for other tasks of the loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor as Pool
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from headgate.errors import StorageUnavailable, own_error

T = TypeVar("T")


async def shield_until_done(work: Awaitable[T]) -> T:
    """Return the result of `work`. A cancellation of the caller does not reach it, and is raised once it is done.

    An error of `work` takes precedence over the cancellation.
    """
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    result = running.result()
    if cancelled is not None:
        raise cancelled
    return result


class OutageLock(asyncio.Lock):
    """A lock of those who ask a store: all who wait for one to whom it does not answer get an error of their own."""

    _failure: StorageUnavailable | None = None

    async def __aenter__(self) -> None:
        before = self._failure
        await self.acquire()
        if (failure := self._failure) is not None and failure is not before:
            self.release()
            # Else each in turn would wait for the store as long as the one before.
            raise own_error(failure)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._failure = error if isinstance(error, StorageUnavailable) else None
        self.release()


class LoopLock:
    """A lock of the running event loop: what outlives a loop gets another one on the next."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> asyncio.Lock:
        """Return the lock, for `async with`."""
        loop = asyncio.get_running_loop()
        if self._lock is None or self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock


def in_thread(pool: Pool | None, call: Callable[[], T]) -> asyncio.Future[T]:
    """Run `call` in a thread of `pool` (None: of the event loop) and return its future."""
    waiting = [call]
    try:
        return asyncio.get_running_loop().run_in_executor(pool, _guarded, waiting)
    except RuntimeError:
        # No thread can be started; a ThreadPoolExecutor would make the call later, in a thread that becomes free.
        waiting.clear()
        raise


def is_cancellation(error: BaseException) -> bool:
    """Whether it is the cancellation of the running task, and no CancelledError that code of a user has raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def call_any(
    function: Callable[..., object], *args: object, run: Callable[[Callable[[], object]], Awaitable[object]]
) -> None:
    """Await a coroutine function; pass the call of a plain one to `run`, for a thread, and await what it returns."""
    if inspect.iscoroutinefunction(function):
        await function(*args)
        return
    answer = await run(partial(copy_context().run, function, *args))
    if inspect.isawaitable(answer):
        await answer


def read_error(done: asyncio.Future[Any]) -> None:
    """Read the error of work that nobody awaits any more; otherwise asyncio would log it."""
    if not done.cancelled():
        done.exception()


def _guarded(waiting: list[Callable[[], T]]) -> T:
    call = waiting.pop()
    try:
        return call()
    except StopIteration as error:
        # A future cannot hold it: the waiter would wait for ever. Coroutines convert it in the same way.
        raise RuntimeError("the function raised StopIteration") from error


def hidden_while_idle(loop: Any, starter: int) -> Any:
    """Return the loop; if this is a green thread of the OS thread `starter`, asyncio sees the loop only while it works.

    For asyncio they are one thread: the loops of others could not run, and Django would refuse each of their queries.
    """
    if threading.get_native_id() == starter:
        select, other = loop._selector.select, asyncio._get_running_loop()
        asyncio._set_running_loop(None)

        def select_hidden(timeout: float | None) -> Any:
            nonlocal other
            asyncio._set_running_loop(other)
            events = select(timeout)
            other = asyncio._get_running_loop()
            asyncio._set_running_loop(loop)
            return events

        loop._selector.select = select_hidden
    return loop
