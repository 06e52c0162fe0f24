"""Waiting for batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import BatchNotFound, NotOpen, StorageUnavailable
from headgate.jobs.batch import BatchRecord
from headgate.storage.store import Store

LOOK_EVERY = 1.0
"""Seconds between two looks, if nothing is heard of a change."""


async def wait_for_batch(
    storage: Store, clock: Clock, batch_id: str, timeout: float | None, is_open: Callable[[], bool]
) -> BatchRecord:
    """The batch, when all its jobs are final. Raises TimeoutError, BatchNotFound; NotOpen once the app is closed."""
    changed = asyncio.Event()
    unwatch = storage.watch(changed.set)
    until = None if timeout is None else clock.monotonic() + round(timeout * SECOND)
    try:
        while True:
            changed.clear()
            record = await _look(storage, batch_id)
            if record is not None and not record.pending:
                return record
            left = LOOK_EVERY
            if until is not None:
                left = min(left, (until - clock.monotonic()) / SECOND)
                if left <= 0:
                    raise TimeoutError(f"batch {batch_id} was not final within {timeout:g} s; it goes on")
            await wait_for_event(clock, changed, left)
            if not is_open():
                raise NotOpen
    finally:
        unwatch()


async def _look(storage: Store, batch_id: str) -> BatchRecord | None:
    """The batch; None while the store cannot be asked."""
    try:
        record = await storage.batch(batch_id)
    except StorageUnavailable:
        # Whoever waits goes on waiting, as for a batch that takes long.
        return None
    if record is None:
        raise BatchNotFound(batch_id)
    return record
