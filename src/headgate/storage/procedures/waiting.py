"""Waiting jobs that leave their lanes without running, or move to another lane.

Jobs are locked first, and then the buckets that they affect. A user's transaction may have locked a job, so no
transaction that has locked a bucket waits for a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from headgate.jobs.audit import AuditRecord
from headgate.jobs.bucket_mask import NO_BUCKETS, chosen, difference, intersection, mask_where, union
from headgate.jobs.job import BucketRef, JobState
from headgate.jobs.lifecycle import (
    CANCEL_REQUESTED,
    Unchanged,
    new_time,
    require_retriable,
    require_scheduled,
    require_waiting,
)
from headgate.jobs.limit_sets import LimitSetChange
from headgate.jobs.terms import LimitTerms, kept_permits
from headgate.jobs.uniqueness import KeyTaken
from headgate.limits.concurrency import load_permits
from headgate.storage.driver import Transaction
from headgate.storage.endings import late_ending
from headgate.storage.procedures import following
from headgate.storage.procedures.audit import add_audit_record, add_job_audit_records
from headgate.storage.procedures.buckets import (
    lock_buckets,
    release_unused_batches,
    return_permits,
)
from headgate.storage.procedures.lanes import (
    LOCKED_JOBS,
    Arrival,
    Lane,
    LockedJob,
    add_arrivals,
    arrival_of,
    lane_of,
    leave,
    reopen_behind,
)
from headgate.storage.procedures.unique import rivals
from headgate.storage.records import Dropped
from headgate.storage.statements import as_json, optional_json
from headgate.storage.stored_rows import RowDecoder


class _Expired(LockedJob):
    """A waiting or blocked job whose time to start has passed, and the bucket that its lane waits behind."""

    expires_at: int | None
    give_up_at: int | None
    lane_id: str
    limit: str | None
    key: str | None


_EXPIRED = RowDecoder(_Expired, "job", state=JobState.WAITING)


async def cancel(
    tx: Transaction, job_id: str, *, audit_record: AuditRecord | None = None, waiting_only: bool = False
) -> JobState | None:
    """Cancel a waiting job, or request the cancellation of a running one unless `waiting_only`.

    Returns the state it was in, None if there is no such job; a final job is left as it is. A verb that takes a
    `audit_record` stores it in the commit that changes something; for a job, only if the job is audited in full.
    Raises Unchanged if the cancellation was requested before.
    """
    found = await _locked(tx, job_id)
    if found is None:
        return None
    if waiting_only and found.state is not JobState.WAITING:
        return found.state
    # Asked under the lock: of two requests at the same time, one has changed something.
    if found.state is JobState.RUNNING and not await tx.execute("request_cancel", id=found.id):
        raise Unchanged(CANCEL_REQUESTED)
    if not found.state.is_final:
        await add_audit_record(tx, audit_record)
    ended = found.ended(JobState.CANCELLED)
    if found.is_blocked:
        await following.end_blocked(tx, [(found.id, JobState.CANCELLED, None)])
        await following.resolve_followers(tx, [ended])
    elif found.state is JobState.WAITING:
        await tx.execute("cancel_waiting", id=found.id, now=tx.now)
        await leave(tx, found)
        await return_permits(tx, found.gives(difference(found.held, found.kept(JobState.CANCELLED))))
        await following.resolve_followers(tx, [ended])
    return found.state


async def retry(tx: Transaction, job_id: str, *, audit_record: AuditRecord | None = None) -> JobState | None:
    """Let a failed or cancelled job wait again, with all its attempts.

    It is blocked if its leader is not final, and skipped if it is not needed after its leader's end: its batch and what
    follows it go on. Its followers that were cancelled because of it are blocked again. Raises LeaderNotRetried if it
    needs the success of a leader that failed or was cancelled: the leader has to be retried first. Returns the state
    it was in, None if there is no such job. Raises IllegalTransition for any other state.
    """
    found = await _locked(tx, job_id, is_retried=True)
    if found is None:
        return None
    require_retriable(job_id, found.state)
    place = await following.placement_of_retried(tx, found.id, found.follows, found.outcome)
    for found_rival in await rivals(tx, [found.id]):
        if found_rival.rival is not None:
            raise KeyTaken(found.id, found_rival.rival)
    await add_audit_record(tx, audit_record)
    terms = None if found.terms is None else found.terms.retried(found.attempt)
    if terms != found.terms:
        await tx.execute("change_terms", id=found.id, terms=optional_json(terms))
    ended = found.ended(found.state)
    # This may wait for a transaction that stores another job under its key, so batches and buckets are locked later.
    if place.is_blocked or place.state.is_final:
        await tx.execute("block", ids=[found.id], now=tx.now, is_retry=True)
        await following.undo_end(tx, ended)
        await return_permits(tx, found.gives(found.held))
        if place.state.is_final:
            await following.end_blocked(tx, [(found.id, place.state, None)])
            await following.resolve_followers(tx, [found.ended(place.state)])
        return found.state
    lane = lane_of(found.queue, found.buckets, found.terms, found.held)
    await tx.execute("retry_jobs", retried=[(found.id, lane.id, found.waits_until(tx.now), None)], now=tx.now)
    await following.undo_end(tx, ended)
    await add_arrivals(tx, [arrival_of(lane, tx.now, found.rank + tx.now - found.run_at, delayed=False)])
    return found.state


async def retry_lone(
    tx: Transaction, job_ids: Sequence[str], *, audit_records: Sequence[AuditRecord] = ()
) -> list[str]:
    """Retry those of the jobs that concern no other job, no batch and no unique key, in one commit; return their ids.

    Jobs in another state and jobs that another transaction has locked are left as they are. So it waits for no job, and
    locks no bucket.
    """
    found = await tx.fetch(LOCKED_JOBS, "lock_lone_final", ids=list(job_ids))
    ids = [job.id for job in found]
    await add_job_audit_records(tx, [record for record in audit_records if record.subject in set(ids)])
    retried: list[tuple[Any, ...]] = []
    ranks: dict[Lane, list[int]] = {}
    for job in found:
        lane = lane_of(job.queue, job.buckets, job.terms, job.held)
        terms = None if job.terms is None else job.terms.retried(job.attempt)
        changed = None if terms == job.terms else optional_json(terms)
        retried.append((job.id, lane.id, job.waits_until(tx.now), changed))
        ranks.setdefault(lane, []).append(job.rank + tx.now - job.run_at)
    if retried:
        await tx.execute("retry_jobs", retried=retried, now=tx.now)
        await add_arrivals(tx, [Arrival(lane, len(of), is_ready=True, rank=min(of)) for lane, of in ranks.items()])
    return ids


async def run_now(tx: Transaction, job_id: str, *, audit_record: AuditRecord | None = None) -> JobState | None:
    """Make a waiting job ready whose `run_at` is in the future; its limits still apply.

    Returns the state it was in, None if there is no such job. Raises IllegalTransition if it is not scheduled.
    """
    found = await _locked(tx, job_id)
    if found is None:
        return None
    require_scheduled(
        job_id,
        found.state,
        is_ahead=found.delayed and found.run_at > tx.now,
        follows=found.follows if found.is_blocked else None,
    )
    rank = await tx.value("run_now", id=found.id, now=tx.now, give_up_at=found.waits_until(tx.now))
    # The job is already counted in its lane, which only has to be visited.
    await add_arrivals(tx, [arrival_of(found.lane, tx.now, rank, delayed=False, jobs=0)])
    await add_audit_record(tx, audit_record)
    return found.state


async def reschedule(
    tx: Transaction,
    job_id: str,
    *,
    run_at: int | None = None,
    priority: int | None = None,
    audit_record: AuditRecord | None = None,
) -> JobState | None:
    """Change the `run_at` of a waiting job, its priority, or both; None leaves it as it is.

    A `run_at` in the past means now. The time that it may wait for its limits counts from the new `run_at`. Returns
    the state it was in, None if there is no such job. Raises IllegalTransition if it is not waiting; it may be
    blocked. Raises Unchanged if it has that time and priority.
    """
    found = await _locked(tx, job_id)
    if found is None:
        return None
    require_waiting(job_id, found.state)
    time = new_time(found.run_at, run_at, tx.now, delayed=found.delayed)
    rank = await tx.value(
        "reschedule",
        id=found.id,
        run_at=time.run_at,
        delayed=time.delayed,
        priority=priority,
        give_up_at=found.waits_until(time.run_at) if time.has_changed else None,
    )
    if rank is None:
        raise Unchanged
    if not found.is_blocked:
        if found.has_costs:
            await reopen_behind(tx, [found.lane.id])
        if time.has_changed or rank < found.rank:
            # The job is already counted in its lane, which needs its new time, or its rank if that is lower.
            await add_arrivals(tx, [arrival_of(found.lane, time.run_at, rank, delayed=time.delayed, jobs=0)])
    await add_audit_record(tx, audit_record)
    return found.state


async def expire(
    tx: Transaction,
    held: frozenset[str],
    count: int,
    lanes: Sequence[str] | None = None,
    tasks: Sequence[str] = (),
) -> list[Dropped]:
    """End up to `count` waiting jobs whose `expires_at` or `give_up_at` has passed: of all, or of tasks in lanes.

    Jobs that another transaction has locked, or that are `held`, are left for later. Raises FollowersHeld.
    """
    late = await tx.fetch(
        _EXPIRED, "expired", now=tx.now, count=count, lanes=lanes, tasks=list(tasks), held=sorted(held)
    )
    if not late:
        return []
    await lock_buckets(tx, {ref for job in late for ref in job.affected_buckets})
    # A job that has moved to another lane since it was read is left to the next call.
    unmoved = {row.place for row in await tx.fetch(LOCKED_JOBS, "lock_waiting", ids=[job.id for job in late])}
    late = [job for job in late if job.place in unmoved]
    dropped = [_dropped(job, tx.now) for job in late]
    ended = await tx.fetch(following.ENDED_JOBS, "drop_waiting", dropped=dropped, now=tx.now)
    await reopen_behind(tx, {job.lane_id for job in late if job.has_costs and not job.is_blocked})
    await add_arrivals(tx, [Arrival(job.lane, -1) for job in late if not job.is_blocked])
    given = [job.gives(difference(job.held, each.kept)) for job, each in zip(late, dropped, strict=True)]
    await return_permits(tx, itertools.chain.from_iterable(given))
    await following.resolve_followers(tx, ended)
    return dropped


def _dropped(job: _Expired, now: int) -> Dropped:
    behind = None if job.limit is None else BucketRef(job.limit, job.key or "")
    state, error = late_ending(now, job.expires_at, job.give_up_at, job.terms, job.attempt, behind)
    return Dropped(job.id, job.task, job.queue, state, error, job.attempt, job.lane_id, job.kept(state))


async def change_limit_sets(tx: Transaction, jobs: Sequence[LimitSetChange]) -> int:
    """Move jobs that are still waiting to the lanes of their new buckets. Returns how many were moved.

    They keep their priority and their order by `run_at`, and nodes with the new limit set can start them. A permit that
    a job holds and no longer needs is returned.

    With several writers, it is many transactions.
    """
    leaving = [job for job in jobs if not job.stays]
    moved: set[str] = set()
    if leaving and not tx.has_one_writer:
        async with tx.atomic():
            moved = await _change_plain_limit_sets(tx, leaving)
    count = len(moved)
    for job in leaving:
        if job.id not in moved:
            async with tx.atomic():
                count += await _change_limit_set(tx, job)
    stays = [job for job in jobs if job.stays]
    # Their buckets stay, and their limit set changes.
    return count + (await tx.execute("change_limit_set_names", stays=stays) if stays else 0)


async def _change_plain_limit_sets(tx: Transaction, jobs: Sequence[LimitSetChange]) -> set[str]:
    """Move, all at once, the jobs that hold nothing and have never been tried. Returns the ids of the moved jobs."""
    by_id = {job.id: job for job in jobs}
    moved: dict[str, tuple[Any, ...]] = {}
    arrivals: list[Arrival] = []
    for row in await tx.fetch(LOCKED_JOBS, "lock_plain", ids=list(by_id)):
        job = by_id[row.id]
        if row.buckets == job.before:
            lane = lane_of(row.queue, job.buckets, job.terms)
            waits = (_patience(row.terms), _patience(job.terms))
            moved[job.id] = (job.id, job.buckets, job.costs, job.terms, lane.id, job.limit_set, *waits)
            arrivals.append(Arrival(row.lane, -1))
            arrivals.append(arrival_of(lane, row.run_at, row.rank, delayed=row.delayed))
    if moved:
        await tx.execute("change_plain_limit_sets", changed=list(moved.values()), now=tx.now)
        await add_arrivals(tx, arrivals)
    return set(moved)


async def _change_limit_set(tx: Transaction, job: LimitSetChange) -> bool:
    """Move a job that is still waiting to the lane of its new buckets, unless another transaction has locked it."""
    found = await _locked(tx, job.id, waits=False)
    if found is None or found.state is not JobState.WAITING or found.buckets != job.before:
        return False
    held = kept_permits(job.id, found.buckets, found.terms, found.held, job.buckets, job.terms)
    released = difference(found.held, mask_where(ref in held for ref in found.buckets))
    await return_permits(tx, found.gives(released))
    kept = mask_where(ref in held for ref in job.buckets)
    passed = NO_BUCKETS if job.terms is None or not found.passed else job.terms.free_retries
    lane = lane_of(found.queue, job.buckets, job.terms, union(kept, passed))
    values = {"id": found.id, "buckets": as_json(job.buckets), "costs": optional_json(job.costs)}
    await tx.execute("forget_other_starts", **values)
    await tx.execute(
        "change_limit_set",
        **values,
        terms=optional_json(job.terms),
        held=kept,
        passed=passed,
        lane=lane.id,
        limit_set=job.limit_set,
        had=_patience(found.terms),
        patience=_patience(job.terms),
        now=tx.now,
    )
    if not found.is_blocked:
        await leave(tx, found)
        await add_arrivals(tx, [arrival_of(lane, found.run_at, found.rank, delayed=found.delayed)])
    return True


def _patience(terms: LimitTerms | None) -> int | None:
    return None if terms is None else terms.patience or None


async def release_failed(tx: Transaction, jobs: Sequence[LimitSetChange]) -> int:
    """Release the permits that failed jobs would not keep under their new buckets and terms. Returns of how many.

    The jobs themselves stay as they are.

    With several writers, each job has a transaction.
    """
    count = 0
    for job in jobs:
        async with tx.atomic():
            found = await _locked(tx, job.id, waits=False)
            if found is None or found.state is not JobState.FAILED or found.buckets != job.before:
                continue
            held = kept_permits(job.id, found.buckets, found.terms, found.held, job.buckets, job.terms)
            lasting = NO_BUCKETS if job.terms is None else job.terms.kept(job.terms.permits, JobState.FAILED)
            kept = held.intersection(chosen(job.buckets, lasting))
            released = difference(found.held, mask_where(ref in kept for ref in found.buckets))
            count += bool(await return_permits(tx, found.gives(released)))
    return count


async def release_idle(tx: Transaction, ref: BucketRef) -> int:
    """Take the permits of a bucket from jobs that are not running. Returns how many permits others hold."""
    rows = await lock_buckets(tx, [ref])
    if not rows or not load_permits(rows[0].state).holders:
        return 0
    for job in await tx.fetch(LOCKED_JOBS, "idle_holders", needle=as_json(ref)):
        given = intersection(job.held, mask_where(each == ref for each in job.buckets))
        if given and job.terms is not None:
            await return_permits(tx, job.gives(given))
            if job.state is JobState.WAITING:
                # It will use that permit again, so its lane is another one.
                kept = difference(job.held, given)
                lane = lane_of(job.queue, job.buckets, job.terms, union(kept, job.passed))
                await tx.execute("set_held", id=job.id, held=kept, passed=job.passed, lane=lane.id)
                await leave(tx, job)
                await add_arrivals(tx, [arrival_of(lane, job.run_at, job.rank, delayed=job.delayed)])
    return await release_unused_batches(tx, ref)


async def _locked(tx: Transaction, job_id: str, *, is_retried: bool = False, waits: bool = True) -> LockedJob | None:
    """Return the job, locked before the buckets to which it may return permits; one that is retried after its leader.

    Unless it `waits` for the lock, None also for a job that another transaction has locked.
    """
    if is_retried:
        rows = await tx.fetch(LOCKED_JOBS, "find_job", id=job_id)
        if not rows:
            return None
        if rows[0].follows is not None:
            await following.locked_ends(tx, [rows[0].follows])
    rows = await tx.fetch(LOCKED_JOBS, "lock_job" if waits else "lock_job_if_free", id=job_id)
    if not rows:
        return None
    if not is_retried:
        await lock_buckets(tx, rows[0].affected_buckets)
    return rows[0]
