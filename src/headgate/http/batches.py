"""Batches: how many of their jobs are in each state."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads
from headgate.tasks.ties import BatchStatus


async def batch(caller: Caller, id: str) -> BatchStatus:
    """How many of the jobs of a batch are in each state; its jobs are listed by `batch`."""
    return await caller.admin.batch(id)


ENDPOINTS: Sequence[Endpoint] = (reads("/batches/{id}", batch, refuses=(404,)),)
