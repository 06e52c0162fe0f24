"""Charts: what nodes count, and what a store counts itself because no node does."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.history import ALL, KEPT_FOR, SHORTEST, Flush, JobsStep, LimitStep
from headgate.jobs.job import NewJob
from headgate.storage.driver import Transaction
from headgate.storage.stored_rows import RowDecoder

STEPS_AT_ONCE = 100
"""How many steps are added in one commit where there is one writer; a hundred take some 5 ms."""

_LENGTHS = list(KEPT_FOR)

_JOBS_STEPS = RowDecoder(JobsStep, "history")
_LIMIT_STEPS = RowDecoder(LimitStep, "history")


async def add_history(
    tx: Transaction, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None, portion: int = 0
) -> None:
    """Add steps to the stored ones; `portion` is the place of these among the steps of their `flush`."""
    if flush is not None and not await tx.execute(
        "note_flush", writer=flush.writer, number=flush.number, portion=portion, now=tx.now
    ):
        # It is already written, and only the reply was lost.
        return
    if jobs:
        await tx.execute(
            "add_jobs_history", steps=sorted(jobs, key=lambda each: (each.step, each.queue, each.task, each.at))
        )
    if limits:
        ordered = sorted(limits, key=lambda each: (each.step, each.limit, each.key is None, each.key or "", each.at))
        rows = [(each.step, each.limit, each.key, each.at, each.used, each.unlimited) for each in ordered]
        await tx.execute("add_limit_history", steps=rows)


async def note_enqueued(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Count jobs that are enqueued if this transaction commits, and that no node counts."""
    if jobs:
        await tx.execute("note_enqueued", jobs=jobs, now=tx.now, lengths=_LENGTHS)


async def note_unrun(tx: Transaction, ids: Sequence[str]) -> None:
    """Count jobs that have become final in this transaction, and that no attempt counts."""
    if ids:
        await tx.execute("note_unrun", ids=ids, now=tx.now, lengths=_LENGTHS)


async def gather_history(tx: Transaction, count: int = 1000) -> int:
    """Add up to `count` notes of what the store has counted itself to its history. Returns how many there were.

    Nodes call it every ten seconds. A store in which commits can add to the same rows without waiting for each
    other leaves no notes.
    """
    return 0 if tx.has_one_writer else int(await tx.value("gather_history", count=count, lengths=_LENGTHS))


async def jobs_history(tx: Transaction, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
    """Return the steps of length `step` from `since` on, in order: of a queue and a task, a queue and ALL, or ALL.

    For ALL queues and one task, it returns the steps of each queue and does not add them up. Steps in which nothing
    happened are not stored. A step that lies ahead is from before the clock was set back, and is no part of it.
    """
    if queue == ALL != task:
        return await tx.fetch(_JOBS_STEPS, "task_history", step=step, task=task, since=since, now=tx.now)
    return await tx.fetch(_JOBS_STEPS, "jobs_history", step=step, queue=queue, task=task, since=since, now=tx.now)


async def recent_history(tx: Transaction, step: int, since: int, most: int) -> Sequence[JobsStep]:
    """Return the `most` newest steps of each task in each queue from `since` on, the last ones first."""
    return await tx.fetch(_JOBS_STEPS, "recent_history", step=step, since=since, now=tx.now, most=most)


async def limit_history(tx: Transaction, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
    """Return the same for a limit: of one key, or of all keys together."""
    values = {"of_all": key is None, "key": key or "", "since": since, "now": tx.now}
    return await tx.fetch(_LIMIT_STEPS, "limit_history", step=step, limit=limit, **values)


async def prune_history(tx: Transaction, step: int, before: int, count: int = 1000) -> int:
    """Delete up to `count` steps of that length from before then, and as many of limits. Returns how many."""
    if step == SHORTEST:
        await tx.execute("prune_history_flushes", before=before)
    jobs = await tx.execute("prune_jobs_history", step=step, before=before, count=count)
    return jobs + await tx.execute("prune_limit_history", step=step, before=before, count=count)
