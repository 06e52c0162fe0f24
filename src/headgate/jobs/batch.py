"""A batch: jobs that were enqueued together, and are waited for together."""

from __future__ import annotations

import msgspec

from headgate.jobs.state import JobState


class NewBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch as it is enqueued with all its `total` jobs, which name it in their origin."""

    id: str
    total: int
    enqueued_at: int


class BatchRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch as people look at it. Instants are wall microseconds.

    `pending` of its jobs are not final yet; when none is, the batch is final, and has been since `finished_at`.
    """

    id: str
    total: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    enqueued_at: int
    finished_at: int | None

    @property
    def ended_as(self) -> JobState | None:
        """How it ended: as succeeded if all its jobs did; None while it has not."""
        return None if self.pending else ended_as(self.failed, self.cancelled)


def ended_as(failed: int, cancelled: int) -> JobState:
    """How a batch ended of which so many jobs failed and were cancelled."""
    if failed:
        return JobState.FAILED
    return JobState.CANCELLED if cancelled else JobState.SUCCEEDED
