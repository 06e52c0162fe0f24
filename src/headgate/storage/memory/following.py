"""Who follows whom in the memory storage, its batches, and which ends others have still to be told of."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.jobs.batch import BatchRecord, NewBatch, ended_as
from headgate.jobs.job import Draw, JobState
from headgate.storage.following import LEADER_NOT_SUCCEEDED, BatchCount
from headgate.storage.memory.job import CANCELLED, Job
from headgate.storage.memory.lane import Lane


class Batch:
    """A batch, how many of its jobs are still stored, and the buckets of which it may hold permits."""

    __slots__ = (
        "cancelled",
        "draws",
        "enqueued_at",
        "failed",
        "finished_at",
        "id",
        "pending",
        "stored",
        "succeeded",
        "total",
    )

    def __init__(self, new: NewBatch) -> None:
        self.id = new.id
        self.total = self.pending = self.stored = new.total
        self.succeeded = self.failed = self.cancelled = 0
        self.enqueued_at = new.enqueued_at
        self.finished_at: int | None = None
        self.draws: tuple[Draw, ...] = ()

    def count(self, count: BatchCount, wall: int) -> None:
        self.pending -= count.total
        self.succeeded += count.succeeded
        self.failed += count.failed
        self.cancelled += count.cancelled
        self.finished_at = None if self.pending else wall

    @property
    def ended_as(self) -> JobState | None:
        return None if self.pending else ended_as(self.failed, self.cancelled)

    def record(self) -> BatchRecord:
        return BatchRecord(
            self.id,
            self.total,
            self.pending,
            self.succeeded,
            self.failed,
            self.cancelled,
            self.enqueued_at,
            self.finished_at,
        )


class Following:
    """Followers by the id of what they follow, batches by id, and final jobs whose followers have not heard of it."""

    def __init__(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.ended: list[Job[Lane]] = []
        self._followers: dict[str, list[Job[Lane]]] = {}

    def follow(self, job: Job[Lane], leader: str) -> None:
        self._followers.setdefault(leader, []).append(job)

    def note_end(self, job: Job[Lane]) -> None:
        """Whether anybody is to be told of it is looked at when they are."""
        if job.id in self._followers or job.batch is not None:
            self.ended.append(job)

    def blocked_by(self, leader: str) -> list[Job[Lane]]:
        return [job for job in self._followers.get(leader, ()) if job.is_blocked]

    def cancelled_by(self, leader: str) -> Iterator[Job[Lane]]:
        """The followers that were cancelled because of how it ended, and have not been retried since."""
        for job in self._followers.get(leader, ()):
            if job.state is CANCELLED and job.error is not None and job.error.type == LEADER_NOT_SUCCEEDED:
                yield job

    def forget(self, job: Job[Lane], finished_before: int) -> None:
        """A job is pruned, and its batch with the last of its jobs, if it was final before then as well."""
        self._followers.pop(job.id, None)
        leader = job.leader
        if leader is not None and leader in self._followers:
            self._followers[leader] = [other for other in self._followers[leader] if other is not job]
        batch = None if job.batch is None else self.batches.get(job.batch)
        if batch is not None:
            batch.stored -= 1
            self._forget_batch(batch, finished_before)

    def prune(self, finished_before: int) -> None:
        """Forget batches of which no job is stored; it looks at all."""
        for batch in list(self.batches.values()):
            self._forget_batch(batch, finished_before)

    def _forget_batch(self, batch: Batch, finished_before: int) -> None:
        if not batch.stored and batch.finished_at is not None and batch.finished_at < finished_before:
            del self.batches[batch.id]
            self._followers.pop(batch.id, None)
