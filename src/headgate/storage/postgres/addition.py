"""Adding jobs: one statement that inserts them with their arrivals, and locks nothing that others want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import JobState, NewJob
from headgate.storage.following import Place, leaders_of
from headgate.storage.json_text import as_json, optional_json
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.procedures.following import places_of, store_ties
from headgate.storage.procedures.lanes import Lane

INSERTED_AT_ONCE = 5000
"""How many jobs of a transaction one statement stores, so that none comes near to its timeout."""


async def add_jobs(
    session: Session, jobs: Sequence[NewJob], limit_now: int, batches: Sequence[NewBatch] = (), now: int = 0
) -> None:
    """Store waiting jobs, and rejected ones as final; those that are stored already stay as they are.

    Batches are stored at wall time `now`. Jobs that follow others lock these until the end of the transaction.
    """
    if not batches and all(job.origin is None for job in jobs):
        await _insert(session, jobs, {}, limit_now)
        return
    own = {job.id for job in jobs} | {batch.id for batch in batches}
    async with session.transaction(may_last=leaders_of(jobs) <= own):
        await add_tied(session, jobs, limit_now, batches, now)


async def add_tied(
    session: Session, jobs: Sequence[NewJob], limit_now: int, batches: Sequence[NewBatch] = (), now: int = 0
) -> None:
    """The same for any jobs, inside a transaction."""
    tx = PostgresTransaction(session, now, limit_now)
    placed = await places_of(tx, jobs, batches)
    for start in range(0, len(jobs), INSERTED_AT_ONCE):
        await _insert(session, jobs[start : start + INSERTED_AT_ONCE], placed, limit_now)
    await store_ties(tx, jobs, batches, placed)


async def _insert(session: Session, jobs: Sequence[NewJob], placed: Mapping[str, Place], limit_now: int) -> None:
    if not jobs:
        return
    lanes = [Lane(job.queue, job.draws, job.variant) for job in jobs]
    known = {lane.id: lane for lane in lanes}
    # Each array costs a little to send, and most jobs need none of the rest.
    rest: dict[str, Any] = {}
    if not all(job.is_plain and job.rejection is None for job in jobs):
        rest = {
            "unique_keys": [job.unique_key for job in jobs],
            "origins": [optional_json(job.origin) for job in jobs],
            "audits": [int(job.audit) for job in jobs],
        }
    await session.execute(
        "add_jobs_in_full" if rest else "add_jobs",
        ids=[job.id for job in jobs],
        tasks=[job.task for job in jobs],
        queues=[job.queue for job in jobs],
        gates=[job.known_by for job in jobs],
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
        give_up_at=[job.give_up_at if _state(job, placed) == "waiting" else None for job in jobs],
        states=[_state(job, placed) for job in jobs],
        errors=[optional_json(placed[job.id].error if job.id in placed else job.rejection) for job in jobs],
        limit_now=limit_now,
        lane_ids=list(known),
        lane_queues=[lane.queue for lane in known.values()],
        lane_draws=[as_json(lane.draws) for lane in known.values()],
        lane_variants=[lane.variant for lane in known.values()],
        **rest,
    )


def _state(job: NewJob, placed: Mapping[str, Place]) -> str:
    place = placed.get(job.id)
    if place is not None:
        return "blocked" if place.is_blocked else place.state
    if job.rejection is None:
        return JobState.WAITING
    return JobState.CANCELLED if job.terms is not None and job.terms.cancels else JobState.FAILED
