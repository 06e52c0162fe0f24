"""A batch: jobs that are enqueued together and awaited together."""

from __future__ import annotations

import msgspec

from headgate.jobs.state import JobState


class NewBatch(msgspec.Struct, frozen=True, array_like=True):
    """A new batch, enqueued with all its `total` jobs, which name it in their origin."""

    id: str
    total: int
    enqueued_at: int


class BatchRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch as it is read. Instants are wall microseconds.

    `pending` is the number of jobs that are not final yet; at 0 the batch is final, since `finished_at`.
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
        """The final state: succeeded if all its jobs did; None while it is not final."""
        return None if self.pending else ended_as(self.failed, self.cancelled)


def ended_as(failed: int, cancelled: int) -> JobState:
    """Return the final state of a batch with so many failed and cancelled jobs."""
    if failed:
        return JobState.FAILED
    return JobState.CANCELLED if cancelled else JobState.SUCCEEDED
