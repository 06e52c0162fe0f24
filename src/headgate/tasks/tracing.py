"""The protocol for traces that follow a job across processes; without a tracer nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from headgate.jobs.job import ClaimedJob, NewJob
from headgate.jobs.lifecycle import Outcome
from headgate.tasks.context import JobContext

RecordOutcome = Callable[[Outcome], None]


class Tracing(Protocol):
    """Makes spans. It never raises: an exception would fail the traced work."""

    def sending(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Wrap the storing of jobs, one or more, in one commit; yields them with headers that carry the trace."""
        ...

    def running(self, job: ClaimedJob, task: str) -> AbstractContextManager[RecordOutcome]:
        """Wrap one attempt, in its own asyncio task; yields a function for its outcome. `task` is the task's name."""
        ...

    def calling_back(self, job: JobContext, moment: str) -> AbstractContextManager[None]:
        """Wrap the callbacks of one event of a job, in their own asyncio task."""
        ...

    def carried(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Return these headers with the current trace, for another process that runs the job."""
        ...
