"""Changing many jobs at once: chunk by chunk, so that it can be watched, stopped and repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.admin.query import JobQuery
from headgate.errors import DuplicateJob, IllegalTransition, JobHeld, JobNotFound, LeaderNotRetried
from headgate.jobs.job import JobRecord
from headgate.jobs.lifecycle import FOLLOWS, require_scheduled
from headgate.jobs.state import JobState
from headgate.storage.records import JobView
from headgate.storage.store import Store

CHUNK = 200
"""Jobs that are read at once."""

AT_ONCE = 20
"""Jobs that are changed at once: the rest of the store's room is for others."""


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What became of the jobs that a query matched, among those whose state lets them be changed so.

    `refused` counts by reason those that were left as they are. With `is_dry_run` nothing was changed, and `changed` is
    how many would have been. `is_cut`: there are more to change, which the bound kept from it; do it again for those.
    """

    matched: int = 0
    changed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    is_dry_run: bool = False
    is_cut: bool = False


Refusal = Callable[[JobRecord, int], str | None]
"""Why a job, as it is at that wall time, is not to be changed; None if it is."""


@dataclass(frozen=True, slots=True)
class BulkVerb:
    """What can be done to many jobs: to those of these states, looked for one after the other, or of this view.

    What is of no such state is not read at all, however much of it there is.
    """

    states: Sequence[JobState]
    refusal: Refusal
    view: JobView | None = None

    def queries(self, query: JobQuery) -> list[JobQuery]:
        """The query, narrowed to what can be changed; none if it asks for something else."""
        states = [state for state in self.states if query.state in (None, state)]
        if self.view is not None and query.view is None:
            query = msgspec.structs.replace(query, view=self.view)
        return [msgspec.structs.replace(query, state=state) for state in states]


def no_cancel(record: JobRecord, now: int) -> str | None:
    """Only what is not final can be cancelled, and once."""
    if record.state.is_final:
        return f"final already: {record.state}"
    return "was asked to end before" if record.cancel_requested else None


def no_retry(record: JobRecord, now: int) -> str | None:
    """Only what has failed or was cancelled can be retried."""
    allowed = record.state.is_final and JobState.WAITING in FOLLOWS[record.state]
    return None if allowed else f"neither failed nor cancelled: {record.state}"


def no_run_now(record: JobRecord, now: int) -> str | None:
    """Only what waits for its time can be run now."""
    try:
        require_scheduled(record.id, record.state, is_ahead=record.delayed and record.run_at > now)
    except IllegalTransition:
        return "it does not wait for its time" if record.state is JobState.WAITING else f"it is {record.state}"
    return "it waits for another job" if record.is_blocked else None


CANCEL = BulkVerb((JobState.WAITING, JobState.RUNNING), no_cancel)
RETRY = BulkVerb((JobState.FAILED, JobState.CANCELLED), no_retry)
RUN_NOW = BulkVerb((JobState.WAITING,), no_run_now, view="scheduled")


async def change_many(
    storage: Store,
    query: JobQuery,
    verb: BulkVerb,
    change: Callable[[str], Awaitable[object]],
    *,
    most: int,
    dry_run: bool,
    on_progress: Callable[[BulkResult], None] | None,
) -> BulkResult:
    """Change what the query matches and the verb can change, oldest first, until `most` are changed."""
    bulk = _Bulk(change, most, dry_run)
    async for page in _pages(storage, verb.queries(query)):
        now = storage.now()
        is_cut = not await bulk.take([(record.id, verb.refusal(record, now)) for record in page])
        if on_progress is not None:
            on_progress(bulk.result())
        if is_cut:
            return bulk.result(is_cut=True)
    return bulk.result()


async def _pages(storage: Store, queries: Sequence[JobQuery]) -> AsyncIterator[Sequence[JobRecord]]:
    for query in queries:
        cursor: str | None = None
        while page := await storage.jobs(query.filter(cursor=cursor, count=CHUNK, oldest_first=True)):
            yield page
            if len(page) < CHUNK:
                break
            cursor = page[-1].id


class _Bulk:
    """Counts what becomes of jobs, and ends when as many as were asked for are changed."""

    def __init__(self, change: Callable[[str], Awaitable[object]], most: int, dry_run: bool) -> None:
        self._change = change
        self._most = most
        self._is_dry_run = dry_run
        self._refused: Counter[str] = Counter()
        self._changed = 0
        self._seen: set[str] = set()

    def result(self, *, is_cut: bool = False) -> BulkResult:
        matched = self._changed + self._refused.total()
        return BulkResult(matched, self._changed, dict(self._refused), self._is_dry_run, is_cut)

    async def take(self, jobs: Sequence[tuple[str, str | None]]) -> bool:
        """Change those without a reason against it; False if one of them is more than were asked for."""
        wanted: list[str] = []
        for id, reason in jobs:
            # One may be listed again in the state that it came to meanwhile.
            if id in self._seen:
                continue
            if reason is None:
                wanted.append(id)
            else:
                self._refused[reason] += 1
            self._seen.add(id)
        while wanted:
            room = self._most - self._changed
            if not room:
                return False
            now, wanted = wanted[: min(room, AT_ONCE)], wanted[min(room, AT_ONCE) :]
            if self._is_dry_run:
                self._changed += len(now)
                continue
            for reason in await asyncio.gather(*(_changed(self._change, id) for id in now)):
                if reason is None:
                    self._changed += 1
                else:
                    self._refused[reason] += 1
        return True


async def _changed(change: Callable[[str], Awaitable[object]], job_id: str) -> str | None:
    """Why it was not changed; None if it was."""
    try:
        return "changed meanwhile" if await change(job_id) is False else None
    except DuplicateJob:
        return "another job waits under its unique key"
    except LeaderNotRetried:
        return "what they follow has to be retried first, and brings them back"
    except JobHeld:
        return "somebody's open transaction holds them"
    except (IllegalTransition, JobNotFound):
        return "changed meanwhile"
