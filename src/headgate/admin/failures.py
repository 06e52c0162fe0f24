"""Failures: the jobs that have failed, and those that wait for a retry, grouped by task and root cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from headgate.admin.columns import Column
from headgate.admin.history import Deploy, deploys_since
from headgate.admin.listed import ListedJob
from headgate.clock import SECOND, to_datetime
from headgate.jobs.job import BucketRef, JobRecord, JobState
from headgate.jobs.root_cause import UNKNOWN, RootCause, root_cause
from headgate.storage.records import StoredError
from headgate.storage.store import Store
from headgate.tasks.status import status_of

MOST_READ = 10_000
"""How many failed jobs are read at most, and how many attempts to find the jobs that wait for a retry."""

MOST_GROUPS = 200
"""How many groups are listed, those with most jobs first."""

STEPS = 30
"""How many values a trend has."""

MOST_EARLIER = 2_000
"""How many failed jobs are read from before the time of a report, to tell a new root cause from an old one."""

NEWLY = 86_400 * SECOND
"""A root cause is new, or back, if it began to fail within so many microseconds, after as long a time without it."""

Recurrence = Literal["new", "back again", "steady"]

PORTION = 200
"""How many errors are read at once: between two portions, the event loop runs other callbacks."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The jobs of a task that failed for the same reason.

    `failed` of them are final, and `retrying` wait for their next attempt. `trend` counts them by when they failed, in
    steps of `FailureReport.step` from its `since` on. `newest` is the job that failed last. `keys` is how many keys of
    limits its jobs have.

    `first_ever_at` is when the first of the failed jobs that are kept failed, also before the time of the report; up
    to 2,000 of those are read. `recurrence` is "new" if that was in the last 24 hours, "back again" if they began to
    fail in the last 24 hours after as long a time without failures, "steady" if they fail for longer, and None if none
    has failed for 24 hours, or if not all failures of the time were read.
    """

    task: str
    cause: RootCause
    queues: Sequence[str]
    failed: int
    retrying: int
    first_at: datetime
    last_at: datetime
    trend: Sequence[int]
    newest: ListedJob
    keys: int
    first_ever_at: datetime
    recurrence: Recurrence | None


FAILURE_COLUMNS = (
    Column("cause", "Root cause"),
    Column("place", "Place", only="cli"),
    Column("task", "Task"),
    Column("trend", "Trend", only="dashboard"),
    Column("failed", "Failed", "count"),
    Column("retrying", "Retrying", "count"),
    Column("first_at", "First seen", "time", only="cli"),
    Column("last_at", "Last seen", "time"),
    Column("id", "Newest job", "id", only="cli"),
)


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The failures from `since` to `until`, the groups with most jobs first; a step of a trend takes `step` seconds.

    There are `total` groups, of which 200 are listed. Of `read` jobs the errors were read; `is_cut`: there may be
    more, and these are the newest.
    """

    groups: Sequence[FailureGroup]
    total: int
    since: datetime
    until: datetime
    step: float
    read: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job of a group: when its last attempt failed, and whether it waits for the next one."""

    id: str
    queue: str
    failed_at: datetime
    is_retrying: bool


@dataclass(frozen=True, slots=True)
class FailureDetails:
    """A group with its jobs, the last ones first; `since`, `until`, `step` and `is_cut` are as in `FailureReport`.

    `deploys` are the last 100 in this time.
    """

    group: FailureGroup
    jobs: Sequence[FailedJob]
    since: datetime
    until: datetime
    step: float
    is_cut: bool
    deploys: Sequence[Deploy]


class _Key(NamedTuple):
    """The values that all failures in a group share."""

    task: str
    cause: RootCause


class _Failure(NamedTuple):
    """A failed job without its error, which may be long."""

    id: str
    queue: str
    at: int
    is_retrying: bool
    key: _Key
    bucket: BucketRef | None


class _Period(NamedTuple):
    """The time of a report, in wall microseconds."""

    since: int
    until: int

    @property
    def step(self) -> float:
        return (self.until - self.since) / STEPS

    def trend(self, failures: Sequence[_Failure]) -> list[int]:
        counts = [0] * STEPS
        for failure in failures:
            # The clock of another machine may be ahead.
            counts[min(STEPS - 1, int((failure.at - self.since) / self.step))] += 1
        return counts


class _Reading(NamedTuple):
    """The failures in a period, the last first; `earlier` is when others failed before it, the last first."""

    failures: Sequence[_Failure]
    period: _Period
    is_cut: bool
    earlier: Mapping[_Key, Sequence[int]]


async def failures(
    storage: Store, span: int | None, task: str | None = None, queue: str | None = None
) -> FailureReport:
    """Return the failures in the last `span` microseconds, for a task and a queue; None: for all."""
    found = await _read(storage, span)
    groups: dict[_Key, list[_Failure]] = {}
    for failure in found.failures:
        if task not in (None, failure.key.task) or queue not in (None, failure.queue):
            continue
        groups.setdefault(failure.key, []).append(failure)
    largest = sorted(groups.values(), key=lambda group: (len(group), group[0].at), reverse=True)[:MOST_GROUPS]
    newest = {record.id: record for record in await storage.jobs_by_id([group[0].id for group in largest])}
    now = storage.now()
    return FailureReport(
        # A job may have been deleted meanwhile.
        groups=[_group(each, newest[each[0].id], found, now) for each in largest if each[0].id in newest],
        total=len(groups),
        since=to_datetime(found.period.since),
        until=to_datetime(found.period.until),
        step=found.period.step / SECOND,
        read=len(found.failures),
        is_cut=found.is_cut,
    )


async def failures_like(storage: Store, record: JobRecord, span: int | None, most: int) -> FailureDetails | None:
    """Return the group of a failed job, with up to `most` of its jobs; None for a job that has not failed.

    The job itself belongs to it, even if it failed before that time.
    """
    failed_at = await _failed_at(storage, record)
    if failed_at is None:
        return None
    found = await _read(storage, span)
    key = _Key(record.task, root_cause(record.error or UNKNOWN))
    group = [failure for failure in found.failures if failure.key == key]
    if all(failure.id != record.id for failure in group):
        is_retrying = record.state is JobState.WAITING
        group.append(_Failure(record.id, record.queue, failed_at, is_retrying, key, _keyed(record.buckets)))
        group.sort(key=lambda failure: failure.at, reverse=True)
    period = found.period._replace(since=min(found.period.since, group[-1].at))
    found = found._replace(period=period)
    newest = {each.id: each for each in await storage.jobs_by_id([group[0].id])}
    return FailureDetails(
        group=_group(group, newest.get(group[0].id, record), found, storage.now()),
        jobs=[FailedJob(each.id, each.queue, to_datetime(each.at), each.is_retrying) for each in group[:most]],
        since=to_datetime(period.since),
        until=to_datetime(period.until),
        step=period.step / SECOND,
        is_cut=found.is_cut,
        deploys=await deploys_since(storage, period.since),
    )


def _group(failures: Sequence[_Failure], newest: JobRecord, found: _Reading, now: int) -> FailureGroup:
    task, cause = failures[0].key
    instants = sorted({*(each.at for each in failures), *found.earlier.get(failures[0].key, ())}, reverse=True)
    retrying = sum(failure.is_retrying for failure in failures)
    return FailureGroup(
        task=task,
        cause=cause,
        queues=sorted({failure.queue for failure in failures}),
        failed=len(failures) - retrying,
        retrying=retrying,
        first_at=to_datetime(failures[-1].at),
        last_at=to_datetime(failures[0].at),
        trend=found.period.trend(failures),
        newest=ListedJob(status_of(newest, now), newest.payload, newest.headers),
        keys=len({failure.bucket for failure in failures} - {None}),
        first_ever_at=to_datetime(instants[-1]),
        # Of more failures than are read, the first ones are unknown.
        recurrence=None if found.is_cut else recurrence(instants, now),
    )


def recurrence(instants: Sequence[int], now: int) -> Recurrence | None:
    """Return how failures at these instants, the last first, recur; as `FailureGroup.recurrence`."""
    began = instants[0]
    if now - began >= NEWLY:
        return None
    for at in instants[1:]:
        if began - at >= NEWLY:
            return "back again" if now - began < NEWLY else "steady"
        began = at
    return "new" if now - began < NEWLY else "steady"


# ---------------------------------------------------------------------------------------------------- reading


async def _read(storage: Store, span: int | None) -> _Reading:
    until = storage.now()
    since = 0 if span is None else until - span
    failed = await storage.newest_failed(since, MOST_READ + 1)
    attempts = await storage.newest_attempts(MOST_READ + 1)
    is_cut = len(failed) > MOST_READ or (len(attempts) > MOST_READ and attempts[-1].ended_at >= since)
    # Of each job the last attempt that failed, which the others of the job follow here.
    retried: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        if attempt.has_error and attempt.ended_at >= since:
            retried.setdefault(attempt.job, (attempt.number, attempt.ended_at))
    found = [
        _failure(error, error.finished_at, is_retrying=False)
        async for error in _errors(storage, failed[:MOST_READ])
        if error.state is JobState.FAILED and error.finished_at is not None
    ]
    final = {failure.id for failure in found}
    async for error in _errors(storage, [id for id in retried if id not in final]):
        number, ended_at = retried[error.id]
        if error.state is JobState.WAITING and error.attempt == number:
            found.append(_failure(error, ended_at, is_retrying=True))
    found.sort(key=lambda failure: (failure.at, failure.id), reverse=True)
    if len(found) > MOST_READ:
        found, is_cut = found[:MOST_READ], True
    earlier: dict[_Key, list[int]] = {}
    if span is not None and not is_cut:
        known = {*failed, *retried}
        older = [id for id in await storage.newest_failed(0, len(failed) + MOST_EARLIER) if id not in known]
        async for error in _errors(storage, older[:MOST_EARLIER]):
            if error.finished_at is not None:
                earlier.setdefault(_key(error), []).append(error.finished_at)
    if span is None:
        since = min((failure.at for failure in found), default=until)
    # A period has a length, also if the only failure is of this moment.
    return _Reading(found, _Period(min(since, until - STEPS), until), is_cut, earlier)


async def _errors(storage: Store, ids: Sequence[str]) -> AsyncIterator[StoredError]:
    for start in range(0, len(ids), PORTION):
        for error in await storage.job_errors(ids[start : start + PORTION]):
            yield error


def _failure(error: StoredError, at: int, *, is_retrying: bool) -> _Failure:
    return _Failure(error.id, error.queue, at, is_retrying, _key(error), _keyed(error.buckets))


def _key(error: StoredError) -> _Key:
    return _Key(error.task, root_cause(error.error or UNKNOWN))


def _keyed(buckets: Sequence[BucketRef]) -> BucketRef | None:
    """Return the first bucket that has a key: whose job it is."""
    return next((ref for ref in buckets if ref.key), None)


async def _failed_at(storage: Store, record: JobRecord) -> int | None:
    """Return when the last attempt of a job failed; None if it did not, or if that was not kept."""
    if record.state is JobState.FAILED:
        return record.finished_at
    if record.state is not JobState.WAITING or record.error is None:
        return None
    attempts = [each for each in await storage.attempts(record.id) if each.error is not None]
    last = attempts[-1] if attempts else None
    return last.ended_at if last is not None and last.number == record.attempt else None
