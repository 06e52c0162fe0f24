"""Graphs: the jobs and batches that are connected with each other."""

from __future__ import annotations

from headgate.admin import JobGraph
from headgate.http.caller import Caller


async def graph(caller: Caller, id: str) -> JobGraph:
    """Return the jobs and batches connected with a job or a batch, and what follows what; more than 200 as groups."""
    return await caller.admin.graph(id)
