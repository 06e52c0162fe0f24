"""The threads of a SQLite file: each runs calls in order; a reader has a read-only connection in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from headgate.storage.sqlite.connection import closing_after_error, connect

R = TypeVar("R")

PROGRESS = 100_000
"""SQLite instructions between two checks whether a query has to end: some milliseconds."""


_Waiting = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class CallThread(Executor):
    """An executor for `run_in_executor`, with one thread or a few, for which the interpreter does not wait at its exit.

    `submit` returns a future of the running event loop. A `ThreadPoolExecutor` has a future of its own, with a lock,
    which is then copied into one of the loop: that took a lone commit 52 Python calls.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        # Found when it is made: gevent replaces it, after the imports under `gunicorn --preload`.
        self._calls: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._end = weakref.finalize(self, self._calls.put, None)
        # At the end of a program, finalizers are called before an app is closed that nobody has closed, by this thread.
        self._end.atexit = False
        # If one of several cannot be started, the finalizer ends those before it.
        for _ in range(threads):
            threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    def submit(self, call: Callable[..., R], /, *arguments: Any) -> asyncio.Future[R]:  # type: ignore[override]
        """Run the call in the thread, after all calls before it, unless the future is cancelled before its turn.

        It must be called on the loop that awaits the future.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()
        self._calls.put((loop, done, call, arguments))
        return done

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end after the calls that wait, or cancel those; this does not wait for them."""
        with contextlib.suppress(queue.Empty):
            while cancel_futures:
                if waiting := self._calls.get_nowait():
                    waiting[1].cancel()
        self._end()


def _serve(calls: queue.SimpleQueue[_Waiting | None]) -> None:
    while (waiting := calls.get()) is not None:
        _run(*waiting)
        # An idle thread must not keep the last call alive.
        del waiting
    calls.put(None)  # for the next thread


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


class Reader:
    """Runs queries one after another, beside the writer and beside other readers."""

    def __init__(self, path: Path, name: str) -> None:
        # It only waits for a file that is being opened or recovered. It syncs the file if it is the last to close it.
        self._connection = connect(path, synchronous="FULL", timeout=10)
        with closing_after_error(self._connection):
            self._connection.execute("PRAGMA query_only = ON")
            self._thread = CallThread(f"headgate-sqlite-{name}")

    async def run(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Return the result of `query`, called with the connection in the reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, query, self._connection)

    async def run_until(self, query: Callable[[sqlite3.Connection], R], is_over: Callable[[], bool]) -> R:
        """As `run`, on one snapshot; once it `is_over` or cancelled, SQLite interrupts it with an OperationalError."""
        cancelled = threading.Event()

        def bounded(connection: sqlite3.Connection) -> R:
            connection.set_progress_handler(lambda: cancelled.is_set() or is_over(), PROGRESS)
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.set_progress_handler(None, 0)
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        try:
            return await self.run(bounded)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(self) -> None:
        """End the running query, if any, with an OperationalError; from any thread."""
        self._connection.interrupt()

    def discard(self) -> None:
        """Close a reader that has run no query, from any thread."""
        self._connection.close()

    async def close(self) -> None:
        await self.run(sqlite3.Connection.close)
        self._thread.shutdown()
