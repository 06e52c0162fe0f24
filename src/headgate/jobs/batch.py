"""A batch: jobs that are enqueued together and awaited together."""

from __future__ import annotations

import msgspec

from headgate.jobs.identity import JobId
from headgate.jobs.state import JobState


class NewBatch(msgspec.Struct, frozen=True, array_like=True):
    """A new batch, enqueued with all its `total` members: jobs, which name it in their origin, and batches.

    `batch` is the outer batch that it is part of. A join has `leaders` instead of members of its own: stored or new
    jobs and batches, which it counts; a job that follows the join follows all of them. One that `grows` is stored
    already, and gets the new jobs that name it. `schedule` is the schedule of which it is an occurrence; `name` is for
    people.
    """

    id: str
    total: int
    enqueued_at: int
    batch: str | None = None
    leaders: tuple[str, ...] = ()
    grows: bool = False
    schedule: str | None = None
    name: str | None = None


class BatchRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch as it is read. Instants are wall microseconds.

    `pending` is the number of members that are not final yet; at 0 the batch is final, since `finished_at`. A batch in
    a batch is one member. `batch` is the outer one. A join counts the leaders of the jobs that follow it. `schedule` is
    the schedule of which it is an occurrence; `name` is for people.
    """

    id: JobId
    total: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    enqueued_at: int
    finished_at: int | None
    batch: JobId | None = None
    is_join: bool = False
    schedule: str | None = None
    name: str | None = None

    @property
    def ended_as(self) -> JobState | None:
        """The final state; None while it is not final."""
        return None if self.pending else ended_as(self.succeeded, self.failed, self.cancelled, self.skipped)


def ended_as(succeeded: int, failed: int, cancelled: int, skipped: int) -> JobState:
    """Return the final state of a batch with so many members in each.

    It is failed if one of them is, else cancelled if one of them is. Skipped members change nothing, unless all are
    skipped: then the batch is, too, and so is what needs its success.
    """
    if failed:
        return JobState.FAILED
    if cancelled:
        return JobState.CANCELLED
    return JobState.SKIPPED if skipped and not succeeded else JobState.SUCCEEDED
