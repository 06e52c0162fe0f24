"""The recorder: writes what has happened on a node, all that has gathered in one go, until the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from headgate.clock import Clock, sleep, wait_for_event
from headgate.engine.bus import EventBus
from headgate.errors import StorageUnavailable
from headgate.jobs.event import EndingRefused, JobFailure, JobFinished, JobRetried, JobReturned, StorageTroubled
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.protocol import Amendment, Storage
from headgate.tasks.registry import Registry


class Recorder:
    """Keeps endings and amended charges of one node until they are stored, and tells of them afterwards."""

    def __init__(
        self, node: str, storage: Storage, registry: Registry, *, clock: Clock, bus: EventBus, random: Random
    ) -> None:
        self.node = node
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._random = random
        self._endings: list[tuple[ClaimedJob, Ending]] = []
        self._on_their_way: list[tuple[ClaimedJob, Ending]] = []
        self._amendments: list[Amendment] = []
        self._has_news = asyncio.Event()
        self._is_empty = asyncio.Event()

    def end(self, job: ClaimedJob, ending: Ending) -> None:
        """An attempt has ended."""
        self._endings.append((job, ending))
        self._has_news.set()

    def amend(self, amendment: Amendment) -> None:
        """A start was not what it was charged as."""
        self._amendments.append(amendment)
        self._has_news.set()

    @property
    def pending(self) -> set[str]:
        """The jobs whose endings are not stored yet."""
        return {job.id for job, _ in self._endings + self._on_their_way}

    def drop(self) -> None:
        """Forget what has not been sent: the jobs are another node's now."""
        self._endings.clear()

    async def flush(self, seconds: float) -> None:
        """Wait until all is stored, at most so long."""
        self._is_empty.clear()
        self._has_news.set()
        await wait_for_event(self._clock, self._is_empty, seconds)

    async def run(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            self._on_their_way, self._endings = self._endings, []
            amendments, self._amendments = self._amendments, []
            try:
                if amendments:
                    await self._storage.amend(amendments, self._registry.rules)
                    amendments = []
                if self._on_their_way:
                    endings = [ending for _, ending in self._on_their_way]
                    self._tell(await self._storage.finish(self.node, endings))
            except StorageUnavailable as error:
                self._endings = self._on_their_way + self._endings
                self._on_their_way = []
                # It may have happened, and a refund must not be made twice: what is unsure is not given back. Moving or
                # charging a start twice keeps others from too much, at worst.
                self._amendments = [each for each in amendments if each.actual >= each.cost] + self._amendments
                self._bus.publish(
                    StorageTroubled(at=self._clock.now(), doing="recording finished jobs", error=str(error))
                )
                await sleep(self._clock, self._random.uniform(0.1, 0.5))
                self._has_news.set()
                continue
            self._on_their_way = []
            if not self._has_news.is_set():
                self._is_empty.set()

    def _tell(self, written: Sequence[bool]) -> None:
        for (job, ending), was_written in zip(self._on_their_way, written, strict=True):
            if was_written:
                self._tell_ending(job, ending)
            else:
                self._bus.publish(EndingRefused(at=self._clock.now(), job_id=job.id, task=job.task))

    def _tell_ending(self, job: ClaimedJob, ending: Ending) -> None:
        match ending:
            case Finished():
                kind = JobFailure if ending.state is JobState.FAILED else JobFinished
                if self._bus.wants(kind):
                    self._bus.publish(
                        kind(
                            at=self._clock.now(),
                            job_id=job.id,
                            task=job.task,
                            queue=job.queue,
                            attempt=job.attempt,
                            state=ending.state,
                            error=ending.error,
                        )
                    )
            case Returned(spent=True, run_at=int(run_at)):
                self._bus.publish(
                    JobRetried(
                        at=self._clock.now(),
                        job_id=job.id,
                        task=job.task,
                        queue=job.queue,
                        attempt=job.attempt,
                        run_at=run_at,
                        error=ending.error,
                    )
                )
            case Returned():
                self._bus.publish(
                    JobReturned(
                        at=self._clock.now(), job_id=job.id, task=job.task, queue=job.queue, reason=ending.outcome
                    )
                )
