"""What follows a job over processes: the seam that traces are made at. Without one nothing of it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from headgate.jobs.job import ClaimedJob, NewJob
from headgate.jobs.outcome import Outcome
from headgate.tasks.context import JobContext

ToldOutcome = Callable[[Outcome], None]


class Tracing(Protocol):
    """Makes spans. What it raises would fail the work that it follows, so it raises nothing."""

    def sending(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Around the storing of jobs, one or more, in one commit; gives them with headers that carry the trace."""
        ...

    def running(self, job: ClaimedJob, task: str) -> AbstractContextManager[ToldOutcome]:
        """Around one attempt, in its own asyncio task; gives what is told its outcome. `task` is the task's name."""
        ...

    def calling_back(self, job: JobContext, moment: str) -> AbstractContextManager[None]:
        """Around the callbacks of one moment of a job, in an asyncio task of their own."""
        ...

    def carried(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """These headers with the trace that is current here, for a process that runs the job for this one."""
        ...
