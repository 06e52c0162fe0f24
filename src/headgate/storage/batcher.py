"""Commits writes in groups: while one group commits, new writes gather for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from headgate.errors import own_error

W = TypeVar("W")

Commit = Callable[[Sequence[W]], Awaitable[Sequence[Any]]]


class Batcher(Generic[W]):
    """Passes writes to `commit` in groups, at once when idle, and returns to each caller its own result.

    `commit` returns one result for each write, in order. A result that is an exception is raised for its caller only;
    of an exception that `commit` itself raises, each caller of the group gets one of its own.
    """

    def __init__(self, commit: Commit[W], most: int = 1000) -> None:
        self._commit = commit
        self._most = most
        self._pending: list[tuple[W, asyncio.Future[Any]]] = []
        self._committing: asyncio.Task[None] | None = None

    async def write(self, write: W) -> Any:
        """Return the result after the commit of this write. Cancelling the caller does not undo the write."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending.append((write, done))
        if self._committing is None:
            self._start()
        return await done

    async def drain(self) -> None:
        """Return when no write is being committed or waits for a commit."""
        while self._committing is not None:
            await asyncio.wait([self._committing])

    def _start(self) -> None:
        self._committing = asyncio.get_running_loop().create_task(self._commit_pending(), name="headgate-commits")
        # Not at the end of the task: a task that is cancelled before its first step never gets there.
        self._committing.add_done_callback(self._ended)

    async def _commit_pending(self) -> None:
        while self._pending:
            group, self._pending = self._pending[: self._most], self._pending[self._most :]
            await self._settle(group)

    def _ended(self, committing: asyncio.Task[None]) -> None:
        self._committing = None
        if committing.cancelled() or committing.exception() is not None:
            # These writes will not be committed, so their callers must not wait.
            for _, done in self._pending:
                done.cancel()
            self._pending.clear()
        elif self._pending:
            self._start()

    async def _settle(self, group: list[tuple[W, asyncio.Future[Any]]]) -> None:
        try:
            results = await self._commit([write for write, _ in group])
        except BaseException as error:
            for _, done in group:
                if not done.done():
                    done.set_exception(own_error(error) if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        for (_, done), result in zip(group, results, strict=True):
            if done.done():
                continue
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)
