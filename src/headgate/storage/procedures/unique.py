"""Unique keys: at most one job of a task waits under each.

Where several clients write, an insertion waits for other open insertions under the same key. So after a job is
inserted, the index lets no other job wait under its key, and a later statement sees every job that was claimed before.
Whichever of several jobs comes first, the others find it.

A key that stays taken beyond its job has a row of its own. It is written by the transaction that stores the job, so the
same index makes others wait for it.

The transaction may be a user's and stay open for long. So it locks only jobs under the key: the one that is replaced,
or the running one that gets a successor.

Where several clients write, a waiting job that is replaced may have held a permit, or the cost for which a bucket was
closed. It is noted in a new row, because the transaction locks nothing but the job. The next claim after the commit
gives it back, with the buckets locked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.errors import IdInUse, LeaderNotFound, StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.jobs.bucket_mask import BucketMask, difference, mask_where
from headgate.jobs.identity import JobId
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.terms import kept_permits
from headgate.jobs.uniqueness import (
    FollowRunning,
    KeepExisting,
    Key,
    KeyHolders,
    ReplaceWaiting,
    StoreNew,
    decide,
    in_lock_order,
    in_sets,
    is_free,
    key_of,
    may_have_duplicates,
    postponed,
    require_no_duplicate,
    successor,
    was_stored,
)
from headgate.storage.driver import Transaction
from headgate.storage.procedures.add import add_jobs, add_tags, remove_tags, require_own, stored_jobs
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.procedures.buckets import leaving_holders, lock_buckets, remove_holders
from headgate.storage.procedures.history import note_enqueued
from headgate.storage.procedures.lanes import (
    LOCKED_JOBS,
    Arrival,
    Lane,
    LockedJob,
    add_arrivals,
    arrival_of,
    lane_of,
    reopen_behind,
)
from headgate.storage.statements import as_json, optional_json
from headgate.storage.stored_rows import RowDecoder

TRIES = 100
"""How often another job under the key may disappear between two statements before the addition fails."""

NOTES_AT_ONCE = 1000


class ClaimedMeanwhile(Exception):
    """A job under the key was claimed while another one was stored; the addition has to be rolled back."""


class WaitingRival(msgspec.Struct):
    """A job that is not waiting, its unique key, and the job that is waiting under that key, if any."""

    id: JobId
    task: str
    unique_key: str
    rival: JobId | None


class _Replacement(NamedTuple):
    """The job after the replacement, the permits that it still holds, and the ones that it gives back (`released`).

    Its attempts are reset. With `has_same_buckets` the starts of its earlier attempts still belong to the limits that
    it uses; otherwise they are dropped.
    """

    new: NewJob
    held: BucketMask
    released: BucketMask
    lane: Lane
    has_same_buckets: bool


class ReplacementNote(msgspec.Struct):
    """The permits that a replaced job gives back, by bucket and holder; for a job with costs also its lane.

    For those costs, one of the buckets of the lane may have been closed.
    """

    permits: list[tuple[BucketRef, str]]
    lane: str | None
    buckets: tuple[BucketRef, ...]
    id: int = 0


_RIVALS = RowDecoder(WaitingRival, "job")
NOTES = RowDecoder(ReplacementNote, "replacement note")


async def rivals(tx: Transaction, ids: Sequence[str]) -> list[WaitingRival]:
    """Return those of these jobs that have unique keys, each with the job that is waiting under its key."""
    return await tx.fetch(_RIVALS, "unique_rivals", ids=ids) if ids else []


async def enlist(tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Store jobs in a user's transaction and count that they were enqueued; otherwise as `add_unique`."""
    duplicates: dict[str, str] = {}
    if may_have_duplicates(jobs):
        duplicates = await add_unique(tx, jobs, is_users=True)
    else:
        await add_jobs(tx, jobs)
    await note_enqueued(tx, [job for job in jobs if job.id not in duplicates])
    return duplicates


async def add_unique(tx: Transaction, jobs: Sequence[NewJob], *, is_users: bool = False) -> dict[str, str]:
    """Store jobs some of which have unique keys or their own ids. Returns, by the ids of duplicates, the existing jobs.

    None of them follows a job or is in a batch. Raises DuplicateJob and IdInUse; with one writer, nothing is written
    then. In a user's transaction no bucket is locked, and ClaimedMeanwhile is raised if the addition has to be rolled
    back and repeated.
    """
    # A repeat after a lost reply changes nothing.
    stored = await require_own(tx, jobs)
    duplicates = await _stored_before(tx, [job for job in jobs if job.id in stored])
    new = [job for job in jobs if job.id not in stored]
    addition = _Addition(tx, is_users=is_users)
    holders = await addition.read(new)
    require_no_duplicate(new, holders)
    if not tx.has_one_writer:
        new = in_lock_order(new)
    for are_free, group in in_sets(new, holders):
        # Of those that seemed free, other clients may have taken the keys of some.
        for job in await addition.insert(group) if are_free else group:
            other = await addition.add(job)
            if other is not None:
                duplicates[job.id] = other
    await addition.end()
    if not tx.has_one_writer:
        # Another client may have stored jobs under these ids meanwhile.
        duplicates |= await _stored_before(tx, [job for job in new if job.id not in duplicates])
    return duplicates


async def _stored_before(tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Return the ids of those of these jobs that another enqueue has stored. Raises IdInUse."""
    own = {job.id: job for job in jobs if job.has_own_id}
    rows = await stored_jobs(tx, list(own)) if own else []
    for row in rows:
        if row.own_id != row.id:
            # Another text with the same number: there is one for each 2 ** 63.
            raise IdInUse(row.id, own[row.id].task, row.task)
    return {row.id: row.id for row in rows if was_stored(own[row.id], row.task, row.enqueued_at, row.enqueued_by)}


class _Addition:
    """Stores jobs in sets if they meet no other, and one after the other if they do."""

    def __init__(self, tx: Transaction, *, is_users: bool) -> None:
        self._tx = tx
        self._is_users = is_users and not tx.has_one_writer
        self._known: dict[Key, list[LockedJob]] = {}
        self._notes: list[ReplacementNote] = []
        self._beside: set[str] = set()

    async def read(self, jobs: Sequence[NewJob]) -> dict[Key, KeyHolders]:
        """Read and return the jobs that hold the keys of these jobs."""
        keys = sorted({key for job in jobs if (key := key_of(job)) is not None})
        known = _by_key(await self._under_keys(keys))
        self._known = {key: known[key] for key in keys}
        holders = {key: _key_holders(rows) for key, rows in self._known.items()}
        beside = {key_of(job) for job in jobs if self._is_users and not job.unique_terms.while_running}
        for key in keys:
            if key in beside and holders[key].waiting is None:
                # Jobs that run beside a new one must not end, as they could not wait again before this commits.
                running = [row.id for row in known[key] if row.state is JobState.RUNNING]
                for id in running:
                    await self._tx.fetch(LOCKED_JOBS, "lock_job", id=id)
                self._beside.update(running)
        return holders

    async def add(self, job: NewJob) -> str | None:
        """Store a job. Returns the id of the existing job that takes its place, None if it was stored."""
        for _ in range(TRIES):
            match decide(job, _key_holders(await self._read_key(job))):
                case StoreNew():
                    if not await self.insert([job]):
                        return None
                case KeepExisting(id):
                    return id
                case ReplaceWaiting(id, running):
                    if running is not None and job.rejection is None:
                        # Before the waiting job is locked, which may follow it.
                        await self._cancel(running, job)
                    if await self._try_replace(id, job):
                        return id
                case FollowRunning(id, cancels):
                    if await self._try_follow(successor(job, id), id):
                        if cancels and job.rejection is None:
                            await self._cancel(id, job)
                        return None
        raise StorageUnavailable(
            f"other jobs of task {job.task!r} kept appearing and ending under unique_key={job.unique_key!r}; try again"
        )

    async def end(self) -> None:
        """Give back the permits and costs of replaced jobs. It comes last, because `add` may wait for other keys."""
        if self._notes and self._is_users:
            await self._tx.execute("keep_replacement_notes", notes=self._notes)
        elif self._notes:
            await _give_back(self._tx, self._notes)

    async def _read_key(self, job: NewJob) -> list[LockedJob]:
        key = key_of(job)
        assert key is not None
        # What was read is valid for the first job under a key, once.
        rows = self._known.pop(key, None)
        return await self._under_keys([key]) if rows is None else rows

    async def _under_keys(self, keys: Sequence[Key]) -> list[LockedJob]:
        return await self._tx.fetch(LOCKED_JOBS, "jobs_under_keys", keys=keys, now=self._tx.now) if keys else []

    async def insert(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Insert jobs without a key, or each the only one under its key. Returns those that are not stored.

        Their keys had become taken by the time of the insertion, or a job under the key had begun to run before.
        """
        await add_jobs(self._tx, jobs)
        # A rejected job is not waiting, so it conflicts with no other.
        keyed = {key: job for job in jobs if job.rejection is None and (key := key_of(job)) is not None}
        for key in keyed:
            self._known.pop(key, None)
        again: list[NewJob] = []
        if not self._tx.has_one_writer and keyed:
            # Under their own ids, by another client meanwhile.
            stored = await _stored_before(self._tx, list(keyed.values()))
            keyed = {key: job for key, job in keyed.items() if job.id not in stored}
            under = _by_key(await self._under_keys(list(keyed)))
            again = [job for key, job in keyed.items() if not await self._is_first(job, under[key])]
        left = {job.id for job in again}
        await self._keep_keys([job for job in keyed.values() if job.id not in left])
        return again

    async def _is_first(self, job: NewJob, rows: Sequence[LockedJob]) -> bool:
        """Whether an inserted job is stored and no other under its key had begun to run before; else it is deleted."""
        if not _is_waiting(job, rows):
            return False
        is_first = is_free(job, _key_holders(rows)._replace(waiting=None))
        runs_beside = any(row.state is JobState.RUNNING and row.id not in self._beside for row in rows)
        if self._is_users and (runs_beside or not is_first):
            # Also a deleted row stays in the index until the commit: the running job could not wait again.
            raise ClaimedMeanwhile
        if is_first:
            return True
        await self._tx.execute("delete_job", id=job.id)
        await remove_tags(self._tx, [job])
        await add_arrivals(self._tx, [Arrival(Lane(job.queue, job.buckets, job.wait_mode), -1)])
        return False

    async def _try_follow(self, job: NewJob, running: str) -> bool:
        """Insert a job that follows the running one, locked so that it ends later. Returns whether it is stored."""
        try:
            await add_jobs(self._tx, [job])
        except LeaderNotFound:
            return False
        if job.rejection is not None:
            # It is final at once, so it is under no key.
            return True
        if not self._tx.has_one_writer and await _stored_before(self._tx, [job]):
            return True
        rows = await self._read_key(job)
        is_running = any(row.id == running and row.state is JobState.RUNNING for row in rows)
        # If it has ended before it was locked, another may have begun to run.
        if not (_is_waiting(job, rows) if is_running else await self._is_first(job, rows)):
            return False
        await self._keep_keys([job])
        return True

    async def _keep_keys(self, jobs: Iterable[NewJob]) -> None:
        """Keep the keys of stored jobs taken, of those that ask for that."""
        kept = [
            (job.task, job.unique_key, job.id, job.enqueued_at + job.unique_terms.taken_for)
            for job in jobs
            if job.unique_key is not None and job.unique_terms.taken_for is not None
        ]
        if kept:
            await self._tx.execute("keep_keys", kept=kept)

    async def _cancel(self, running: str, job: NewJob) -> None:
        """Request the cancellation of a running job for the job that comes instead."""
        if await self._tx.execute("cancel_running", id=running):
            actor = job.enqueued_by or job.task
            await add_audit_record(
                self._tx, AuditRecord(actor, "cancel", "job", running, f"job {job.id} was enqueued under its key")
            )

    async def _try_replace(self, id: str, new: NewJob) -> bool:
        """Replace a waiting job by a new one. Returns whether it was still waiting."""
        locked = await self._tx.fetch(LOCKED_JOBS, "lock_job", id=id)
        if not locked or locked[0].state is not JobState.WAITING:
            return False
        now = locked[0]
        after = _replacement(now, postponed(new, now.options, is_tried=now.attempt > 0))
        before, lane, job = now.lane, after.lane, after.new
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
            buckets=as_json(job.buckets),
            costs=optional_json(job.costs),
            headers=optional_json(job.headers),
            options=optional_json(job.options),
            terms=optional_json(job.terms),
            limit_set=job.limit_set or job.task,
            audit=int(job.audit),
            lane=lane.id,
            held=after.held,
        )
        if not after.has_same_buckets:
            await self._tx.execute("forget_starts", id=now.id)
        await remove_tags(self._tx, [now])
        await add_tags(self._tx, [job])
        note = _note_of(now, after.released)
        if note is not None and self._tx.has_one_writer:
            # At once, while its lane still waits behind the bucket that may have been closed for its cost.
            await _give_back(self._tx, [note])
        elif note is not None:
            self._notes.append(note)
        if not now.is_blocked:
            arrival = arrival_of(lane, job.run_at, rank, delayed=job.delayed)
            await add_arrivals(self._tx, [Arrival(before, -1), arrival])
        return True


def _replacement(old: LockedJob, new: NewJob) -> _Replacement:
    """Return the new job with the id of the old one, and its place if both are in one lane and not delayed."""
    keeps = kept_permits(old.id, old.buckets, old.terms, old.held, new.buckets, new.terms)
    held = mask_where(ref in keeps for ref in new.buckets)
    released = difference(old.held, mask_where(ref in keeps for ref in old.buckets))
    lane = lane_of(new.queue, new.buckets, new.terms, held)
    stays = lane == old.lane
    run_at = old.run_at if stays and not old.delayed and not new.delayed else new.run_at
    has_same_buckets = old.buckets == new.buckets and not old.has_costs and new.costs is None
    return _Replacement(replace(new, id=old.id, run_at=run_at), held, released, lane, has_same_buckets)


def _note_of(old: LockedJob, released: BucketMask) -> ReplacementNote | None:
    """Return the note for a replaced job that loses these permits; None if it gives nothing back."""
    lane = old.lane
    closing = lane.id if old.has_costs and not old.is_blocked else None
    leaving = leaving_holders(old.gives(released))
    if not leaving and closing is None:
        return None
    permits = [(ref, holder) for ref, holders in leaving.items() for holder in holders]
    return ReplacementNote(permits, closing, lane.buckets)


def _by_key(rows: Iterable[LockedJob]) -> defaultdict[Key, list[LockedJob]]:
    by_key: defaultdict[Key, list[LockedJob]] = defaultdict(list)
    for row in rows:
        by_key[row.task, row.unique_key or ""].append(row)
    return by_key


def _key_holders(rows: Sequence[LockedJob]) -> KeyHolders:
    # Of several running ones the first.
    ids = {row.state: row.id for row in reversed(rows)}
    return KeyHolders(ids.get(JobState.WAITING), ids.get(JobState.RUNNING), ids.get(JobState.SUCCEEDED))


def _is_waiting(job: NewJob, rows: Iterable[LockedJob]) -> bool:
    """Whether a job is among the rows under its key as one that waits."""
    return any(row.id == job.id and row.state is JobState.WAITING for row in rows)


async def give_back_noted(tx: Transaction) -> None:
    """Give back what is noted, in a transaction of its own; notes that another transaction has taken are left out."""
    await _give_back(tx, await tx.fetch(NOTES, "take_replacement_notes", count=NOTES_AT_ONCE))


async def _give_back(tx: Transaction, notes: Sequence[ReplacementNote]) -> None:
    """Give back the contents of notes, and let the next claim visit the lanes that wait for them."""
    leaving = holders_in(notes)
    await lock_buckets(tx, [*leaving, *(ref for note in notes if note.lane is not None for ref in note.buckets)])
    await remove_holders(tx, leaving)
    await reopen_behind(tx, [note.lane for note in notes if note.lane is not None])


def holders_in(notes: Iterable[ReplacementNote]) -> dict[BucketRef, list[str]]:
    """Return the holders that leave each bucket."""
    leaving: dict[BucketRef, list[str]] = {}
    for note in notes:
        for ref, holder in note.permits:
            leaving.setdefault(ref, []).append(holder)
    return leaving
