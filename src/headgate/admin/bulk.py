"""Changing many jobs: chunk by chunk, so that it can be watched, stopped and repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

import msgspec

from headgate.arguments import LARGEST_COUNT, parse_count
from headgate.clock import to_datetime
from headgate.errors import DeclarationError, IllegalTransition, JobHeld, JobNotFound, LeaderNotRetried
from headgate.jobs.audit import AuditRecord
from headgate.jobs.job import JobRecord
from headgate.jobs.lifecycle import CANCEL_REQUESTED, FOLLOWS, Unchanged, new_time, require_scheduled
from headgate.jobs.query import JobQuery, JobView
from headgate.jobs.state import JobState
from headgate.jobs.uniqueness import KeyTaken
from headgate.shielding import shield_until_done
from headgate.storage.endings import LEADER_NOT_SUCCEEDED
from headgate.storage.store import Store

CHUNK = 200
"""How many jobs are read at once, or deleted in one commit, so that other writes do not wait long for it."""

LEADER_FIRST = "its leader has to be retried first, which also brings the job back"

MEANWHILE = "changed meanwhile"

HELD = "another open transaction has locked it"

CHOSEN_AT_ONCE = 10_000
"""How many jobs are chosen before the first of them is changed: a purge may be of a million."""

AT_ONCE = 20
"""How many jobs are changed at once: the store has to serve other callers too."""


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result for the jobs that a query matched and that were in a state in which they can be changed.

    A matching job that changes with the one that it follows is counted, too: a dry run and a run count the same jobs.
    `refused` counts by reason the jobs that were left as they are. With `is_dry_run` nothing was changed, and `changed`
    is how many would have been. `is_cut`: the maximum was reached and more jobs can be changed; repeat the call for
    those.
    """

    matched: int = 0
    changed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    is_dry_run: bool = False
    is_cut: bool = False


class BulkOptions(TypedDict, total=False):
    """How many jobs are changed."""

    most: int
    """At most so many; the default is 10,000, for jobs of one batch or queue and for a purge 1,000,000."""
    dry_run: bool
    """Change nothing, only count."""
    on_progress: Callable[[BulkResult], None] | None
    """Called with the result so far after each 200 jobs."""


Refusal = Callable[[JobRecord, int], str | None]
"""Returns why a job, as it is at that wall time, must not be changed; None if it may be."""

ChangeTogether = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Changes those of the jobs that it can change in one commit, and returns their ids."""


@dataclass(frozen=True, slots=True)
class BulkVerb:
    """An action on many jobs: in these states, one state after the other, or in this view.

    Jobs in other states are not read at all, however many there are. Jobs that are as they should be (`is_done`) are
    left out, so that the action can be repeated.
    """

    states: Sequence[JobState]
    refusal: Refusal
    view: JobView | None = None
    is_done: Callable[[JobRecord, int], bool] | None = None

    def passes(self, query: JobQuery, now: datetime) -> list[list[JobQuery]]:
        """Return for each pass the query for each state in which jobs can be changed, if it asks for no other state."""
        states = [state for state in self.states if query.state in (None, state)]
        if self.view is not None and query.view is None:
            query = msgspec.structs.replace(query, view=self.view)
        found = [msgspec.structs.replace(query, state=state) for state in states]
        if JobState.RUNNING not in states[1:]:
            return [found]
        # A job that ran while the waiting ones were listed may wait when the running ones are. New ones stay.
        before = min(now, query.enqueued_before or now)
        return [found, [msgspec.structs.replace(each, enqueued_before=before) for each in found]]


def cancel_refusal(record: JobRecord, now: int) -> str | None:
    """Refuse jobs that are final, or whose cancellation was requested before."""
    if record.state.is_final:
        return f"already {record.state}"
    return CANCEL_REQUESTED if record.cancel_requested else None


def retry_refusal(record: JobRecord, now: int) -> str | None:
    """Refuse jobs that have neither failed nor been cancelled."""
    allowed = record.state.is_final and JobState.WAITING in FOLLOWS[record.state]
    return None if allowed else f"neither failed nor cancelled: {record.state}"


def run_now_refusal(record: JobRecord, now: int) -> str | None:
    """Refuse jobs that are not waiting for their time."""
    try:
        require_scheduled(record.id, record.state, is_ahead=record.delayed and record.run_at > now)
    except IllegalTransition:
        return "it is not waiting for its time" if record.state is JobState.WAITING else f"it is {record.state}"
    return "it is waiting for another job" if record.is_blocked else None


def reschedule_refusal(record: JobRecord, now: int) -> str | None:
    """Refuse jobs that are not waiting."""
    return None if record.state is JobState.WAITING else f"it is {record.state}"


def reschedule(run_at: int | None, priority: int | None) -> BulkVerb:
    """Return the verb for a new time, a new priority, or both."""

    def is_done(record: JobRecord, now: int) -> bool:
        time = new_time(record.run_at, run_at, now, delayed=record.delayed)
        has_new_time = time.has_changed and time.run_at != record.run_at
        return record.state is JobState.WAITING and not has_new_time and priority in (None, record.priority)

    return BulkVerb((JobState.WAITING,), reschedule_refusal, is_done=is_done)


CANCEL = BulkVerb((JobState.WAITING, JobState.RUNNING), cancel_refusal)
RETRY = BulkVerb((JobState.FAILED, JobState.CANCELLED), retry_refusal)
CANCEL_WAITING = BulkVerb((JobState.WAITING,), cancel_refusal)
RUN_NOW = BulkVerb((JobState.WAITING,), run_now_refusal, view="scheduled")


async def change_many(
    storage: Store,
    query: JobQuery | Sequence[str],
    verb: BulkVerb,
    change: Callable[[str], Awaitable[object]],
    *,
    most: int = 10_000,
    dry_run: bool = False,
    on_progress: Callable[[BulkResult], None] | None = None,
    change_together: ChangeTogether | None = None,
    on_end: Callable[[BulkResult], Awaitable[None]] | None = None,
) -> BulkResult:
    """Change the jobs that the query matches, or that have these ids, and that the verb can change.

    Oldest first, until `most` are changed. With `change_together`, a chunk is first changed in one commit if possible.
    `on_end` gets the result, also if it is stopped. Raises DeclarationError for one id in place of several.
    """
    bulk = _Bulk(storage, change, most, dry_run)
    if isinstance(query, JobQuery):
        passes = verb.passes(query, to_datetime(storage.now()))
        listings = [pages_that_match(storage, queries) for queries in passes]
    else:
        listings = [pages_of(storage, query)]
    try:
        for pages in listings:
            # Chosen before the first is changed: its followers change with it, and would be listed no more.
            while chosen := await _chosen(pages, verb, storage, bulk.room):
                for start in range(0, len(chosen), CHUNK):
                    is_cut = not await bulk.take(chosen[start : start + CHUNK], change_together)
                    if on_progress is not None:
                        on_progress(bulk.result())
                    if is_cut:
                        return bulk.result(is_cut=True)
        return bulk.result()
    finally:
        if on_end is not None:
            await on_end(bulk.result())


async def _chosen(
    pages: AsyncIterator[Sequence[JobRecord]], verb: BulkVerb, storage: Store, room: int
) -> list[tuple[str, str | None]]:
    """Return the ids on the next pages, each with the reason against it: 10,000, or more than `room` to be changed."""
    chosen: list[tuple[str, str | None]] = []
    async for page in pages:
        now = storage.now()
        left = page if verb.is_done is None else [record for record in page if not verb.is_done(record, now)]
        judged = [(record.id, verb.refusal(record, now)) for record in left]
        chosen += judged
        room -= sum(reason is None for _, reason in judged)
        if room < 0 or len(chosen) >= CHOSEN_AT_ONCE:
            break
    return chosen


async def cancel_batch(
    storage: Store,
    batch_id: str,
    cancel: Callable[[str], Awaitable[object]],
    audit_record: Callable[[str], AuditRecord],
    *,
    most: int = LARGEST_COUNT,
    dry_run: bool = False,
    on_progress: Callable[[BulkResult], None] | None = None,
) -> BulkResult:
    """Cancel up to `most` jobs in a batch: those that the end of others would release first, blocked ones last.

    Jobs that are added meanwhile are cancelled, too. A job that another transaction has locked is counted as refused.
    """

    async def cancel_blocked(ids: Sequence[str]) -> Sequence[str]:
        return await storage.cancel_blocked(ids, audit_records=[*map(audit_record, ids)])

    bulk = _Bulk(storage, cancel, most, dry_run)
    while True:
        found = await storage.downstream_of(batch_id)
        released, others, requested = (
            [id for id in ids if id not in bulk.seen] for ids in (found.released, found.others, found.requested)
        )
        if not (released or others or requested):
            return bulk.result()
        await bulk.take([(id, CANCEL_REQUESTED) for id in requested])
        # A chunk releases no job of a later one, because it holds none that is deeper.
        for ids, change_together in ((released, cancel_blocked), (others, None)):
            for start in range(0, len(ids), CHUNK):
                is_cut = not await bulk.take([(id, None) for id in ids[start : start + CHUNK]], change_together)
                if on_progress is not None:
                    on_progress(bulk.result())
                if is_cut:
                    return bulk.result(is_cut=True)


async def pages_that_match(storage: Store, queries: Sequence[JobQuery]) -> AsyncIterator[Sequence[JobRecord]]:
    """Return the jobs that match these queries, one query after the other, the oldest first."""
    for query in queries:
        cursor: str | None = None
        while page := await storage.jobs(query.filter(cursor=cursor, count=CHUNK, oldest_first=True)):
            yield page
            if len(page) < CHUNK:
                break
            cursor = page[-1].id


async def pages_of(storage: Store, ids: Sequence[str]) -> AsyncIterator[Sequence[JobRecord]]:
    """Return the jobs with these ids, the oldest first: a leader is retried before the jobs that follow it."""
    if isinstance(ids, str):
        raise DeclarationError(f"pass a JobQuery or a list of ids, not one text: {ids!r}")
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), CHUNK):
        page = await storage.jobs_by_id(ordered[start : start + CHUNK])
        yield sorted(page, key=lambda record: record.id)


class _Bulk:
    """Counts the results, and stops when `most` jobs are changed."""

    def __init__(self, storage: Store, change: Callable[[str], Awaitable[object]], most: int, dry_run: bool) -> None:
        self.seen: set[str] = set()
        self._storage = storage
        self._change = change
        self._most = parse_count(most, "most", least=0, most=most)
        self._is_dry_run = dry_run
        self._refused: Counter[str] = Counter()
        self._changed: set[str] = set()

    @property
    def room(self) -> int:
        """How many more jobs may be changed."""
        return self._most - len(self._changed)

    def result(self, *, is_cut: bool = False) -> BulkResult:
        matched = len(self._changed) + self._refused.total()
        return BulkResult(matched, len(self._changed), dict(self._refused), self._is_dry_run, is_cut)

    async def take(self, jobs: Sequence[tuple[str, str | None]], change_together: ChangeTogether | None = None) -> bool:
        """Change the jobs without a reason against it; False if there are more than may be changed."""
        ids: list[str] = []
        for id, reason in jobs:
            # A job may be listed again in the state that it has changed to.
            if id in self.seen:
                continue
            if reason is None:
                ids.append(id)
            else:
                self._refused[reason] += 1
            self.seen.add(id)
        if ids and change_together is not None and not self._is_dry_run:
            self._changed.update(await change_together(ids[: self.room]) if self.room else ())
            ids = [id for id in ids if id not in self._changed]
        while ids:
            if not self.room:
                return False
            now, ids = ids[: min(self.room, AT_ONCE)], ids[min(self.room, AT_ONCE) :]
            if self._is_dry_run:
                self._changed.update(now)
            else:
                await self._change_at_once(now)
        return True

    async def _change_at_once(self, ids: Sequence[str]) -> None:
        # All are done before an error or a cancellation is raised: nothing goes on unobserved, or uncounted.
        ended = await shield_until_done(asyncio.gather(*map(self._refusal, ids), return_exceptions=True))
        held = [place for place, refusal in enumerate(ended) if refusal == HELD]
        # The changes of the others have locked them as well, for a moment: a job is locked with what follows it.
        again = asyncio.gather(*(self._refusal(ids[place]) for place in held), return_exceptions=True)
        for place, refusal in zip(held, await shield_until_done(again), strict=True):
            ended[place] = refusal
        late: list[str] = []
        for id, refusal in zip(ids, ended, strict=True):
            if isinstance(refusal, BaseException):
                raise refusal
            if refusal == LEADER_FIRST:
                # A database with several connections may have retried it before its leader.
                refusal = await self._refusal(id)
            if refusal == MEANWHILE:
                late.append(id)
            elif refusal is not None:
                self._refused[refusal] += 1
        leaders: dict[str, str] = {}
        for job in await self._storage.jobs_by_id(late) if late else ():
            is_with_leader = job.state is JobState.WAITING or (job.error and job.error.type == LEADER_NOT_SUCCEEDED)
            if is_with_leader and job.origin is not None and job.origin.follows is not None:
                leaders[job.id] = job.origin.follows
        # This call has changed those with their leaders. Who has ended a batch is not known: what follows it counts.
        others = {job.id for job in await self._storage.jobs_by_id([*leaders.values()])} if leaders else ()
        for id, leader in sorted(leaders.items()):
            if leader in self._changed or leader not in others:
                self._changed.add(id)
        self._refused.update(MEANWHILE for id in late if id not in self._changed)

    async def _refusal(self, job_id: str) -> str | None:
        """Change a job. Returns why it is refused; None if it was changed, or is as it should be and is not counted."""
        try:
            state = await self._change(job_id)
        except Unchanged as unchanged:
            return unchanged.reason
        except KeyTaken:
            return "another job is waiting under its unique key"
        except LeaderNotRetried:
            return LEADER_FIRST
        except JobHeld:
            return HELD
        except (IllegalTransition, JobNotFound):
            return MEANWHILE
        if state is False or (isinstance(state, JobState) and state.is_final):
            return MEANWHILE
        self._changed.add(job_id)
        return None
