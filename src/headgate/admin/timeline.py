"""The timeline of a job and its stretches, from its row, its attempts and its audit entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

from headgate.clock import optional_datetime, to_datetime
from headgate.jobs.audit import AuditEntry, AuditLevel
from headgate.jobs.job import AttemptRecord, BucketRef, JobError, JobRecord, JobState
from headgate.limits.key import shown_key

UNSPENT = frozenset({"snoozed", "refused", "interrupted"})
"""The outcomes of attempts that do not count: the next attempt has the same number."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An event of a job: what, at which attempt, on which node, by which actor, and the error if there was one.

    A job that an operator retries counts its attempts from 1 again: `restart` is how many times it had done so before
    this attempt, as far as its attempts are stored.
    """

    at: datetime
    what: str
    attempt: int | None = None
    node: str | None = None
    actor: str | None = None
    detail: str | None = None
    restart: int = 0


StretchKind = Literal["blocked", "scheduled", "backoff", "snoozed", "waiting", "attempt", "final", "not stored"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a job's life, from `begins_at` to `ends_at`; None while it lasts, if its end is not known.

    An "attempt" has its number, node and `outcome`, None while it runs. A "waiting" job waited for a slot, a limit, or
    whatever else its start needed: which is not stored. `is_limited` if a limit delayed its start, or, while it waits,
    if it does so for a limit now; that `limit` and `key`, if known. In a "final" stretch, it was final until it was
    retried by an operator. One that is "not stored" has attempts that the audit level of the job does not keep.
    """

    kind: StretchKind
    begins_at: datetime
    ends_at: datetime | None
    attempt: int | None = None
    restart: int = 0
    node: str | None = None
    outcome: str | None = None
    is_limited: bool = False
    limit: str | None = None
    key: str | None = None


def restarts(attempts: Sequence[AttemptRecord]) -> list[int]:
    """Return for each attempt how many times the job had counted its attempts from 1 again before it."""
    found = [0] if attempts else []
    for before, attempt in pairwise(attempts):
        found.append(found[-1] + _is_restart(before, attempt.number))
    return found


def timeline(
    record: JobRecord, attempts: Sequence[AttemptRecord], entries: Sequence[AuditEntry]
) -> list[TimelineEntry]:
    """Return what is stored about a job's life, in order."""
    moments = [
        TimelineEntry(to_datetime(record.enqueued_at), "enqueued"),
        *(TimelineEntry(to_datetime(each.at), each.action, actor=each.actor, detail=each.detail) for each in entries),
    ]
    restart = 0
    for attempt, restart in zip(attempts, restarts(attempts), strict=True):
        number, node, error = attempt.number, attempt.node, _said(attempt.error)
        started_at, ended_at = to_datetime(attempt.started_at), to_datetime(attempt.ended_at)
        moments.append(TimelineEntry(started_at, "started", number, node, restart=restart))
        moments.append(TimelineEntry(ended_at, attempt.outcome, number, node, detail=error, restart=restart))
    known = {attempt.started_at for attempt in attempts}
    if attempts and record.started_at not in known and record.attempt:
        # Of its last attempt, which is running or succeeded, only the row knows.
        restart += _is_restart(attempts[-1], record.attempt)
    has_run = record.state in (JobState.RUNNING, JobState.SUCCEEDED)
    if record.started_at is not None and record.started_at not in known and (has_run or record.state.is_final):
        started_at = to_datetime(record.started_at)
        moments.append(TimelineEntry(started_at, "started", record.attempt, record.node, restart=restart))
    moments.sort(key=lambda moment: moment.at)
    # Last, even if another machine's clock was ahead.
    if record.finished_at is not None:
        moments.append(
            TimelineEntry(to_datetime(record.finished_at), f"final: {record.state}", detail=_said(record.error))
        )
    elif record.state is JobState.RUNNING:
        what = "is running, and its cancellation was requested" if record.cancel_requested else "is running"
        started_at = to_datetime(record.started_at or 0)
        moments.append(TimelineEntry(started_at, what, record.attempt, record.node, restart=restart))
    return moments


def stretches(record: JobRecord, attempts: Sequence[AttemptRecord], now: int) -> list[Stretch]:
    """Return the parts of a job's life in order, as far as they are stored, without those that took no time."""
    known = {attempt.started_at for attempt in attempts}
    runs: list[tuple[int, int | None, int, str | None, str | None]] = [
        (each.started_at, each.ended_at, each.number, each.node, each.outcome)
        for each in sorted(attempts, key=lambda attempt: attempt.started_at)
    ]
    if record.started_at is not None and record.started_at not in known and _has_last_attempt(record):
        outcome = record.state.value if record.state.is_final else None
        runs.append((record.started_at, record.finished_at, record.attempt, record.node, outcome))
    # The fence also grows when a job is rescheduled.
    unstored = record.audit < AuditLevel.MINIMAL and record.fence > len(runs)
    counts = restarts([AttemptRecord(number, None, 0, 0, outcome or "", None) for *_, number, _, outcome in runs])
    is_over = record.state is JobState.RUNNING or (bool(runs) and runs[-1][-1] == record.state)
    found: list[Stretch] = []
    begin, before = record.enqueued_at, None
    for at, ((started_at, ended_at, number, node, outcome), restart) in enumerate(zip(runs, counts, strict=True)):
        is_restart = bool(at) and restart != counts[at - 1]
        is_last = is_over and at == len(runs) - 1 and started_at == record.started_at
        found += _gap(record, begin, started_at, before, now, is_restart=is_restart, has_due=is_last, unstored=unstored)
        found.append(_stretch("attempt", started_at, ended_at, number, restart, node, outcome))
        begin, before = ended_at or now, outcome
    if not is_over:
        # A retried job counts its attempts from 0 again.
        is_restart = before is not None and before not in UNSPENT and not record.attempt
        end = record.finished_at
        found += _gap(record, begin, end, before, now, is_restart=is_restart, has_due=True, unstored=unstored)
    return [each for each in found if each.ends_at is None or each.ends_at > each.begins_at]


def _has_last_attempt(record: JobRecord) -> bool:
    """Whether the last start of its row is that of an attempt which runs, or which ended the job."""
    if record.state is JobState.CANCELLED:
        # One that went back has a later time.
        return record.node is not None or record.run_at <= (record.started_at or 0)
    return record.state in (JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED)


def _gap(
    record: JobRecord,
    begin: int,
    end: int | None,
    before: str | None,
    now: int,
    *,
    is_restart: bool,
    has_due: bool,
    unstored: bool,
) -> list[Stretch]:
    """Return what a job did from the end of an attempt, which ended so, to its next start or its end.

    `has_due` if its row still has the time at which it was due in this gap: the row has only the last one.
    """
    is_follower = before is None and record.origin is not None and record.origin.follows is not None
    if record.is_blocked or (record.state is JobState.SKIPPED and end == record.finished_at):
        return [_stretch("blocked", begin, end)]
    kind: StretchKind = "backoff"
    if unstored:
        kind = "not stored"
    elif is_restart:
        kind = "final"
    elif before is None:
        # A release writes the time of a follower, unless it was scheduled for a later one.
        kind = "waiting" if is_follower and record.delayed else "blocked" if is_follower else "scheduled"
    elif before == "snoozed":
        kind = "snoozed"
    if not has_due:
        return [_stretch(kind if unstored else "waiting", begin, end)]
    due = max(begin, record.run_at if end is None else min(record.run_at, end))
    first = [_stretch(kind, begin, due)]
    if end is None and due > now:
        return first
    limit = _limit_of(record, is_open=end is None)
    is_limited = record.waits_for is not None if end is None else limit is not None or _all_starts_delayed(record)
    if end == record.finished_at and end is not None:
        limit, is_limited = None, False
    named = (None, None) if limit is None else (limit.limit, shown_key(limit.key))
    return [*first, _stretch("waiting", due, end, None, 0, None, None, is_limited, *named)]


def _all_starts_delayed(record: JobRecord) -> bool:
    """Whether a limit delayed each of its starts: only their number is stored."""
    return bool(record.deferrals) and record.deferrals == record.fence


def _limit_of(record: JobRecord, *, is_open: bool) -> BucketRef | None:
    """Return the limit that a job waits for, or that delayed its start if it can have been no other."""
    if is_open:
        return record.waits_for
    return record.buckets[0] if len(record.buckets) == 1 and _all_starts_delayed(record) else None


def _stretch(kind: StretchKind, begins_at: int, ends_at: int | None, *details: Any) -> Stretch:
    return Stretch(kind, to_datetime(begins_at), optional_datetime(ends_at), *details)


def _is_restart(before: AttemptRecord, number: int) -> bool:
    """Whether an attempt of this number began a new count: a number grows, unless the attempt before was not spent."""
    return number < before.number or (number == before.number and before.outcome not in UNSPENT)


def _said(error: JobError | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"
