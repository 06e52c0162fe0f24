"""Adding jobs: one statement that inserts them with their arrivals, and locks nothing that others want."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.job import JobState, NewJob
from headgate.storage.postgres.arrivals import Lane
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.rows import as_json, optional_json


async def add_jobs(session: Session, jobs: Sequence[NewJob], limit_now: int) -> None:
    """Store waiting jobs, and rejected ones as final; those that are stored already stay as they are."""
    if not jobs:
        return
    lanes = [Lane(job.queue, job.draws, job.variant) for job in jobs]
    known = {lane.id: lane for lane in lanes}
    await session.execute(
        "add_jobs",
        ids=[job.id for job in jobs],
        tasks=[job.task for job in jobs],
        queues=[job.queue for job in jobs],
        lanes=[lane.id for lane in lanes],
        payloads=[job.payload for job in jobs],
        priorities=[job.priority for job in jobs],
        delayed=[job.delayed for job in jobs],
        run_at=[job.run_at for job in jobs],
        enqueued_at=[job.enqueued_at for job in jobs],
        expires_at=[job.expires_at for job in jobs],
        draws=[as_json(job.draws) for job in jobs],
        costs=[optional_json(job.costs) for job in jobs],
        headers=[optional_json(job.headers) for job in jobs],
        options=[optional_json(job.options) for job in jobs],
        terms=[optional_json(job.terms) for job in jobs],
        give_up_at=[job.give_up_at for job in jobs],
        states=[_state(job) for job in jobs],
        errors=[optional_json(job.rejection) for job in jobs],
        limit_now=limit_now,
        lane_ids=list(known),
        lane_queues=[lane.queue for lane in known.values()],
        lane_draws=[as_json(lane.draws) for lane in known.values()],
        lane_variants=[lane.variant for lane in known.values()],
    )


def _state(job: NewJob) -> JobState:
    if job.rejection is None:
        return JobState.WAITING
    return JobState.CANCELLED if job.terms is not None and job.terms.cancels else JobState.FAILED
