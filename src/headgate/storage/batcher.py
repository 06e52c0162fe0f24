"""Commits writes in groups: while one group commits, new writes gather for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from headgate.errors import own_error

W = TypeVar("W")

Waiting = tuple[W, asyncio.Future[Any]]
"""A write, and the future with its result."""

Commit = Callable[[Sequence[W]], Coroutine[Any, Any, Sequence[Any]] | asyncio.Future[Sequence[Any]]]


class Batcher(Generic[W]):
    """Passes writes to `commit` in groups, at once when idle, and returns to each caller its own result.

    `commit` returns one result for each write, in order. A result that is an exception is raised for its caller only;
    of an exception that `commit` itself raises, each caller of the group gets one of its own. It may return a future:
    then a group takes no task, and its callers continue one step of the loop earlier.
    """

    def __init__(self, commit: Commit[W], most: int = 1000) -> None:
        self._commit = commit
        self._most = most
        self._pending: list[Waiting[W]] = []
        self.is_idle = True
        """Whether no write is being committed or waits for a commit."""
        self._committing: asyncio.Future[Sequence[Any]] | None = None

    def write(self, write: W) -> asyncio.Future[Any]:
        """Return the result after the commit of this write. Cancelling the caller does not undo the write."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._pending.append((write, done))
        if self.is_idle:
            self.is_idle = False
            # In the next step of the loop, so that what is written in this one shares the commit.
            loop.call_soon(self._commit_next)
        return done

    async def drain(self) -> None:
        """Return when no write is being committed or waits for a commit."""
        while not self.is_idle:
            self._commit_next()
            if self._committing is not None:
                await asyncio.wait([self._committing])

    def _commit_next(self) -> None:
        """Begin to commit what waits, unless a commit is in flight."""
        if self._committing is not None:
            return
        group, self._pending = self._pending[: self._most], self._pending[self._most :]
        self.is_idle = not group
        if not group:
            return
        committing = self._commit([write for write, _ in group])
        if not isinstance(committing, asyncio.Future):
            committing = asyncio.get_running_loop().create_task(committing, name="headgate-commits")
        self._committing = committing
        # Not at the end of a task: one that is cancelled before its first step never gets there.
        committing.add_done_callback(partial(self._settle, group))

    def _settle(self, group: Sequence[Waiting[W]], committing: asyncio.Future[Sequence[Any]]) -> None:
        self._committing = None
        error = asyncio.CancelledError() if committing.cancelled() else committing.exception()
        if error is None:
            for (_, done), result in zip(group, committing.result(), strict=True):
                if done.done():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        elif isinstance(error, Exception):
            for _, done in group:
                if not done.done():
                    done.set_exception(own_error(error))
        else:
            # None of these writes will be committed, so their callers must not wait.
            for _, done in (*group, *self._pending):
                done.cancel()
            self._pending.clear()
        self._commit_next()
