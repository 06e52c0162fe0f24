"""Alerts as operators see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headgate.clock import to_datetime
from headgate.jobs.alert import AlertRecord, AlertState
from headgate.views import view_of


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """An alert that lasts ("firing"), or has ended while its last messages are not delivered ("resolved").

    `condition` held for `subject` (a queue, task, node, schedule or limit; "": all tasks) at `seen_at`, with this
    `value` in the unit of its threshold (None: it has none). `sent` messages were delivered, the last one at `sent_at`.
    If the next one was tried `tries` times without success, `error` is why, and it is tried again at `retry_at`.
    """

    id: str
    alert: str
    state: AlertState
    condition: str
    subject: str
    value: float | None
    text: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    sent: int
    sent_at: datetime | None
    tries: int
    error: str | None
    retry_at: datetime | None


def alert_status(record: AlertRecord) -> AlertStatus:
    """Return what operators see of a stored alert."""
    return view_of(
        AlertStatus,
        record,
        state="firing" if record.ended_at is None else "resolved",
        retry_at=None if record.error is None else to_datetime(record.send_at),
    )
