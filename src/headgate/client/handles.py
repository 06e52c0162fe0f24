"""Handles of what is stored: a job, a batch, a chain and a schedule, each also for code that cannot await."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast

from headgate.arguments import parse_wait
from headgate.client.client import Client
from headgate.client.plan import Step
from headgate.client.portal import Blocking, Portal
from headgate.clock import SECOND, Duration
from headgate.errors import JobNotFound
from headgate.foreign_words import RefusesAwait, RefusesForeignWords
from headgate.jobs.query import JobQuery
from headgate.tasks.status import BatchStatus, EnqueuePrediction, JobStatus, ScheduleStatus

R_co = TypeVar("R_co", covariant=True)
H_co = TypeVar("H_co", covariant=True)
L_co = TypeVar("L_co", bound="Job[Any] | Batch | Chain[Any]", covariant=True)


class Job(RefusesAwait, Generic[R_co]):
    """A stored job: its id, and the ways to follow and cancel it.

    `prediction` is what its limits predict if it was enqueued with `using(predict=True)`, else None. `is_new` is False
    if `enqueue` stored no job, because one with its unique key or its id was there: this is that one.
    """

    __slots__ = ("_client", "id", "is_new", "prediction")

    def __init__(
        self, id: str, client: Client, prediction: EnqueuePrediction | None = None, *, is_new: bool = True
    ) -> None:
        self.id: str = id
        self.is_new: bool = is_new
        self.prediction: EnqueuePrediction | None = prediction
        self._client = client

    @property
    def leader_id(self) -> str:
        """The id that later calls follow."""
        return self.id

    async def status(self) -> JobStatus:
        """Return the job as it is now. Raises JobNotFound once it has been pruned."""
        return await self._client.admin.status(self.id)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job has succeeded, and return what its handler returned.

        Waits up to `timeout` (seconds, a timedelta, or text like "5m"; default: no timeout). Raises JobFailed,
        JobCancelled, JobSkipped, TimeoutError, JobNotFound; PayloadError for a result that another release has stored
        and that does not fit the current annotation.
        """
        result: R_co = await self._client.job_result(self.id, _wait_seconds(timeout, "job.result"))
        return result

    async def cancel(self) -> bool:
        """Cancel the job. A waiting one never runs and charges nothing; a running one is asked to end.

        Return False if it was already final: then nothing has changed. Raises JobNotFound.
        """
        return await self._client.cancel_job(self.id)

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


class Batch(RefusesAwait):
    """A stored batch: its id, its jobs, and the ways to follow and cancel it.

    `jobs` are those that it was enqueued with, and `then` the handles of the steps after it, one for each `then()`: of
    a job, a chain or a batch. The handle of a stored id (`app.batch(id)`) has neither.
    """

    __slots__ = ("_client", "id", "jobs", "then")

    def __init__(
        self, id: str, jobs: Sequence[Job[Any]], client: Client, then: Sequence[Job[Any] | Batch | Chain[Any]] = ()
    ) -> None:
        self.id: str = id
        self.jobs: tuple[Job[Any], ...] = tuple(jobs)
        self.then: tuple[Job[Any] | Batch | Chain[Any], ...] = tuple(then)
        self._client = client

    @property
    def leader_id(self) -> str:
        """The id that later calls follow."""
        return self.id

    async def status(self) -> BatchStatus:
        """Return how many of its jobs are in each state. Raises BatchNotFound after all have been pruned."""
        return await self._client.admin.batch(self.id)

    async def wait(self, timeout: Duration | None = None) -> BatchStatus:
        """Wait until all jobs are final, and return the status.

        Waits up to `timeout` (seconds, a timedelta, or text like "5m"; default: no timeout). Raises TimeoutError,
        JobNotFound.
        """
        return await self._client.wait_for_batch(self.id, _wait_seconds(timeout, "batch.wait"))

    async def add(self, calls: Iterable[Step]) -> list[Job[Any]]:
        """Add calls, and chains of calls, to a batch that is not final, in one commit; return their handles.

        A job of the batch may add to it: `await app.batch(id).add(…)` with `current_job().batch`. The batch is not
        final before the new jobs are. Raises BatchClosed if it is final or holds limits, BatchNotFound, and what
        `Task.enqueue` raises.
        """
        return [Job(id, self._client) for id in await self._client.add_to_batch(self.id, calls)]

    async def result(self, timeout: Duration | None = None) -> list[Any]:
        """Wait for all jobs, also added ones, and return their results, in order, without those that were skipped.

        Raises as `Job.result` for the first job that failed or was cancelled, and JobNotFound if one has been pruned.
        """
        return await self._client.batch_results(self.id, _wait_seconds(timeout, "batch.result"))

    async def cancel(self) -> int:
        """Cancel its jobs, those of the batches in it, and what follows it; return how many were not final.

        The steps after it are cancelled whatever end they need. A step that also waits for other jobs, or for a batch
        with others, is not: it ends or runs as it needs. Jobs that another open transaction has locked stay, too; a
        repeated call cancels them.
        """
        return await self._client.cancel_batch(self.id)

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"


class Chain(RefusesAwait, Generic[R_co]):
    """A stored chain: all its jobs in order, and the ways to follow and cancel it."""

    __slots__ = ("_batches", "jobs", "last")

    def __init__(self, jobs: Sequence[Job[Any]], last: Job[Any] | Batch, batches: Sequence[str] = ()) -> None:
        self.jobs: tuple[Job[Any], ...] = tuple(jobs)
        self.last: Job[Any] | Batch = last
        self._batches = batches

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the last step and return its result; for a batch, those of its jobs.

        Raises JobCancelled or JobSkipped if a step before it did not succeed, and what `Job.result` raises.
        """
        result: Any = await self.last.result(timeout)
        return cast(R_co, result)

    @property
    def leader_id(self) -> str:
        """The id that later calls follow: its last step."""
        return self.last.leader_id

    async def cancel(self) -> int:
        """Cancel the jobs that are not final, those that were added to its batches included; return how many."""
        count = 0
        # From the end: a job released meanwhile has been cancelled by then.
        for job in reversed(self.jobs):
            with contextlib.suppress(JobNotFound):  # it was final, and has been pruned
                count += await job.cancel()
        for batch in self._batches:
            count += (await self.last._client.admin.cancel_many(JobQuery(batch=batch), most=1_000_000)).changed
        return count

    def __repr__(self) -> str:
        return f"Chain({[job.id for job in self.jobs]!r})"


class Schedule(Generic[R_co]):
    """A stored schedule: its name, and the ways to follow and control it."""

    __slots__ = ("_client", "name")

    def __init__(self, name: str, client: Client) -> None:
        self.name: str = name
        self._client = client

    async def status(self) -> ScheduleStatus:
        """Return the schedule as it is now. Raises ScheduleNotFound once it has been removed."""
        return await self._client.admin.schedules.status(self.name)

    async def next_runs(self, count: int = 5) -> Sequence[datetime]:
        """Return its next occurrences, if nothing changes; fewer if it ends before. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.next_runs(self.name, count)

    async def pause(self) -> bool:
        """Enqueue nothing until it is resumed; return False if it was already paused. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.pause(self.name)

    async def resume(self) -> bool:
        """End a pause, without its missed occurrences; return False if there was none. Raises ScheduleNotFound."""
        return await self._client.admin.schedules.resume(self.name)

    async def trigger(self) -> Job[R_co]:
        """Enqueue its job now, also while it is paused; its next occurrences stay, and the run counts as a run.

        A schedule of a chain or a batch enqueues all its jobs; you get the handle of the last one. Raises
        ScheduleNotFound, and JobHeld if it would follow a job that another open transaction has locked.
        """
        return Job(await self._client.admin.schedules.trigger(self.name), self._client)

    async def remove(self) -> bool:
        """Remove the schedule; jobs that it has enqueued stay. Return False if it did not exist."""
        return await self._client.admin.schedules.remove(self.name)

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class _SyncHandle(Generic[H_co]):
    """A handle for code that cannot await; two are equal if their handles are."""

    __slots__ = ("_handle", "_portal")

    def __init__(self, handle: H_co, portal: Portal) -> None:
        self._handle = handle
        self._portal = portal

    def _run(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._portal.run(verb(self._handle, *args, **kwargs))

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SyncHandle) and other._handle == self._handle

    def __hash__(self) -> int:
        return hash(self._handle)


class _SyncLeader(_SyncHandle[L_co], RefusesForeignWords, Generic[L_co]):
    """Such a handle of what later calls can follow."""

    __slots__ = ()

    @property
    def leader_id(self) -> str:
        """The id that later calls follow."""
        return self._handle.leader_id


class SyncJob(_SyncLeader[Job[R_co]], Generic[R_co]):
    """A stored job, followed from code that cannot await."""

    __slots__ = ("id", "is_new", "prediction")

    status: Final = Blocking(Job.status)
    cancel: Final = Blocking(Job.cancel)

    def __init__(self, job: Job[R_co], portal: Portal) -> None:
        super().__init__(job, portal)
        self.id: str = job.id
        self.is_new: bool = job.is_new
        self.prediction: EnqueuePrediction | None = job.prediction

    def result(self, timeout: Duration | None = None) -> R_co:
        """Same as `Job.result`; blocks this thread."""
        return self._portal.run(self._handle.result(timeout))


class SyncBatch(_SyncLeader[Batch]):
    """A stored batch, followed from code that cannot await."""

    __slots__ = ("id", "jobs", "then")

    status: Final = Blocking(Batch.status)
    wait: Final = Blocking(Batch.wait)
    result: Final = Blocking(Batch.result)
    cancel: Final = Blocking(Batch.cancel)

    def __init__(self, batch: Batch, portal: Portal) -> None:
        super().__init__(batch, portal)
        self.id: str = batch.id
        self.jobs: tuple[SyncJob[Any], ...] = tuple(SyncJob(job, portal) for job in batch.jobs)
        self.then: tuple[SyncJob[Any] | SyncBatch | SyncChain[Any], ...] = tuple(
            _blocking(step, portal) for step in batch.then
        )

    def add(self, calls: Iterable[Step]) -> list[SyncJob[Any]]:
        """Same as `Batch.add`."""
        return [SyncJob(job, self._portal) for job in self._portal.run(self._handle.add(calls))]


class SyncChain(_SyncLeader[Chain[R_co]], Generic[R_co]):
    """A stored chain, followed from code that cannot await."""

    __slots__ = ("jobs", "last")

    cancel: Final = Blocking(Chain.cancel)

    def __init__(self, chain: Chain[R_co], portal: Portal) -> None:
        super().__init__(chain, portal)
        self.jobs: tuple[SyncJob[Any], ...] = tuple(SyncJob(job, portal) for job in chain.jobs)
        self.last: SyncJob[Any] | SyncBatch | SyncChain[Any] = _blocking(chain.last, portal)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Same as `Chain.result`; blocks this thread."""
        return self._portal.run(self._handle.result(timeout))


def _blocking(handle: Job[Any] | Batch | Chain[Any], portal: Portal) -> SyncJob[Any] | SyncBatch | SyncChain[Any]:
    """Return the same handle for code that cannot await."""
    if isinstance(handle, Job):
        return SyncJob(handle, portal)
    return SyncBatch(handle, portal) if isinstance(handle, Batch) else SyncChain(handle, portal)


class SyncSchedule(_SyncHandle[Schedule[R_co]], Generic[R_co]):
    """A stored schedule, controlled from code that cannot await."""

    __slots__ = ("name",)

    status: Final = Blocking(Schedule.status)
    next_runs: Final = Blocking(Schedule.next_runs)
    pause: Final = Blocking(Schedule.pause)
    resume: Final = Blocking(Schedule.resume)
    remove: Final = Blocking(Schedule.remove)

    def __init__(self, schedule: Schedule[R_co], portal: Portal) -> None:
        super().__init__(schedule, portal)
        self.name: str = schedule.name

    def trigger(self) -> SyncJob[R_co]:
        """Same as `Schedule.trigger`."""
        return SyncJob(self._portal.run(self._handle.trigger()), self._portal)


def _wait_seconds(timeout: Duration | None, where: str) -> float | None:
    """Return a timeout in seconds; None: no timeout. Raises DeclarationError if it is not a duration."""
    return None if timeout is None else parse_wait(timeout, "timeout", where) / SECOND
