"""Waiting for batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import BatchNotFound, NotOpen, StorageUnavailable
from headgate.jobs.batch import BatchRecord
from headgate.storage.store import Store

POLL_INTERVAL = 1.0
"""Seconds between two reads if no change is notified."""


async def wait_for_batch(
    storage: Store, clock: Clock, batch_id: str, timeout: float | None, is_open: Callable[[], bool]
) -> BatchRecord:
    """Return the batch when all its jobs are final. Raises TimeoutError, BatchNotFound; NotOpen if the app closes."""
    changed = asyncio.Event()
    unwatch = storage.watch(changed.set)
    until = None if timeout is None else clock.monotonic() + round(timeout * SECOND)
    try:
        while True:
            changed.clear()
            record = await _read(storage, batch_id)
            if record is not None and not record.pending:
                return record
            left = POLL_INTERVAL
            if until is not None:
                left = min(left, (until - clock.monotonic()) / SECOND)
                if left <= 0:
                    raise TimeoutError(f"batch {batch_id} was not final within {timeout:g} s; it continues to run")
            await wait_for_event(clock, changed, left)
            if not is_open():
                raise NotOpen
    finally:
        unwatch()


async def _read(storage: Store, batch_id: str) -> BatchRecord | None:
    """Return the batch, or None while the store is unavailable. Raises JobNotFound."""
    try:
        record = await storage.batch(batch_id)
    except StorageUnavailable:
        # The caller continues to wait.
        return None
    if record is None:
        raise BatchNotFound(batch_id)
    return record
