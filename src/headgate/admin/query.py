"""Which jobs are asked for: to list, to count, to change many at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, get_args

from headgate.clock import from_datetime
from headgate.errors import DeclarationError
from headgate.jobs.state import JobState
from headgate.limits.key import bucket_key
from headgate.storage.protocol import JobFilter, JobView

LARGEST_PAGE = 500

LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Jobs that are all that is said here; without a word, all jobs.

    `view` is what a waiting job waits for: "scheduled" (its time), "throttled" (a limit), "ready" (a slot), "blocked"
    (another job). `limit` and `key` may be one draw's. `node` is whose it is or was last. `error` is how the type of
    its last error begins, `text` a part of its payload as JSON, of up to 200 characters. Instants are aware; each range
    begins with `…_after` and ends before `…_before`. Raises DeclarationError for what makes no sense.
    """

    state: JobState | None = None
    view: JobView | None = None
    queue: str | None = None
    task: str | None = None
    limit: str | None = None
    key: str | None = None
    unique_key: str | None = None
    schedule: str | None = None
    batch: str | None = None
    node: str | None = None
    error: str | None = None
    enqueued_after: datetime | None = None
    enqueued_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in list(JobState):
            raise DeclarationError(f"state={self.state!r} must be one of {', '.join(JobState)}")
        if self.view is not None and self.view not in get_args(JobView):
            raise DeclarationError(f"view={self.view!r} must be one of {', '.join(get_args(JobView))}")
        if self.text is not None and not 0 < len(self.text) <= LONGEST_TEXT:
            raise DeclarationError(f"text of {len(self.text)} characters must have 1 to {LONGEST_TEXT}")

    def filter(self, *, cursor: str | None = None, count: int = 50, oldest_first: bool = False) -> JobFilter:
        """As the store takes it; a page has 1 to 500 jobs, whatever is asked."""
        return JobFilter(
            state=None if self.state is None else JobState(self.state),
            view=self.view,
            queue=self.queue,
            task=self.task,
            limit=self.limit,
            key=None if self.key is None else bucket_key(self.key),
            unique_key=self.unique_key,
            schedule=self.schedule,
            batch=self.batch,
            node=self.node,
            error=self.error,
            enqueued_from=_instant(self.enqueued_after),
            enqueued_until=_instant(self.enqueued_before),
            finished_from=_instant(self.finished_after),
            finished_until=_instant(self.finished_before),
            text=self.text,
            oldest_first=oldest_first,
            cursor=cursor,
            count=min(max(count, 1), LARGEST_PAGE),
        )


class Wanted(TypedDict, total=False):
    """What a `JobQuery` can say, for those who say it in the call."""

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
    error: str | None
    enqueued_after: datetime | None
    enqueued_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None
    text: str | None


def _instant(instant: datetime | None) -> int | None:
    return None if instant is None else from_datetime(instant)
