"""Draining: stops a node when no work is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Literal

from headgate.clock import sleep
from headgate.engine.lease_keeper import ClaimRecovery
from headgate.engine.running_attempts import RunningAttempts
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable

Drain = Literal["ready", "all"]
"""`ready`: until no job runs and none can start now. `all`: until no job waits for a limit or its time either."""

POLL_INTERVAL = 0.1
"""Seconds between two checks of a node that has nothing to do."""


class DrainWatch(WithServices):
    """Calls `stop` when the queues are drained."""

    def __init__(
        self,
        services: Services,
        until: Drain,
        attempts: RunningAttempts,
        recovery: ClaimRecovery,
        *,
        queues: Set[str],
        labels: frozenset[str] | None,
        stopping: asyncio.Event,
        stop: Callable[[], None],
    ) -> None:
        super().__init__(services)
        self._until = until
        self._attempts = attempts
        self._recovery = recovery
        self._queues = queues
        self._labels = labels
        self._stopping = stopping
        self._stop = stop

    async def run(self) -> None:
        while not self._stopping.is_set():
            started = self._attempts.started
            try:
                is_drained = not self._attempts and not await self._storage.is_work_left(
                    self._queues,
                    self._registry.runnable(self._labels).names,
                    ready_only=self._until == "ready",
                )
            except StorageUnavailable as error:
                self._publish_failure("checking for remaining work", error)
            else:
                # A job that arrived after the check and was claimed at once is still run.
                if is_drained and started == self._attempts.started and not self._recovery.is_claiming:
                    self._stop()
            await sleep(self._clock, POLL_INTERVAL)
