"""Results: waits for the end of jobs and batches, and returns what a job returned or raises its error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Generic, TypeVar

import msgspec

from headgate.clock import SECOND, Clock, sleep, to_datetime, wait_for_event, within
from headgate.errors import (
    AttemptFailed,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobSkipped,
    LeaderNotSucceeded,
    LimitRejected,
    NotOpen,
    StorageLost,
    StorageUnavailable,
    own_error,
)
from headgate.jobs.batch import BatchRecord
from headgate.jobs.job import JobError, JobRecord, JobState
from headgate.storage.endings import EXPIRED_ERROR, LEADER_NOT_SUCCEEDED, REJECTED, skipped_because
from headgate.storage.store import Store
from headgate.tasks.codec import NO_CODECS, Codecs
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.signals import Cancel

E = TypeVar("E", JobRecord, BatchRecord)

POLL_INTERVAL = 1.0
"""Seconds between two reads if no change is notified."""

LOOK_EVERY = 10 * SECOND
"""Microseconds between two looks for what was deleted while somebody waits for it."""

CANCELLED_BY_HANDLER = "headgate.Cancel"
"""The error type of a job that its handler has cancelled, also by a subclass of `Cancel`."""


class EndWatch(Generic[E]):
    """Serves all who wait for ends, of jobs or of batches, with one read of the store at a time.

    `read` returns those of many that are final, or all that are stored; in the first case `stored` returns which are.
    """

    def __init__(
        self,
        storage: Store,
        clock: Clock,
        not_found: type[JobNotFound],
        *,
        read: Callable[[Sequence[str]], Awaitable[Sequence[E]]],
        stored: Callable[[Sequence[str]], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._read: Callable[[Sequence[str]], Awaitable[Sequence[E]]] = read
        self._stored = stored
        self._not_found = not_found
        self._waiting: dict[str, asyncio.Future[E]] = {}
        self._waiters: Counter[str] = Counter()
        self._unread: set[str] = set()
        self._reading: Set[str] = frozenset()
        self._changed = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._is_closed = False

    async def wait(self, id: str, timeout: float | None) -> E:
        """Return what is stored once it is final.

        Raises JobNotFound, also if it is deleted meanwhile, TimeoutError, NotOpen if the app is closed, and
        StorageUnavailable if the first read fails. A store that goes away later is waited for, unless it is lost.
        """
        if self._is_closed:
            raise NotOpen
        loop = asyncio.get_running_loop()
        if id not in self._waiting or id in self._reading:
            # A first read that is in flight may have begun before it was stored.
            self._unread.add(id)
        future = self._waiting.setdefault(id, loop.create_future())
        # It may have become final since the last read.
        self._changed.set()
        if self._polling is None or self._polling.done():
            self._polling = loop.create_task(self._poll(), name="headgate-results")
        self._waiters[id] += 1
        own = asyncio.shield(future)
        try:
            return await (own if timeout is None else within(self._clock, timeout, own))
        finally:
            self._waiters[id] -= 1
            if not self._waiters[id]:
                # No waiter is left, so it is no longer polled.
                del self._waiters[id]
                self._waiting.pop(id, None)

    async def _poll(self) -> None:
        # Only while somebody waits: a thread that enqueues wakes the loop for each watcher.
        unwatch = self._storage.watch(self._changed.set)
        looked_at = self._clock.monotonic()
        try:
            while self._waiting:
                await wait_for_event(self._clock, self._changed, POLL_INTERVAL)
                self._changed.clear()
                looks = self._clock.monotonic() - looked_at >= LOOK_EVERY
                self._reading, self._unread = self._unread, set()
                try:
                    await self._settle(list(self._waiting), looks=looks)
                except Exception as error:
                    is_away = isinstance(error, StorageUnavailable) and not isinstance(error, StorageLost)
                    for id in self._reading if is_away else list(self._waiting):
                        self._fail(id, own_error(error))
                    if is_away:
                        # The others continue to wait.
                        await sleep(self._clock, 1.0)
                        self._changed.set()
                    continue
                if looks:
                    looked_at = self._clock.monotonic()
                # The more are awaited, the longer changes gather for one read.
                await sleep(self._clock, min(0.01, 0.00002 * len(self._waiting)))
        finally:
            unwatch()

    async def _settle(self, ids: Sequence[str], *, looks: bool) -> None:
        """End the waits for those that are final, and for those not stored: of all if it `looks`, else of new ones."""
        records = {record.id: record for record in await self._read(ids)}
        for id, record in records.items():
            if record.finished_at is not None and (future := self._waiting.pop(id, None)):
                future.set_result(record)
        missing = [id for id in ids if id not in records and (looks or id in self._reading)]
        if missing:
            for id in set(missing).difference(await self._stored(missing) if self._stored else (), self._unread):
                self._fail(id, self._not_found(id))
        self._reading = frozenset()

    def _fail(self, id: str, error: Exception) -> None:
        if future := self._waiting.pop(id, None):
            future.set_exception(error)
            future.exception()

    async def close(self) -> None:
        """End all waits with NotOpen, because the app is closed."""
        self._is_closed = True
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        for id in list(self._waiting):
            self._fail(id, NotOpen())


def result_of(record: JobRecord, task: TaskDefinition | None, codecs: Codecs = NO_CODECS) -> Any:
    """Return the result of the handler, of its annotated type if the task is known.

    Raises JobFailed, JobCancelled, JobSkipped, and PayloadError if it cannot be decoded.
    """
    match record.state:
        case JobState.CANCELLED:
            # A job that was cancelled between two attempts has the error of the first; that is not the reason.
            reason = None if record.error is None else cause_of(record.error)
            raise JobCancelled(record.id, None if reason is None else str(reason)) from reason
        case JobState.SKIPPED:
            raise JobSkipped(record.id, skipped_because(record.origin))
        case JobState.FAILED:
            # None: it cannot be read.
            error = record.error or JobError("unreadable", record.unreadable or "its error is not stored")
            cause = cause_of(error) or AttemptFailed(error.traceback or f"{error.type}: {error.message}")
            raise JobFailed(record.id, error.type, error.message, error.traceback) from cause
        case _:
            if record.result is None:
                # It is not kept.
                return None
            if task is None:
                return msgspec.json.decode(codecs.decode(record.result, f"the result of job {record.id}"))
            return task.payload.decode_result(record.result)


def cause_of(error: JobError) -> Exception | None:
    """Return the exception of a job that was not run, or cancelled by its handler; None for the error of an attempt."""
    if error == EXPIRED_ERROR:
        return JobExpired(error.message)
    if error.type == LEADER_NOT_SUCCEEDED:
        return LeaderNotSucceeded(error.message)
    if error.type == CANCELLED_BY_HANDLER:
        return Cancel(error.message)
    if error.type != REJECTED or error.data is None:
        return None
    opens_at = error.data.get("opens_at")
    return LimitRejected(
        error.message,
        limit=_text(error.data.get("limit")),
        key=_text(error.data.get("key")),
        opens_at=to_datetime(opens_at) if isinstance(opens_at, int) else None,
        option=_text(error.data.get("option")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
