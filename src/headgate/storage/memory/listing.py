"""Which jobs of the memory storage a filter lets through."""

from __future__ import annotations

from headgate.storage.memory.job import WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.protocol import JobFilter, JobView


def view_of(job: Job[Lane], wall: int, now: int) -> JobView:
    """What a waiting job waits for, at that wall and limit time."""
    if job.is_blocked:
        return "blocked"
    if job.delayed and job.run_at > wall:
        return "scheduled"
    behind = job.lane.behind
    return "throttled" if behind is not None and behind.opens_at is not None and behind.opens_at > now else "ready"


def passes_filter(filter: JobFilter, job: Job[Lane], wall: int, now: int) -> bool:
    """Whether the filter lets a job through, at that wall and limit time."""
    new, origin = job.new, job.new.origin
    return (
        (filter.state is None or job.state is filter.state)
        and (filter.view is None or (job.state is WAITING and view_of(job, wall, now) == filter.view))
        and filter.queue in (None, new.queue)
        and filter.task in (None, new.task)
        and filter.unique_key in (None, new.unique_key)
        and filter.schedule in (None, origin and origin.schedule)
        and filter.batch in (None, origin and origin.batch)
        and filter.node in (None, job.node)
        and (filter.error is None or (job.error is not None and job.error.type.startswith(filter.error)))
        and _is_within(new.enqueued_at, filter.enqueued_from, filter.enqueued_until)
        and _is_within(job.finished_at, filter.finished_from, filter.finished_until)
        and (filter.text is None or filter.text in new.payload)
        and _draws(filter, job)
    )


def _is_within(instant: int | None, begin: int | None, end: int | None) -> bool:
    if begin is None and end is None:
        return True
    return instant is not None and (begin is None or begin <= instant) and (end is None or instant < end)


def _draws(filter: JobFilter, job: Job[Lane]) -> bool:
    return (filter.limit is None and filter.key is None) or any(
        filter.limit in (None, draw.limit) and filter.key in (None, draw.key) for draw in job.new.draws
    )
