"""What is going on, in one look."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin import Overview
from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads


async def overview(caller: Caller) -> Overview:
    """What is going on: queues, nodes, limits, and what is wrong."""
    return await caller.overview()


ENDPOINTS: Sequence[Endpoint] = (reads("/overview", overview),)
