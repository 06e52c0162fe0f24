"""Batches: how many of their jobs are in each state, how to cancel one, and the graphs that they are part of."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.admin import BatchDetails, BulkResult, JobGraph
from headgate.http.caller import Caller
from headgate.http.endpoint import Query
from headgate.http.jobs import BulkCancel
from headgate.http.page import Count, Cursor, Page, page_of


class BatchesQuery(Query, frozen=True, kw_only=True):
    pending_only: Annotated[bool, msgspec.Meta(description="Only batches with jobs that are not final.")] = False
    before: Cursor | None = None
    count: Count = 50


async def batches(caller: Caller, query: BatchesQuery) -> Page[BatchDetails]:
    """Return batches, newest first, with their tasks, and how many of their jobs are in each state."""
    found = await caller.admin.batches(pending_only=query.pending_only, before=query.before, count=query.count + 1)
    return page_of(found, query.count, lambda batch: batch.id)


async def batch(caller: Caller, id: str) -> BatchDetails:
    """Return the tasks of a batch, and how many of its jobs are in each state; `/jobs` lists them by `batch`."""
    return await caller.admin.batch(id)


async def cancel_batch(caller: Caller, id: str, body: BulkCancel) -> BulkResult:
    """Cancel the jobs of a batch, of the batches in it, and what then waits for nothing else; repeat while `is_cut`."""
    return await caller.admin.cancel_batch(id, most=body.most, dry_run=body.dry_run)


async def graph(caller: Caller, id: str) -> JobGraph:
    """Return the jobs and batches connected with a job or a batch, and what follows what; more than 200 as groups."""
    return await caller.admin.graph(id)
