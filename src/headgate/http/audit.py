"""The audit log: what users did, and to what."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from headgate.admin import ListedAction
from headgate.http.caller import Caller
from headgate.http.endpoint import Query
from headgate.http.page import Count, Name, Number, Page, page_of
from headgate.jobs.audit import SubjectKind


class AuditLogQuery(Query, frozen=True, kw_only=True):
    kind: SubjectKind | None = None
    subject: Annotated[Name | None, msgspec.Meta(description="The id of a job, or a name.")] = None
    actor: Name | None = None
    before: Annotated[Number | None, msgspec.Meta(description="The `next` of the page before it.")] = None
    count: Count = 50


async def audit_log(caller: Caller, query: AuditLogQuery) -> Page[ListedAction]:
    """Return the actions on jobs, limits, queues, schedules and nodes, and the sign-ins, newest first."""
    found = await caller.admin.audit_log(
        kind=query.kind, subject=query.subject, actor=query.actor, before=query.before, count=query.count + 1
    )
    return page_of([_shown(each, caller) for each in found], query.count, lambda entry: str(entry.number))


def _shown(entry: ListedAction, caller: Caller) -> ListedAction:
    return replace(entry, detail=None if entry.detail is None else caller.redaction.text(entry.detail))
