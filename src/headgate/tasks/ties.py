"""Handles of stored chains and batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headgate.clock import Duration
from headgate.errors import JobSkipped
from headgate.tasks.handle import Job, wait_seconds
from headgate.tasks.portal import Portal
from headgate.tasks.status import BatchStatus
from headgate.tasks.sync_job import SyncJob

if TYPE_CHECKING:
    from headgate.client import Client
    from headgate.tasks.flow import Step

R_co = TypeVar("R_co", covariant=True)


class Batch:
    """A stored batch: its id, its jobs, and the ways to follow and cancel it.

    `then` are the handles of the steps after it, one for each `then()` that it was enqueued with. The handle of a
    stored id (`app.batch(id)`) has neither `jobs` nor `then`; it reads its jobs from the store, in order.
    """

    __slots__ = ("_client", "id", "jobs", "then")

    def __init__(
        self, id: str, jobs: Sequence[Job[Any]], client: Client, then: Sequence[Job[Any] | Batch] = ()
    ) -> None:
        self.id: str = id
        self.jobs: tuple[Job[Any], ...] = tuple(jobs)
        self.then: tuple[Job[Any] | Batch, ...] = tuple(then)
        self._client = client

    @property
    def leader_id(self) -> str:
        """What a call follows that is after this batch."""
        return self.id

    async def status(self) -> BatchStatus:
        """Return how many of its jobs are in each state. Raises BatchNotFound once all have been pruned."""
        return await self._client.admin.batch(self.id)

    async def wait(self, timeout: Duration | None = None) -> BatchStatus:
        """Wait until all jobs are final, and return the status.

        Waits up to `timeout` (seconds, a timedelta, or text like "5m"; default: no timeout). Raises TimeoutError,
        JobNotFound.
        """
        return await self._client.wait_for_batch(self.id, wait_seconds(timeout, "batch.wait"))

    async def add(self, calls: Iterable[Step]) -> list[Job[Any]]:
        """Add calls, and chains of calls, to a batch that is not final, in one commit; return their handles.

        A job of the batch may add to it: `await app.batch(id).add(…)` with `current_job().batch`. The batch is not
        final before the new jobs are. Raises BatchClosed if it is final or holds limits, BatchNotFound, and what
        `Task.enqueue` raises.
        """
        return await self._client.add_to_batch(self.id, calls)

    async def result(self, timeout: Duration | None = None) -> list[Any]:
        """Wait for all jobs and return their results, in order, without those of jobs that were skipped.

        Raises as `Job.result` for the first job that failed or was cancelled.
        """
        await self.wait(timeout)
        results = []
        for job in await self._stored_jobs():
            with contextlib.suppress(JobSkipped):
                results.append(await job.result())
        return results

    async def cancel(self) -> int:
        """Cancel its jobs, those of the batches in it, and what follows it; return how many were not final.

        The steps after it are cancelled whatever end they need. A step that also waits for other jobs, or for a batch
        with others, is not: it ends or runs as it needs. Jobs that another open transaction has locked stay, too; a
        repeated call cancels them.
        """
        return await self._client.cancel_batch(self.id)

    async def _stored_jobs(self) -> Sequence[Job[Any]]:
        return self.jobs or await self._client.batch_jobs(self.id)

    def __repr__(self) -> str:
        return f"Batch({self.id!r})"


class Chain(Generic[R_co]):
    """A stored chain: all its jobs in order, and the ways to follow and cancel it."""

    __slots__ = ("jobs", "last")

    def __init__(self, jobs: Sequence[Job[Any]], last: Job[Any] | Batch) -> None:
        self.jobs: tuple[Job[Any], ...] = tuple(jobs)
        self.last: Job[Any] | Batch = last

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the last step and return its result; for a batch, those of its jobs.

        Raises JobCancelled or JobSkipped if a step before it did not succeed, and what `Job.result` raises.
        """
        result: Any = await self.last.result(timeout)
        return cast(R_co, result)

    @property
    def leader_id(self) -> str:
        """What a call follows that is after this chain: its last step."""
        return self.last.leader_id

    async def cancel(self) -> int:
        """Cancel the jobs that are not final; return how many they were."""
        count = 0
        # From the end: a job released meanwhile has been cancelled by then.
        for job in reversed(self.jobs):
            count += await job.cancel()
        return count

    def __repr__(self) -> str:
        return f"Chain({[job.id for job in self.jobs]!r})"


class SyncBatch:
    """A stored batch, followed from code that cannot await."""

    __slots__ = ("_batch", "_portal", "id", "jobs")

    def __init__(self, batch: Batch, portal: Portal) -> None:
        self.id: str = batch.id
        self.jobs: tuple[SyncJob[Any], ...] = tuple(SyncJob(job, portal) for job in batch.jobs)
        self._batch = batch
        self._portal = portal

    @property
    def leader_id(self) -> str:
        """Same as `Batch.leader_id`."""
        return self.id

    def status(self) -> BatchStatus:
        """Same as `Batch.status`."""
        return self._portal.run(self._batch.status())

    def wait(self, timeout: Duration | None = None) -> BatchStatus:
        """Same as `Batch.wait`; blocks this thread."""
        return self._portal.run(self._batch.wait(timeout))

    def add(self, calls: Iterable[Step]) -> list[SyncJob[Any]]:
        """Same as `Batch.add`."""
        return [SyncJob(job, self._portal) for job in self._portal.run(self._batch.add(calls))]

    def result(self, timeout: Duration | None = None) -> list[Any]:
        """Same as `Batch.result`; blocks this thread."""
        return self._portal.run(self._batch.result(timeout))

    def cancel(self) -> int:
        """Same as `Batch.cancel`."""
        return self._portal.run(self._batch.cancel())


class SyncChain(Generic[R_co]):
    """A stored chain, followed from code that cannot await."""

    __slots__ = ("_chain", "_portal", "jobs")

    def __init__(self, chain: Chain[R_co], portal: Portal) -> None:
        self.jobs: tuple[SyncJob[Any], ...] = tuple(SyncJob(job, portal) for job in chain.jobs)
        self._chain = chain
        self._portal = portal

    @property
    def leader_id(self) -> str:
        """Same as `Chain.leader_id`."""
        return self._chain.leader_id

    def result(self, timeout: Duration | None = None) -> R_co:
        """Same as `Chain.result`; blocks this thread."""
        return self._portal.run(self._chain.result(timeout))

    def cancel(self) -> int:
        """Same as `Chain.cancel`."""
        return self._portal.run(self._chain.cancel())
