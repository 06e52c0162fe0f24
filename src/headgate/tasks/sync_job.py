"""Stored jobs, for code that cannot await."""

from __future__ import annotations

from typing import Generic, TypeVar

from headgate.clock import Duration
from headgate.tasks.handle import Job
from headgate.tasks.portal import Portal
from headgate.tasks.status import JobStatus

R_co = TypeVar("R_co", covariant=True)


class SyncJob(Generic[R_co]):
    """A stored job, followed from code that cannot await."""

    __slots__ = ("_job", "_portal", "id")

    def __init__(self, job: Job[R_co], portal: Portal) -> None:
        self.id: str = job.id
        self._job = job
        self._portal = portal

    @property
    def leader_id(self) -> str:
        """Same as `Job.leader_id`."""
        return self.id

    def status(self) -> JobStatus:
        """Same as `Job.status`."""
        return self._portal.run(self._job.status())

    def result(self, timeout: Duration | None = None) -> R_co:
        """Same as `Job.result`; blocks this thread."""
        return self._portal.run(self._job.result(timeout))

    def cancel(self) -> bool:
        """Same as `Job.cancel`."""
        return self._portal.run(self._job.cancel())

    def __repr__(self) -> str:
        return f"SyncJob({self.id!r})"
