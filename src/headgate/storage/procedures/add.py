"""Adding jobs: they are inserted with their arrivals, and nothing is locked that others want.

Where several clients write, one statement inserts the jobs and notes their arrivals. So jobs that have no ties are
stored without a transaction around it, and a repeat after a lost reply, which finds them stored, notes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.jobs.batch import NewBatch
from headgate.jobs.job import Draw, JobError, JobOptions, JobState, NewJob, Origin
from headgate.jobs.terms import GateTerms
from headgate.storage.driver import Transaction
from headgate.storage.following import Place, leaders_of, rejected
from headgate.storage.procedures.following import places_of, store_ties
from headgate.storage.procedures.history import note_unrun
from headgate.storage.procedures.lanes import Arrival, Lane, arrive

INSERTED_AT_ONCE = 5000
"""How many jobs of a transaction one statement stores, so that none comes near to its timeout."""

_WAITS = Place(JobState.WAITING)
_NOWHERE = Origin()


class _NewRow(NamedTuple):
    """A job as it is inserted; its fields are in the order in which the statement names them."""

    id: str
    payload: str
    run_at: int
    enqueued_at: int
    lane: str
    draws: tuple[Draw, ...]
    task: str
    queue: str
    gate: str
    priority: int
    delayed: bool
    expires_at: int | None
    give_up_at: int | None
    costs: tuple[int, ...] | None
    headers: dict[str, str] | None
    options: JobOptions | None
    terms: GateTerms | None
    state: str
    error: JobError | None
    unique_key: str | None
    origin: Origin | None
    follows: str | None
    batch: str | None
    schedule: str | None
    audit: int


class _LaneRow(NamedTuple):
    """A lane that jobs arrive in, as `Lane`, and its place among them."""

    id: str
    queue: str
    draws: tuple[Draw, ...]
    variant: str
    place: int


def need_transaction(jobs: Iterable[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether more than one statement stores these jobs where several clients write."""
    return bool(batches) or any(job.origin is not None or job.rejection is not None for job in jobs)


def follows_stored(jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> bool:
    """Whether any of these jobs follows one that is not among them, which is locked until they are committed."""
    return not leaders_of(jobs) <= {job.id for job in jobs} | {batch.id for batch in batches}


async def add_jobs(tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> None:
    """Store waiting jobs, and rejected ones as final; those that are stored already stay as they are.

    Jobs that follow others lock these until the end of the transaction. Raises LeaderNotFound.
    """
    if not batches and all(job.origin is None for job in jobs):
        await _insert(tx, jobs, {})
        return
    placed = await places_of(tx, jobs, batches)
    for start in range(0, len(jobs), INSERTED_AT_ONCE):
        await _insert(tx, jobs[start : start + INSERTED_AT_ONCE], placed)
    await store_ties(tx, jobs, batches, placed)


async def _insert(tx: Transaction, jobs: Sequence[NewJob], placed: Mapping[str, Place]) -> None:
    if not jobs:
        return
    lanes: dict[str, Lane] = {}
    rows = _rows(jobs, placed, lanes)
    final = [row.id for row in rows if row.state in ("failed", "cancelled")]
    if final:
        # A repeat after a lost reply: what is stored stays as it is, and has been counted.
        stored = set(await tx.values("stored_ids", ids=final))
        final = [id for id in final if id not in stored]
    if tx.has_one_writer:
        count = await tx.execute("add_jobs", new=rows)
        if count < len(rows):
            # Where none was stored, the connection's last rowid is of another table.
            added = set(await tx.values("just_added", count=count)) if count else set()
            rows = list({row.id: row for row in rows if row.id in added}.values())
        await arrive(tx, _arrivals(rows, lanes))
    else:
        places = enumerate(lanes.items())
        known = [_LaneRow(id, lane.queue, lane.draws, lane.variant, place) for place, (id, lane) in places]
        await tx.execute("add_jobs", new=rows, lanes=known, since=tx.limit_now)
    await note_unrun(tx, final)


def _rows(jobs: Sequence[NewJob], placed: Mapping[str, Place], lanes: dict[str, Lane]) -> list[_NewRow]:
    """The jobs as they are inserted; their lanes are added to `lanes`."""
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
        origin = job.origin or _NOWHERE
        rows.append(
            _NewRow(
                job.id,
                job.payload,
                job.run_at,
                job.enqueued_at,
                lane,
                job.draws,
                job.task,
                job.queue,
                job.gate or job.task,
                job.priority,
                job.delayed,
                job.expires_at,
                job.give_up_at if place.enters_lane else None,
                job.costs,
                job.headers,
                job.options,
                job.terms,
                "blocked" if place.is_blocked else str(place.state),
                place.error,
                job.unique_key,
                job.origin,
                origin.follows,
                origin.batch,
                origin.schedule,
                int(job.audit),
            )
        )
    return rows


def _arrivals(rows: Iterable[_NewRow], lanes: Mapping[str, Lane]) -> list[Arrival]:
    """What comes to each lane. It is counted here, as that took SQLite two more passes over all rows."""
    counts: dict[str, list[Any]] = {}
    for row in rows:
        if row.state != "waiting":
            continue
        count = counts.get(row.lane)
        if count is None:
            count = counts[row.lane] = [0, False, None]
        count[0] += 1
        if not row.delayed:
            count[1] = True
        elif count[2] is None or row.run_at < count[2]:
            count[2] = row.run_at
    return [Arrival(lanes[lane], *count) for lane, count in counts.items()]
