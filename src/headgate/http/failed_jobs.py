"""Failed jobs, grouped by task and root cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import msgspec

from headgate.admin import Deploy, FailedJob, FailureGroup
from headgate.admin.failures import MOST_READ, Recurrence
from headgate.http.caller import Caller
from headgate.http.endpoint import Query
from headgate.http.http_error import HttpError
from headgate.http.page import Name
from headgate.jobs.job import JobError
from headgate.jobs.root_cause import RootCause, root_cause
from headgate.views import view_of

Span = Annotated[
    float,
    msgspec.Meta(ge=10, le=100 * 365 * 86400, description="How far back, in seconds; without it, all that are kept."),
]


class FailuresQuery(Query, frozen=True, kw_only=True):
    span: Span | None = None
    task: Name | None = None
    queue: Name | None = None


class FailureQuery(Query, frozen=True, kw_only=True):
    span: Span | None = None
    jobs: Annotated[int, msgspec.Meta(ge=1, le=MOST_READ, description="How many jobs of the group to name.")] = 100


class FailureView(msgspec.Struct, frozen=True):
    """The jobs of a task that failed for the same reason; `id` and `error` are those of the newest.

    `failed` of them are final, and `retrying` wait for their next attempt. `trend` counts them by when they failed.
    `keys` is how many keys of limits they have, `first_ever_at` when the first one that is kept failed. `recurrence`
    is "new" or "back again" if they began to fail in the last 24 hours, and null if none failed then, or if the report
    is cut.
    """

    id: str
    task: str
    queues: Sequence[str]
    cause: RootCause
    error: JobError | None
    failed: int
    retrying: int
    first_at: datetime
    last_at: datetime
    trend: Sequence[int]
    keys: int
    first_ever_at: datetime
    recurrence: Recurrence | None


class FailurePage(msgspec.Struct, frozen=True):
    """The groups of failures from `since` to `now`, those with most jobs first; a step of a trend takes `step` seconds.

    There are `total` groups, of which 200 are listed. `is_cut`: there are more failures than the `read` newest.
    """

    items: Sequence[FailureView]
    total: int
    since: datetime
    now: datetime
    step: float
    read: int
    is_cut: bool
    next: None = None


class FailureDetailsView(msgspec.Struct, frozen=True):
    """A group of failures, its newest error with the traceback, and its jobs, the last ones first.

    `deploys` are the last 100 in its time.
    """

    group: FailureView
    jobs: Sequence[FailedJob]
    since: datetime
    now: datetime
    step: float
    is_cut: bool
    deploys: Sequence[Deploy]


async def failures(caller: Caller, query: FailuresQuery) -> FailurePage:
    """Return the failed jobs and those that wait for a retry, grouped by task and root cause.

    The newest 10,000 are read.
    """
    found = await caller.reports.read(
        ("failures", query), lambda: caller.admin.failures(span=query.span, task=query.task, queue=query.queue)
    )
    groups = [_shown(group, caller, has_traceback=False) for group in found.groups]
    return view_of(FailurePage, found, items=groups, now=found.until, next=None)


async def failure(caller: Caller, id: str, query: FailureQuery) -> FailureDetailsView:
    """Return the failures with the task and the root cause of this job; `/jobs/bulk` retries them by their ids."""
    found = await caller.reports.read(
        ("failure", id, query), lambda: caller.admin.failures_like(id, span=query.span, most=query.jobs)
    )
    if found is None:
        raise HttpError(
            404, "not_failed", f"job {id} has not failed, or has been retried; /api/v1/jobs/{id} has its state"
        )
    return view_of(FailureDetailsView, found, group=_shown(found.group, caller, has_traceback=True), now=found.until)


def _shown(group: FailureGroup, caller: Caller, *, has_traceback: bool) -> FailureView:
    error, cause = group.newest.status.error, group.cause
    if caller.redaction:
        fields = (group.newest.headers, group.newest.status.annotations)
        secrets = caller.secrets_of(group.newest.payload, fields=fields)
        error = caller.redaction.error(error, secrets)
        # What is hidden in the error is hidden in what is read from it.
        cause = replace(cause, message="" if error is None else root_cause(error).message)
    if error is not None and not has_traceback:
        error = JobError(error.type, error.message)
    return view_of(FailureView, group, id=group.newest.status.id, cause=cause, error=error)
