"""Adding jobs: they are inserted with their arrivals, without locking rows that other transactions need.

Where several clients write, one statement inserts the jobs and notes their arrivals. So jobs without leaders, batches
and tags are stored without a transaction around it, and a repeat after a lost reply, which finds them stored, notes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import astuple

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import Draw, JobState, NewJob, Origin
from headgate.storage.driver import Transaction
from headgate.storage.following import NO_PLACEMENTS, FollowerPlacement, Placements, leaders_of, rejected
from headgate.storage.procedures.following import grow_batches, placements_of, store_ties
from headgate.storage.procedures.history import note_unrun
from headgate.storage.procedures.lanes import Arrival, Lane, add_arrivals
from headgate.storage.procedures.tags import add_tags, has_tags
from headgate.storage.records import FINAL_STATES
from headgate.storage.statements import columns_of

INSERTED_AT_ONCE = 5000
"""How many jobs of a transaction one statement stores, so that no statement comes near its timeout."""

_WAITS = FollowerPlacement(JobState.WAITING)
_NO_ORIGIN = Origin()

_ADDED = ("lane", "state", "error", "gate", "give_up_at", "follows", "batch", "schedule", "audit")
"""Columns of a new job that are not fields of `NewJob`, or that differ from them."""

_COLUMNS = columns_of("new_job_rows")
_FIELDS = {name: place for place, name in enumerate((*NewJob.__struct_fields__, *_ADDED))}
_in_order = itemgetter(*map(_FIELDS.__getitem__, _COLUMNS))
_ID, _LANE, _STATE, _DELAYED, _RUN_AT = map(_COLUMNS.index, ("id", "lane", "state", "delayed", "run_at"))

_NewRow = tuple[Any, ...]
"""A job as it is inserted, in the order of `_COLUMNS`."""


class _LaneRow(NamedTuple):
    """A lane in which jobs arrive, as `Lane`, and its place among them."""

    id: str
    queue: str
    draws: tuple[Draw, ...]
    variant: str
    place: int


def needs_transaction(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether storing these jobs takes more than one statement where several clients write."""
    return bool(batches) or any(job.origin is not None or job.rejection is not None for job in jobs) or has_tags(jobs)


def follows_stored(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether a job follows one that is not among these, or a stored batch grows: then that is locked until the end."""
    if any(batch.grows for batch in batches):
        return True
    return not leaders_of(jobs, batches) <= {job.id for job in jobs} | {batch.id for batch in batches}


async def add_jobs(tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> None:
    """Store waiting jobs, and rejected ones as final; jobs that are stored already stay as they are.

    The leaders of jobs are locked until the end of the transaction. Raises LeaderNotFound, BatchNotFound, BatchClosed.
    """
    if not batches and all(job.origin is None for job in jobs):
        await _insert(tx, jobs, NO_PLACEMENTS)
        return
    placed = await placements_of(tx, jobs, batches)
    await grow_batches(tx, jobs, batches, placed)
    for start in range(0, len(jobs), INSERTED_AT_ONCE):
        await _insert(tx, jobs[start : start + INSERTED_AT_ONCE], placed)
    await store_ties(tx, jobs, batches, placed)


async def _insert(tx: Transaction, jobs: Sequence[NewJob], placed: Placements) -> None:
    if not jobs:
        return
    lanes: dict[str, Lane] = {}
    rows = _rows(jobs, placed.jobs, lanes)
    final = [row[_ID] for row in rows if row[_STATE] in FINAL_STATES]
    if final:
        # A repeat after a lost reply: stored jobs stay as they are, and have been counted.
        stored = set(await tx.values("stored_ids", ids=final))
        final = [id for id in final if id not in stored]
    if tx.has_one_writer:
        count = await tx.execute("add_jobs", new=rows)
        if count < len(rows):
            # If no row was inserted, the connection's last rowid is of another table.
            added = set(await tx.values("just_added", count=count)) if count else set()
            rows = list({row[_ID]: row for row in rows if row[_ID] in added}.values())
        await add_arrivals(tx, _arrivals(rows, lanes))
    else:
        places = enumerate(lanes.items())
        known = [_LaneRow(id, lane.queue, lane.draws, lane.variant, place) for place, (id, lane) in places]
        await tx.execute("add_jobs", new=rows, lanes=known, since=tx.limit_now)
    await add_tags(tx, jobs)
    await note_unrun(tx, final)


def _rows(jobs: Sequence[NewJob], placed: Mapping[str, FollowerPlacement], lanes: dict[str, Lane]) -> list[_NewRow]:
    """Return the jobs as they are inserted; their lanes are added to `lanes`."""
    ids: dict[tuple[str, tuple[Draw, ...], str], str] = {}
    rows: list[_NewRow] = []
    for job in jobs:
        key = (job.queue, job.draws, job.variant)
        lane = ids.get(key)
        if lane is None:
            known = Lane(*key)
            lane = ids[key] = known.id
            lanes[lane] = known
        place = placed.get(job.id) or (_WAITS if job.rejection is None else rejected(job))
        origin = job.origin or _NO_ORIGIN
        rows.append(
            _in_order(
                (
                    *astuple(job),
                    lane,
                    "blocked" if place.is_blocked else str(place.state),
                    place.error,
                    job.gate or job.task,
                    job.give_up_at if place.enters_lane else None,
                    origin.follows,
                    origin.batch,
                    origin.schedule,
                    int(job.audit),
                )
            )
        )
    return rows


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
