"""Draining: stops a node when no work is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Literal

from headgate.clock import sleep
from headgate.engine.bus import publish_storage_failure
from headgate.engine.claim_tracker import ClaimTracker
from headgate.engine.fetcher import Fetcher
from headgate.engine.running_attempts import RunningAttempts
from headgate.engine.services import Services
from headgate.errors import StorageUnavailable

Drain = Literal["ready", "all"]
"""`ready`: until no job runs and none can start now. `all`: until no job waits for a limit or its time either."""

POLL_INTERVAL = 0.1
"""Seconds between two checks of a node that has nothing to do."""


async def stop_when_drained(
    until: Drain,
    services: Services,
    attempts: RunningAttempts,
    claim_tracker: ClaimTracker,
    fetcher: Fetcher,
    queues: Set[str],
    labels: frozenset[str] | None,
    *,
    stopping: asyncio.Event,
    stop: Callable[[], None],
) -> None:
    """Call `stop` when these queues are drained; return when the node stops."""
    storage, clock = services.storage, services.clock
    while not stopping.is_set():
        before, names = (attempts.started, fetcher.requests), services.registry.runnable(labels).names
        # The claim that requests starts from another store closes the key until they are there.
        is_busy = attempts or fetcher.is_fetching
        try:
            is_drained = not is_busy and not await storage.is_work_left(queues, names, ready_only=until == "ready")
        except StorageUnavailable as error:
            publish_storage_failure(services.bus, clock, "checking for remaining work", error)
        else:
            # A job that arrived after the check and was claimed at once is still run.
            if is_drained and before == (attempts.started, fetcher.requests) and not claim_tracker.is_claiming:
                stop()
        await sleep(clock, POLL_INTERVAL)
