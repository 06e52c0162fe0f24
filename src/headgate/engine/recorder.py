"""The recorder: writes what has happened on a node, all that has gathered in one go, until the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import compress
from random import Random

from msgspec.structs import replace

from headgate.clock import SECOND, Clock, sleep, wait_for_event
from headgate.engine.bus import EventBus, publish_use
from headgate.engine.described import described, said
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.reporter import Reporter
from headgate.errors import StorageUnavailable
from headgate.jobs.event import EndingRefused, JobFailure, JobFinished, JobRetried, JobReturned, StorageTroubled
from headgate.jobs.job import ClaimedJob, JobState
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.records import Amendment
from headgate.storage.store import Store
from headgate.tasks.registry import Registry

AGAIN_AFTER = 0.1
"""Seconds until an ending is written again whose job somebody else held; meanwhile all others are written."""

UNSTORED = "how this attempt ended could not be stored"
"""What is said of a job that is failed for that."""

Then = Callable[[], None]
_Ended = tuple[ClaimedJob, Ending, int, Then | None, float | None]
# A job, how it ended, when (the wall time of the store), what is called once that is stored, the seconds that it ran.


class Recorder:
    """Keeps endings and amended charges of one node until they are stored, and tells of them afterwards."""

    def __init__(
        self,
        node: str,
        storage: Store,
        registry: Registry,
        reporter: Reporter,
        *,
        clock: Clock,
        bus: EventBus,
        random: Random,
        historian: HistoryWriter,
    ) -> None:
        self.node = node
        self._storage = storage
        self._registry = registry
        self._reporter = reporter
        self._clock = clock
        self._bus = bus
        self._random = random
        self._historian = historian
        self._endings: list[_Ended] = []
        self._on_their_way: list[_Ended] = []
        self._held: list[_Ended] = []
        self._held_until = 0
        self._amendments: list[Amendment] = []
        self._has_news = asyncio.Event()
        self._is_empty = asyncio.Event()

    def end(
        self, job: ClaimedJob, ending: Ending, ended_at: int, then: Then | None = None, *, ran: float | None = None
    ) -> None:
        """An attempt ended at `ended_at` (wall time of the store) that `ran` so many seconds.

        `then` is called when that is stored, never if it is refused.
        """
        self._endings.append((job, ending, ended_at, then, ran))
        self._has_news.set()

    def amend(self, amendment: Amendment) -> None:
        """A start was not what it was charged as."""
        self._amendments.append(amendment)
        self._has_news.set()

    @property
    def pending(self) -> set[str]:
        """The jobs whose endings are not stored yet."""
        return {job.id for job, *_ in self._endings + self._on_their_way + self._held}

    def drop(self) -> None:
        """Forget what has not been sent: the jobs are another node's now."""
        self._endings.clear()
        self._held.clear()

    async def flush(self, seconds: float) -> None:
        """Wait until all is stored, at most so long."""
        self._is_empty.clear()
        self._has_news.set()
        await wait_for_event(self._clock, self._is_empty, seconds)

    async def run(self) -> None:
        while True:
            await self._wait()
            self._on_their_way, self._endings = self._endings, []
            amendments, self._amendments = self._amendments, []
            try:
                if amendments:
                    await self._amend(amendments)
                    amendments = []
                if self._on_their_way and self._reporter.is_told_anything:
                    # What they said goes first: whoever sees that a job is final sees all its lines.
                    held = await self._reporter.flush({job.id for job, *_ in self._on_their_way})
                    self._hold([each for each in self._on_their_way if each[0].id in held])
                if self._on_their_way:
                    written = await self._finish([ending for _, ending, *_ in self._on_their_way])
                    self._hold([each for each, word in zip(self._on_their_way, written, strict=True) if word is None])
                    self._tell([word for word in written if word is not None])
                    if self._reporter.is_told_anything:
                        self._reporter.forget(job.id for job, *_ in self._on_their_way)
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
            if not self._has_news.is_set() and not self._held:
                self._is_empty.set()

    async def _wait(self) -> None:
        """Return when there is something to write."""
        if self._held:
            left = max(0, self._held_until - self._clock.monotonic())
            await wait_for_event(self._clock, self._has_news, left / SECOND)
            if self._clock.monotonic() >= self._held_until:
                self._endings, self._held = self._held + self._endings, []
        else:
            await self._has_news.wait()
        self._has_news.clear()

    def _hold(self, held: Sequence[_Ended]) -> None:
        """Somebody else holds the jobs of these: they are written again a little later."""
        if held:
            if not self._held:
                self._held_until = self._clock.monotonic() + round(AGAIN_AFTER * SECOND)
            self._held += held
            jobs = {job.id for job, *_ in held}
            self._on_their_way = [each for each in self._on_their_way if each[0].id not in jobs]

    async def _amend(self, amendments: list[Amendment]) -> None:
        """Write them; what the store cannot hold is dropped alone. Of a list that was not written all that is left."""
        try:
            await self._storage.amend(amendments, self._registry.rules)
            return
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(amendments) == 1:
                self._drop(amendments[0], error)
                return
        # One of them spoils it for all.
        while amendments:
            await self._amend(amendments[:1])
            del amendments[0]

    def _drop(self, amendment: Amendment, error: Exception) -> None:
        doing = f"amending what a start cost limit {amendment.draw.limit!r}: {amendment.actual} is not charged"
        self._bus.publish(StorageTroubled(at=self._clock.now(), doing=doing, error=said(error)))

    async def _finish(self, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """Write them; a job whose ending the store cannot hold is failed alone. Raises what even that comes to."""
        asked_at = self._clock.monotonic()
        try:
            written = await self._storage.finish(self.node, endings)
        except StorageUnavailable:
            raise
        except Exception:
            return [await self._finish_one(place, ending) for place, ending in enumerate(endings)]
        publish_use(self._bus, self._clock, "finish", asked_at, len(endings))
        return written

    async def _finish_one(self, place: int, ending: Ending) -> bool | None:
        try:
            return (await self._storage.finish(self.node, [ending]))[0]
        except StorageUnavailable:
            raise
        except Exception as error:
            why = described(error)
        plain = Finished(
            ending.id, ending.fence, JobState.FAILED, error=replace(why, message=f"{UNSTORED}: {why.message}")
        )
        was_written = (await self._storage.finish(self.node, [plain]))[0]
        job, _, ended_at, _, ran = self._on_their_way[place]
        self._on_their_way[place] = (job, plain, ended_at, None, ran)
        return was_written

    def _tell(self, written: Sequence[bool]) -> None:
        self._historian.note_ended(self._on_their_way if all(written) else list(compress(self._on_their_way, written)))
        # Found out once: events that nobody wants are not even made.
        wanted = self._bus.wants(JobFinished) or self._bus.wants(JobFailure)
        for (job, ending, _, then, ran), was_written in zip(self._on_their_way, written, strict=True):
            if was_written:
                if wanted or not isinstance(ending, Finished):
                    self._tell_ending(job, ending, ran)
                if then is not None:
                    then()
            else:
                self._bus.publish(EndingRefused(at=self._clock.now(), job_id=job.id, task=job.task))

    def _tell_ending(self, job: ClaimedJob, ending: Ending, ran: float | None) -> None:
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
                            ran=ran,
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
                        ran=ran,
                    )
                )
            case Returned():
                self._bus.publish(
                    JobReturned(
                        at=self._clock.now(),
                        job_id=job.id,
                        task=job.task,
                        queue=job.queue,
                        reason=ending.outcome,
                        ran=ran,
                    )
                )
