"""The steps of charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.jobs.history import ALL, KEPT_FOR, SHORTEST, Flush, JobsStep, LimitStep
from headgate.jobs.job import NewJob
from headgate.storage.json_text import as_json
from headgate.storage.postgres.database import Session
from headgate.storage.stored_rows import note_unreadable

_decode_counts = msgspec.json.Decoder(tuple[int, ...]).decode


async def add(
    session: Session, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None, now: int
) -> None:
    """Add them to what is kept, inside a transaction."""
    if flush is not None and not await session.execute("note_flush", writer=flush.writer, number=flush.number, now=now):
        # It was made, and only its answer was lost.
        return
    if jobs:
        await session.execute(
            "add_jobs_history",
            steps=[each.step for each in jobs],
            queues=[each.queue for each in jobs],
            tasks=[each.task for each in jobs],
            at=[each.at for each in jobs],
            enqueued=[each.enqueued for each in jobs],
            started=[each.started for each in jobs],
            succeeded=[each.succeeded for each in jobs],
            failed=[each.failed for each in jobs],
            cancelled=[each.cancelled for each in jobs],
            retried=[each.retried for each in jobs],
            wait_max=[each.wait_max for each in jobs],
            run_max=[each.run_max for each in jobs],
            waits=[as_json(each.waits) for each in jobs],
            runs=[as_json(each.runs) for each in jobs],
        )
    if limits:
        await session.execute(
            "add_limit_history",
            steps=[each.step for each in limits],
            limits=[each.limit for each in limits],
            of_all=[each.key is None for each in limits],
            keys=[each.key or "" for each in limits],
            at=[each.at for each in limits],
            used=[each.used for each in limits],
        )


async def note_enqueued(session: Session, jobs: Sequence[NewJob], now: int) -> None:
    """Note jobs that are enqueued if this transaction commits, and whom nobody else counts."""
    if jobs:
        await session.execute(
            "note_enqueued", queues=[job.queue for job in jobs], tasks=[job.task for job in jobs], now=now
        )


async def gather(session: Session, count: int) -> int:
    """Add up to so many notes to what is kept; how many there were."""
    ((gathered,),) = await session.fetch("gather_history", count=count, lengths=list(KEPT_FOR))
    return int(gathered)


async def of_jobs(session: Session, step: int, queue: str, task: str, since: int) -> list[JobsStep]:
    """The steps of one curve, in order; of a task in ALL queues those of each."""
    if queue == ALL != task:
        rows = await session.fetch("task_history", step=step, task=task, since=since)
    else:
        rows = await session.fetch("jobs_history", step=step, queue=queue, task=task, since=since)
    return [replace(JobsStep(*row[:-2]), waits=_counts(row, "waits"), runs=_counts(row, "runs")) for row in rows]


def _counts(row: Any, name: str) -> tuple[int, ...]:
    try:
        return _decode_counts(row[name])
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("history", f"{row['queue']} {row['task']}", f"{name}: {error}")
        return ()


async def of_limit(session: Session, step: int, limit: str, key: str | None, since: int) -> list[LimitStep]:
    """The same of a limit."""
    rows = await session.fetch("limit_history", step=step, limit=limit, of_all=key is None, key=key or "", since=since)
    return [LimitStep(step, limit, key, row["at"], row["used"]) for row in rows]


async def prune(session: Session, step: int, before: int, count: int) -> int:
    """Forget steps that began before then; how many."""
    if step == SHORTEST:
        await session.execute("prune_history_flushes", before=before)
    jobs = await session.execute("prune_jobs_history", step=step, before=before, count=count)
    return jobs + await session.execute("prune_limit_history", step=step, before=before, count=count)
