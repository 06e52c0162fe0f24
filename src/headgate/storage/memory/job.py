"""One job as the memory storage keeps it."""

from __future__ import annotations

from typing import Generic, TypeVar

from headgate.jobs.job import Attempt, JobError, JobState, NewJob

WAITING = JobState.WAITING
RUNNING = JobState.RUNNING
SUCCEEDED = JobState.SUCCEEDED
FAILED = JobState.FAILED
CANCELLED = JobState.CANCELLED

# A lane holds its jobs, and a job names its lane: its type comes from above, so that imports point down only.
L = TypeVar("L")


class Job(Generic[L]):
    """A job with the state it is in and what became of its attempts.

    `version` is 0 in the fifo that it arrived in, and grows each time it is placed elsewhere. `lane` is the one it
    waits or runs in; a final job names the open lane of its queue, so that its own can be forgotten.
    """

    __slots__ = (
        "attempt",
        "attempts",
        "cancel_requested",
        "delayed",
        "error",
        "expires_at",
        "fence",
        "finished_at",
        "lane",
        "lost",
        "new",
        "node",
        "result",
        "run_at",
        "seq",
        "started_at",
        "state",
        "version",
    )

    def __init__(self, new: NewJob, seq: int, lane: L) -> None:
        self.new = new
        self.seq = seq
        self.lane = lane
        self.version = 0
        self.state = WAITING
        self.run_at = new.run_at
        self.delayed = new.delayed
        self.expires_at = new.expires_at
        self.attempt = 0
        self.fence = 0
        self.lost = 0
        self.node: str | None = None
        self.started_at: int | None = None
        self.finished_at: int | None = None
        self.cancel_requested = False
        self.result: str | None = None
        self.error: JobError | None = None
        self.attempts: list[Attempt] | None = None

    @property
    def id(self) -> str:
        return self.new.id
