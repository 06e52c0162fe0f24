"""Queries of jobs: to list, to count, to change many at once."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypedDict, get_args

import msgspec

from headgate.arguments import is_utf8, parse_instant
from headgate.errors import DeclarationError
from headgate.jobs.state import JobState
from headgate.jobs.words import require_tag

JobView = Literal["scheduled", "throttled", "ready", "blocked"]
"""The kind of thing that a waiting job waits for: its time, a limit, a slot, or another job."""

LARGEST_PAGE = 500

PAGE_AND_ONE = LARGEST_PAGE + 1
"""How many can be requested, to see whether another page follows."""

LONGEST_TEXT = 200


Name = Annotated[str, msgspec.Meta(max_length=300)]
Key = Annotated[str, msgspec.Meta(max_length=4000)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_TEXT)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


def _field(description: str) -> msgspec.Meta:
    """Return the description of a filter, for the command line and the HTTP API."""
    return msgspec.Meta(description=description)


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The jobs that match all given fields; without a field, all jobs.

    `view` is what a waiting job waits for: "scheduled" (its time), "throttled" (a limit), "ready" (a slot), "blocked"
    (another job). `limit` and `key` match one bucket. `node` is the node that runs it or ran it last. `error` is how
    the type of its last error begins. `text` is part of its payload as JSON, up to 200 characters; encoded payloads are
    not searched. `header` is a header and its value, as "source=api", `annotation` likewise, as "invoice=42".
    Instants are aware; each range begins with `…_after` and ends before `…_before`. Raises DeclarationError for invalid
    values.
    """

    state: Annotated[JobState | None, _field("Only jobs in this state.")] = None
    view: Annotated[JobView | None, _field("Only waiting jobs that wait for this.")] = None
    queue: Annotated[Name | None, _field("Only jobs of this queue.")] = None
    task: Annotated[Name | None, _field("Only jobs of this task.")] = None
    limit: Annotated[Name | None, _field("Only jobs that use this limit.")] = None
    key: Annotated[Key | None, _field("Only jobs that use a limit for this key.")] = None
    unique_key: Annotated[Name | None, _field("Only jobs with this unique key.")] = None
    schedule: Annotated[Name | None, _field("Only jobs of this schedule.")] = None
    batch: Annotated[Name | None, _field("Only jobs of this batch.")] = None
    node: Annotated[Name | None, _field("Only jobs that this node runs or ran last.")] = None
    tag: Annotated[Name | None, _field("Only jobs with this tag.")] = None
    header: Annotated[Key | None, _field("Only jobs with this header, as NAME=TEXT.")] = None
    annotation: Annotated[Key | None, _field("Only jobs with this annotation, as NAME=VALUE.")] = None
    error: Annotated[Name | None, _field("Only jobs whose last error is of a type that begins so.")] = None
    enqueued_after: Annotated[Instant | None, _field("Only jobs enqueued since: 2h, or an instant.")] = None
    enqueued_before: Annotated[Instant | None, _field("Only jobs enqueued before.")] = None
    finished_after: Annotated[Instant | None, _field("Only jobs that finished since.")] = None
    finished_before: Annotated[Instant | None, _field("Only jobs that finished before.")] = None
    text: Annotated[
        Text | None, _field("Only jobs with this in their payload, which is JSON; encoded payloads are not searched.")
    ] = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in list(JobState):
            raise DeclarationError(f"state={self.state!r} must be one of {', '.join(JobState)}")
        if self.view is not None and self.view not in get_args(JobView):
            raise DeclarationError(f"view={self.view!r} must be one of {', '.join(get_args(JobView))}")
        if self.text is not None and not 0 < len(self.text) <= LONGEST_TEXT:
            raise DeclarationError(f"text of {len(self.text)} characters must have 1 to {LONGEST_TEXT}")
        if self.tag is not None:
            require_tag(self.tag, "the filter")
        for name in ("header", "annotation"):
            if getattr(self, name) is not None:
                pair_of(name, getattr(self, name))
        for name in ("enqueued_after", "enqueued_before", "finished_after", "finished_before"):
            if getattr(self, name) is not None:
                parse_instant(getattr(self, name), name)

    def filter(self, *, cursor: str | None = None, count: int = 50, oldest_first: bool = False) -> JobFilter:
        """Return the filter as the store takes it; a page has 1 to 500 jobs, whatever `count` is."""
        fields = {name: getattr(self, name) for name in JobQuery.__struct_fields__}
        return JobFilter(**fields, oldest_first=oldest_first, cursor=cursor, count=min(max(count, 1), LARGEST_PAGE))


class JobFilter(JobQuery, frozen=True, kw_only=True):
    """A page of the jobs that match the query, in the order of their ids and so of their enqueueing.

    `cursor` is the last id of the page before.
    """

    oldest_first: bool = False
    cursor: str | None = None
    count: int = 50


def pair_of(field: str, text: object) -> tuple[str, str]:
    """Return the name and the value in the text of a field. Raises DeclarationError unless it has both."""
    name, separator, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not name or not separator or not is_utf8(name + value):
        example = {"header": "source=api", "annotation": "invoice=42"}[field]
        raise DeclarationError(f'{field}={text!r:.80} is not a name with its value; write {field}="{example}"')
    return name, value


class JobCriteria(TypedDict, total=False):
    """The fields of `JobQuery` as keywords, for type checkers: `admin.jobs(queue="mail")`."""

    state: JobState | None
    view: JobView | None
    queue: str | None
    task: str | None
    limit: str | None
    key: str | None
    unique_key: str | None
    schedule: str | None
    batch: str | None
    node: str | None
    tag: str | None
    header: str | None
    annotation: str | None
    error: str | None
    enqueued_after: datetime | None
    enqueued_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None
    text: str | None
