"""Jobs and batches in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from headgate.tasks.status import BatchStatus, JobStatus


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list: its status, its headers, and its payload as it is stored: JSON, or encoded."""

    status: JobStatus
    payload: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BatchDetails(BatchStatus):
    """A batch: its status, and the tasks of up to 100 of its jobs, by name; not of the jobs of batches in it."""

    tasks: Sequence[str] = ()


def batch_details(status: BatchStatus, tasks: Sequence[str]) -> BatchDetails:
    """Return a batch with its tasks."""
    return BatchDetails(**asdict(status), tasks=tasks)


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of jobs; `next` is the `before` of the next page, None at the end.

    A page that `is_cut` ended before it was full because five thousand jobs were read for it; the next page may have
    more. `reached` is when the last of them was enqueued, None if that one is deleted meanwhile.
    """

    jobs: Sequence[ListedJob]
    next: str | None
    is_cut: bool = False
    reached: datetime | None = None
