"""The states of a job."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job. Scheduled and throttled are views of `waiting`."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.WAITING, JobState.RUNNING)
