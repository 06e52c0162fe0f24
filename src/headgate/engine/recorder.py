"""The recorder: writes endings and amendments of a node to the store in batches, and retries until stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, compress

from msgspec.structs import replace

from headgate.clock import SECOND, sleep, wait_for_event
from headgate.engine.bus import publish_use
from headgate.engine.reporter import CHARACTERS_AT_ONCE, Reporter
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.event import EndingRefused, JobFailure, JobFinished, JobRetried, JobReturned
from headgate.jobs.job import ClaimedJob, JobState, describe_error
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.storage.records import Amendment

RETRY_AFTER = 0.1
"""Seconds until an ending is written again whose job was locked; meanwhile all others are written."""

UNSTORED_ENDING = "how this attempt ended could not be stored"
"""The error message of a job that fails because its ending cannot be stored."""

Then = Callable[[], None]
_Ended = tuple[ClaimedJob, Ending, int, Then | None, float | None]
"""The job, its ending, when it ended (wall time of the store), a call for after it is stored, the seconds it ran."""


class Recorder(WithServices):
    """Keeps endings and amended charges of one node until they are stored, and then publishes the endings."""

    def __init__(self, services: Services, node: str, reporter: Reporter) -> None:
        super().__init__(services)
        self.node = node
        self._reporter = reporter
        self._endings: list[_Ended] = []
        self._writing: list[_Ended] = []
        self._locked: list[_Ended] = []
        self._locked_until = 0
        self._amendments: list[Amendment] = []
        self._wakeup = asyncio.Event()
        self._is_empty = asyncio.Event()

    def end(
        self, job: ClaimedJob, ending: Ending, ended_at: int, then: Then | None = None, *, ran: float | None = None
    ) -> None:
        """Record that an attempt ended at `ended_at` (wall time of the store) after it `ran` for some seconds.

        `then` is called when the ending is stored, never if it is refused.
        """
        self._endings.append((job, ending, ended_at, then, ran))
        self._wakeup.set()

    def amend(self, amendment: Amendment) -> None:
        """Record an amended charge."""
        self._amendments.append(amendment)
        self._wakeup.set()

    @property
    def pending(self) -> set[str]:
        """The jobs whose endings are not stored yet."""
        return {job.id for job, *_ in self._endings + self._writing + self._locked}

    def drop(self) -> None:
        """Drop endings that have not been sent, because other nodes own the jobs now; each is published as refused."""
        for job, *_ in self._endings + self._locked:
            self._bus.publish(EndingRefused(at=self._clock.now(), job_id=job.id, task=job.task))
        self._endings.clear()
        self._locked.clear()

    async def flush(self, seconds: float) -> None:
        """Wait at most `seconds` until everything is stored."""
        self._is_empty.clear()
        self._wakeup.set()
        await wait_for_event(self._clock, self._is_empty, seconds)

    async def run(self) -> None:
        failures = 0
        while True:
            await self._wait()
            self._take()
            amendments, self._amendments = self._amendments, []
            try:
                if amendments:
                    await self._amend(amendments)
                    amendments = []
                if self._writing and self._reporter.outputs:
                    # Their output is stored first, so that a reader of a final job finds all its lines.
                    locked = await self._reporter.flush({job.id for job, *_ in self._writing})
                    self._keep_locked([each for each in self._writing if each[0].id in locked])
                if self._writing:
                    written = await self._finish([each[1] for each in self._writing])
                    self._keep_locked(
                        [each for each, was_written in zip(self._writing, written, strict=True) if was_written is None]
                    )
                    self._publish([was_written for was_written in written if was_written is not None])
                    if self._reporter.outputs:
                        self._reporter.forget(job for job, *_ in self._writing)
            except StorageUnavailable as error:
                self._endings, self._writing = self._writing + self._endings, []
                # The write may have succeeded, and a refund must not be made twice, so refunds are dropped. Moving or
                # charging a start twice only delays others.
                self._amendments = [each for each in amendments if each.actual >= each.cost] + self._amendments
                self._publish_failure("recording finished jobs", error)
                failures += 1
                # Less often while the store is away, as each is logged, but within the second that `abort` leaves.
                await sleep(self._clock, self._random.uniform(0.1, 0.5) * min(failures, 2))
                self._wakeup.set()
                continue
            failures = 0
            self._writing = []
            if not self._wakeup.is_set() and not self._locked:
                self._is_empty.set()

    async def _wait(self) -> None:
        """Return when there is something to write."""
        if self._locked:
            left = max(0, self._locked_until - self._clock.monotonic())
            await wait_for_event(self._clock, self._wakeup, left / SECOND)
            if self._clock.monotonic() >= self._locked_until:
                self._endings, self._locked = self._locked + self._endings, []
        else:
            await self._wakeup.wait()
        self._wakeup.clear()

    def _take(self) -> None:
        """Take the endings that are written next, with results of about as much as one commit stores."""
        ends = accumulate(len(each[1].result or "") if isinstance(each[1], Finished) else 0 for each in self._endings)
        count = max(1, sum(end <= CHARACTERS_AT_ONCE for end in ends))
        self._writing, self._endings = self._endings[:count], self._endings[count:]
        if self._endings:
            self._wakeup.set()

    def _keep_locked(self, locked: Sequence[_Ended]) -> None:
        """Keep endings whose jobs are locked by another transaction, to write them again after 0.1 s."""
        if locked:
            if not self._locked:
                self._locked_until = self._clock.monotonic() + round(RETRY_AFTER * SECOND)
            self._locked += locked
            # A job that was claimed again meanwhile may have two endings here, of which one is locked.
            kept = {(job.id, job.fence) for job, *_ in locked}
            self._writing = [each for each in self._writing if (each[0].id, each[0].fence) not in kept]

    async def _amend(self, amendments: list[Amendment]) -> None:
        """Write the amendments and drop those the store cannot hold; after an error the list holds the unwritten."""
        try:
            await self._storage.amend(amendments, self._registry.rules)
            return
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(amendments) == 1:
                limit, cost = amendments[0].ref.limit, amendments[0].actual
                self._publish_failure(f"amending what a start cost limit {limit!r}: {cost} is not charged", error)
                return
        # One of them fails the whole list, so write them one by one.
        while amendments:
            await self._amend(amendments[:1])
            del amendments[0]

    async def _finish(self, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """Write the endings; a job whose ending the store cannot hold is failed instead. Raises if that fails too."""
        asked_at = self._clock.monotonic()
        try:
            written = await self._storage.finish(self.node, endings, self._registry.rules)
        except StorageUnavailable:
            raise
        except Exception:
            return [await self._finish_one(place, ending) for place, ending in enumerate(endings)]
        publish_use(self._bus, self._clock, "finish", asked_at, len(endings))
        return written

    async def _finish_one(self, place: int, ending: Ending) -> bool | None:
        try:
            return (await self._storage.finish(self.node, [ending], self._registry.rules))[0]
        except StorageUnavailable:
            raise
        except Exception as error:
            why = describe_error(error)
        plain = Finished(
            ending.id, ending.fence, JobState.FAILED, error=replace(why, message=f"{UNSTORED_ENDING}: {why.message}")
        )
        was_written = (await self._storage.finish(self.node, [plain], self._registry.rules))[0]
        job, _, ended_at, _, ran = self._writing[place]
        self._writing[place] = (job, plain, ended_at, partial(self._callback_runner.submit_on_error, [job.id]), ran)
        return was_written

    def _publish(self, written: Sequence[bool]) -> None:
        self._history_writer.note_ended(self._writing if all(written) else list(compress(self._writing, written)))
        # Checked once: events without a listener are not created.
        kinds = [kind for kind in (JobFinished, JobFailure) if self._bus.has_listener(kind)]
        for (job, ending, _, then, ran), was_written in zip(self._writing, written, strict=True):
            if not was_written:
                self._bus.publish(EndingRefused(at=self._clock.now(), job_id=job.id, task=job.task))
                continue
            if isinstance(ending, Returned):
                self._publish_returned(job, ending, ran)
            elif (kind := JobFailure if ending.state is JobState.FAILED else JobFinished) in kinds:
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
                        waited=max(0, job.started_at - job.run_at) / SECOND,
                    )
                )
            if then is not None:
                then()

    def _publish_returned(self, job: ClaimedJob, ending: Returned, ran: float | None) -> None:
        if ending.spent and ending.run_at is not None:
            self._bus.publish(
                JobRetried(
                    at=self._clock.now(),
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    run_at=ending.run_at,
                    error=ending.error,
                    ran=ran,
                )
            )
        else:
            self._bus.publish(
                JobReturned(
                    at=self._clock.now(), job_id=job.id, task=job.task, queue=job.queue, reason=ending.outcome, ran=ran
                )
            )
