"""The portal to an app's event loop: code that cannot await runs coroutines through it, and opens the app with it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial, update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakMethod

from headgate.errors import HeadgateError, NotOpen, StorageUnavailable, own_error
from headgate.shielding import hidden_while_idle
from headgate.tasks.context import Exited, Guarded, guarded_result

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

CLOSE_AT_EXIT_TIMEOUT = 5.0
"""Seconds that the closing of an app may take when its program ends without closing it."""

LOOP_STANDS_FOR = 5
"""Seconds after which a loop that does not run counts as one that is not going to."""

Leave = Callable[[], None]
"""Leaves a context that was entered on the loop, and raises what that raises."""


class WaitingThread(Executor):
    """Runs submitted functions in a thread that waits for a future."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

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

    def serve(
        self, awaited: Future[T], loop: asyncio.AbstractEventLoop | None = None, timeout: float | None = None
    ) -> T:
        """Run what is submitted in this thread until the future is done, and return its result.

        Raises NotOpen if `loop`, which does it, is closed first, or after so many seconds; HeadgateError if it stands.
        """
        add = partial(awaited.add_done_callback, lambda _: self._calls.put(None))
        # This thread takes no lock of a future that is not done: a signal handler in the middle of that, which calls
        # too, would wait for the loop, and the loop for the lock.
        with contextlib.suppress(RuntimeError):  # It is closed.
            _ = add() if loop is None else loop.call_soon_threadsafe(add)
        left, stood = timeout or math.inf, 0
        while left > 0 and not (loop and loop.is_closed()):
            try:
                call = self._calls.get(timeout=1)
            except queue.Empty:
                left -= 1
                stood = 0 if loop is None or loop.is_running() else stood + 1
                if stood >= LOOP_STANDS_FOR:
                    raise HeadgateError(
                        "this app is open on an event loop that does not run, so .sync would wait for ever: run the "
                        "coroutine there, as in `loop.run_until_complete(task.enqueue(…))`, or run the loop in a thread"
                    ) from None
                continue
            if call is None:
                break
            call()
        if not awaited.done():
            raise NotOpen
        return guarded_result(awaited)


class LoopThreads(ThreadPoolExecutor):
    """The threads of an event loop, which resolves names itself when the program ends and there can be no threads."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError:
            called: object = function
            if called is not socket.getaddrinfo:
                raise
            # For a connection to the store, by a thread that outlives the main one or to close the app.
            found: Future[T] = Future()
            found.set_result(function(*args, **kwargs))
            return found


class Portal:
    """Runs coroutines for threads without an event loop.

    If the app is open on an event loop, they run there; otherwise on a daemon thread of its own, where the first one
    opens the app until `close()`, or until the program ends. The thread ends when nothing keeps the app open there.
    Safe from many threads. After a fork the child gets its own portal.
    """

    def __init__(
        self,
        open_app: Callable[[], AbstractAsyncContextManager[Any]],
        loop_of_app: Callable[[], asyncio.AbstractEventLoop | None],
        require_usable: Callable[[], None] = lambda: None,
        transition: Callable[[], tuple[Future[Any], asyncio.AbstractEventLoop | None] | None] = lambda: None,
    ) -> None:
        self._open_app = open_app
        self._loop_of_app = loop_of_app
        self._require_usable = require_usable
        self._transition = transition  # what another thread does, and its loop
        # A signal handler may call while the thread that it interrupts holds them.
        self._lock = threading.RLock()
        # Held while the first call opens the app.
        self._opening = threading.RLock()
        self._is_starting = False
        self._pid = os.getpid()
        # A lock for each process that was forked from this one, or from one of its children.
        self._forgetting: dict[int, threading.Lock] = {}
        # What keeps the app open in the parent. A fork that dropped it would close the app during a garbage collection.
        self._inherited: list[object] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entered = 0
        # Ends the thread.
        self._ended = asyncio.Event()
        self._leave_app: Leave | None = None
        self._failure: StorageUnavailable | None = None
        # Seconds to wait for the closing; None: as long as it takes.
        self._patience: float | None = None
        # Not when the app opens: functions that the program registers later, and that enqueue, are called before it.
        self._register_at_exit()

    def run(self, coroutine: Coroutine[Any, Any, T], caller: WaitingThread | None = None) -> T:
        """Run it and return its result; blocks this thread. Raises HeadgateError when called on the loop itself.

        An interrupt (Ctrl-C) cancels the coroutine; its requests to the store may have been executed. What it submits
        to `caller` runs in this thread.
        """
        self.require_other_loop(coroutine)
        loop = running = None
        try:
            loop = self._loop_of_app() or self._opened_loop()
            running = _begin(Guarded(coroutine, Exited), loop)
            return (caller or WaitingThread()).serve(running, loop)
        except BaseException:
            if running is not None:
                running.cancel()
            if loop is None or not loop.is_running():
                coroutine.close()
            if self._patience is not None and threading.current_thread().daemon:
                # The program ends, and Python is about to stop this thread: its error would only be printed.
                threading.Event().wait(CLOSE_AT_EXIT_TIMEOUT)
            raise

    def require_other_loop(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Raise HeadgateError on the loop of the app, which this would block; it also closes the coroutine."""
        if any(self._runs_here(loop) for loop in (self._loop_of_app(), self._loop, *(self._transition() or ())[1:])):
            coroutine.close()
            raise HeadgateError(
                ".sync was called on the event loop that would have to run it; in a coroutine write `await`, without "
                ".sync, as in `await task.enqueue(…)`"
            )

    async def reach(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop on which the app is open, and await it on this one; here if the app is not open."""
        loop = self._loop_of_app()
        if loop is None or is_running_here(loop):
            return await coroutine
        return await asyncio.wrap_future(_begin(coroutine, loop))

    def enter(self, context: AbstractAsyncContextManager[Any]) -> Leave:
        """Enter a context that opens the app, on the loop of the app; return the function that leaves it.

        Raises what the context raises. Where the app is not open, this starts the thread.
        """
        loop = self._loop_of_app()
        if loop is not None and loop is not self._loop:
            return partial(_enter(loop, context), None)
        self._forget_parent()
        with self._lock:
            if self._is_starting:
                raise HeadgateError(
                    "a signal handler called .sync while the thread that it interrupts opens the app; open it first"
                )
            if self._loop is None:
                self._is_starting = True
                try:
                    self._start()
                finally:
                    self._is_starting = False
            loop = self._loop
            self._entered += 1
        assert loop is not None
        try:
            leave = _enter(loop, context)
        except BaseException:
            self._release()
            raise
        pid = os.getpid()

        def leave_and_release() -> None:
            if pid != os.getpid():
                # The thread belongs to the parent of this process.
                return self._inherited.append(leave)
            try:
                leave(self._patience)
            finally:
                self._release()

        return leave_and_release

    def open(self) -> None:
        """Open the app now instead of on the first call."""
        self._opened_loop()

    def close(self) -> None:
        """Close the app if the first call has opened it; the next call opens it again. Not on its own loop."""
        self._forget_parent()
        if self._leave_app is not None and self._runs_here(self._loop):
            raise HeadgateError("app.sync.close() would wait for the coroutine that calls it; call it after that")
        with self._opening:
            leave, self._leave_app = self._leave_app, None
        if leave is not None:
            leave()

    def _register_at_exit(self) -> None:
        method = WeakMethod(self._close_at_exit)

        def close() -> None:
            if (found := method()) is not None:
                found()

        atexit.register(close)
        # A child that multiprocessing forks calls no functions of `atexit`, or none of its parent (Python 3.13).
        if (multiprocessing := sys.modules.get("multiprocessing.util")) is not None:
            multiprocessing.Finalize(None, close, exitpriority=0)

    def _close_at_exit(self) -> None:
        """Close the app for a program that ends without `close()`; a store that does not answer is not waited for."""
        # Multiprocessing calls this while other threads may still call, `atexit` when these have ended.
        if any(not each.daemon for each in threading.enumerate() if each is not threading.current_thread()):
            return
        self._patience = CLOSE_AT_EXIT_TIMEOUT
        with contextlib.suppress(Exception):
            self.close()

    def _runs_here(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        # Not asyncio's word for its own loop: that is the same in all green threads of gevent.
        if loop is not None and loop is self._loop:
            return threading.current_thread() is self._thread
        return is_running_here(loop)

    def _opened_loop(self) -> asyncio.AbstractEventLoop:
        self._forget_parent()
        before = self._failure
        with self._opening:
            while (transition := self._transition()) is not None:
                WaitingThread().serve(*transition)
            if self._leave_app is None and self._loop_of_app() is None:
                if (failure := self._failure) is not None and failure is not before:
                    # Else each thread in turn would wait for the store as long as the one before.
                    raise own_error(failure)
                try:
                    leave = self.enter(self._open_app())
                except StorageUnavailable as error:
                    self._failure = error
                    raise
                if self._leave_app is None:
                    self._leave_app = leave
                else:
                    leave()  # A signal handler has opened it meanwhile.
            loop = self._loop_of_app() or self._loop
            if loop is None:
                # A worker that crashed has closed the app, and a block that opened it ends at this moment.
                raise NotOpen
            return loop

    def _start(self) -> None:
        # In the caller's context: the thread has its own.
        self._require_usable()
        started: Future[asyncio.AbstractEventLoop] = Future()
        ended = self._ended = asyncio.Event()
        starter = threading.get_native_id()

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(LoopThreads())
            started.set_result(loop)
            await ended.wait()

        def run() -> None:
            try:
                with asyncio.Runner() as runner:
                    hidden_while_idle(runner.get_loop(), starter)
                    runner.run(serve())
            except BaseException as error:
                if not started.done():
                    # No loop could be made, as without free file descriptors.
                    started.set_exception(error)
                elif self._patience is None:
                    raise
                # Else the program ends, and asyncio has started no thread to end those of its executor.

        self._thread = threading.Thread(target=run, name="headgate-sync", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _release(self) -> None:
        """End the thread if nothing that was entered there is left."""
        with self._lock:
            self._entered -= 1
            if self._entered:
                return
            loop, thread, ended = self._loop, self._thread, self._ended
            self._loop = self._thread = None
        assert loop is not None
        assert thread is not None
        loop.call_soon_threadsafe(ended.set)
        # Without the lock: a handler's thread that cannot be stopped may ask for the app meanwhile.
        thread.join(self._patience)

    def _forget_parent(self) -> None:
        """Drop the thread and locks of the parent after a fork: the thread is not here, and the locks may be held."""
        pid = os.getpid()
        if self._pid == pid:
            return
        # One of the threads that come here first does it: what it sets afterwards must not be dropped by another.
        with self._forgetting.setdefault(pid, threading.Lock()):
            if self._pid != pid:
                self._lock, self._opening, self._is_starting = threading.RLock(), threading.RLock(), False
                self._inherited.append((self._loop, self._leave_app))
                self._loop = self._thread = self._leave_app = None
                self._entered = 0
                self._register_at_exit()
                self._pid = pid


def _begin(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    """Run it on a loop of another thread. Raises NotOpen if that is closed."""
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise NotOpen from None


def _enter(
    loop: asyncio.AbstractEventLoop, context: AbstractAsyncContextManager[Any]
) -> Callable[[float | None], None]:
    """Enter a context on a loop of another thread, in a task that waits until the returned function leaves it."""
    entered, leaving = Future[None](), asyncio.Event()

    async def stay() -> None:
        async with context:
            entered.set_result(None)
            await leaving.wait()

    coroutine = Guarded(stay(), Exited)
    staying = _begin(coroutine, loop)

    def leave(timeout: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # It is closed.
            loop.call_soon_threadsafe(leaving.set)
        WaitingThread().serve(staying, loop, timeout)

    try:
        with contextlib.suppress(RuntimeError):  # It is closed.
            loop.call_soon_threadsafe(staying.add_done_callback, lambda _: entered.cancel())
        with contextlib.suppress(CancelledError):
            WaitingThread().serve(entered, loop)
    except BaseException:
        staying.cancel()
        if loop.is_closed():
            coroutine.close()
        raise
    if entered.cancelled():
        leave(None)
    return leave


def is_running_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the loop runs in this thread."""
    return loop is not None and asyncio._get_running_loop() is loop


class RunsVerbs(Protocol):
    """An object for code that cannot await: it runs the methods of the one that it stands for."""

    def _run(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...


class Blocking(Generic[P, R]):
    """A method of another class, a coroutine or a plain one, as one that blocks until it has returned.

    An attribute of this type is Final: only then type checkers agree on a type that is not written down.
    """

    @overload
    def __init__(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None: ...
    @overload
    def __init__(self, verb: Callable[Concatenate[Any, P], R]) -> None: ...
    def __init__(self, verb: Callable[..., Any]) -> None:
        self._verb = verb

    def __set_name__(self, owner: type[RunsVerbs], name: str) -> None:
        def call(verbs: RunsVerbs, *args: Any, **kwargs: Any) -> Any:
            return verbs._run(self._verb, *args, **kwargs)

        # A plain function in its place: the class has it as other methods, for `map(SyncJob.cancel, jobs)` and mocks.
        setattr(owner, name, update_wrapper(call, self._verb))

    if TYPE_CHECKING:

        @overload
        def __get__(self, verbs: None, owner: type[RunsVerbs]) -> Callable[Concatenate[Any, P], R]: ...
        @overload
        def __get__(self, verbs: RunsVerbs, owner: type[RunsVerbs]) -> Callable[P, R]: ...
        def __get__(self, verbs: RunsVerbs | None, owner: type[RunsVerbs]) -> Any: ...


class AppContext(Generic[A]):
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
