"""Upkeep that nodes do about once a minute, operators' actions on queues, and checks that rows agree."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.clock import FARTHEST, SECOND
from headgate.jobs.audit import AuditRecord
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen
from headgate.jobs.identity import JobId, job_number, job_text, lowest_made_at
from headgate.jobs.job import BucketRef, JobOptions, JobState
from headgate.jobs.terms import LimitTerms
from headgate.limits.concurrency import UNKNOWN_PERMITS, Semaphore, batches_of, dump_permits, load_permits
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.plural import counted
from headgate.storage.driver import NO_RULES, OWN_IDS, Transaction
from headgate.storage.facts import Contradiction
from headgate.storage.live_rules import LiveRules, read_settings
from headgate.storage.procedures.add import remove_tags
from headgate.storage.procedures.alerts import evict_alerts
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.procedures.buckets import (
    BUCKETS,
    BucketRow,
    Holder,
    PermitRelease,
    lock_buckets,
    permit_contradictions,
    permits_left,
    return_permits,
)
from headgate.storage.procedures.lanes import Lane, lane_of
from headgate.storage.procedures.nodes import MISSING
from headgate.storage.procedures.schedules import evict_schedule_notes
from headgate.storage.procedures.unique import NOTES, holders_in
from headgate.storage.records import FINAL_STATES, Deletion
from headgate.storage.stored_rows import UNREADABLE_BUCKETS, RowDecoder, bucket_id, lane_id


class _Prunable(msgspec.Struct, array_like=True):
    id: JobId
    held: BucketMask
    buckets: tuple[BucketRef, ...]
    lines: int
    batch: JobId | None
    options: JobOptions | None
    is_follower: bool


class _Lane(msgspec.Struct):
    """The identity of a lane as it is stored."""

    id: str
    queue: str
    buckets: tuple[BucketRef, ...]
    wait_mode: str


class _Placed(msgspec.Struct):
    """Jobs that wait in one lane with the same of what they are in it by: how many, and the id of one."""

    id: JobId
    jobs: int
    lane: str
    queue: str
    buckets: tuple[BucketRef, ...]
    terms: LimitTerms | None
    exempt: BucketMask


class _LostTag(NamedTuple):
    """A tag of a job without a row in the index of tags, which is the table `place`."""

    job: JobId
    tag: str
    place: str


MADE_AHEAD = 60 * SECOND
"""How far the clock that jobs were enqueued by may have been ahead, for jobs to be pruned without a delay."""

LINES_AT_ONCE = 5000
"""How many log lines are deleted in one commit at most, so that other writes do not wait long for it."""

LONGEST_CLOSED = 2 * FARTHEST
"""Microseconds. The periods of rules and penalties are half as long at most."""

Audit = Callable[[int], AuditRecord]

_STATE = re.compile(r"1:([a-z_]+):")
"""How a stored state begins."""
_NUMBER = re.compile("«(-?[0-9]+)»")

_LANES = RowDecoder(_Lane, "lane", buckets=UNREADABLE_BUCKETS)
_PLACED = RowDecoder(_Placed, "job")
_LOST_TAGS = RowDecoder(_LostTag, "tag")
_PRUNABLE = RowDecoder(_Prunable, "job")
_HOLDERS = RowDecoder(Holder, "job")


async def prune(
    tx: Transaction,
    finished_before: int,
    count: int = 1000,
    states: frozenset[JobState] = FINAL_STATES,
    *,
    since: int = 0,
    until: int | None = None,
) -> int:
    """Delete up to `count` jobs that finished in these states before then, from `since` on and before `until`.

    Returns how many. With several writers, it deletes those that were enqueued from `since` on and before `until`. Jobs
    with their own retention are kept. Jobs that another open transaction has locked are skipped.

    Their attempts, log lines and audit entries are deleted with them. Fewer jobs are deleted at once if they have
    logged much. If none are left, up to `count` batches of that time without jobs are deleted; 0 if none are left.
    """
    until = min(finished_before, until or finished_before)
    enqueued = until + MADE_AHEAD
    made = {"made_since": lowest_made_at(since), "made_before": lowest_made_at(enqueued), "enqueued_before": enqueued}
    bounds = {"before": finished_before, "since": since, "until": until, "count": count}
    found = await tx.fetch(_PRUNABLE, "prunable", **bounds, **made, states=sorted(states))
    if not found:
        # Batches that had no job, joins, and batches whose last jobs were deleted by several nodes at once.
        batches = await tx.ids("prune_batches", **bounds)
        if batches:
            await tx.execute("prune_awaited_leaders", ids=batches)
        return len(batches)
    return len(await _delete(tx, found, finished_before))


async def delete(
    tx: Transaction,
    ids: Sequence[str],
    *,
    finished_before: int,
    kept_until: int | None = None,
    audit: Audit | None = None,
    entry: int | None = None,
) -> Deletion:
    """Delete those of these jobs that finished before then, in one commit, whatever their retention.

    With `kept_until`, only those whose own retention has ended by that time.

    Kept are jobs whose results an unfinished job may read, and jobs that another open transaction has locked. What
    they held is released. Fewer jobs are deleted at once if they have logged much. `audit` returns the audit record of
    a deletion of so many jobs; it is stored in that `entry` if it is there, and so in one for several deletions.
    """
    needed = frozenset(await tx.ids("needed", ids=list(ids)))
    found = await tx.fetch(_PRUNABLE, "deletable", ids=[id for id in ids if id not in needed], before=finished_before)
    deleted = await _delete(tx, found, finished_before, kept_until)
    if deleted and audit is not None:
        entry = await add_audit_record(tx, audit(len(deleted)), entry)
    return Deletion(frozenset(deleted), needed, entry)


async def _delete(tx: Transaction, found: Sequence[_Prunable], before: int, kept_until: int | None = None) -> list[str]:
    """Delete jobs that finished before then, as many as one commit may delete. Returns the ids of the deleted jobs."""
    # So many that they have logged no more than one commit may delete; at least one.
    lines = list(accumulate(job.lines for job in found))
    found = found[: max(1, bisect_right(lines, LINES_AT_ONCE))]
    # A permit that was kept until a job succeeds is released with the job at the latest.
    held = {ref for job in found if job.held for ref in chosen(job.buckets, job.held)}
    if held:
        await lock_buckets(tx, held)
    locked = await tx.fetch(
        _HOLDERS, "lock_prunable", ids=[job.id for job in found], before=before, kept_until=kept_until
    )
    if not locked:
        return []
    await return_permits(
        tx,
        [
            PermitRelease(job.id, job.buckets, job.terms, job.held, NO_BUCKETS)
            for job in locked
            if job.held and job.terms is not None
        ],
    )
    ids = [job.id for job in locked]
    await tx.execute("prune_attempts", ids=ids)
    if any(job.lines for job in found):
        await tx.execute("prune_lines", ids=ids)
    if any(job.is_follower for job in found):
        await tx.execute("prune_awaited_results", ids=ids)
    await tx.execute("prune_job_audit", subjects=ids)
    await remove_tags(tx, [job for job in found if job.id in set(ids)])
    await tx.execute("prune_jobs", ids=ids)
    batches = {job.batch for job in found if job.batch is not None}
    if batches:
        await tx.execute("prune_batches_of", ids=sorted(batches), before=before)
    return ids


async def evict(tx: Transaction, count: int = 1000) -> int:
    """Delete up to `count` idle buckets and empty lanes, which frees space and changes nothing else.

    With several writers, its statements commit by themselves.
    """
    if not tx.has_one_writer:
        # If only plain code uses buckets, no heartbeat does it.
        await tx.execute("use_limit_time", limit_now=tx.limit_now)
    evicted = await tx.execute("evict_buckets", limit_now=tx.limit_now, count=count)
    evicted += await tx.execute("evict_notes", limit_now=tx.limit_now, count=count)
    evicted += await tx.execute("evict_reserved_keys", now=tx.now, count=count)
    evicted += await evict_alerts(tx, count)
    evicted += await tx.execute("evict_lanes", count=count)
    evicted += await tx.execute("evict_turn_groups", count=count)
    await tx.execute("leave_line", count=count)
    async with tx.atomic():
        return evicted + await evict_schedule_notes(tx, count)


async def identity(tx: Transaction) -> str:
    """Return the id of the database, which another one with the same tables does not have, unless it is a copy."""
    return str(await tx.value("identity"))


async def is_folder_used(tx: Transaction, url: str) -> bool:
    """Return whether large payloads have been in the folder of this URL."""
    return bool(await tx.values("used_folder", url=url))


async def note_folder_used(tx: Transaction, url: str) -> None:
    """Store for ever that large payloads have been in the folder of this URL."""
    await tx.execute("note_used_folder", url=url)


async def stored_ids(tx: Transaction, ids: Sequence[str]) -> Sequence[str]:
    """Return which of these jobs are stored, whatever their state."""
    return await tx.ids("stored_ids", ids=list(ids))


async def pause_queue(tx: Transaction, queue: str, *, audit_record: AuditRecord | None = None) -> bool:
    """Pause a queue: from the next claim on, no node gets its jobs until it is resumed. False if it was paused.

    Its jobs can still be added, expired, cancelled and finished. A claim ignores the queue: it causes no `more` and no
    `next_in`. The queue need not have had a job.
    """
    is_new = await tx.execute("pause_queue", queue=queue, now=tx.now) == 1
    await add_audit_record(tx, audit_record if is_new else None)
    return is_new


async def resume_queue(tx: Transaction, queue: str, *, audit_record: AuditRecord | None = None) -> bool:
    """End a pause and wake the watchers; False if the queue was not paused."""
    was_paused = await tx.execute("resume_queue", queue=queue) == 1
    await add_audit_record(tx, audit_record if was_paused else None)
    return was_paused


async def check(tx: Transaction, declared: Mapping[str, AnyRule] = NO_RULES) -> Sequence[Contradiction]:
    """Return the contradictions between jobs, nodes, lanes and buckets, and rows that do not agree with themselves.

    The states of buckets are read by the rules of their limits: those set at run time, else those `declared`.
    """
    # Permits of replaced jobs count as given back; with several writers, the next claim writes it.
    leaving = {} if tx.has_one_writer else holders_in(await tx.fetch(NOTES, "replacement_notes"))
    own_ids = await tx.fetch(OWN_IDS, "jobs_with_own_ids")
    unlike = [own for own in own_ids if own.id != job_number(own.own_id)]
    # Statements write the numbers of ids in these quotation marks.
    numbered: list[str] = await tx.values("check", now=tx.now)
    found = [_NUMBER.sub(lambda number: job_text(int(number[1])), line) for line in numbered]
    holders = await tx.fetch(_HOLDERS, "holders")
    rows = await tx.fetch(BUCKETS, "all_buckets")
    rules = LiveRules(await read_settings(tx))
    unfit = {row.id: faults for row in rows if (faults := list(_faults_of(row, rules, declared, tx.limit_now)))}
    buckets: dict[BucketRef, BucketRow] = {}
    for row in rows:
        if row.ref in leaving:
            left = permits_left(row.state, leaving[row.ref])
            buckets[row.ref] = replace(row, state=dump_permits(left), opens_at=None)
        elif row.id not in unfit and _kind_of(row.state) == Semaphore.kind:
            buckets[row.ref] = row
    holding = {batch for bucket in buckets.values() for batch in batches_of(load_permits(bucket.state))}
    pending = set(await tx.ids("pending_batches", ids=sorted(holding)))
    return [
        *map(Contradiction, [*found, *permit_contradictions(holders, buckets, pending, rules)]),
        *[
            Contradiction(
                f"{counted(node.jobs, 'job')} (as {node.job}) {'runs' if node.jobs == 1 else 'run'} on node {node.id}, "
                "which does not exist",
                "let a worker run, which takes such jobs back within a minute",
            )
            for node in await tx.fetch(MISSING, "missing_nodes")
            if node.jobs
        ],
        *[
            Contradiction(
                f"job {lost.job} is not found by its tag {lost.tag}",
                f"INSERT INTO {lost.place} (tag, job) VALUES ('{lost.tag}', {job_number(lost.job)})",
            )
            for lost in await tx.fetch(_LOST_TAGS, "lost_tags")
        ],
        *[
            Contradiction(
                f"job {own.own_id} is stored under the number of another id, {own.id}",
                "stop all workers, and give its row the own_id that it was stored with, or delete it",
            )
            for own in unlike
        ],
        *_misplaced(await tx.fetch(_LANES, "all_lanes"), await tx.fetch(_PLACED, "places_of_jobs")),
        *[fault for faults in unfit.values() for fault in faults],
    ]


def _misplaced(lanes: Iterable[_Lane], placed: Iterable[_Placed]) -> Iterator[Contradiction]:
    """Yield the lanes that are not what their ids say, and the jobs that wait in other lanes than their own.

    The invariant: the id of a lane is the hash of its queue, buckets and wait mode, and a job waits in the lane of its
    own.
    """
    known: dict[str, _Lane] = {}
    for lane in lanes:
        known[lane.id] = lane
        if lane_id(lane.queue, lane.buckets, lane.wait_mode) != lane.id:
            yield Contradiction(
                f"lane {lane.id} is stored with {_identity(lane)}, which is another lane",
                "stop all workers, and give its row the queue and the buckets of the jobs in it",
            )
    for group in placed:
        own = lane_of(group.queue, group.buckets, group.terms, group.exempt)
        if own.id == group.lane:
            continue
        there = known.get(group.lane)
        has = "" if there is None else f" with {_identity(there)}"
        yield Contradiction(
            f"{counted(group.jobs, 'job')} (as {group.id}) of lane {own.id} with "
            f"{_identity(own)} {'waits' if group.jobs == 1 else 'wait'} in lane "
            f"{group.lane}{has}",
            "stop all workers, and copy the queue, the buckets and the terms of that lane's other jobs into these rows",
        )


def _identity(lane: Lane | _Lane) -> str:
    used = ", ".join(f"{ref.limit}:{ref.key}" for ref in lane.buckets) or "none"
    return f"queue {lane.queue!r} and buckets {used}{lane.wait_mode and ' '}{lane.wait_mode}"


def _faults_of(
    row: BucketRow, rules: LiveRules, declared: Mapping[str, AnyRule], limit_now: int
) -> Iterator[Contradiction]:
    """Yield what is wrong with a bucket by itself."""
    name = f"bucket {row.limit}:{row.key}"
    reset = f"headgate limits reset {shlex.quote(row.limit)}{f' --key {shlex.quote(row.key)}' if row.key else ''}"
    if bucket_id(row.ref) != row.id:
        advice = "stop all workers, and delete its row, or give it the limit and the key that its id is made of"
        yield Contradiction(f"{name} has the id of another bucket, {row.id}", advice)
    if not _is_readable(row, rules, declared, limit_now):
        yield Contradiction(
            f"{name} has a state that cannot be read, {row.state!r:.80}: a rate grants nothing for one period, and a "
            "limit on what runs at once nothing at all",
            reset,
        )
    closed_until = max(row.closed_until, 0 if row.opens_at in (None, NEVER) else row.opens_at)
    if closed_until - limit_now > LONGEST_CLOSED:
        years = (closed_until - limit_now) // (FARTHEST // 100)
        yield Contradiction(
            f"{name} is closed for {years:,} years, longer than any rule or penalty can close it", reset
        )


def _is_readable(row: BucketRow, rules: LiveRules, declared: Mapping[str, AnyRule], limit_now: int) -> bool:
    """Whether the rule in force can read the state of a bucket; one of another kind has only to be a state."""
    if row.state is None:
        return True
    kind = _kind_of(row.state)
    if kind == Semaphore.kind:
        return load_permits(row.state) != UNKNOWN_PERMITS
    rule = rules.rule(row.ref, declared[row.limit]) if row.limit in declared else None
    if kind is None or rule is None or rule.kind != kind:
        return kind is not None
    try:
        rule.load(row.state, limit_now)
    except Exception:  # the stored text may fail in any way
        return False
    return True


def _kind_of(state: str | None) -> str | None:
    """Return the kind of rule that has written a state; None for what no rule has."""
    head = None if state is None else _STATE.match(state)
    return None if head is None else head[1]
