"""Adding jobs: they are inserted with their arrivals and tags, without locking rows that other transactions need.

Where several clients write, one statement inserts the jobs and notes their arrivals. So jobs without leaders, batches
and tags are stored without a transaction around it, and a repeat after a lost reply, which finds them stored, notes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import gt, itemgetter
from typing import Any, Protocol

from msgspec.structs import astuple, replace

from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import IdTaken, job_number
from headgate.jobs.job import BucketRef, JobOptions, JobState, NewJob, Origin
from headgate.storage.driver import Transaction
from headgate.storage.procedures.following import (
    FollowerPlacement,
    Placements,
    StoredEnqueue,
    grow_batches,
    leaders_of,
    placements_of,
    rejected,
    store_dependencies,
)
from headgate.storage.procedures.history import note_unrun
from headgate.storage.procedures.lanes import Arrival, Lane, add_arrivals
from headgate.storage.records import FINAL_STATES
from headgate.storage.statements import columns_of
from headgate.storage.stored_rows import RowDecoder

INSERTED_AT_ONCE = 50_000_000
"""How many characters are stored at a time: no statement comes near its timeout, or takes much memory."""

CHARACTERS_OF_JOB = 10_000
"""What a job without its payload counts as: as many small jobs take as long."""

MOST_ALONE = 50_000
"""How many jobs one statement stores that needs no transaction, in a second or two."""

_WAITS = FollowerPlacement(JobState.WAITING)
_NO_ORIGIN = Origin()

_ADDED = ("lane", "state", "error", "limit_set", "give_up_at", "follows", "batch", "schedule", "audit", "own_id")
"""Columns of a new job that are not fields of `NewJob`, or that differ from them."""

_COLUMNS = columns_of("new_job_rows")
_FIELDS = {name: place for place, name in enumerate((*NewJob.__struct_fields__, *_ADDED))}
_in_order = itemgetter(*map(_FIELDS.__getitem__, _COLUMNS))
_ID, _LANE, _STATE, _DELAYED, _RUN_AT = map(_COLUMNS.index, ("id", "lane", "state", "delayed", "run_at"))

_NewRow = tuple[Any, ...]
"""A job as it is inserted, in the order of `_COLUMNS`."""


_STORED = RowDecoder(StoredEnqueue, "job")


def needs_transaction(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether storing these jobs takes more than one statement where several clients write."""
    return bool(batches or len(jobs) > MOST_ALONE or sum(len(job.payload) for job in jobs) > INSERTED_AT_ONCE) or any(
        job.origin is not None or job.rejection is not None or (job.options is not None and job.options.tags)
        for job in jobs
    )


def follows_stored(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether a job follows one that is not among these, or a stored batch grows: then that is locked until the end."""
    if any(batch.grows for batch in batches):
        return True
    return not leaders_of(jobs, batches) <= {job.id for job in jobs} | {batch.id for batch in batches}


async def stored_jobs(tx: Transaction, ids: Sequence[str]) -> list[StoredEnqueue]:
    """Return the enqueues of those of these jobs that are stored, under these ids."""
    # A process may have forgotten the texts of the first of many own ids: their numbers are compared.
    given = {job_number(id): id for id in ids}
    return [replace(row, id=given[job_number(row.id)]) for row in await tx.fetch(_STORED, "stored_jobs", ids=ids)]


async def require_own(tx: Transaction, jobs: Sequence[NewJob]) -> set[str]:
    """Return the ids of those of these jobs that are stored. Raises IdTaken if another enqueue has stored one.

    An id that its caller chose may be stored by any.
    """
    stored = await stored_jobs(tx, [*{job.id for job in jobs}])
    # Several enqueues may be stored together: the first one is then as if stored.
    enqueues: dict[str, Any] = {row.id: (row.enqueued_at, row.enqueued_by) for row in stored}
    taken = {
        job.id
        for job in jobs
        if not job.has_own_id and enqueues.setdefault(job.id, at := (job.enqueued_at, job.enqueued_by)) != at
    }
    if taken:
        raise IdTaken(taken)
    return {row.id for row in stored}


async def add_new_jobs(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Store jobs that `needs_transaction` is not true of, in one statement. It fails if an id is stored already."""
    rows, lanes = _rows(jobs, {})
    if rows:
        await tx.execute("add_new_jobs", new=rows, lanes=_lane_rows(lanes), since=tx.limit_now)


async def add_jobs(tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> None:
    """Store waiting jobs, and rejected ones as final; jobs that are stored already stay as they are.

    The leaders of jobs are locked until the end of the transaction. Raises LeaderNotFound, BatchNotFound, BatchClosed,
    and IdTaken if another enqueue has stored a job under a new id: then the transaction has to be rolled back.
    """
    placed: Placements | None = None
    if batches or any(job.origin is not None for job in jobs):
        placed = await placements_of(tx, jobs, batches)
        await grow_batches(tx, jobs, batches, placed)
    ends = accumulate(len(job.payload) + CHARACTERS_OF_JOB for job in jobs)
    for _, portion in groupby(zip(jobs, ends, strict=True), lambda each: each[1] // INSERTED_AT_ONCE):
        await _insert(tx, [job for job, _ in portion], {} if placed is None else placed.jobs)
    if placed is not None:
        await store_dependencies(tx, jobs, batches, placed)


async def _insert(tx: Transaction, jobs: Sequence[NewJob], placed: Mapping[str, FollowerPlacement]) -> None:
    rows, lanes = _rows(jobs, placed)
    final = [job.id for job, row in zip(jobs, rows, strict=True) if row[_STATE] in FINAL_STATES]
    if final:
        # A repeat after a lost reply: stored jobs stay as they are, and have been counted.
        stored = set(await tx.ids("stored_ids", ids=final))
        final = [id for id in final if id not in stored]
    if tx.has_one_writer:
        rows = await _insert_new(tx, jobs, rows)
        await add_arrivals(tx, _arrivals(rows, lanes))
    else:
        count = await tx.value("add_jobs", new=rows, lanes=_lane_rows(lanes), since=tx.limit_now)
        if count < len(rows):
            await require_own(tx, jobs)
    await add_tags(tx, jobs)
    if final:
        await note_unrun(tx, final)


async def _insert_new(tx: Transaction, jobs: Sequence[NewJob], rows: list[_NewRow]) -> list[_NewRow]:
    """Insert the rows of jobs that are not stored, each once, and return these rows."""
    if len(rows) == 1:
        if await tx.execute("add_jobs", new=rows):
            return rows
        await require_own(tx, jobs)
        return []
    ids = [row[_ID] for row in rows]
    # Nothing is read if all are newer than those stored.
    if not all(map(gt, ids, (await tx.value("highest_id") or 0, *ids))):
        stored = set(map(job_number, await require_own(tx, jobs)))
        rows = list({row[_ID]: row for row in reversed(rows) if row[_ID] not in stored}.values())[::-1]
    if rows:
        await tx.execute("add_jobs", new=rows)
    return rows


def _lane_rows(lanes: Mapping[str, Lane]) -> list[tuple[Any, ...]]:
    """Return the lanes in which jobs arrive, each with its place among them, as they are passed to the statement."""
    places = enumerate(lanes.items())
    return [(id, lane.queue, lane.buckets, lane.wait_mode, place) for place, (id, lane) in places]


def _rows(jobs: Sequence[NewJob], placed: Mapping[str, FollowerPlacement]) -> tuple[list[_NewRow], Mapping[str, Lane]]:
    """Return the jobs as they are inserted, and their lanes by id."""
    lanes: dict[str, Lane] = {}
    ids: dict[tuple[str, tuple[BucketRef, ...], str], str] = {}
    rows: list[_NewRow] = []
    for job in jobs:
        key = (job.queue, job.buckets, job.wait_mode)
        lane = ids.get(key)
        if lane is None:
            known = Lane(*key)
            lane = ids[key] = known.id
            lanes[lane] = known
        number = job_number(job.id)
        place = placed.get(job.id) or (_WAITS if job.rejection is None else rejected(job))
        state = "blocked" if place.is_blocked else str(place.state)
        origin = job.origin or _NO_ORIGIN
        rows.append(
            _in_order(
                (
                    number,
                    *astuple(job)[1:],
                    lane,
                    state,
                    place.error,
                    job.limit_set or job.task,
                    job.give_up_at if state == "waiting" else None,
                    origin.follows,
                    origin.batch,
                    origin.schedule,
                    int(job.audit),
                    job.id if number < 0 else None,
                )
            )
        )
    return rows, lanes


def _arrivals(rows: Iterable[_NewRow], lanes: Mapping[str, Lane]) -> list[Arrival]:
    """Return the arrivals in each lane. They are counted here because SQLite needs two more passes over all rows."""
    counts: dict[str, list[Any]] = {}
    for row in rows:
        if row[_STATE] != "waiting":
            continue
        count = counts.get(row[_LANE])
        if count is None:
            count = counts[row[_LANE]] = [0, False, None]
        count[0] += 1
        # One writer keeps no front, so `rank` is left out.
        if not row[_DELAYED]:
            count[1] = True
        elif count[2] is None or row[_RUN_AT] < count[2]:
            count[2] = row[_RUN_AT]
    return [Arrival(lanes[lane], *count) for lane, count in counts.items()]


class Tagged(Protocol):
    """A job, as far as its tags are concerned."""

    @property
    def id(self) -> str: ...
    @property
    def options(self) -> JobOptions | None: ...


async def add_tags(tx: Transaction, jobs: Iterable[Tagged]) -> None:
    """Store the tags of jobs that have just been stored."""
    if tagged := _tag_rows(jobs):
        await tx.execute("add_tags", tagged=tagged)


async def remove_tags(tx: Transaction, jobs: Iterable[Tagged]) -> None:
    """Remove the tags of jobs that are deleted, or that get other tags."""
    if tagged := _tag_rows(jobs):
        await tx.execute("remove_tags", tagged=tagged)


def _tag_rows(jobs: Iterable[Tagged]) -> list[tuple[Any, ...]]:
    return [(tag, job.id) for job in jobs if job.options is not None for tag in job.options.tags]
