"""One event loop for a store that belongs to one, for callers on any loop or thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from headgate.errors import GateClosed, HeadgateError, StorageUnavailable


class LoopSession(Protocol):
    """The state that belongs to one event loop."""

    async def close(self) -> None:
        """Release everything; a second call does nothing."""
        ...


S = TypeVar("S", bound=LoopSession)
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Home(Generic[S]):
    loop: asyncio.AbstractEventLoop
    session: S
    thread: threading.Thread | None = None
    calls: set[Future[Any]] = field(default_factory=set)
    """The calls from other loops and threads that have no answer yet."""
    at_end: AsyncIterator[None] | None = None


class HomeLoop(Generic[S]):
    """The loop of the first caller; if that was a thread without a loop, the loop of a daemon thread.

    Calls from other loops and from threads run there, so that the session belongs to one loop. When that loop ends, its
    session is closed, and the loop of a daemon thread takes its place for good, with a new session from `begin`: the
    next caller's loop may end as soon. Calls that were not answered are repeated there. Without `renews` there is one
    session only, and later calls raise HeadgateError.
    """

    def __init__(self, begin: Callable[[], S], *, renews: bool) -> None:
        self._begin = begin
        self._renews = renews
        self._lock = threading.Lock()
        self._home: _Home[S] | None = None
        self._was_left = False
        self._is_closed = False

    async def run(
        self,
        verb: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        may_repeat: bool = True,
        undo: Callable[[S, T], None] | None = None,
    ) -> T:
        """Await `verb(session, *args)` on the home loop.

        If that loop ends first, the call is repeated on the next one, or raises StorageUnavailable if it may not be.
        If the caller leaves without the result, `undo(session, result)` runs on the home loop.
        """
        task = asyncio.current_task()
        running = asyncio.get_running_loop()
        while True:
            home = self._home_for(running)
            if home.loop is running:
                if home.at_end is None and self._renews:
                    # A loop that ends closes its asynchronous generators.
                    home.at_end = self._end_with(home)
                    await anext(home.at_end)
                return await verb(home.session, *args)
            cancels = 0 if task is None else task.cancelling()
            call = self._submit(home, verb, args, undo)
            if call is None:
                continue
            try:
                return await asyncio.wrap_future(call)
            except asyncio.CancelledError:
                self._abandon(home, call, undo)
                if task is None or task.cancelling() > cancels or not self._renews:
                    raise
                self._lost(home, may_repeat)

    def run_sync(
        self,
        verb: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        may_repeat: bool = True,
        undo: Callable[[S, T], None] | None = None,
    ) -> T:
        """As `run`, blocking this thread. Raises HeadgateError when this thread runs the home loop."""
        while True:
            home = self._home_for(None)
            if asyncio._get_running_loop() is home.loop:
                raise HeadgateError(
                    ".sync was called on the event loop that would have to run it; in a coroutine write `await`, "
                    "without .sync, as in `await limiter.acquire(…)`"
                )
            call = self._submit(home, verb, args, undo)
            if call is None:
                continue
            try:
                return call.result()
            except CancelledError:
                self._lost(home, may_repeat)
            except BaseException:
                # Its own error, or an interrupt.
                self._abandon(home, call, undo)
                raise

    def close(self) -> None:
        """End the thread, if there is one; callers that still wait in it get GateClosed."""
        with self._lock:
            self._is_closed = True
            home = self._home
            thread = None if home is None else home.thread
            if home is not None:
                home.thread = None
        if home is None or thread is None or threading.current_thread() is thread:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), home.loop).result()
        home.loop.call_soon_threadsafe(home.loop.stop)
        thread.join()
        home.loop.close()

    def _home_for(self, running: asyncio.AbstractEventLoop | None) -> _Home[S]:
        """Return the home; the first one is the running loop, if there is one, and the one after it a thread's."""
        home = self._home
        if home is not None and home.loop is running:
            return home
        with self._lock:
            home = self._home
            if home is not None and home.loop is not running and self._has_ended(home):
                self._home = home = None
                self._was_left = True
            if self._is_closed:
                raise GateClosed
            if self._was_left and not self._renews:
                raise HeadgateError("the event loop that this limiter was first used on has ended; make another")
            if home is None:
                if self._was_left:
                    running = None
                home = self._home = _Home(running or asyncio.new_event_loop(), self._begin())
                if running is None:
                    home.thread = threading.Thread(target=home.loop.run_forever, name="headgate-limiter", daemon=True)
                    home.thread.start()
            return home

    def _has_ended(self, home: _Home[S]) -> bool:
        # A loop that is not running may never run again, and would let its callers wait.
        return home.loop.is_closed() or (self._renews and home.thread is None and not home.loop.is_running())

    def _submit(
        self,
        home: _Home[S],
        verb: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        undo: Callable[[S, T], None] | None,
    ) -> Future[T] | None:
        """Start the call on the home loop; None if that has ended.

        A result belongs to the caller from the instant at which `call` has it. If `call` was cancelled before, the
        result is undone here; if the caller leaves later, `_abandon` undoes it.
        """

        def undo_undelivered(task: asyncio.Task[Any]) -> None:
            if undo is not None and call.cancelled() and not task.cancelled() and task.exception() is None:
                undo(home.session, task.result())

        async def answer() -> T:
            task = asyncio.current_task()
            assert task is not None
            # asyncio has added its callback, which sets the result of `call`, before the task began.
            task.add_done_callback(undo_undelivered)
            return await verb(home.session, *args)

        with self._lock:
            if self._home is not home or home.loop.is_closed():
                return None
            call: Future[T] = asyncio.run_coroutine_threadsafe(answer(), home.loop)
            home.calls.add(call)
        call.add_done_callback(home.calls.discard)
        return call

    def _abandon(self, home: _Home[S], call: Future[T], undo: Callable[[S, T], None] | None) -> None:
        """End a call whose caller leaves, and undo its result if there is one already."""
        if call.cancel() or undo is None or call.exception() is not None:
            return
        with contextlib.suppress(RuntimeError):  # a loop that is closed has closed its session
            home.loop.call_soon_threadsafe(undo, home.session, call.result())

    def _lost(self, home: _Home[S], may_repeat: bool) -> None:
        """Leave a home that has cancelled a call."""
        if not self._renews:
            raise GateClosed from None
        self._leave(home)
        if not may_repeat:
            raise StorageUnavailable("the event loop of the limiter ended: whether this was counted is not known")

    def _leave(self, home: _Home[S]) -> None:
        with self._lock:
            if self._home is home:
                self._home = None
                self._was_left = True

    async def _end_with(self, home: _Home[S]) -> AsyncIterator[None]:
        """Close the session when the loop ends."""
        try:
            yield
        finally:
            self._leave(home)
            for call in list(home.calls):
                call.cancel()
            await home.session.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
