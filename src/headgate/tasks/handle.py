"""Handles: what `enqueue` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from headgate.arguments import parse_wait
from headgate.clock import SECOND, Duration
from headgate.tasks.status import EnqueuePrediction, JobStatus

if TYPE_CHECKING:
    from headgate.client import Client

R_co = TypeVar("R_co", covariant=True)


def wait_seconds(timeout: Duration | None, where: str) -> float | None:
    """Return a timeout in seconds; None: no timeout. Raises DeclarationError if it is not a duration."""
    return None if timeout is None else parse_wait(timeout, "timeout", where) / SECOND


class Job(Generic[R_co]):
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
        """What a call follows that is after this job."""
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
        result: R_co = await self._client.job_result(self.id, wait_seconds(timeout, "job.result"))
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
