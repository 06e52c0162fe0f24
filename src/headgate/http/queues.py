"""Queues: their jobs by state, and their pauses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headgate.admin import QueueOverview
from headgate.http.caller import Caller
from headgate.http.endpoint import Acknowledgement, Endpoint, acts, reads


class QueuePage(msgspec.Struct, frozen=True):
    """All queues, as of `now`; their unfinished jobs were counted at `counted_at` (null: not yet)."""

    items: Sequence[QueueOverview]
    now: datetime
    counted_at: datetime | None
    next: None = None


async def queues(caller: Caller) -> QueuePage:
    """Return all queues by name: those that are declared, have jobs or are paused."""
    overview = await caller.overview()
    return QueuePage(overview.queues, overview.now, overview.counted_at)


async def pause_queue(caller: Caller, name: str) -> Acknowledgement:
    """Start no job of a queue on any node until it is resumed; running jobs continue."""
    return Acknowledgement(await caller.admin.queues.pause(name))


async def resume_queue(caller: Caller, name: str) -> Acknowledgement:
    """End the pause of a queue."""
    return Acknowledgement(await caller.admin.queues.resume(name))


ENDPOINTS: Sequence[Endpoint] = (
    reads("/queues", queues),
    acts("/queues/{name}/pause", pause_queue, refuses=(404,)),
    acts("/queues/{name}/resume", resume_queue),
)
