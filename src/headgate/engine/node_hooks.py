"""Node hooks: calls the startup functions of the app before a node claims jobs, and the shutdown functions after it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from headgate.clock import SECOND, Clock, microseconds, wait_for_event
from headgate.engine.bus import EventBus
from headgate.errors import HeadgateError
from headgate.jobs.event import ShutdownFailed
from headgate.jobs.job import summarize_error
from headgate.shielding import in_thread
from headgate.tasks.hooks import LifecycleFunction, LifecycleHook, Moment


class NodeHooks:
    """Calls startup functions in the order of their declaration, and shutdown functions in reverse order.

    A startup function that raises ends this: then only the shutdown functions declared before it are called. Plain
    functions run in a thread of `pool` (default: one of its own).
    """

    def __init__(self, hooks: Sequence[LifecycleHook], *, clock: Clock, bus: EventBus, pool: Pool | None) -> None:
        self._hooks = hooks
        self._clock = clock
        self._bus = bus
        self._pool = pool
        self._own_pool: ThreadPoolExecutor | None = None
        self._shutdown: list[LifecycleHook] = []
        self.has_started = asyncio.Event()

    @property
    def exist(self) -> bool:
        """Whether there is a function to call."""
        return bool(self._hooks)

    @property
    def must_shut_down(self) -> bool:
        """Whether there are shutdown functions to call."""
        return bool(self._shutdown)

    async def start(self, stopping: asyncio.Event) -> bool:
        """Call the startup functions; return False if `stopping` has cancelled them. Raises HeadgateError."""
        if self._hooks:
            starting = asyncio.ensure_future(self._start())
            stop = asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
                await self._finish(starting, 0)
            if starting.cancelled() or not starting.done():
                return False
            starting.result()
        self.has_started.set()
        return True

    async def _start(self) -> None:
        for hook in self._hooks:
            if hook.moment is Moment.SHUTDOWN:
                self._shutdown.append(hook)
                continue
            try:
                await self._call(hook.function)
            except (Exception, SystemExit) as error:
                raise HeadgateError(
                    f"startup function {hook.name!r} raised {summarize_error(error)}; no job was claimed"
                ) from error

    async def end(self, seconds: float) -> None:
        """Call the shutdown functions, together within `seconds`; one that raises or takes longer is published."""
        until = self._clock.monotonic() + microseconds(seconds)
        while self._shutdown:
            hook = self._shutdown.pop()
            left = max(0, until - self._clock.monotonic()) / SECOND
            await self._finish(asyncio.ensure_future(self._call_safely(hook)), left)
        if self._own_pool is not None:
            self._own_pool.shutdown(wait=False, cancel_futures=True)
            self._own_pool = None

    async def _finish(self, call: asyncio.Future[None], seconds: float) -> None:
        """Wait for a call; cancel it after `seconds`, and wait a second more."""
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        if not await wait_for_event(self._clock, ended, seconds):
            call.cancel()
            await wait_for_event(self._clock, ended, 1.0)

    async def _call_safely(self, hook: LifecycleHook) -> None:
        error: str | None = None
        try:
            await self._call(hook.function)
        except asyncio.CancelledError:
            error = "cancelled: it took too long or cancelled itself"
        except BaseException as raised:
            # Raised out of a task, SystemExit would end the program before the other functions are called.
            error = summarize_error(raised)
        if error is not None:
            self._bus.publish(ShutdownFailed(at=self._clock.now(), function=hook.name, error=error))

    async def _call(self, function: LifecycleFunction) -> None:
        if inspect.iscoroutinefunction(function):
            await function()
            return
        if self._pool is None and self._own_pool is None:
            self._own_pool = ThreadPoolExecutor(1, thread_name_prefix="headgate-hook")
        pool = self._pool or self._own_pool
        assert pool is not None
        answer = await in_thread(pool, partial(contextvars.copy_context().run, function))
        if inspect.isawaitable(answer):
            await answer
