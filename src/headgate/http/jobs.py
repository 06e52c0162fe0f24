"""Jobs: list and inspect them, and retry, run now, reschedule, cancel or delete them, one by one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from headgate.admin import (
    BucketStatus,
    BulkResult,
    EnqueuedJob,
    JobCount,
    JobDetails,
    JobQuery,
    ListedJob,
    ListedPage,
)
from headgate.admin.timeline import Stretch, TimelineEntry, restarts
from headgate.clock import optional_datetime
from headgate.http.caller import Caller
from headgate.http.endpoint import JsonBody, Query, bad_request, require_limit
from headgate.http.http_error import HttpError
from headgate.http.page import Count, Cursor, Number, Page, page_of
from headgate.http.redaction import LONGEST_PREVIEWED, NO_SECRETS, Redaction, Secrets
from headgate.http.tasks import Arguments, require_no_mark
from headgate.jobs.job import MAX_PRIORITY, JobError, JobOptions, JobRecord
from headgate.jobs.query import Instant, JobView
from headgate.jobs.report import HIGHEST_LEVEL, LogLine
from headgate.jobs.root_cause import RootCause, raised_cause
from headgate.jobs.state import JobState
from headgate.limits.key import shown_key
from headgate.storage.records import Dependency
from headgate.tasks.status import JobProgress, JobStatus
from headgate.views import view_of

MOST_COUNTED = 10_000

MOST_CHANGED = 10_000
"""How many jobs one request changes at most, while a browser waits for it."""

Paused = frozenset[tuple[str, str]]
"""Limits and keys that are paused."""
MOST_IDS = 1000
"""How many jobs one request names at most."""

JobId = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=100 * 365 * 86400)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)]


class JobsQuery(JobQuery, frozen=True, kw_only=True):
    order: Literal["newest", "oldest"] = "newest"
    before: Cursor | None = None
    count: Count = 50


class LogsQuery(Query, frozen=True, kw_only=True):
    after: Annotated[Number, msgspec.Meta(description="The number of the last line that is known.")] = 0
    count: Count = 100
    newest: Annotated[bool, msgspec.Meta(description="The last lines instead of the first.")] = False
    level: Annotated[
        int,
        msgspec.Meta(ge=0, le=HIGHEST_LEVEL, description="The lowest level of a line, as in `logging`: 30, a warning."),
    ] = 0


class BulkRequest(JsonBody, frozen=True, kw_only=True):
    """An action, the jobs that it changes, and how many at most; with `dry_run` they are only counted.

    The jobs are those that match `query`, or those of `ids`. `at` or `delay`, and `priority`, are those of the action
    `reschedule`.
    """

    action: Literal["retry", "cancel", "run_now", "reschedule"]
    query: JobQuery | None = None
    ids: Annotated[Sequence[JobId], msgspec.Meta(min_length=1, max_length=MOST_IDS)] | None = None
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHANGED)] = 1000
    dry_run: bool = False
    at: Instant | None = None
    delay: Delay | None = None
    priority: Priority | None = None


class BulkCancel(JsonBody, frozen=True, kw_only=True):
    """How many jobs are cancelled at most; with `dry_run` they are only counted."""

    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHANGED)] = 1000
    dry_run: bool = False


class PurgeRequest(JsonBody, frozen=True, kw_only=True):
    """The final jobs to delete, those that match `query` or those of `ids`, and how many at most.

    Only jobs that finished more than `older_than` seconds ago; with `dry_run` they are only counted.
    """

    query: JobQuery | None = None
    ids: Annotated[Sequence[JobId], msgspec.Meta(min_length=1, max_length=MOST_IDS)] | None = None
    older_than: Delay = 0
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHANGED)] = 1000
    dry_run: bool = False


class RescheduleRequest(JsonBody, frozen=True, kw_only=True):
    """A request to make a job ready at an instant or after so many seconds, and its priority."""

    at: Instant | None = None
    delay: Delay | None = None
    priority: Priority | None = None


class RunAgainRequest(JsonBody, frozen=True, kw_only=True):
    """The arguments of the new job; null: those of the old one."""

    payload: Arguments | None = None


class WaitView(msgspec.Struct, frozen=True):
    """The limit that a job waits for, and its key. While it `is_paused`, no job starts on it."""

    limit: str
    key: str
    is_paused: bool


class JobStatusView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now; its fields are those of `JobStatus`. `/jobs` has no positions or predictions."""

    id: str
    task: str
    queue: str
    state: JobState
    attempt: int
    priority: int
    enqueued_at: datetime
    run_at: datetime
    is_scheduled: bool
    started_at: datetime | None
    finished_at: datetime | None
    throttled_until: datetime | None
    waits_for: WaitView | None
    lane_waiting: int
    error: JobError | None
    position: int | None
    predicted_start: datetime | None
    progress: JobProgress | None
    is_blocked: bool
    follows: str | None
    enqueued_by: str | None
    deferrals: int
    unreadable: str | None
    tags: Sequence[str]


Shown = TypeVar("Shown", bound=JobStatusView)


class ListedJobView(JobStatusView, frozen=True, kw_only=True):
    """A job in a list: what it waits for, as far as its row shows it, and the beginning of its payload."""

    view: JobView | None
    payload: str


class ExplanationView(msgspec.Struct, frozen=True):
    """Why a job has not started, or how it ended, in a sentence, with the limits that it uses."""

    status: JobStatusView
    reason: str
    limits: Sequence[BucketStatus]


class ChargedBucket(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit that a job uses, its key, and the cost of one start."""

    limit: str
    key: str
    cost: int | None = None


class AttemptView(msgspec.Struct, frozen=True):
    """The end of an attempt that did not succeed.

    A job that an operator retries counts its attempts from 1 again; `restart` is how many times it had done so before.
    """

    number: int
    restart: int
    node: str | None
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: JobError | None


class LogLineView(msgspec.Struct, frozen=True):
    """A log line of a job; numbers grow, with gaps."""

    number: int
    at: datetime
    attempt: int
    level: int
    logger: str
    message: str


class JobDetailsView(msgspec.Struct, frozen=True):
    """Everything that is stored about a job, and the root cause of its last error, with its message as it was raised.

    Fields that match `redacted` of the session are hidden. Of an encoded payload or result, viewers get the names of
    its codecs, as "[encoded: aes-gcm.2026-11]"; operators get it decoded, if this app has the codecs.
    """

    status: JobStatusView
    payload: Any
    result: Any
    error: JobError | None
    annotations: Mapping[str, Any]
    headers: Mapping[str, str] | None
    options: JobOptions | None
    buckets: Sequence[ChargedBucket]
    unique_key: str | None
    schedule: str | None
    batch: str | None
    node: str | None
    cancel_requested: bool
    expires_at: datetime | None
    audit: str
    attempts: Sequence[AttemptView]
    timeline: Sequence[TimelineEntry]
    stretches: Sequence[Stretch]
    last_lines: Sequence[LogLineView]
    cause: RootCause | None
    results: Mapping[str, str | list[str]] | None
    leaders: Sequence[Dependency]
    followers: Sequence[Dependency]


async def jobs(caller: Caller, query: JobsQuery) -> ListedPage[ListedJobView]:
    """Return a page of the jobs that match the query; where fields are redacted, filters by them are for admins only.

    At most 10,000 jobs are read for it, so it may have fewer than `count`, or none, while `next` is not null.
    """
    require_limit(caller, query.limit)
    found = await caller.admin.page(
        _allowed(caller, query), before=query.before, count=query.count, oldest_first=query.order == "oldest"
    )
    return ListedPage(await listed(caller, found.items), found.next, found.read, found.reached)


async def count_jobs(caller: Caller, query: JobQuery) -> JobCount:
    """Count the jobs that match the query, up to 10,000; if no index finds them, among the newest 10,000."""
    return await caller.admin.bounded_count(_allowed(caller, query), most=MOST_COUNTED)


async def job(caller: Caller, id: str) -> JobDetailsView:
    """Return everything that is stored about a job: payload, result, attempts, timeline, last log lines."""
    found = await caller.admin.job(id)
    return _details(found, caller, await _paused(caller, found.status))


async def explain_job(caller: Caller, id: str) -> ExplanationView:
    """Return why a job has not started, or how it ended, with the limits that it uses as they are now."""
    found = await caller.admin.explain(id)
    secrets = await caller.secrets(id)
    paused = frozenset((each.limit, each.key) for each in found.limits if each.is_paused)
    return ExplanationView(
        status=_shown(JobStatusView, _status(found.status, caller.redaction, secrets), paused),
        reason=caller.redaction.text(found.reason, secrets),
        limits=found.limits,
    )


async def job_logs(caller: Caller, id: str, query: LogsQuery) -> Page[LogLineView]:
    """Return the log lines of a job, oldest first: those after one, or the newest."""
    # Before the newest lines there may be more, but no page follows them.
    count = query.count if query.newest else query.count + 1
    lines = await caller.admin.logs(id, after=query.after, count=count, newest=query.newest, level=query.level)
    secrets = await caller.secrets(id)
    shown = [_line(line, caller.redaction, secrets) for line in lines]
    return page_of(shown, query.count, lambda line: str(line.number))


async def retry_job(caller: Caller, id: str) -> None:
    """Let a failed or cancelled job wait again, with all its attempts."""
    await caller.admin.retry(id)


async def cancel_job(caller: Caller, id: str) -> bool:
    """Cancel a waiting job, or request the cancellation of a running one; not `changed` if it was final."""
    return await caller.admin.cancel(id)


async def run_job_now(caller: Caller, id: str) -> None:
    """Make a job ready that waits for its time, or for its next attempt; its limits still apply."""
    await caller.admin.run_now(id)


async def run_job_again(caller: Caller, id: str, body: RunAgainRequest) -> EnqueuedJob:
    """Enqueue a new job like this one, with the same or with other arguments; the old job stays as it is."""
    require_no_mark(body.payload, caller.redaction)
    return await caller.admin.run_again(id, body.payload)


async def reschedule_job(caller: Caller, id: str, body: RescheduleRequest) -> None:
    """Change the time of a waiting job, its priority, or both; its limits still apply."""
    await caller.admin.reschedule(id, at=body.at, delay=body.delay, priority=body.priority)


async def delete_job(caller: Caller, id: str) -> None:
    """Delete a final job for good, unless an unfinished job that may read its result follows it."""
    await caller.admin.delete(id)


async def purge_jobs(caller: Caller, body: PurgeRequest) -> BulkResult:
    """Delete many final jobs for good, oldest first; repeat it while it `is_cut`."""
    query = _selected(caller, body)
    return await caller.admin.purge(query, older_than=body.older_than, most=body.most, dry_run=body.dry_run)


async def change_jobs(caller: Caller, body: BulkRequest) -> BulkResult:
    """Retry, cancel, run now or reschedule many jobs, oldest first; repeat it while it `is_cut`."""
    query = _selected(caller, body)
    place = {"at": body.at, "delay": body.delay, "priority": body.priority}
    if body.action != "reschedule" and any(value is not None for value in place.values()):
        raise bad_request(f"at, delay and priority are for reschedule, not for {body.action}", pointer="/action")
    match body.action:
        case "retry":
            return await caller.admin.retry_many(query, most=body.most, dry_run=body.dry_run)
        case "cancel":
            return await caller.admin.cancel_many(query, most=body.most, dry_run=body.dry_run)
        case "run_now":
            return await caller.admin.run_many_now(query, most=body.most, dry_run=body.dry_run)
        case "reschedule":
            return await caller.admin.reschedule_many(
                query, at=body.at, delay=body.delay, priority=body.priority, most=body.most, dry_run=body.dry_run
            )


def _selected(caller: Caller, body: BulkRequest | PurgeRequest) -> JobQuery | Sequence[str]:
    """Return the query of a request, or its ids. Raises HttpError for both, for neither, and for a refused query."""
    if body.query is not None and body.ids is None:
        return _allowed(caller, body.query)
    if body.ids is not None and body.query is None:
        return body.ids
    raise bad_request("name the jobs by query or by ids, and not by both; {} as query is all jobs", pointer="")


def _allowed(caller: Caller, query: JobQuery) -> JobQuery:
    """Return the query. Raises HttpError for a query that would reveal what is hidden.

    A user who may search for a text in a hidden value can read it, letter by letter; one who may filter by a hidden
    value can guess it.
    """
    if not caller.redaction or caller.user.may("admin"):
        return query
    for name in ("header", "annotation"):
        filter = getattr(query, name)
        if filter is not None and caller.redaction.hides(filter.partition("=")[0]):
            raise HttpError(
                403, f"{name}_is_redacted", f"this {name} is redacted here, and a filter would reveal it; ask an admin"
            )
    if query.text is not None:
        raise HttpError(
            403,
            "text_is_redacted",
            "fields of payloads are redacted here, and a search in their text would reveal them; ask an admin, or "
            "search by task, key, error or time",
        )
    return query


# ---------------------------------------------------------------------------------------------------- showing


async def _paused(caller: Caller, *statuses: JobStatus) -> Paused:
    """Return those of the limits and keys that these jobs wait for that are paused."""
    awaited = {status.waits_for for status in statuses if status.waits_for is not None}
    return await caller.admin.limits.paused(awaited) if awaited else frozenset()


async def listed(caller: Caller, jobs: Sequence[ListedJob]) -> Sequence[ListedJobView]:
    """Return jobs as a list shows them."""
    paused = await _paused(caller, *(job.status for job in jobs))
    return [_listed(job, caller, paused) for job in jobs]


def _shown(kind: type[Shown], status: JobStatus, paused: Paused, **fields: Any) -> Shown:
    """Return the fields of a status that an answer has, with others."""
    limit = status.waits_for
    fields["waits_for"] = None if limit is None else WaitView(*limit, limit in paused)
    return view_of(kind, status, **fields)


def _listed(job: ListedJob, caller: Caller, paused: Paused) -> ListedJobView:
    redaction = caller.redaction
    is_read = len(job.payload) <= LONGEST_PREVIEWED or job.status.error is not None or job.status.progress is not None
    fields = (job.headers, job.status.annotations)
    secrets = caller.secrets_of(job.payload, fields=fields) if is_read else NO_SECRETS
    status = _status(job.status, redaction, secrets)
    preview = redaction.preview(caller.visible(job.payload) if is_read else job.payload, secrets)
    return _shown(ListedJobView, status, paused, view=status.view, error=_short(status.error), payload=preview)


def _short(error: JobError | None) -> JobError | None:
    """Return an error without its traceback, which a list does not show."""
    return None if error is None else JobError(error.type, error.message)


def _details(job: JobDetails, caller: Caller, paused: Paused) -> JobDetailsView:
    record, redaction = job.record, caller.redaction
    secrets = caller.secrets_of(record.payload, record.result, fields=(record.headers, record.annotations))
    origin = record.origin
    error = redaction.error(record.error, secrets)
    return JobDetailsView(
        status=_shown(JobStatusView, _status(job.status, redaction, secrets), paused),
        payload=redaction.json(caller.visible(record.payload), secrets),
        result=redaction.json(None if record.result is None else caller.visible(record.result), secrets),
        error=error,
        annotations=redaction.mapping(job.status.annotations, secrets) or {},
        headers=redaction.mapping(record.headers, secrets),
        options=None if record.options is None else msgspec.structs.replace(record.options, tags=()),
        buckets=_buckets(record),
        unique_key=record.unique_key,
        schedule=None if origin is None else origin.schedule,
        batch=None if origin is None else origin.batch,
        node=record.node,
        cancel_requested=record.cancel_requested,
        expires_at=optional_datetime(record.expires_at),
        audit=record.audit.word,
        attempts=[
            view_of(
                AttemptView,
                each,
                restart=restart,
                error=redaction.error(each.error, secrets),
            )
            for each, restart in zip(job.attempts, restarts(job.attempts), strict=True)
        ],
        timeline=[
            each if each.detail is None else replace(each, detail=redaction.text(each.detail, secrets))
            for each in job.timeline
        ],
        stretches=job.stretches,
        last_lines=[_line(line, redaction, secrets) for line in job.last_lines],
        cause=None if error is None else raised_cause(error),
        results=None if origin is None else origin.results,
        leaders=job.dependencies.leaders,
        followers=job.dependencies.followers,
    )


def _status(status: JobStatus, redaction: Redaction, secrets: Secrets) -> JobStatus:
    said = status.progress
    if said is not None and said.message is not None:
        said = replace(said, message=redaction.text(said.message, secrets))
    return replace(status, error=redaction.error(status.error, secrets), progress=said)


def _buckets(record: JobRecord) -> Sequence[ChargedBucket]:
    costs = record.costs or (1,) * len(record.buckets)
    return [ChargedBucket(ref.limit, shown_key(ref.key), cost) for ref, cost in zip(record.buckets, costs, strict=True)]


def _line(line: LogLine, redaction: Redaction, secrets: Secrets) -> LogLineView:
    return view_of(LogLineView, line, message=redaction.text(line.message, secrets))
