"""What people read: jobs and batches, what waits and for what, buckets, and starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from headgate.jobs.batch import BatchRecord
from headgate.jobs.draw_set import DrawSet, union
from headgate.jobs.gating import GatedJob, KnownGates
from headgate.jobs.job import Attempt, Draw, JobRecord, JobState
from headgate.jobs.terms import GateTerms
from headgate.limits.rule import NEVER
from headgate.storage.admission import ask_of
from headgate.storage.driver import Transaction
from headgate.storage.json_text import as_json, limit_needle
from headgate.storage.procedures.buckets import BucketName
from headgate.storage.procedures.lanes import Lane, lane_of
from headgate.storage.records import (
    BucketPlace,
    BucketRecord,
    JobFilter,
    Obstacle,
    QueueCounts,
    QueueRecord,
    RecordedStart,
    Standing,
    ViewCount,
    WaitingCount,
)
from headgate.storage.row_ids import bucket_id
from headgate.storage.stored_rows import UNREADABLE_DRAWS, RowDecoder

FEW_IN_LANES = 5_000
"""Where a planner estimates rows: waiting jobs of a limit or key that are all read to list some of them."""

FEW_IN_INDEX = 50_000
"""Where none does: jobs of an index that are all read and sorted to list some of them, which takes up to 0.1 s."""


_BEFORE_ALL = BucketPlace(True, 1 << 62, "", "")


class _LaneCount(msgspec.Struct, array_like=True):
    id: str
    waiting: int


class _Standing(msgspec.Struct, array_like=True):
    id: str
    place: int | None
    waiting: int
    is_due: bool
    behind: Draw | None
    queue: str
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet


class _Outlook(msgspec.Struct, array_like=True):
    waiting: int
    behind: Draw | None


class _Start(msgspec.Struct, array_like=True):
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    charged_at: int


_JOBS = RowDecoder(JobRecord, "job", state=JobState.WAITING)
_LANES = RowDecoder(_LaneCount, "lane")
_BATCHES = RowDecoder(BatchRecord, "batch")
_ATTEMPTS = RowDecoder(Attempt, "attempt")
_WAITING = RowDecoder(WaitingCount, "count", view="ready")
_VIEWS = RowDecoder(ViewCount, "count", view="ready")
_COUNTS = RowDecoder(QueueCounts, "queue")
_QUEUES = RowDecoder(QueueRecord, "queue")
_OBSTACLES = RowDecoder(Obstacle, "obstacle", kind="blocks")
_BUCKETS = RowDecoder(BucketRecord, "bucket", draw=UNREADABLE_DRAWS[0])
_STANDING = RowDecoder(_Standing, "job")
_OUTLOOK = RowDecoder(_Outlook, "lane")
_STARTS = RowDecoder(_Start, "start", draws=UNREADABLE_DRAWS)
_GATED = RowDecoder(GatedJob, "job")


# --------------------------------------------------------------------------------------------------------- jobs


async def jobs_by_id(tx: Transaction, ids: Sequence[str], *, final: bool = False) -> list[JobRecord]:
    """Those of these jobs that are stored; with `final`, those that are final."""
    return await tx.fetch(_JOBS, "jobs_by_id", ids=list(ids), final=final, **_instants(tx))


async def job(tx: Transaction, job_id: str) -> JobRecord | None:
    """As `Store.job`."""
    found = await jobs_by_id(tx, [job_id])
    return found[0] if found else None


async def jobs(tx: Transaction, filter: JobFilter) -> list[JobRecord]:
    """As `Store.jobs`."""
    asked = {**_asked(filter), **_instants(tx)}
    statement = "jobs_oldest" if filter.oldest_first else "jobs"
    if tx.estimates_rows:
        asked["lanes"] = await _few_lanes(tx, filter, asked["needle"])
    elif asked["by"] is not None and await tx.value("count_index", most=FEW_IN_INDEX + 1, **asked) <= FEW_IN_INDEX:
        statement += "_by_index"
    return await tx.fetch(_JOBS, statement, cursor=filter.cursor, count=filter.count, **asked)


async def count_jobs(tx: Transaction, filter: JobFilter, most: int) -> int:
    """As `Store.count_jobs`."""
    asked = {**_asked(filter), **_instants(tx)}
    statement = "count_jobs"
    if tx.estimates_rows:
        asked["lanes"] = await _few_lanes(tx, filter, asked["needle"])
    elif asked["by"] is not None:
        statement = "count_jobs_by_index"
    before, after = (None, filter.cursor) if filter.oldest_first else (filter.cursor, None)
    return int(await tx.value(statement, most=most, before=before, after=after, **asked))


def _instants(tx: Transaction) -> dict[str, int]:
    return {"now": tx.now, "limit_now": tx.limit_now, "never": NEVER}


def _asked(filter: JobFilter) -> dict[str, Any]:
    """What a filter asks, but for its page, as statements take it."""
    asked = asdict(filter)
    del asked["limit"], asked["key"], asked["cursor"], asked["oldest_first"], asked["count"]
    return {**asked, "needle": _needle(filter.limit, filter.key), "by": _index_of(filter)}


def _needle(limit: str | None, key: str | None) -> str | None:
    """What the draws of a job contain that draws on a limit, for a key, or both."""
    if limit is None:
        return None if key is None else f",{as_json(key)}]"
    return limit_needle(limit) if key is None else as_json(Draw(limit, key))


async def _few_lanes(tx: Transaction, filter: JobFilter, needle: str | None) -> list[str] | None:
    """The lanes of the waiting jobs that a filter lets through by what they draw on, if those are few.

    Where they are many, a page of them is found sooner in the order of all jobs.
    """
    if needle is None or filter.view == "blocked" or (filter.view is None and filter.state is not JobState.WAITING):
        return None
    lanes = await tx.fetch(_LANES, "lanes_drawing", needle=needle)
    return None if sum(lane.waiting for lane in lanes) > FEW_IN_LANES else [lane.id for lane in lanes]


def _index_of(filter: JobFilter) -> str | None:
    """The index that knows the jobs among which a filter looks; None where all there are have to be read."""
    if filter.batch is not None:
        return "batch"
    if filter.schedule is not None:
        return "schedule"
    match filter.view, filter.state:
        case ("scheduled" | "blocked") as view, _:
            return view
        case ("ready" | "throttled", _) | (_, JobState.WAITING) if filter.limit is not None or filter.key is not None:
            return "draw"
        case ("ready" | "throttled") as view, _:
            return view
        case _, JobState.WAITING:
            return "waiting"
        case _, JobState.RUNNING:
            return "running"
        case _, JobState.FAILED | JobState.CANCELLED:
            return "state"
        case _:
            return None


async def attempts(tx: Transaction, job_id: str) -> list[Attempt]:
    """As `Store.attempts`."""
    return await tx.fetch(_ATTEMPTS, "attempts", id=job_id)


async def batch(tx: Transaction, batch_id: str) -> BatchRecord | None:
    """As `Store.batch`."""
    found = await tx.fetch(_BATCHES, "batch", id=batch_id)
    return found[0] if found else None


async def batches(tx: Transaction, *, pending_only: bool, cursor: str | None, count: int) -> list[BatchRecord]:
    """As `Store.batches`."""
    return await tx.fetch(_BATCHES, "batches_pending" if pending_only else "batches", cursor=cursor, count=count)


async def gated_jobs(
    tx: Transaction,
    tasks: frozenset[str],
    unknown_to: frozenset[str] | None,
    other_than: KnownGates,
    ids: Sequence[str] | None,
    after: str,
    count: int,
) -> list[GatedJob]:
    """As `Store.gated_jobs`."""
    wanted = sorted(tasks)
    if ids is not None:
        return await tx.fetch(_GATED, "gated_jobs_by_id", tasks=wanted, ids=list(ids))
    limits = None if unknown_to is None else sorted(unknown_to)
    if limits is not None and not await tx.value("other_limits_are_waited_for", limits=limits):
        return []
    gates = sorted(other_than)
    return await tx.fetch(_GATED, "gated_jobs", tasks=wanted, gates=gates, limits=limits, after=after, count=count)


# ------------------------------------------------------------------------------------------------------- queues


async def waiting(tx: Transaction, most: int) -> list[WaitingCount]:
    """As `Store.waiting`."""
    return await tx.fetch(_WAITING, "waiting", most=most, **_instants(tx))


async def views(tx: Transaction) -> list[ViewCount]:
    """As `Store.views`."""
    return await tx.fetch(_VIEWS, "views", **_instants(tx))


async def counts(tx: Transaction, *, finals: bool) -> list[QueueCounts]:
    """As `Store.counts`."""
    return await tx.fetch(_COUNTS, "counts", finals=finals)


async def queues(tx: Transaction) -> list[QueueRecord]:
    """As `Store.queues`."""
    return await tx.fetch(_QUEUES, "queues", **_instants(tx))


async def is_paused(tx: Transaction, queue: str) -> bool:
    """As `Store.is_paused`."""
    return bool(await tx.value("is_paused", queue=queue))


async def backlog(tx: Transaction, queue: str) -> int:
    """As `Store.backlog`."""
    return int(await tx.value("backlog", queue=queue))


async def is_work_left(tx: Transaction, queues: Collection[str], tasks: Collection[str], *, ready_only: bool) -> bool:
    """As `Store.is_work_left`."""
    asked = {"queues": sorted(queues), "tasks": sorted(tasks), "ready_only": ready_only}
    return bool(await tx.value("is_work_left", **asked, **_instants(tx)))


async def obstacles(tx: Transaction) -> list[Obstacle]:
    """As `Store.obstacles`; there are none with one writer."""
    return [] if tx.has_one_writer else await tx.fetch(_OBSTACLES, "obstacles")


# ------------------------------------------------------------------------------------------------------- limits


async def buckets(
    tx: Transaction, limit: str | None, key: str | None, count: int, prefix: str | None, after: BucketPlace | None
) -> list[BucketRecord]:
    """As `Store.buckets`."""
    beyond = {f"after_{name}": value for name, value in asdict(after or _BEFORE_ALL).items()}
    return await tx.fetch(_BUCKETS, "buckets", limit=limit, key=key, count=count, prefix=prefix, **beyond)


async def throttled(tx: Transaction, count: int) -> list[BucketRecord]:
    """As `Store.throttled`."""
    return await tx.fetch(_BUCKETS, "throttled", count=count)


async def standing(tx: Transaction, job_id: str) -> Standing | None:
    """As `Store.standing`."""
    found = await tx.fetch(_STANDING, "standing", id=job_id)
    if not found:
        return None
    row = found[0]
    passes = union(row.held, row.passed)
    drawn = await _drawn(tx, lane_of(row.queue, row.draws, row.terms, passes).draws)
    asks = ask_of(job_id, row.costs, row.terms, passes)
    return Standing(row.place, row.waiting, row.is_due, row.behind, drawn, asks)


async def outlook(tx: Transaction, queue: str, draws: Sequence[Draw], variant: str) -> Standing:
    """As `Store.outlook`."""
    (row,) = await tx.fetch(_OUTLOOK, "outlook", lane=Lane(queue, tuple(draws), variant).id)
    place = row.waiting + 1
    return Standing(place, place, False, row.behind, await _drawn(tx, draws))


async def starts(
    tx: Transaction, limit: str, key: str | None, since: int, until: int, skip: int, count: int
) -> list[RecordedStart]:
    """As `Store.starts`."""
    asked = {"since": since, "until": until, "skip": skip, "count": count}
    found = await tx.fetch(_STARTS, "starts", limit=limit, needle=_needle(limit, key), **asked)
    return [
        RecordedStart(draw.key, start.charged_at, _cost(start.costs, index))
        for start in found
        for index, draw in enumerate(start.draws)
        if draw.limit == limit
    ]


def _cost(costs: tuple[int, ...] | None, index: int) -> int:
    # A row that contradicts itself may name fewer costs than draws.
    return 1 if costs is None or index >= len(costs) else costs[index]


async def _drawn(tx: Transaction, draws: Sequence[Draw]) -> list[BucketRecord]:
    rows = [BucketName(bucket_id(draw), draw.limit, draw.key) for draw in draws]
    return await tx.fetch(_BUCKETS, "buckets_drawn", drawn=rows)
