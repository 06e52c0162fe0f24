"""Alerts: what is wrong by the alerts of the apps that use the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headgate.admin import AlertStatus
from headgate.http.caller import Caller


class AlertPage(msgspec.Struct, frozen=True):
    """All alerts that last, or whose messages are not all delivered, as of `now`, the oldest first."""

    items: Sequence[AlertStatus]
    now: datetime
    next: None = None


async def alerts(caller: Caller) -> AlertPage:
    """Return the alerts that are firing, and those that have ended and whose last message is not delivered."""
    overview = await caller.overview()
    return AlertPage(overview.alerts, overview.now)
