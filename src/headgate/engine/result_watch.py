"""Waiting for results: one read of the store at a time serves all waiters."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from headgate.clock import SECOND, Clock, sleep
from headgate.errors import JobNotFound, NotOpen, StorageUnavailable
from headgate.jobs.job import JobRecord
from headgate.storage.store import Store

POLL_INTERVAL = SECOND
"""Microseconds between two reads if no change is notified."""


class ResultWatch:
    """Serves all waiters for results with one read of the store at a time."""

    def __init__(self, storage: Store, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[JobRecord]] = {}
        self._waiters: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._unwatch = storage.watch(self._changed.set)
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, job_id: str, timeout: float | None) -> JobRecord:
        record = await self._storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id)
        if record.state.is_final:
            return record
        loop = asyncio.get_running_loop()
        future = self._waiting.get(job_id)
        if future is None:
            future = self._waiting[job_id] = loop.create_future()
        # It may have become final since the read above.
        self._changed.set()
        if self._polling is None:
            self._polling = loop.create_task(self._poll(), name="headgate-results")
        self._waiters[job_id] += 1
        timer = None
        own = asyncio.shield(future)
        if timeout is not None:
            when = self._clock.monotonic() + round(timeout * SECOND)
            timer = self._clock.call_at(when, partial(_time_out, own, job_id, timeout))
        try:
            return await own
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters[job_id] -= 1
            if not self._waiters[job_id]:
                # No waiter is left, so the job is no longer polled.
                del self._waiters[job_id]
                self._waiting.pop(job_id, None)

    async def _poll(self) -> None:
        while self._waiting:
            timer = self._clock.call_at(self._clock.monotonic() + POLL_INTERVAL, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()
            self._changed.clear()
            try:
                records = await self._storage.final(list(self._waiting))
            except StorageUnavailable:
                # The waiters continue to wait.
                await sleep(self._clock, 1.0)
                self._changed.set()
                continue
            for record in records:
                future = self._waiting.pop(record.id, None)
                if future is not None and not future.done():
                    future.set_result(record)
            # The more jobs are awaited, the longer changes gather for one read.
            await sleep(self._clock, min(0.01, 0.00002 * len(self._waiting)))
        self._polling = None

    async def close(self) -> None:
        self._unwatch()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotOpen())
                future.exception()


def _time_out(future: asyncio.Future[Any], job_id: str, timeout: float) -> None:
    if not future.done():
        future.set_exception(TimeoutError(f"job {job_id} was not final within {timeout:g} s; it continues to run"))
