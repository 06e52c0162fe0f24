"""Reads lists for users: jobs and batches, waiting jobs and what they wait for, buckets, and starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import datetime
from math import inf
from typing import Any

import msgspec
from msgspec.structs import asdict

from headgate.arguments import LARGEST_COUNT
from headgate.clock import from_datetime
from headgate.jobs.annotation import Annotation
from headgate.jobs.batch import BatchRecord
from headgate.jobs.bucket_mask import BucketMask, union
from headgate.jobs.identity import JobId, numbers_beginning
from headgate.jobs.job import AttemptRecord, BucketRef, JobRecord, JobState
from headgate.jobs.limit_sets import NO_LIMIT_SETS, GatedJob, KnownLimitSets
from headgate.jobs.query import JobFilter, pair_of
from headgate.jobs.terms import LimitTerms
from headgate.limits.fair import PREFIX
from headgate.limits.key import BETWEEN_LEVELS, bucket_key, levels_of, stored_level
from headgate.limits.rule import NEVER
from headgate.storage.admission import call_of, demand_of
from headgate.storage.driver import Transaction
from headgate.storage.procedures.lanes import Lane, lane_of
from headgate.storage.records import (
    BacklogCounts,
    Blocker,
    BucketPlace,
    BucketRecord,
    CountedView,
    Dependencies,
    Dependency,
    JobCount,
    KeyBacklog,
    KeyWaiting,
    LimitBacklog,
    LimitFigures,
    Page,
    QueueCounts,
    QueuePosition,
    QueueRecord,
    RecordedStart,
    ViewCount,
    WaitingByKey,
    WaitingCount,
)
from headgate.storage.statements import as_json, limit_needle, member_needle, tag_needle
from headgate.storage.stored_rows import UNREADABLE_BUCKETS, RowDecoder, bucket_id, lane_id

AT_ONCE = 10_000
"""How many jobs are read at most for a page or a bounded count: in order, or by an index if it finds few."""


KEYS_AT_ONCE = 5_000
"""How many keys that jobs wait for are read at most to be sorted; if there are more, they come by name."""

RANKED = 1_000
"""How many buckets are ranked by trouble that open first, and how many that open last."""

FEW = 500
"""How many jobs of an index are read and sorted at once; if it finds more, a page is first searched in order."""

MORE_AT_ONCE = 20_000
"""The same for one portion of a read that may read all jobs."""


LANES_SEARCHED = 250_000
"""How many lanes of several buckets are searched at most for those that use a bucket."""


LANES_LOOKED_AT = 50_000
"""The number of lanes that are searched for keys without a bucket."""


LANES_IN_TURN = 2_000
"""How many lanes of a fair queue are read at most in each place: in line, in a group, behind a bucket, arrived."""


DEPENDENCIES_SHOWN = 100
"""How many leaders and how many followers of a job are shown."""

_LAST = "\U0010ffff"
"""No text is greater than one that ends with it."""


class _QueuePosition(msgspec.Struct, array_like=True):
    id: JobId
    place: int | None
    waiting: int
    is_due: bool
    behind: BucketRef | None
    queue: str
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    terms: LimitTerms | None
    held: BucketMask
    passed: BucketMask


class _Numbered(msgspec.Struct, array_like=True):
    name: str
    number: int


class _LaneJobs(msgspec.Struct, array_like=True):
    part: str
    buckets: tuple[BucketRef, ...]
    jobs: int


class _UnfinishedCount(msgspec.Struct, array_like=True):
    queue: str | None
    view: CountedView | None
    jobs: int
    limit: str | None
    key: str | None
    of_limit: int | None
    keys: int | None
    state: str | None
    opens_at: int | None
    closed_until: int | None
    buckets: tuple[BucketRef, ...] | None
    costs: tuple[int, ...] | None


class _LaneBuckets(msgspec.Struct, array_like=True):
    buckets: tuple[BucketRef, ...]


class _PredictionInput(msgspec.Struct, array_like=True):
    place: int | None
    waiting: int
    behind: BucketRef | None


class _Start(msgspec.Struct, array_like=True):
    buckets: tuple[BucketRef, ...]
    costs: tuple[int, ...] | None
    charged_at: int


class _BatchTasks(msgspec.Struct, array_like=True):
    id: JobId
    tasks: tuple[str, ...]


_JOBS = RowDecoder(JobRecord, "job", state=JobState.WAITING)
_BATCHES = RowDecoder(BatchRecord, "batch")
_BATCH_TASKS = RowDecoder(_BatchTasks, "batch")
_DEPENDENCIES = RowDecoder(Dependency, "job")
_ATTEMPTS = RowDecoder(AttemptRecord, "attempt")
_WAITING = RowDecoder(WaitingCount, "count", view="ready")
_VIEWS = RowDecoder(ViewCount, "count", view="ready")
_UNFINISHED = RowDecoder(_UnfinishedCount, "count", view="ready")
_COUNTS = RowDecoder(QueueCounts, "queue")
_QUEUES = RowDecoder(QueueRecord, "queue")
_PAUSED = RowDecoder(_Numbered, "queue")
_BLOCKERS = RowDecoder(Blocker, "blocker", kind="blocks")
_KEYS_OF_LIMITS = RowDecoder(_Numbered, "limit")
_LIMIT_FIGURES = RowDecoder(LimitFigures, "limit")
_BUCKETS = RowDecoder(BucketRecord, "bucket", ref=UNREADABLE_BUCKETS[0])
_POSITIONS = RowDecoder(_QueuePosition, "job")
_LANE_JOBS = RowDecoder(_LaneJobs, "lane", buckets=UNREADABLE_BUCKETS)
_LANE_BUCKETS = RowDecoder(_LaneBuckets, "lane", buckets=UNREADABLE_BUCKETS)
_PREDICTION_INPUTS = RowDecoder(_PredictionInput, "lane")
_STARTS = RowDecoder(_Start, "start", buckets=UNREADABLE_BUCKETS)
_GATED = RowDecoder(GatedJob, "job")


# --------------------------------------------------------------------------------------------------------- jobs


async def jobs_by_id(tx: Transaction, ids: Sequence[str], *, final: bool = False) -> list[JobRecord]:
    """Return those of these jobs that are stored; with `final`, those that are final."""
    return await tx.fetch(_JOBS, "jobs_by_id", ids=list(ids), final=final, **_instants(tx))


async def job(tx: Transaction, job_id: str) -> JobRecord | None:
    """Return a job as it is now; None if there is no such job."""
    found = await jobs_by_id(tx, [job_id])
    return found[0] if found else None


async def jobs_beginning(tx: Transaction, prefix: str, count: int) -> Sequence[JobRecord]:
    """Return the jobs whose ids begin so, newest first."""
    lowest, highest = numbers_beginning(prefix)
    ids = await tx.ids("job_ids", prefix=prefix, lowest=lowest, highest=highest, count=count)
    found = {job.id: job for job in await jobs_by_id(tx, ids)}
    return [found[id] for id in ids if id in found]


async def batch_ids(tx: Transaction, prefix: str, count: int) -> Sequence[str]:
    """Return the ids of batches that begin so, newest first."""
    lowest, highest = numbers_beginning(prefix)
    return await tx.ids("batch_ids", lowest=lowest, highest=highest, count=count)


async def page(tx: Transaction, filter: JobFilter) -> Page[JobRecord]:
    """Return a page of jobs, for which at most 10,000 are read, so it may end before it is full.

    The following pages have the other jobs that match.
    """
    # One more shows whether another page follows.
    read = await _read_page(tx, msgspec.structs.replace(filter, count=filter.count + 1), AT_ONCE)
    if len(read.items) <= filter.count:
        return read
    jobs = read.items[: filter.count]
    return Page(jobs, jobs[-1].id)


async def _read_page(tx: Transaction, filter: JobFilter, most: int) -> Page[JobRecord]:
    values, known = await _known(tx, filter, FEW)
    if known <= FEW:
        return await _page(tx, filter, "known", values)
    which = {"failed": "failed", "tag": "tagged"}.get(values["by"], "all")
    last = await _last_read(tx, which, filter, most)
    walked = await _page(tx, filter, which, {**values, "last": last})
    is_cut = walked.next is not None and len(walked.items) < filter.count
    if which != "tagged" and is_cut and await _count_known(tx, values, most) <= most:
        # The matching jobs are further away than that, but few enough to be sorted.
        return await _page(tx, filter, "known", values)
    return walked


async def _last_read(tx: Transaction, which: str, filter: JobFilter, most: int) -> str | None:
    """Return the id of the last of `most` jobs from the cursor on, if there are more."""
    values = {"cursor": filter.cursor, "tag": filter.tag, "skip": most - 1}
    found = await tx.ids(f"last_read_{which}_{_order(filter)}", **values)
    return found[0] if len(found) > 1 else None


async def _page(tx: Transaction, filter: JobFilter, which: str, values: dict[str, Any]) -> Page[JobRecord]:
    statement = f"jobs_{which}_{_order(filter)}"
    found = await tx.fetch(_JOBS, statement, cursor=filter.cursor, count=filter.count, **values)
    return Page(found, found[-1].id if len(found) == filter.count else values.get("last"))


def _order(filter: JobFilter) -> str:
    return "oldest" if filter.oldest_first else "newest"


async def jobs(tx: Transaction, filter: JobFilter) -> list[JobRecord]:
    """Return a full page of jobs, or the last one; all jobs may be read for it."""
    if filter.text is not None:
        # In one statement: the time of a search is bounded.
        values = {**_conditions(filter), **_instants(tx), "last": None}
        return list((await _page(tx, filter, "all" if filter.tag is None else "tagged", values)).items)
    found: list[JobRecord] = []
    while True:
        rest = msgspec.structs.replace(filter, count=filter.count - len(found))
        read = await _read_page(tx, rest, MORE_AT_ONCE)
        found += read.items
        if read.next is None or len(found) == filter.count:
            return found
        filter = msgspec.structs.replace(filter, cursor=read.next)


async def bounded_count(tx: Transaction, filter: JobFilter, most: int) -> JobCount:
    """Count the jobs that match a filter, up to `most`; at most 10,000 jobs are read."""
    values, known = await _known(tx, filter, AT_ONCE)
    if values["by"] is not None:
        count = int(await tx.value("count_known_jobs", most=AT_ONCE, **values))
        return JobCount(min(count, most), known <= AT_ONCE and count <= most)
    last = await _last_read(tx, "all", JobFilter(), AT_ONCE)
    count = int(await tx.value("count_newest", last=last, most=most + 1, **values))
    return JobCount(min(count, most), last is None and count <= most)


async def count_jobs(tx: Transaction, filter: JobFilter, most: int) -> int:
    """Count the jobs that match a filter, from its cursor on and up to `most`; all jobs may be read for it."""
    most = min(most, LARGEST_COUNT)
    values, known = await _known(tx, filter, MORE_AT_ONCE)
    if values["by"] is not None and filter.cursor is None:
        count = int(await tx.value("count_known_jobs", most=MORE_AT_ONCE, **values))
        if known <= MORE_AT_ONCE or count >= most:
            return min(most, count)
    before, after = (None, filter.cursor) if filter.oldest_first else (filter.cursor, None)
    which = "tagged" if values["by"] == "tag" else "all"
    return int(await tx.value(f"count_jobs_{which}", most=most, before=before, after=after, **values))


async def _known(tx: Transaction, filter: JobFilter, most: int) -> tuple[dict[str, Any], float]:
    """Return the parameters of a filter with its index, and how many jobs that finds, counted up to `most` + 1."""
    conditions = _conditions(filter)
    lanes = await _lanes_with_bucket(tx, filter, conditions)
    by = _index_of(filter, knows_lanes=lanes is not None)
    # The lane without buckets of each queue, by its name.
    ungated = [Lane(queue, (), "").id for queue in await tx.values("queues_of_lanes")] if by == "ready" else []
    values = {**conditions, **_instants(tx), "lanes": lanes or (), "ungated": ungated, "by": by}
    return values, await _count_known(tx, values, most)


async def _count_known(tx: Transaction, values: dict[str, Any], most: int) -> float:
    return inf if values["by"] is None else int(await tx.value("count_known", most=most + 1, **values))


def _instants(tx: Transaction) -> dict[str, int]:
    return {"now": tx.now, "limit_now": tx.limit_now, "never": NEVER}


def _conditions(filter: JobFilter) -> dict[str, Any]:
    """Return the conditions of a filter, without its page, as parameters of statements."""
    values = {
        name: from_datetime(value) if isinstance(value, datetime) else value for name, value in asdict(filter).items()
    }
    for name in ("limit", "key", "header", "annotation", "cursor", "oldest_first", "count"):
        del values[name]
    annotation, annotation_as_text = _annotation_needles(filter)
    key = None if filter.key is None else bucket_key(filter.key)
    return {
        **values,
        "needle": _needle(filter.limit, key),
        # In a fair queue, beside limits that count by other keys, its second level is empty.
        "group_needle": None if key is None else _needle(filter.limit, stored_level(key) + BETWEEN_LEVELS),
        "tag_needle": None if filter.tag is None else tag_needle(filter.tag),
        "header_needle": None if filter.header is None else member_needle(*pair_of("header", filter.header)),
        "annotation_needle": annotation,
        "annotation_as_text": annotation_as_text,
    }


def _annotation_needles(filter: JobFilter) -> tuple[str | None, str | None]:
    """Return two texts, one of which is in the annotations of a job: `invoice=42` is found as a number and as text."""
    if filter.annotation is None:
        return None, None
    name, text = pair_of("annotation", filter.annotation)
    as_text = f"{member_needle(name, text)},"
    try:
        value = msgspec.json.decode(text, type=Annotation)
    except (msgspec.DecodeError, UnicodeError):
        return as_text, as_text
    return f"{member_needle(name, value)},", as_text


def _needle(limit: str | None, key: str | None) -> str | None:
    """Return text that is in the buckets of a job that uses a limit, for a key, or both."""
    if limit is None:
        return None if key is None else f",{as_json(key)}]"
    return limit_needle(limit) if key is None else as_json(BucketRef(limit, key))


async def _lanes_with_bucket(tx: Transaction, filter: JobFilter, conditions: Mapping[str, Any]) -> list[str] | None:
    """Return the lanes of the waiting jobs that use the bucket of a filter; None if no index finds them."""
    are_waiting = filter.state == JobState.WAITING or filter.view is not None
    if filter.limit is None or filter.key is None or not are_waiting:
        return None
    if await tx.value("count_lanes_to_search", most=LANES_SEARCHED + 1) > LANES_SEARCHED:
        return None
    queues, key = await tx.values("queues_of_lanes"), bucket_key(filter.key)
    refs = [BucketRef(filter.limit, each) for each in (key, stored_level(key) + BETWEEN_LEVELS)]
    lanes = [lane_id(queue, (ref,), "") for queue in queues for ref in refs]
    return await tx.values("lanes_with_bucket", lanes=lanes, **conditions)


def _index_of(filter: JobFilter, *, knows_lanes: bool) -> str | None:
    """Return the index that finds the jobs that can match a filter; None if all jobs have to be read."""
    match filter:
        case JobFilter(batch=str()):
            return "batch"
        case JobFilter(schedule=str()):
            return "schedule"
        case JobFilter(state=JobState.RUNNING):
            return "running"
        case JobFilter(tag=str()):
            return "tag"
        case JobFilter(view="blocked"):
            return "blocked"
        case _ if knows_lanes:
            return "bucket"
        case JobFilter(view="ready" | "throttled" as view):
            return view
        case JobFilter(state=JobState.WAITING, view=None):
            return "waiting"
        case JobFilter(state=JobState.FAILED | JobState.CANCELLED | JobState.SKIPPED):
            return "failed"
        case _:
            return None


async def attempts(tx: Transaction, job_id: str) -> Sequence[AttemptRecord]:
    """Return the attempts of a job that did not succeed, oldest first."""
    return await tx.fetch(_ATTEMPTS, "attempts", id=job_id)


async def batch(tx: Transaction, batch_id: str) -> BatchRecord | None:
    """Return a batch as it is now; None if there is no such batch."""
    found = await batches_by_id(tx, [batch_id])
    return found[0] if found else None


async def batches_by_id(tx: Transaction, batch_ids: Sequence[str]) -> list[BatchRecord]:
    """Return those of these batches that are stored."""
    return await tx.fetch(_BATCHES, "batches_by_id", ids=list(batch_ids))


async def jobs_of_batch(tx: Transaction, batch_id: str, *, after: str = "", count: int = 1000) -> Sequence[str]:
    """Return a page of job ids in a batch and in its inner batches, in order.

    Those of a join are the leaders that it counts. `after` is the last id of the page before.
    """
    return await tx.ids("jobs_of_batch", id=batch_id, after=after, count=count)


async def pruned_members(tx: Transaction, batch_id: str) -> int:
    """Return how many members of a batch, and of what it counts, have been pruned, without skipped ones."""
    return int(await tx.value("pruned_members", id=batch_id))


async def dependencies(tx: Transaction, job_id: str) -> Dependencies:
    """Return what a job follows, and what follows it."""
    leaders = await tx.fetch(_DEPENDENCIES, "leaders_of_job", id=job_id, count=DEPENDENCIES_SHOWN)
    followers = await tx.fetch(_DEPENDENCIES, "followers_of_job", id=job_id, count=DEPENDENCIES_SHOWN)
    # Rows are decoded as a type that JSON shows as arrays.
    return Dependencies(
        *([Dependency(row.id, row.task, row.state, row.needs) for row in rows] for rows in (leaders, followers))
    )


async def batches(
    tx: Transaction, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
) -> Sequence[BatchRecord]:
    """Return a page of batches but no joins, newest first by id; `cursor` is the last id of the page before."""
    return await tx.fetch(_BATCHES, "batches_pending" if pending_only else "batches", cursor=cursor, count=count)


async def tasks_of_batches(tx: Transaction, batch_ids: Collection[str], most: int = 100) -> Mapping[str, Sequence[str]]:
    """Return the tasks of each batch by name, from any `most` of its jobs."""
    found = await tx.fetch(_BATCH_TASKS, "tasks_of_batches", ids=[*batch_ids], most=most)
    return {each.id: each.tasks for each in found}


async def gated_jobs(
    tx: Transaction,
    tasks: frozenset[str],
    *,
    unknown_to: frozenset[str] | None = None,
    other_than: KnownLimitSets = NO_LIMIT_SETS,
    after: str = "",
    count: int = 100,
) -> Sequence[GatedJob]:
    """Return waiting jobs of these tasks that carry other limit sets, by id.

    With `unknown_to`, those that use a limit that is not in that set.
    """
    limits = None if unknown_to is None else sorted(unknown_to)
    if limits is not None and not await tx.value("other_limits_are_waited_for", limits=limits):
        return []
    values = {"tasks": sorted(tasks), "limit_sets": sorted(other_than), "after": after, "count": count}
    return await tx.fetch(_GATED, "gated_jobs", limits=limits, **values)


async def gated_jobs_by_id(tx: Transaction, tasks: frozenset[str], ids: Sequence[str]) -> Sequence[GatedJob]:
    """Return those of these jobs that are waiting and of these tasks, by id."""
    return await tx.fetch(_GATED, "gated_jobs_by_id", tasks=sorted(tasks), ids=list(ids))


async def failed_holders(
    tx: Transaction, tasks: frozenset[str], *, other_than: KnownLimitSets, after: str = "", count: int = 100
) -> Sequence[GatedJob]:
    """Return failed jobs of these tasks that hold permits and carry other limit sets than these, by id."""
    values = {"tasks": sorted(tasks), "limit_sets": sorted(other_than), "after": after, "count": count}
    return await tx.fetch(_GATED, "failed_holders", **values)


async def jobs_of_other_limits(tx: Transaction, limits: frozenset[str]) -> Sequence[GatedJob]:
    """Return the first waiting jobs of up to 100 lanes that use a limit not in `limits`, without their payloads."""
    return await tx.fetch(_GATED, "jobs_of_other_limits", limits=sorted(limits))


# ------------------------------------------------------------------------------------------------------- queues


async def waiting(tx: Transaction, most: int = 100_000) -> Sequence[WaitingCount]:
    """Count waiting jobs by queue, task and what they wait for, over at most `most` jobs, whichever they are."""
    return await tx.fetch(_WAITING, "waiting", most=most, **_instants(tx))


async def views(tx: Transaction) -> Sequence[ViewCount]:
    """Count all waiting jobs by queue and what they wait for, from the counts of their lanes."""
    return await tx.fetch(_VIEWS, "views", **_instants(tx))


async def count_unfinished(tx: Transaction, *, worst: int = 20) -> BacklogCounts:
    """Count all jobs that run and wait, in one statement: no job is counted twice or missed.

    Of each limit it returns the `worst` keys. It reads all lanes, and no job of them but those that wait for their
    time, and one for each of these keys.
    """
    views: list[ViewCount] = []
    backlogs: dict[str, LimitBacklog] = {}
    keys: list[KeyBacklog] = []
    for row in await tx.fetch(_UNFINISHED, "count_unfinished", worst=worst, **_instants(tx)):
        if row.queue is not None and row.view is not None:
            views.append(ViewCount(row.queue, row.view, row.jobs))
        elif row.limit is not None and row.key is not None:
            backlogs[row.limit] = LimitBacklog(row.limit, row.of_limit or 0, row.keys or 0)
            ref = BucketRef(row.limit, row.key)
            bucket = BucketRecord(ref, row.state, row.jobs, row.opens_at, row.closed_until or 0)
            refs = row.buckets or ()
            keys.append(KeyBacklog(bucket, _cost(row.costs, refs.index(ref)) if ref in refs else 1))
    return BacklogCounts(
        sorted(views, key=lambda each: (each.queue, each.view)),
        sorted(backlogs.values(), key=lambda each: (-each.jobs, each.limit)),
        sorted(keys, key=lambda each: (-each.bucket.waiting, each.bucket.ref.limit, each.bucket.ref.key)),
    )


async def counts(tx: Transaction, *, finals: bool = True) -> Sequence[QueueCounts]:
    """Count jobs by queue and state; without `finals` no final ones, each of which has to be read."""
    return await tx.fetch(_COUNTS, "counts", finals=finals)


async def queues(tx: Transaction) -> Sequence[QueueRecord]:
    """Return the queues that are paused or have waiting jobs, by name; it reads lanes, never all their jobs.

    Added jobs count at once, whether a node is running or not.
    """
    return await tx.fetch(_QUEUES, "queues", **_instants(tx))


async def paused_queues(tx: Transaction) -> Mapping[str, int]:
    """Return the paused queues, and since when; it reads no lane and no job."""
    return {each.name: each.number for each in await tx.fetch(_PAUSED, "paused_queues")}


async def backlog(tx: Transaction, queue: str) -> int:
    """Return how many jobs wait in the lanes of a queue; it adds up the counts of the lanes, and reads no job."""
    return int(await tx.value("backlog", queue=queue))


async def waiting_by_key(tx: Transaction, queue: str, count: int) -> WaitingByKey:
    """Return the `count` keys of a fair queue with most waiting jobs; none if no job uses its order.

    It reads up to 2,000 lanes that are next in line, 2,000 that wait for limits, and 2,000 arrivals, and no job.
    """
    order = PREFIX + queue
    read: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for lane in await tx.fetch(_LANE_JOBS, "lanes_in_turn", queue=queue, most=LANES_IN_TURN):
        read[lane.part] += 1
        key = next((ref.key for ref in lane.buckets if ref.limit == order), None)
        if key is not None:
            waiting[levels_of(key)[0]] += lane.jobs
    # Arrivals that are not merged yet may be negative.
    keys = sorted((-jobs, key) for key, jobs in waiting.items() if jobs > 0)
    is_exact = not read["unread"] and all(lanes < LANES_IN_TURN for lanes in read.values())
    return WaitingByKey([KeyWaiting(key, -jobs) for jobs, key in keys[:count]], len(keys), is_exact)


async def is_work_left(tx: Transaction, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
    """Whether a job in these queues runs on any node, or a job of these tasks is left to run in them.

    Jobs in a paused queue do not count. With `ready_only`, nor do jobs that wait for a limit, for their time or for
    another job, unless followers of final jobs are still to be released. It is one read, so it never misses a job that
    was added by another before that one ended.
    """
    values = {"queues": sorted(queues), "tasks": sorted(tasks), "ready_only": ready_only}
    return bool(await tx.value("is_work_left", **values, **_instants(tx)))


async def blockers(tx: Transaction) -> Sequence[Blocker]:
    """Return the sessions that delay the store now, longest first; none with one writer, which has no sessions."""
    return [] if tx.has_one_writer else await tx.fetch(_BLOCKERS, "blockers")


# ------------------------------------------------------------------------------------------------------- limits


async def buckets(
    tx: Transaction,
    limit: str | None = None,
    key: str | None = None,
    count: int = 100,
    *,
    prefix: str | None = None,
    after: BucketPlace | None = None,
) -> Sequence[BucketRecord]:
    """Return buckets, most waiting first; `prefix` is how their keys begin, `after` the end of the page before.

    Where lanes wait behind more than 5,000 buckets, all are ordered by limit and key.
    """
    names = {"limit": limit, "key": key, "prefix": prefix}
    found: list[BucketRecord] = []
    ranked = await is_ranked(tx)
    if ranked and (after is None or after.opens):
        place = after or BucketPlace(True, 1 << 62, "", "")
        beyond = {"after_waiting": place.waiting, "after_limit": place.limit, "after_key": place.key}
        found = await tx.fetch(_BUCKETS, "buckets_by_waiting", most=KEYS_AT_ONCE, count=count, **beyond, **names)
        after = None
    if len(found) < count:
        found += await _buckets_by_name(tx, count - len(found), after, idle=ranked, **names)
    return found


async def is_ranked(tx: Transaction) -> bool:
    """Whether `buckets` come by their waiting jobs: lanes wait behind at most 5,000 of them."""
    return int(await tx.value("count_awaited", most=KEYS_AT_ONCE + 1)) <= KEYS_AT_ONCE


async def buckets_by_trouble(tx: Transaction, count: int) -> Sequence[BucketRecord]:
    """Return buckets: penalized ones that lanes wait behind, others by their waiting jobs, then the rest by name.

    Where lanes wait behind more than 2,000 buckets, it ranks 1,000 that open first and 1,000 that open last.
    """
    found = await tx.fetch(_BUCKETS, "buckets_by_trouble", most=RANKED, count=count, limit_now=tx.limit_now)
    if len(found) < count:
        found += await _buckets_by_name(tx, count - len(found), None, limit=None, key=None, prefix=None, idle=True)
    return found


async def keys(tx: Transaction, limits: Sequence[str], prefix: str, count: int) -> Sequence[BucketRef]:
    """Return up to `count` keys of these limits that begin so, by limit and key; each limit is read once.

    Keys for which no job has started yet are found if their jobs wait in one of 50,000 lanes.
    """
    found: list[BucketRef] = []
    for limit in limits:
        if len(found) >= count:
            break
        names = {"limit": limit, "key": None, "prefix": prefix}
        records = await _buckets_by_name(tx, count - len(found), None, idle=False, **names)
        found += [record.ref for record in records]
    if len(found) >= count:
        return found
    values = {"needle": f",{as_json(prefix)[:-1]}", "most": LANES_LOOKED_AT, "count": KEYS_AT_ONCE}
    waiting = {ref for row in await tx.fetch(_LANE_BUCKETS, "buckets_like", **values) for ref in row.buckets}
    unvisited = [ref for ref in waiting.difference(found) if ref.limit in limits and ref.key.startswith(prefix)]
    return sorted([*found, *unvisited], key=lambda ref: (limits.index(ref.limit), ref.key))[:count]


async def keys_by_limit(tx: Transaction) -> Mapping[str, int]:
    """Return how many keys of each limit have a stored state; limits without are left out. It reads all of them."""
    return {each.name: each.number for each in await tx.fetch(_KEYS_OF_LIMITS, "keys_by_limit")}


async def limit_figures(
    tx: Transaction, limits: Sequence[str], *, step: int, since: int, most: int
) -> Sequence[LimitFigures]:
    """Return figures of these limits, by name: their keys, counted to `most`, and what was not charged since then.

    `since` is the beginning of a step of `step` seconds of the history.
    """
    names = [(limit, since) for limit in limits]
    return await tx.fetch(_LIMIT_FIGURES, "limit_figures", named=names, step=step, now=tx.now, most=most)


async def _buckets_by_name(
    tx: Transaction,
    count: int,
    after: BucketPlace | None,
    *,
    limit: str | None,
    key: str | None,
    prefix: str | None,
    idle: bool,
) -> list[BucketRecord]:
    # Keys with the prefix lie between these two names, so an index finds the first and the last of them.
    begins = key if key is not None else prefix or ""
    first = (limit or "", "" if limit is None else begins)
    last = (limit or _LAST, _LAST if limit is None else begins + _LAST)
    if after is not None:
        first = max(first, (after.limit, after.key))
    found = await tx.fetch(
        _BUCKETS,
        "buckets_by_name",
        first_limit=first[0],
        first_key=first[1],
        last_limit=last[0],
        last_key=last[1],
        limit=limit,
        key=key,
        prefix=prefix,
        idle=idle,
        # The last bucket of the page before is found again.
        count=count + (after is not None),
    )
    return [each for each in found if after is None or each.ref != BucketRef(after.limit, after.key)][:count]


async def queue_position(tx: Transaction, job_id: str) -> QueuePosition | None:
    """Return the queue position of a job; None if it is not waiting."""
    found = await tx.fetch(_POSITIONS, "queue_position", id=job_id, now=tx.now)
    if not found:
        return None
    row = found[0]
    exempt = union(row.held, row.passed)
    buckets = await _buckets_of(tx, lane_of(row.queue, row.buckets, row.terms, exempt).buckets)
    demand = demand_of(job_id, row.costs, row.terms, exempt)
    return QueuePosition(row.place, row.waiting, row.is_due, row.behind, buckets, demand, call_of(row.terms, exempt))


async def prediction_input(
    tx: Transaction,
    queue: str,
    buckets: Sequence[BucketRef],
    wait_mode: str = "",
    priority: int = 0,
    aging: int | None = None,
) -> QueuePosition:
    """Return the queue position of a job that would be added to this lane now."""
    lane = Lane(queue, tuple(buckets), wait_mode).id
    values = {"lane": lane, "priority": priority, "aging": aging, "now": tx.now}
    (row,) = await tx.fetch(_PREDICTION_INPUTS, "prediction_input", **values)
    return QueuePosition(row.place, row.waiting + 1, False, row.behind, await _buckets_of(tx, buckets))


async def starts(
    tx: Transaction,
    limit: str,
    key: str | None,
    since: int,
    *,
    until: int = NEVER,
    skip: int = 0,
    count: int = 10_000,
) -> Sequence[RecordedStart]:
    """Return the newest `count` starts that were charged to a limit, newest first, without those of deleted jobs.

    They are from `since` to `until`, both limit time and both included, without the first `skip`. To read the next
    page, pass the instant of the last start as `until`, and skip the starts of that instant.
    """
    values = {"since": since, "until": until, "skip": skip, "count": count}
    found = await tx.fetch(_STARTS, "starts", limit=limit, needle=_needle(limit, key), **values)
    return [
        RecordedStart(ref.key, start.charged_at, _cost(start.costs, index))
        for start in found
        for index, ref in enumerate(start.buckets)
        if ref.limit == limit
    ]


def _cost(costs: tuple[int, ...] | None, index: int) -> int:
    # A row that contradicts itself may have fewer costs than buckets.
    return 1 if costs is None or index >= len(costs) else costs[index]


async def _buckets_of(tx: Transaction, buckets: Sequence[BucketRef]) -> list[BucketRecord]:
    rows = [(bucket_id(ref), ref.limit, ref.key) for ref in buckets]
    return await tx.fetch(_BUCKETS, "buckets_by_id", refs=rows)
