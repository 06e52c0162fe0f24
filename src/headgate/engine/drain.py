"""Draining: whether anything is left that a node could do, so that one that was started for it can end."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from headgate.storage.protocol import Storage

Drain = Literal["ready", "all"]
"""Until nothing runs and nothing could start now; or until nothing waits for a limit or for its time either."""

LOOK_EVERY = 0.1
"""Seconds between two looks of a node that has nothing to do."""

SAMPLE = 100_000
"""Waiting jobs whose tasks are looked at."""


async def is_drained(storage: Storage, queues: Set[str], tasks: Set[str], until: Drain) -> bool:
    """Whether nothing of these queues runs, on whichever node, or is left to run.

    Jobs of a paused queue and of other tasks do not count: no node like this one will ever take them.
    """
    if any(each.running for each in await storage.counts(finals=False) if each.queue in queues):
        return False
    records = [each for each in await storage.queues() if each.queue in queues and each.paused_at is None]
    left = {each.queue for each in records if until == "all" or each.ready_at is not None}
    if not left:
        return True
    waiting = await storage.waiting(SAMPLE)
    if sum(each.jobs for each in waiting) >= SAMPLE:
        return False
    return not any(
        each.jobs
        for each in waiting
        if each.queue in left and each.task in tasks and (until == "all" or each.view == "ready")
    )
