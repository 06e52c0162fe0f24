"""Batches: how many of their jobs are in each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, Query, reads
from headgate.http.page import Count, Cursor, Page
from headgate.tasks.ties import BatchStatus


class BatchesQuery(Query, frozen=True, kw_only=True):
    pending_only: Annotated[bool, msgspec.Meta(description="Only batches with jobs that are not final.")] = False
    before: Cursor | None = None
    count: Count = 50


async def batches(caller: Caller, query: BatchesQuery) -> Page[BatchStatus]:
    """Return batches, newest first, with how many of their jobs are in each state."""
    found = await caller.admin.batches(pending_only=query.pending_only, before=query.before, count=query.count)
    return Page(found, found[-1].id if len(found) == query.count else None)


async def batch(caller: Caller, id: str) -> BatchStatus:
    """Return how many jobs of a batch are in each state; `/jobs` lists them by `batch`, `/jobs/bulk` cancels them."""
    return await caller.admin.batch(id)


ENDPOINTS: Sequence[Endpoint] = (reads("/batches", batches), reads("/batches/{id}", batch, refuses=(404,)))
