"""The overview: queues, nodes, limits and problems."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin import Overview
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads


async def overview(caller: Caller) -> Overview:
    """Return the state of queues, nodes and limits, and what is wrong."""
    return await caller.overview()


ENDPOINTS: Sequence[Endpoint] = (reads("/overview", overview),)
