"""The call that a schedule enqueues each time."""

from __future__ import annotations

import msgspec

from headgate.jobs.audit import AuditLevel
from headgate.jobs.job import JobOptions


class ScheduledCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a schedule enqueues: a task, its payload and its options; `expires_in` is in microseconds."""

    task: str
    queue: str
    payload: str
    priority: int = 0
    headers: dict[str, str] | None = None
    options: JobOptions | None = None
    audit: AuditLevel = AuditLevel.FULL
    expires_in: int | None = None
