"""Which jobs stand under unique keys, and what becomes of those that are added under one."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob
from headgate.jobs.uniqueness import (
    Following,
    Kept,
    Key,
    Replaced,
    Stands,
    Stored,
    decide,
    following,
    key_of,
    require_no_duplicate,
    successor,
)
from headgate.storage.memory.job import WAITING
from headgate.storage.memory.jobs import Jobs


def add_unique(jobs: Jobs, added: Sequence[NewJob], now: int, batches: Sequence[NewBatch], wall: int) -> dict[str, str]:
    """Store jobs some of which have unique keys; by their ids, those for which another one stands."""
    # A repeat of what is stored already changes nothing.
    new = [job for job in added if job.id not in jobs.by_id]
    keys = {key for job in new if (key := key_of(job)) is not None}
    require_no_duplicate(new, {key: _stands(jobs, key) for key in keys})
    others: dict[str, str] = {}
    jobs.add((), now, batches, wall)
    for job in new:
        job = following(job, others)
        key = key_of(job)
        decision = Stored() if key is None else decide(job, _stands(jobs, key))
        match decision:
            case Stored():
                jobs.add([job], now, (), wall)
            case Kept(id):
                others[job.id] = id
            case Replaced(id):
                jobs.replace(jobs.by_id[id], job, now)
                others[job.id] = id
            case Following(id):
                jobs.add([successor(job, id)], now, (), wall)
    return others


def _stands(jobs: Jobs, key: Key) -> Stands:
    standing = jobs.under_key.get(key, ())
    waiting = jobs.waits_under(key)
    running = next((job.id for job in standing if job.state is not WAITING), None)
    return Stands(None if waiting is None else waiting.id, running)
