"""Adding jobs that have unique keys, inside a transaction.

A conflicting insertion waits for whoever else has one open under the same key. So once a job is inserted, the index
lets nobody else wait under its key, and a later statement sees every job that was claimed before: whichever of several
comes first, the others find it.

The transaction may be a user's, and stay open for long. So all that is locked are jobs under the key: the one that is
replaced, or the one that runs and gets a successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from headgate.errors import LeaderNotFound, StorageUnavailable
from headgate.jobs.batch import NewBatch
from headgate.jobs.draw_set import DrawSet, difference
from headgate.jobs.job import Draw, NewJob
from headgate.jobs.replacing import Waited, replacement
from headgate.jobs.terms import GateTerms
from headgate.jobs.uniqueness import Following, Kept, Replaced, Stands, Stored, decide, following, successor
from headgate.storage.json_text import as_json, optional_json
from headgate.storage.permits import Given
from headgate.storage.postgres.addition import add_tied
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.replacement_notes import ReplacementNote, give_back, keep_notes, note_of
from headgate.storage.procedures.lanes import Arrival, Lane, arrival_of, arrive
from headgate.storage.stored_rows import draws_and_terms

TRIES = 100
"""How often another job may vanish between being met and being looked at."""


class RanMeanwhile(Exception):
    """A job under the key was claimed while another one was stored, which is to be undone."""


class Standing(NamedTuple):
    """A job that is not final."""

    id: str
    state: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet
    has_costs: bool
    delayed: bool
    run_at: int


async def add_unique(
    session: Session,
    jobs: Sequence[NewJob],
    limit_now: int,
    batches: Sequence[NewBatch] = (),
    now: int = 0,
    *,
    is_users: bool = False,
) -> dict[str, str]:
    """Store jobs some of which have unique keys, in a transaction that is undone if this raises DuplicateJob.

    By their ids, those for which another one stands. In a transaction that is a user's no bucket is locked, and
    RanMeanwhile is raised where it has to be undone and begun anew.
    """
    # A repeat after a lost reply changes nothing.
    stored = {row[0] for row in await session.fetch("stored_ids", ids=[job.id for job in jobs])}
    adding = Unique(session, limit_now, is_users=is_users)
    others: dict[str, str] = {}
    if batches:
        await add_tied(session, (), limit_now, batches, now)
    for is_unique, group in groupby(jobs, key=lambda job: job.unique_key is not None):
        new = [following(job, others) for job in group if job.id not in stored]
        if not is_unique:
            await add_tied(session, new, limit_now)
            continue
        for job in new:
            other = await adding.add(following(job, others))
            if other is not None:
                others[job.id] = other
    if adding.notes:
        # Last of all, as others may be waited for under a key.
        await (keep_notes(session, adding.notes) if is_users else give_back(session, adding.notes, limit_now))
    return others


class Unique:
    """Stores one job after the other."""

    def __init__(self, session: Session, limit_now: int, *, is_users: bool) -> None:
        self._session = session
        self._limit_now = limit_now
        self._tx = PostgresTransaction(session, limit_now, limit_now)
        self._is_users = is_users
        self.notes: list[ReplacementNote] = []

    async def add(self, job: NewJob) -> str | None:
        """The id of the job that stands for this one, None if it was stored."""
        for _ in range(TRIES):
            rows = await self._standing(job)
            match decide(job, _stands(rows)):
                case Stored():
                    if await self._stored(job):
                        return None
                case Kept(id):
                    return id
                case Replaced(id):
                    if await self._replaced(next(row for row in rows if row.id == id), job):
                        return id
                case Following(id):
                    if await self._followed(successor(job, id)):
                        return None
        raise StorageUnavailable(
            f"other jobs of task {job.task!r} came and went under unique_key={job.unique_key!r} all the time"
        )

    async def _standing(self, job: NewJob) -> list[Standing]:
        rows = await self._session.fetch("standing_under", task=job.task, unique_key=job.unique_key)
        return [_read(row) for row in rows]

    async def _stored(self, job: NewJob) -> bool:
        """Whether it could be inserted, and nothing had come and begun to run before it was."""
        await add_tied(self._session, [job], self._limit_now)
        rows = await self._standing(job)
        if job.rejection is not None:
            # It waits for nothing, and so stands in nobody's way.
            return True
        is_there = any(row.id == job.id for row in rows)
        if is_there and any(row.state == "running" for row in rows):
            if self._is_users:
                # Deleted, it would still stand in the index until the commit: who runs could not wait again.
                raise RanMeanwhile
            await self._session.execute("unstore_job", id=job.id)
            if next(row for row in rows if row.id == job.id).state == "waiting":
                lane = Lane(job.queue, job.draws, job.variant)
                await arrive(self._tx, [Arrival(lane, -1)])
            return False
        return is_there

    async def _followed(self, job: NewJob) -> bool:
        """Whether it could be inserted to follow the one that runs, which is locked: it ends after this or waits."""
        try:
            await add_tied(self._session, [job], self._limit_now)
        except LeaderNotFound:
            return False
        if job.rejection is not None:
            # It is final at once, and so stands under no key.
            return True
        return any(row.id == job.id for row in await self._standing(job))

    async def _replaced(self, row: Standing, new: NewJob) -> bool:
        """Whether it still waited, and asks for what the new one asks for."""
        locked = [_read(found) for found in await self._session.fetch("lock_standing", id=row.id)]
        if not locked or locked[0].state not in ("waiting", "blocked"):
            return False
        now = locked[0]
        waited = Waited(
            now.id, now.queue, now.draws, now.terms, now.held, now.passed, now.has_costs, now.delayed, now.run_at
        )
        after = replacement(waited, new)
        before, lane, job = Lane(*waited.lane), Lane(*after.lane), after.new
        await self._session.execute(
            "replace_job",
            id=now.id,
            payload=job.payload,
            queue=job.queue,
            priority=job.priority,
            delayed=job.delayed,
            run_at=job.run_at,
            expires_at=job.expires_at,
            give_up_at=job.give_up_at,
            draws=as_json(job.draws),
            costs=optional_json(job.costs),
            headers=optional_json(job.headers),
            options=optional_json(job.options),
            terms=optional_json(job.terms),
            gate=job.known_by,
            audit=int(job.audit),
            lane=lane.id,
            held=after.held,
        )
        if not after.draws_alike:
            await self._session.execute("forget_starts", id=now.id)
        if now.state == "waiting":
            here = arrival_of(lane, job.run_at, delayed=job.delayed)
            await arrive(self._tx, [Arrival(before, -1), here])
        given = None
        if after.gone and now.terms is not None:
            given = Given(now.id, now.id, now.draws, now.terms, after.gone, difference(now.held, after.gone))
        note = note_of(given, before.id if now.has_costs and now.state == "waiting" else None, before.draws)
        if note is not None:
            self.notes.append(note)
        return True


def _read(row: Any) -> Standing:
    id, state, queue, draws, terms, held, passed, has_costs, delayed, run_at = row
    return Standing(id, state, queue, *draws_and_terms(id, draws, terms), held, passed, has_costs, delayed, run_at)


def _stands(rows: Iterable[Standing]) -> Stands:
    waiting = next((row.id for row in rows if row.state != "running"), None)
    running = next((row.id for row in rows if row.state == "running"), None)
    return Stands(waiting, running)
