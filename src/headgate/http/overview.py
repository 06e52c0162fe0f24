"""The overview: queues, nodes, limits and problems, and the alerts about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headgate.admin import AlertStatus, Overview
from headgate.http.caller import Caller


async def overview(caller: Caller) -> Overview:
    """Return the state of queues, nodes and limits, and what is wrong.

    If the store does not answer, it is the last known state, and has `silent_since`.
    """
    return caller.shown(await caller.watch.latest())


class AlertPage(msgspec.Struct, frozen=True):
    """All alerts that last, or whose messages are not all delivered, as of `now`, the oldest first."""

    items: Sequence[AlertStatus]
    now: datetime
    next: None = None


async def alerts(caller: Caller) -> AlertPage:
    """Return the alerts that are firing, and those that have ended and whose last message is not delivered."""
    overview = await caller.overview()
    return AlertPage(overview.alerts, overview.now)
