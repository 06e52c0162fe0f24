"""Unique keys: at most one job of a task waits under each.

Where several clients write, an insertion waits for other open insertions under the same key. So after a job is
inserted, the index lets no other job wait under its key, and a later statement sees every job that was claimed before.
Whichever of several jobs comes first, the others find it.

The transaction may be a user's and stay open for long. So it locks only jobs under the key: the one that is replaced,
or the running one that gets a successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from headgate.errors import LeaderNotFound, StorageUnavailable
from headgate.jobs.batch import NewBatch
from headgate.jobs.draw_set import DrawSet, difference
from headgate.jobs.job import Draw, NewJob
from headgate.jobs.replacing import WaitingJob, replacement
from headgate.jobs.terms import GateTerms
from headgate.jobs.uniqueness import (
    FollowRunning,
    KeepExisting,
    Key,
    KeyHolders,
    ReplaceWaiting,
    StoreNew,
    decide,
    following,
    key_of,
    require_no_duplicate,
    successor,
)
from headgate.storage.driver import Transaction
from headgate.storage.json_text import as_json, optional_json
from headgate.storage.permits import PermitRelease
from headgate.storage.procedures.add import add_jobs
from headgate.storage.procedures.history import note_enqueued
from headgate.storage.procedures.lanes import Arrival, Lane, add_arrivals, arrival_of
from headgate.storage.procedures.replacement_notes import ReplacementNote, give_back, keep_notes, note_of
from headgate.storage.stored_rows import RowDecoder

TRIES = 100
"""How often another job under the key may disappear between two statements before the addition fails."""


class ClaimedMeanwhile(Exception):
    """A job under the key was claimed while another one was stored; the addition has to be rolled back."""


class WaitingRival(msgspec.Struct):
    """A job that is not waiting, its unique key, and the job that is waiting under that key, if any."""

    id: str
    task: str
    unique_key: str
    rival: str | None


class UniqueJob(msgspec.Struct):
    """A job under a unique key that is not final."""

    id: str
    task: str
    unique_key: str
    state: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet
    has_costs: bool
    delayed: bool
    run_at: int


_RIVALS = RowDecoder(WaitingRival, "job")
_KEYED = RowDecoder(UniqueJob, "job", state="waiting")


async def rivals(tx: Transaction, ids: Sequence[str]) -> list[WaitingRival]:
    """Return those of these jobs that have unique keys, each with the job that is waiting under its key."""
    return await tx.fetch(_RIVALS, "unique_rivals", ids=ids) if ids else []


async def enlist(tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Store jobs in a user's transaction and count that they were enqueued; otherwise as `add_unique`."""
    others: dict[str, str] = {}
    if any(job.unique_key is not None for job in jobs):
        others = await add_unique(tx, jobs, is_users=True)
    else:
        await add_jobs(tx, jobs)
    await note_enqueued(tx, [job for job in jobs if job.id not in others])
    return others


async def add_unique(
    tx: Transaction, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = (), *, is_users: bool = False
) -> dict[str, str]:
    """Store jobs some of which have unique keys. Returns, by the ids of duplicates, the existing jobs.

    Raises DuplicateJob; with one writer, nothing is written then. In a user's transaction no bucket is locked, and
    ClaimedMeanwhile is raised if the addition has to be rolled back and repeated.
    """
    # A repeat after a lost reply changes nothing.
    stored = set(await tx.values("stored_ids", ids=[job.id for job in jobs]))
    new = [job for job in jobs if job.id not in stored]
    addition = _Addition(tx, is_users=is_users)
    await addition.read([key for job in new if (key := key_of(job)) is not None])
    require_no_duplicate(new, addition.holders)
    if batches:
        await add_jobs(tx, (), batches)
    others: dict[str, str] = {}
    for is_unique, group in groupby(new, key=lambda job: job.unique_key is not None):
        if not is_unique:
            await add_jobs(tx, [following(job, others) for job in group])
            continue
        for job in group:
            other = await addition.add(following(job, others))
            if other is not None:
                others[job.id] = other
    await addition.end()
    return others


class _Addition:
    """Stores one job after the other."""

    def __init__(self, tx: Transaction, *, is_users: bool) -> None:
        self._tx = tx
        self._is_users = is_users and not tx.has_one_writer
        self._known: dict[Key, list[UniqueJob]] = {}
        self._notes: list[ReplacementNote] = []

    async def read(self, keys: Iterable[Key]) -> None:
        """Read the jobs under these keys."""
        self._known = {key: [] for key in keys}
        rows = list(self._known)
        for row in await self._tx.fetch(_KEYED, "jobs_under_keys", keys=rows) if rows else []:
            self._known[row.task, row.unique_key].append(row)

    @property
    def holders(self) -> dict[Key, KeyHolders]:
        """The jobs that have been read, by key."""
        return {key: _key_holders(rows) for key, rows in self._known.items()}

    async def add(self, job: NewJob) -> str | None:
        """Store a job. Returns the id of the existing job that takes its place, None if it was stored."""
        for _ in range(TRIES):
            rows = await self._read_key(job)
            match decide(job, _key_holders(rows)):
                case StoreNew():
                    if await self._try_insert(job):
                        return None
                case KeepExisting(id):
                    return id
                case ReplaceWaiting(id):
                    if await self._try_replace(next(row for row in rows if row.id == id), job):
                        return id
                case FollowRunning(id):
                    if await self._try_follow(successor(job, id)):
                        return None
        raise StorageUnavailable(
            f"other jobs of task {job.task!r} kept appearing and ending under unique_key={job.unique_key!r}; try again"
        )

    async def end(self) -> None:
        """Give back the permits and costs of replaced jobs. It comes last, because `add` may wait for other keys."""
        if self._notes:
            await (keep_notes if self._is_users else give_back)(self._tx, self._notes)

    async def _read_key(self, job: NewJob) -> list[UniqueJob]:
        key = key_of(job)
        assert key is not None
        # What was read is valid for the first job under a key, once.
        rows = self._known.pop(key, None)
        return await self._tx.fetch(_KEYED, "jobs_under_keys", keys=[key]) if rows is None else rows

    async def _try_insert(self, job: NewJob) -> bool:
        """Insert a job. Returns whether it is stored, and no other job under the key had begun to run before."""
        await add_jobs(self._tx, [job])
        if job.rejection is not None or self._tx.has_one_writer:
            # A rejected job is not waiting, so it conflicts with no other.
            return True
        rows = await self._read_key(job)
        is_there = any(row.id == job.id for row in rows)
        if is_there and any(row.state == "running" for row in rows):
            if self._is_users:
                # A deleted row stays in the index until the commit: the running job could not wait again.
                raise ClaimedMeanwhile
            await self._tx.execute("delete_job", id=job.id)
            if next(row for row in rows if row.id == job.id).state == "waiting":
                await add_arrivals(self._tx, [Arrival(Lane(job.queue, job.draws, job.variant), -1)])
            return False
        return is_there

    async def _try_follow(self, job: NewJob) -> bool:
        """Insert a job that follows the running one, locked so that it ends later. Returns whether it is stored."""
        try:
            await add_jobs(self._tx, [job])
        except LeaderNotFound:
            return False
        if job.rejection is not None:
            # It is final at once, so it is under no key.
            return True
        return any(row.id == job.id for row in await self._read_key(job))

    async def _try_replace(self, row: UniqueJob, new: NewJob) -> bool:
        """Replace a waiting job by a new one. Returns whether it was still waiting."""
        locked = await self._tx.fetch(_KEYED, "lock_job_under_key", id=row.id)
        if not locked or locked[0].state not in ("waiting", "blocked"):
            return False
        now = locked[0]
        waited = WaitingJob(
            now.id, now.queue, now.draws, now.terms, now.held, now.passed, now.has_costs, now.delayed, now.run_at
        )
        after = replacement(waited, new)
        before, lane, job = Lane(*waited.lane), Lane(*after.lane), after.new
        rank = await self._tx.value(
            "replace_job",
            id=now.id,
            payload=job.payload,
            queue=job.queue,
            priority=job.priority,
            delayed=job.delayed,
            run_at=job.run_at,
            aging=job.aging,
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
            await self._tx.execute("forget_starts", id=now.id)
        in_lane = now.state == "waiting"
        given = None
        if after.gone and now.terms is not None:
            given = PermitRelease(now.id, now.draws, now.terms, after.gone, difference(now.held, after.gone))
        note = note_of(given, before.id if now.has_costs and in_lane else None, before.draws)
        if note is not None and self._tx.has_one_writer:
            # At once, while its lane still waits behind the bucket that may have been closed for its cost.
            await give_back(self._tx, [note])
        elif note is not None:
            self._notes.append(note)
        if in_lane:
            arrival = arrival_of(lane, job.run_at, rank, delayed=job.delayed)
            await add_arrivals(self._tx, [Arrival(before, -1), arrival])
        return True


def _key_holders(rows: Iterable[UniqueJob]) -> KeyHolders:
    waiting = next((row.id for row in rows if row.state != "running"), None)
    running = next((row.id for row in rows if row.state == "running"), None)
    return KeyHolders(waiting, running)
