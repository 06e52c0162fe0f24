"""A budget shared with other programs: one line per key requests starts from the store for all its waiters.

The store belongs to one event loop, for callers on any loop or thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from headgate.arguments import parse_until, parse_wait
from headgate.clock import Clock, Duration
from headgate.errors import ForkedConnection, GateClosed, HeadgateError, StorageUnavailable
from headgate.limits.bucket_store import BucketStore, Taken
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Snapshot
from headgate.limits.standalone.decision import Decision
from headgate.limits.standalone.shared_session import SharedSession
from headgate.shielding import hidden_while_idle

T = TypeVar("T")


class SharedBudget:
    """The budget of a limiter in an async store. Its lines and the store belong to one event loop.

    `open_store` returns the store. If it returns a new one each time, the budget survives the end of its event loop:
    another loop takes its place, with another store, and a store is closed with its loop or with the budget.
    """

    hands_out_permits = False
    decides_at_once = False
    session_kind: type[SharedSession] = SharedSession
    open_app: Callable[[], object] | None = None
    """Opens the app whose limit it is, if it is not open. Calls of threads do, as other `.sync` calls."""

    def __init__(
        self, open_store: Callable[[], BucketStore], limit: str, rule: AnyRule, clock: Clock, *, is_new: bool
    ) -> None:
        def begin() -> SharedSession:
            return self.session_kind(open_store(), limit, rule, clock, closes_store=is_new)

        self.clock: Clock = clock
        self.home: HomeLoop = HomeLoop(begin, renews=is_new)
        self._is_closed = False

    def try_acquire(self, key: str, cost: int) -> Decision:
        return self._run(SharedSession.try_acquire, key, cost, undo=_undo(key, cost))

    async def try_acquire_async(self, key: str, cost: int) -> Decision:
        return await self._run_async(SharedSession.try_acquire, key, cost, undo=_undo(key, cost))

    def acquire(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return self._run(SharedSession.acquire, key, cost, self._end_of(timeout), undo=_undo(key, cost))

    async def acquire_async(self, key: str, cost: int, timeout: Duration | None) -> Decision:
        return await self._run_async(SharedSession.acquire, key, cost, self._end_of(timeout), undo=_undo(key, cost))

    def release(self, key: str, cost: int) -> None:
        raise HeadgateError("a rate counts starts, so there is nothing to give back; use `hold()` and `settle()`")

    def reserve(self, key: str, cost: int, id: str) -> Taken:
        return self._run(SharedSession.reserve, key, cost, id)

    async def reserve_async(self, key: str, cost: int, id: str) -> Taken:
        return await self._run_async(SharedSession.reserve, key, cost, id)

    def cancel(self, key: str, id: str) -> bool:
        return self._run(SharedSession.cancel, key, id, may_repeat=False)

    async def cancel_async(self, key: str, id: str) -> bool:
        return await self._run_async(SharedSession.cancel, key, id, may_repeat=False)

    def settle(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        self._run(SharedSession.settle, key, charged_at, cost, actual, may_repeat=False)

    async def settle_async(self, key: str, charged_at: int, cost: int, actual: int) -> None:
        await self._run_async(SharedSession.settle, key, charged_at, cost, actual, may_repeat=False)

    def penalize(self, key: str, until: datetime | Duration) -> None:
        self._run(SharedSession.penalize, key, self._opening(until))

    async def penalize_async(self, key: str, until: datetime | Duration) -> None:
        await self._run_async(SharedSession.penalize, key, self._opening(until))

    def snapshot(self, key: str) -> Snapshot:
        return self._run(SharedSession.snapshot, key)

    async def snapshot_async(self, key: str) -> Snapshot:
        return await self._run_async(SharedSession.snapshot, key)

    def reset(self, key: str) -> None:
        self._run(SharedSession.reset, key)

    async def reset_async(self, key: str) -> None:
        await self._run_async(SharedSession.reset, key)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                if not self.home.is_over:
                    self.home.run_sync(self.session_kind.close)
            except HeadgateError:
                # It was called on the home loop: `close_async` can still close it.
                self._is_closed = False
                raise
            self.home.close()

    async def close_async(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if not self.home.is_over:
                await self.home.run(self.session_kind.close)
            self.home.close()

    def add_holder(self, key: str) -> None:
        """Do nothing: other programs may give something back at any time, so a line asks again now and then."""

    def remove_holder(self, key: str) -> None:
        pass

    def _run(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        self._check(verb)
        if self.open_app is not None:
            self.open_app()
        result: T = self.home.run_sync(verb, *args, **options)
        return result

    async def _run_async(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        self._check(verb)
        return await self.home.run(verb, *args, **options)

    def _check(self, verb: Callable[..., object]) -> None:
        """Raise GateClosed if the budget is closed."""
        if self._is_closed:
            raise GateClosed

    def _end_of(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self.clock.monotonic() + parse_wait(timeout, "timeout", "a limiter")

    def _opening(self, until: datetime | Duration) -> int:
        """Return the clock time of an instant; an invalid one is refused before any request."""
        return self.clock.monotonic() + parse_until(until, self.clock.now())


def _undo(key: str, cost: int) -> Callable[[SharedSession, Decision], None]:
    """Return what refunds a start that its caller has not received."""
    return lambda session, decision: session.undo_start(key, cost, decision)


@dataclass(eq=False, slots=True)
class _Home:
    loop: asyncio.AbstractEventLoop
    session: SharedSession
    thread: threading.Thread | None = None
    calls: set[Future[Any]] = field(default_factory=set)
    """The calls from other loops and threads that have no answer yet."""
    at_end: AsyncIterator[None] | None = None


class HomeLoop:
    """The loop of the first caller; if that was a thread without a loop, the loop of a daemon thread.

    Calls from other loops and from threads run there, so that the session belongs to one loop. When that loop ends, its
    session is closed, and the loop of a daemon thread takes its place for good, with a new session from `begin`: the
    next caller's loop may end as soon. Calls that were not answered are repeated there. A fork has its own
    home. Without `renews` there is one session only, and later calls raise HeadgateError.

    `find` returns the loop of an app, if it is open: its store belongs to that loop, so the home is there, and moves
    with it.
    """

    find: Callable[[], asyncio.AbstractEventLoop | None] | None = None

    def __init__(self, begin: Callable[[], SharedSession], *, renews: bool) -> None:
        self._begin = begin
        self._renews = renews
        self._lock = threading.Lock()
        self._home: _Home | None = None
        self._was_left = False
        self._is_closed = False
        self._pid = os.getpid()
        # A lock for each process that was forked from this one, or from one of its children.
        self._forgetting: dict[int, threading.Lock] = {}
        self._inherited: list[_Home | None] = []

    async def run(
        self,
        verb: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        may_repeat: bool = True,
        undo: Callable[[Any, T], None] | None = None,
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
                if task is None or task.cancelling() > cancels:
                    raise
                self._lost(home, may_repeat)

    def run_sync(
        self,
        verb: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        may_repeat: bool = True,
        undo: Callable[[Any, T], None] | None = None,
    ) -> T:
        """As `run`, blocking this thread. Raises HeadgateError when this thread runs the home loop."""
        while True:
            home = self._home_for(None)
            if home.thread is None and asyncio._get_running_loop() is home.loop:
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

    @property
    def is_over(self) -> bool:
        """Whether its loop has ended, and the session with it, which no other follows."""
        home = self._home
        return not self._renews and (self._was_left or (home is not None and self._has_ended(home)))

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

    def _home_for(self, running: asyncio.AbstractEventLoop | None) -> _Home:
        """Return the home; the first one is the running loop, if there is one, and the one after it a thread's."""
        home, loop = self._home, None if self.find is None else self.find()
        if loop is not None and not loop.is_running():
            loop = None
        # The store of an app is opened before each call, as the app may have closed it since; never while it is closed.
        is_open = self.find is not None and loop is None
        if self.find is not None and home is not None:
            home.session.is_open = is_open
        if home is not None and home.loop is running and loop in (None, running):
            return home
        pid = os.getpid()
        if self._pid != pid:
            if home is not None and not self._renews:
                raise ForkedConnection("this limiter and its store were in use before the fork; make both after it")
            # One of the threads that come here first does it: what it sets afterwards must not be dropped by another.
            with self._forgetting.setdefault(pid, threading.Lock()):
                if self._pid != pid:
                    # The parent's lock may never be free here. Its home is kept: its end would close its connections.
                    self._inherited.append(home)
                    self._lock, self._home = threading.Lock(), None
                    self._pid = pid
        with self._lock:
            home = self._home
            if home is not None and loop is not None and home.loop is not loop:
                self._home = home = None
            elif home is not None and home.loop is not running and self._has_ended(home):
                self._home = home = None
                self._was_left = self.find is None
            if self._is_closed:
                raise GateClosed
            if self._was_left and not self._renews:
                raise HeadgateError("the event loop that this limiter was first used on has ended; make another")
            if home is None:
                running = loop or (None if self._was_left else running)
                home = _Home(running or asyncio.new_event_loop(), self._begin())
                home.session.is_open = is_open
                if running is None:
                    args = (home.loop, threading.get_native_id())
                    home.thread = threading.Thread(target=_run_forever, args=args, name="headgate-limiter", daemon=True)
                    try:
                        home.thread.start()
                    except RuntimeError:
                        home.loop.close()
                        raise
                self._home = home
            return home

    def _has_ended(self, home: _Home) -> bool:
        # A loop that is not running may never run again, and would let its callers wait.
        may_move = self._renews or self.find is not None
        return home.loop.is_closed() or (may_move and home.thread is None and not home.loop.is_running())

    def _submit(
        self,
        home: _Home,
        verb: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        undo: Callable[[Any, T], None] | None,
    ) -> Future[T] | None:
        """Start the call on the home loop; None if that has ended.

        A result belongs to the caller from the instant at which `call` has it. If `call` was cancelled before, the
        result is undone here; if the caller leaves later, `_abandon` undoes it.
        """
        # None as long as its caller does not have it: the loop may be done before this thread goes on.
        call: Future[T] | None = None

        def undo_undelivered(task: asyncio.Task[Any]) -> None:
            if undo is not None and call and call.cancelled() and not task.cancelled() and task.exception() is None:
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
            call = asyncio.run_coroutine_threadsafe(answer(), home.loop)
            home.calls.add(call)
        call.add_done_callback(home.calls.discard)
        return call

    def _abandon(self, home: _Home, call: Future[T], undo: Callable[[Any, T], None] | None) -> None:
        """End a call whose caller leaves, and undo its result if there is one already."""
        if call.cancel() or undo is None or call.exception() is not None:
            return
        with contextlib.suppress(RuntimeError):  # a loop that is closed has closed its session
            home.loop.call_soon_threadsafe(undo, home.session, call.result())

    def _lost(self, home: _Home, may_repeat: bool) -> None:
        """Leave a home that has cancelled a call."""
        if not self._renews:
            raise GateClosed from None
        self._leave(home)
        if not may_repeat:
            raise StorageUnavailable("the event loop of the limiter ended: whether this was counted is not known")

    def _leave(self, home: _Home) -> None:
        with self._lock:
            if self._home is home:
                self._home = None
                self._was_left = True

    async def _end_with(self, home: _Home) -> AsyncIterator[None]:
        """Close the session when the loop ends."""
        try:
            yield
        finally:
            self._leave(home)
            for call in list(home.calls):
                call.cancel()
            await home.session.close()


def _run_forever(loop: asyncio.AbstractEventLoop, starter: int) -> None:
    hidden_while_idle(loop, starter).run_forever()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
