"""The overview: queues, nodes, limits and problems."""

from __future__ import annotations

from headgate.admin import Overview
from headgate.http.caller import Caller


async def overview(caller: Caller) -> Overview:
    """Return the state of queues, nodes and limits, and what is wrong.

    If the store does not answer, it is the last known state, and has `silent_since`.
    """
    return caller.shown(await caller.watch.latest())
