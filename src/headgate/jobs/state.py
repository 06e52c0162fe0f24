"""The states of a job."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job. Scheduled and throttled are views of `waiting`.

    A job is skipped if it was not needed: it follows a job or batch that did not end as it needs, although nothing
    failed or was cancelled there.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.WAITING, JobState.RUNNING)

    @property
    def is_failure(self) -> bool:
        """Whether jobs with `on="failure"` run after it: failed or cancelled."""
        return self in (JobState.FAILED, JobState.CANCELLED)
