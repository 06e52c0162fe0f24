"""The folder sweeper: deletes the large payloads and results of jobs that have been pruned."""

from __future__ import annotations

from random import Random

from headgate.clock import Clock, sleep
from headgate.engine.bus import EventBus
from headgate.engine.large_payloads import LargePayloads
from headgate.errors import StorageUnavailable
from headgate.jobs.event import StorageFailed

SWEEP_EVERY = 6 * 3600.0
"""Seconds between two sweeps of a node; each takes 0.5 to 1.5 of it, so that nodes do not sweep at the same time."""


class FolderSweeper:
    """Sweeps the folder a few times a day. Every node runs one; they do not conflict."""

    def __init__(self, large_payloads: LargePayloads, *, clock: Clock, bus: EventBus, random: Random) -> None:
        self._large_payloads = large_payloads
        self._clock = clock
        self._bus = bus
        self._random = random

    async def run(self) -> None:
        while True:
            await sleep(self._clock, SWEEP_EVERY * (0.5 + self._random.random()))
            try:
                await self._large_payloads.sweep()
            except StorageUnavailable as error:
                failed = StorageFailed(at=self._clock.now(), doing="sweeping the large payloads", error=str(error))
                self._bus.publish(failed)
