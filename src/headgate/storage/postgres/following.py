"""Jobs that follow others, and batches, in PostgreSQL.

A leader is locked before its followers, a job before its batch, and a batch before its followers. Whoever adds a job
that follows another locks that first: it is blocked only where the leader's end is sure to look for it.

A follower may be locked by a user's transaction that replaces it. It is not waited for: its leader does not end yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from headgate.jobs.batch import BatchRecord, NewBatch, ended_as
from headgate.jobs.job import Draw, JobError, JobState, NewJob
from headgate.jobs.terms import GateTerms
from headgate.storage.following import (
    BatchCount,
    Cause,
    Ended,
    EndedLeader,
    Place,
    Portion,
    batch_counts,
    is_let_go,
    leader_error,
    leaders_of,
    new_batch_counts,
    not_retried,
    places,
    went_wrong,
)
from headgate.storage.permits import draws_of_batch
from headgate.storage.postgres.arrivals import Arrival, arrive, lane_of
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.history import note_unrun
from headgate.storage.postgres.permits import give_up
from headgate.storage.postgres.rows import optional_json, readable_error
from headgate.storage.stored_rows import draws_and_terms

LEADERS_AT_ONCE = 100
"""Of how many leaders followers are looked for in one commit."""


R = TypeVar("R")


class FollowersHeld(Exception):
    """Somebody else has followers of these jobs locked, so that their ends cannot be written now; others' can."""

    def __init__(self, leaders: Collection[str]) -> None:
        super().__init__(*leaders)
        self.leaders = frozenset(leaders)


async def without_held(work: Callable[[frozenset[str]], Awaitable[R]]) -> R:
    """Do `work`, a transaction, without the jobs that it meets whose followers are held."""
    held: frozenset[str] = frozenset()
    while True:
        try:
            return await work(held)
        except FollowersHeld as met:
            if met.leaders <= held:
                raise AssertionError(f"{sorted(met.leaders)} were to be left out") from met
            held |= met.leaders


class _Follower(NamedTuple):
    id: str
    leader: str
    on: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    is_followed: bool
    batch: str | None


async def places_of(session: Session, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> dict[str, Place]:
    """Where new jobs go that belong to something. What they follow is locked until they are stored."""
    own = {job.id for job in jobs} | {batch.id for batch in batches}
    leaders = sorted(leaders_of(jobs) - own)
    ends = await _locked_ends(session, leaders) if leaders else {}
    return places(jobs, batches, ends, await _causes(session, went_wrong(ends)))


async def store_ties(
    session: Session, jobs: Sequence[NewJob], batches: Sequence[NewBatch], placed: dict[str, Place], now: int
) -> None:
    """Mark whom new jobs follow, and store their batches."""
    followed = leaders_of(jobs)
    if followed:
        await session.execute("mark_followed", ids=sorted(followed))
    if batches:
        counts = new_batch_counts(batches, jobs, placed)
        await session.execute(
            "add_batches",
            ids=[batch.id for batch in batches],
            totals=[batch.total for batch in batches],
            enqueued_at=[batch.enqueued_at for batch in batches],
            succeeded=[count.succeeded for count in counts],
            failed=[count.failed for count in counts],
            cancelled=[count.cancelled for count in counts],
            now=now,
        )


async def tell_followers(
    session: Session, ended: Sequence[Ended], now: int, limit_now: int, *, as_told: Sequence[Ended] = ()
) -> None:
    """Let go or cancel those who follow jobs that have just become final, and whoever follows these.

    Where they are many, the first ones; that others are left is noted, for `release_followers`. All of them are noted
    for the charts but those that are final `as_told` by their attempts: of these their nodes do it. Raises
    FollowersHeld of those among them whose ends reach jobs that somebody else has locked.
    """
    told = [*as_told, *ended]
    # For whose end among them each is told.
    roots = {job.id: {job.id} for job in told}
    leaders = await _leaders(session, told, roots, now, limit_now)
    cancelled = await _release(session, leaders, roots, Portion(), now, limit_now)
    await note_unrun(session, [job.id for job in ended] + cancelled, now)


async def release_followers(
    session: Session, most: int, now: int, limit_now: int, held: frozenset[str] = frozenset()
) -> int:
    """Go on with some leaders of whose followers others are left; with how many of them.

    Those that are `held` stay as they are noted. Raises FollowersHeld.
    """
    rows = await session.fetch("take_ended_leaders", count=LEADERS_AT_ONCE)
    ended = sorted(EndedLeader(id, JobState(state), after) for id, state, after in rows)
    await _keep_ended(session, [each for each in ended if each.id in held])
    leaders = [each for each in ended if each.id not in held]
    if leaders:
        roots = {each.id: {each.id} for each in leaders}
        await note_unrun(session, await _release(session, leaders, roots, Portion(most), now, limit_now), now)
    return len(leaders)


async def _leaders(
    session: Session, ended: Sequence[Ended], roots: dict[str, set[str]], now: int, limit_now: int
) -> list[EndedLeader]:
    """Those of the jobs that others follow, and their batches that are final now, in the order of their ids."""
    states = {job.id: job.state for job in ended if job.is_followed}
    states |= await _count(session, batch_counts(ended), now, limit_now)
    for job in ended:
        if job.batch in states:
            roots.setdefault(job.batch, set()).update(roots[job.id])
    return [EndedLeader(id, state) for id, state in sorted(states.items())]


async def _release(
    session: Session,
    leaders: Sequence[EndedLeader],
    roots: dict[str, set[str]],
    portion: Portion,
    now: int,
    limit_now: int,
) -> list[str]:
    """Release and cancel a portion of their followers, and note what is left; the ids of those that are cancelled."""
    unrun: list[str] = []
    while leaders and portion.left > 0:
        followers = await _lock_followers(session, leaders, roots, portion.left)
        portion.take(leaders, [(job.leader, job.id) for job in followers])
        cancelled = await _tell(session, followers, {each.id: each.state for each in leaders}, now, limit_now)
        unrun += [job.id for job in cancelled]
        leaders = await _leaders(session, cancelled, roots, now, limit_now)
    await _keep_ended(session, [*portion.rest, *leaders])
    return unrun


async def _keep_ended(session: Session, left: Sequence[EndedLeader]) -> None:
    if left:
        ids, states, afters = zip(*left, strict=True)
        await session.execute("keep_ended_leaders", ids=ids, states=states, afters=afters)


async def _lock_followers(
    session: Session, leaders: Sequence[EndedLeader], roots: dict[str, set[str]], most: int
) -> list[_Follower]:
    rows = await session.fetch(
        "lock_followers",
        leaders=[leader.id for leader in leaders],
        afters=[leader.after for leader in leaders],
        count=most,
    )
    held = [row for row in rows if row["draws"] is None]
    if held:
        raise FollowersHeld({root for row in held for root in roots[row["follows"]]})
    followers = [_follower(row) for row in rows]
    for job in followers:
        roots.setdefault(job.id, set()).update(roots[job.leader])
    return followers


async def _tell(
    session: Session, followers: Sequence[_Follower], leaders: dict[str, JobState], now: int, limit_now: int
) -> list[Ended]:
    released = [job for job in followers if is_let_go(job.on, leaders[job.leader])]
    cancelled = [job for job in followers if not is_let_go(job.on, leaders[job.leader])]
    if released:
        lanes = {job.id: lane_of(job.queue, job.draws, job.terms) for job in released}
        written = await session.fetch(
            "release",
            ids=[job.id for job in released],
            lanes=[lanes[job.id].id for job in released],
            patience=[None if job.terms is None else job.terms.patience or None for job in released],
            now=now,
        )
        arrivals = [Arrival(lanes[id], 1, not delayed, run_at if delayed else None) for id, delayed, run_at in written]
        await arrive(session, arrivals, limit_now)
    causes = await _causes(session, sorted({job.leader for job in cancelled}))
    errors = [leader_error(job.leader, leaders[job.leader], causes.get(job.leader)) for job in cancelled]
    await cancel_blocked(session, [(job.id, error) for job, error in zip(cancelled, errors, strict=True)], now)
    return [Ended(job.id, JobState.CANCELLED, job.is_followed, job.batch) for job in cancelled]


async def cancel_blocked(session: Session, jobs: Sequence[tuple[str, JobError | None]], now: int) -> None:
    """Blocked jobs, which are locked, are cancelled."""
    if jobs:
        ids, errors = zip(*jobs, strict=True)
        await session.execute("cancel_blocked", ids=ids, errors=[optional_json(error) for error in errors], now=now)


async def lock_leader(session: Session, leader: str | None) -> None:
    """Keep what a job follows as it is, before the job is locked."""
    if leader is not None:
        await _locked_ends(session, [leader])


async def is_held_back(session: Session, job_id: str, leader: str | None, on: str) -> bool:
    """Whether a follower that is retried has to wait for its leader, which is locked. Raises LeaderNotRetried."""
    ends = {} if leader is None else await _locked_ends(session, [leader])
    if leader is None or leader not in ends:
        return False
    ended = ends[leader]
    if ended is not None and not is_let_go(on, ended):
        raise not_retried(job_id, leader, ended, (await _causes(session, [leader])).get(leader))
    return ended is None


async def come_back(session: Session, job: Ended, now: int) -> None:
    """A final job will be final no more: nor is its batch, and who was cancelled because of either is blocked."""
    back = [job]
    while back:
        leaders = [each.id for each in back]
        counts = [BatchCount(id, -good, -bad, -gone) for id, good, bad, gone in batch_counts(back)]
        if counts:
            ends = await _locked_ends(session, [count.id for count in counts])
            leaders += [id for id, end in ends.items() if end is not None]
            await _write_counts(session, counts, now)
        await session.execute("forget_ended_leaders", ids=sorted(leaders))
        rows = await session.fetch("lock_cancelled_followers", leaders=sorted(leaders))
        back = [Ended(id, JobState(state), is_followed, batch) for id, state, is_followed, batch in rows]
        if back:
            await block(session, [each.id for each in back], now, is_retry=False)


async def block(session: Session, ids: Sequence[str], now: int, *, is_retry: bool) -> None:
    """Final jobs follow others again."""
    await session.execute("block", ids=ids, now=now, is_retry=is_retry)


async def batch_record(session: Session, batch_id: str) -> BatchRecord | None:
    """A batch as it is now."""
    row = await session.row("batch", id=batch_id)
    return None if row is None else BatchRecord(*row)


async def _locked_ends(session: Session, leaders: Sequence[str]) -> dict[str, JobState | None]:
    """How leaders ended, as it stays while the transaction lasts; those that are not stored are left out."""
    ends: dict[str, JobState | None] = {}
    for id, state in await session.fetch("lock_leaders", ids=leaders):
        ends[id] = JobState(state) if state in ("succeeded", "failed", "cancelled") else None
    missing = [leader for leader in leaders if leader not in ends]
    if missing:
        for id, pending, failed, cancelled in await session.fetch("lock_batches", ids=missing):
            ends[id] = None if pending else ended_as(failed, cancelled)
    return ends


async def _causes(session: Session, leaders: Sequence[str]) -> dict[str, Cause]:
    if not leaders:
        return {}
    rows = await session.fetch("causes", leaders=leaders)
    return {id: Cause(id, readable_error(id, error), is_batch) for id, error, is_batch in rows}


async def _count(session: Session, counts: Sequence[BatchCount], now: int, limit_now: int) -> dict[str, JobState]:
    """Count jobs of batches that have become final; how those batches ended of which none is pending any more."""
    rows = await _write_counts(session, counts, now) if counts else []
    finals = {id: ended_as(failed, cancelled) for id, pending, failed, cancelled in rows if not pending}
    for batch in finals:
        member = await session.row("member", batch=batch)
        held = [] if member is None else draws_of_batch(*draws_and_terms(batch, member["draws"], member["terms"]))
        if held:
            await give_up(session, batch, held, limit_now)
    return finals


async def _write_counts(session: Session, counts: Sequence[BatchCount], now: int) -> list[Any]:
    # One after the other, so that they are locked in the order of their ids.
    return [
        row
        for count in counts
        for row in await session.fetch(
            "count_batch",
            id=count.id,
            succeeded=count.succeeded,
            failed=count.failed,
            cancelled=count.cancelled,
            now=now,
        )
    ]


def _follower(row: Any) -> _Follower:
    id, leader, on, queue, draws, terms, is_followed, batch = row
    return _Follower(id, leader, on or "success", queue, *draws_and_terms(id, draws, terms), is_followed, batch)
