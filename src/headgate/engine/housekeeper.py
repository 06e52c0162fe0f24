"""The housekeeper: fails what has expired, forgets what is old or idle."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.clock import SECOND, Clock, sleep
from headgate.engine.bus import EventBus
from headgate.errors import StorageUnavailable
from headgate.jobs.event import JobFailure, JobFinished, StorageTroubled
from headgate.jobs.job import JobState
from headgate.storage.protocol import Dropped, Storage

FORGET_EVERY = 30
"""Seconds between two rounds of forgetting; what has expired is looked for every second."""

PAUSE = 0.05


class Housekeeper:
    """Works in small steps, so that nobody waits for it. Every node has one; they do not get in each other's way."""

    def __init__(self, storage: Storage, *, clock: Clock, bus: EventBus, retention: float) -> None:
        self._storage = storage
        self._clock = clock
        self._bus = bus
        self._retention = round(retention * SECOND)

    async def run(self) -> None:
        turns = 0
        while True:
            await sleep(self._clock, 1.0)
            turns += 1
            try:
                publish_dropped(self._bus, self._clock, await self._storage.expire())
                if turns % FORGET_EVERY == 0:
                    await self._forget()
            except StorageUnavailable as error:
                self._bus.publish(StorageTroubled(at=self._clock.now(), doing="housekeeping", error=str(error)))

    async def _forget(self) -> None:
        while await self._storage.evict(1000) >= 1000:
            await sleep(self._clock, PAUSE)
        while await self._storage.prune(self._storage.now() - self._retention, 500) >= 500:
            await sleep(self._clock, PAUSE)


def publish_dropped(bus: EventBus, clock: Clock, dropped: Sequence[Dropped]) -> None:
    """Tell of jobs that ended without having run."""
    for job in dropped:
        kind = JobFailure if job.state is JobState.FAILED else JobFinished
        bus.publish(
            kind(
                at=clock.now(),
                job_id=job.id,
                task=job.task,
                queue=job.queue,
                attempt=0,
                state=job.state,
                error=job.error,
            )
        )
