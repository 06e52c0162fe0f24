"""Attempts that end: by their node, with their node, or because their node has died."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headgate.jobs.draw_set import NO_DRAWS, DrawSet, chosen, difference, spread, union, without
from headgate.jobs.job import Draw, JobError, JobState
from headgate.jobs.lifecycle import Ending, Finished, Returned, is_poisonous
from headgate.jobs.terms import GateTerms
from headgate.jobs.uniqueness import superseded_error
from headgate.storage.endings import EndedHere, poison_error
from headgate.storage.following import Ended
from headgate.storage.json_text import optional_json
from headgate.storage.permits import Given, draws_of_batch
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.rows import readable_error
from headgate.storage.procedures.buckets import close_buckets, lock_buckets
from headgate.storage.procedures.following import tell_followers
from headgate.storage.procedures.lanes import arrival_of, arrive, lane_of
from headgate.storage.procedures.permits import give_permits
from headgate.storage.protocol import Recovered
from headgate.storage.stored_rows import draws_and_terms

STATEMENTS = (
    "running_of",
    "buckets_for_update",
    "lock_ending",
    "settle_charges",
    "keep_attempts",
    "finish",
    "rivals_under",
    "give_back",
    "arrive",
    "keep_permits",
    "write_permits",
    "close_buckets",
    "ended_here",
)
"""What `finish` runs while it holds its locks, but for batches and followers."""


class Running(NamedTuple):
    """A running job."""

    id: str
    fence: int
    queue: str
    draws: tuple[Draw, ...]
    cancel_requested: bool
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet
    lost: int
    uncharged: DrawSet
    lane: str
    is_followed: bool
    batch: str | None
    is_unique: bool

    def ended(self, state: JobState) -> Ended:
        """That it has become final so."""
        return Ended(self.id, state, self.is_followed, self.batch)

    def gives(self, state: JobState) -> Given | None:
        """What it gives back when it becomes `state`, if it holds anything."""
        if not self.held or self.terms is None:
            return None
        kept = self.kept(state)
        return Given(self.id, self.id, self.draws, self.terms, difference(self.held, kept), kept)

    def kept(self, state: JobState) -> DrawSet:
        """The permits that it keeps when it becomes `state`."""
        return NO_DRAWS if self.terms is None else self.terms.kept(self.held, state)

    @property
    def rates(self) -> tuple[Draw, ...]:
        """The buckets that count its starts."""
        return without(self.draws, NO_DRAWS if self.terms is None else self.terms.permits)


class Back(NamedTuple):
    """How a running job is to wait again."""

    job: Running
    unspent: bool
    lost: bool = False
    run_at: int | None = None
    error: JobError | None = None
    is_retry: bool = False


async def finish_plain(
    session: Session, node: str, endings: Sequence[Ending], now: int, *, passes_locked: bool
) -> set[str]:
    """Write the endings that are no more than the job's own, in one statement; the ids of those that were written.

    Where it `passes_locked` jobs, it leaves out those that somebody else has locked. That costs a fifth of a worker's
    throughput, so it is done only where somebody has.
    """
    plain = [
        ending
        for ending in endings
        if isinstance(ending, Finished)
        and ending.state is JobState.SUCCEEDED
        and (ending.charge is None or (ending.charge.at is not None and ending.charge.costs is None))
    ]
    if not plain:
        return set()
    rows = await session.fetch(
        "finish_free" if passes_locked else "finish_plain",
        node=node,
        now=now,
        ids=[ending.id for ending in plain],
        fences=[ending.fence for ending in plain],
        states=[ending.state for ending in plain],
        results=[ending.result for ending in plain],
        charged_at=[None if ending.charge is None else ending.charge.at for ending in plain],
    )
    return {row[0] for row in rows}


async def finish(
    session: Session, node: str, endings: Sequence[Ending], now: int, limit_now: int, held: frozenset[str] = frozenset()
) -> dict[str, bool | None]:
    """Write any endings, inside a transaction; by their ids, what the protocol's `finish` says of each.

    Those of jobs that are `held` are not written. Raises FollowersHeld.
    """
    by_id = {ending.id: ending for ending in endings if ending.id not in held}
    running = [
        job
        for job in _jobs(await session.fetch("running_of", node=node, ids=list(by_id)))
        if by_id[job.id].fence == job.fence
    ]
    await _lock_buckets_of(session, running, by_id)
    locked = _jobs(await session.fetch("lock_ending", node=node, ids=[job.id for job in running]))
    jobs = [job for job in locked if by_id[job.id].fence == job.fence]
    finished = [(job, ending) for job in jobs if isinstance(ending := by_id[job.id], Finished)]
    by_job = {job.id: job for job in jobs}
    # In the order of the endings: of several that would wait under one unique key, the first does.
    returned = [(by_job[id], ending) for id, ending in by_id.items() if isinstance(ending, Returned) and id in by_job]
    await _settle(session, [(job, by_id[job.id]) for job in jobs])
    await _keep_attempts(
        session,
        [
            (job.id, str(ending.state), ending.error)
            for job, ending in finished
            if ending.state is not JobState.SUCCEEDED
        ]
        + [(job.id, ending.outcome, ending.error) for job, ending in returned],
        now,
    )
    if finished:
        await session.execute(
            "finish",
            now=now,
            ids=[job.id for job, _ in finished],
            states=[ending.state for _, ending in finished],
            results=[ending.result for _, ending in finished],
            errors=[optional_json(ending.error) for _, ending in finished],
            held=[job.kept(ending.state) for job, ending in finished],
        )
    superseded = await supersede(session, [job for job, _ in returned], now)
    backs = [
        Back(job, not ending.spent, run_at=ending.run_at, error=ending.error, is_retry=ending.spent)
        for job, ending in returned
        if job not in superseded
    ]
    await _wait_again(session, backs, now, limit_now)
    given = [job.gives(ending.state) for job, ending in finished]
    given += [back.job.gives(_state_after(back)) for back in backs]
    given += [job.gives(JobState.CANCELLED) for job in superseded]
    await give_permits(PostgresTransaction(session, now, limit_now), [each for each in given if each is not None])
    for job, ending in returned:
        if ending.closed_for is not None and job.rates:
            await close_buckets(PostgresTransaction(session, now, limit_now), job.rates, limit_now + ending.closed_for)
    as_told = [job.ended(ending.state) for job, ending in finished]
    await tell_followers(PostgresTransaction(session, now, limit_now), _cancelled(backs, superseded), as_told=as_told)
    # One that is not to be had is another's for the moment. Whether it ends here is known when that one is through.
    written: dict[str, bool | None] = {job.id: None for job in running} | {job.id: True for job in jobs}
    gone = [ending for ending in endings if ending.id not in written and ending.id not in held]
    return written | dict.fromkeys(held) | await _written_before(session, node, gone)


async def _written_before(session: Session, node: str, endings: Sequence[Ending]) -> dict[str, bool]:
    """Which of the endings had been written when the reply to them was lost."""
    if not endings:
        return {}
    rows = await session.fetch("ended_here", node=node, ids=[ending.id for ending in endings])
    ended = {
        id: EndedHere(id, fence, state, readable_error(id, error), cancel_requested)
        for id, fence, state, error, cancel_requested in rows
    }
    return {ending.id: ending.id in ended and ended[ending.id].is_by(ending) for ending in endings}


def _cancelled(backs: Sequence[Back], superseded: Sequence[Running]) -> list[Ended]:
    """Those that were to wait again, had their cancellation not been asked for, or their successors not taken over."""
    cancelled = [back.job for back in backs if back.job.cancel_requested]
    return [job.ended(JobState.CANCELLED) for job in (*cancelled, *superseded)]


async def supersede(session: Session, jobs: Sequence[Running], now: int) -> list[Running]:
    """End those of these running jobs, which are to wait again, in whose places others wait already."""
    unique = [job for job in jobs if job.is_unique and not job.cancel_requested]
    if not unique:
        return []
    waiting: dict[tuple[str, str], str] = {}
    successors: dict[str, str] = {}
    rows = {row[0]: row for row in await session.fetch("rivals_under", ids=[job.id for job in unique])}
    for job in unique:
        id, task, key, rival = rows[job.id]
        # Several may run where an operator has let one be tried again: the first of them waits.
        standing = rival or waiting.setdefault((task, key), id)
        if standing != id:
            successors[id] = standing
    superseded = [job for job in unique if job.id in successors]
    if superseded:
        await session.execute(
            "finish",
            now=now,
            ids=[job.id for job in superseded],
            states=[JobState.CANCELLED] * len(superseded),
            results=[None] * len(superseded),
            errors=[optional_json(superseded_error(successors[job.id])) for job in superseded],
            held=[job.kept(JobState.CANCELLED) for job in superseded],
        )
    return superseded


async def _lock_buckets_of(session: Session, jobs: Iterable[Running], endings: dict[str, Ending]) -> None:
    """Buckets are locked before jobs, and all that a transaction needs of them at once."""
    draws: set[Draw] = set()
    for job in jobs:
        draws.update(chosen(job.draws, job.held))
        # It may be the last of its batch.
        draws.update(draws_of_batch(job.draws, job.terms))
        ending = endings.get(job.id)
        if isinstance(ending, Returned) and ending.closed_for is not None:
            draws.update(job.rates)
    await lock_buckets(PostgresTransaction(session, 0, 0), draws)


async def _settle(session: Session, endings: Sequence[tuple[Running, Ending]]) -> None:
    charged = [(job, ending.charge) for job, ending in endings if ending.charge is not None]
    if charged:
        await session.execute(
            "settle_charges",
            ids=[job.id for job, _ in charged],
            charged_at=[charge.at for _, charge in charged],
            costs=[
                optional_json(None if charge.costs is None else spread(charge.costs, job.uncharged, 1))
                for job, charge in charged
            ],
        )


async def _keep_attempts(session: Session, attempts: Sequence[tuple[str, str, JobError | None]], now: int) -> None:
    if attempts:
        ids, outcomes, errors = zip(*attempts, strict=True)
        await session.execute(
            "keep_attempts", ids=ids, outcomes=outcomes, errors=[optional_json(error) for error in errors], now=now
        )


def _state_after(back: Back) -> JobState:
    return JobState.CANCELLED if back.job.cancel_requested else JobState.WAITING


async def _wait_again(session: Session, backs: Sequence[Back], now: int, limit_now: int) -> None:
    """Running jobs wait, in the lanes of what they ask for next; or are cancelled, if that was asked for."""
    if not backs:
        return
    rows: list[tuple[Any, ...]] = []
    lanes = {}
    for back in backs:
        job, terms = back.job, back.job.terms
        held = job.kept(_state_after(back))
        passed = terms.free_retries if terms is not None and back.is_retry else job.passed
        patience = None if terms is None else terms.patience
        lane = lanes[job.id] = lane_of(job.queue, job.draws, terms, union(held, passed))
        give_up_at = (back.run_at or now) + patience if patience else None
        error = optional_json(back.error)
        rows.append((job.id, int(back.unspent), int(back.lost), back.run_at, error, give_up_at, held, passed, lane.id))
    ids, unspent, lost, run_at, errors, give_up, holds, passes, lane_ids = zip(*rows, strict=True)
    written = await session.fetch(
        "give_back",
        now=now,
        ids=ids,
        unspent=unspent,
        lost=lost,
        run_at=run_at,
        errors=errors,
        give_up_at=give_up,
        held=holds,
        passed=passes,
        lanes=lane_ids,
    )
    await arrive(
        PostgresTransaction(session, now, limit_now),
        [arrival_of(lanes[id], due_at, delayed=delayed) for id, waits, delayed, due_at in written if waits],
    )


async def leave(session: Session, node: str, now: int, limit_now: int, held: frozenset[str]) -> Recovered:
    """A node has stopped: what it still owned goes back unspent. Raises FollowersHeld of jobs that are not `held`."""
    await session.fetch("lock_node", id=node, beat=None)
    left = await _take_back_unspent(session, node, now, limit_now, held)
    await _remove(session, node, "left")
    return left


async def recover(
    session: Session, node: str, beat: int, now: int, limit_now: int, held: frozenset[str]
) -> Recovered | None:
    """A node is gone, unless it was heard since: its jobs wait again, and the poisonous among them are failed.

    What somebody else has locked, or what is `held`, stays with the node, which is recovered again later. None if that
    is all there is. Raises FollowersHeld.
    """
    found = await session.row("lock_node", id=node, beat=beat)
    if found is None:
        return None
    take_back = _take_back_unspent if found["gone"] == "left" else _take_back_lost
    recovered = await take_back(session, node, now, limit_now, held)
    is_removed = await _remove(session, node, found["gone"] or "dead")
    if found["gone"] is not None and not is_removed and not recovered.returned and not recovered.poisonous:
        return None
    return recovered


async def _remove(session: Session, node: str, gone: str) -> bool:
    """Whether the node is forgotten, which it is when it owns no job any more."""
    if await session.fetch("running", node=node):
        await session.execute("mark_gone", id=node, gone=gone)
        return False
    await session.execute("remove_node", id=node)
    return True


async def _take_back_unspent(session: Session, node: str, now: int, limit_now: int, held: frozenset[str]) -> Recovered:
    jobs = await _lock_all(session, node, held)
    await _keep_attempts(session, [(job.id, "interrupted", None) for job in jobs], now)
    superseded = await supersede(session, jobs, now)
    backs = [Back(job, unspent=True) for job in jobs if job not in superseded]
    await _wait_again(session, backs, now, limit_now)
    left = [(back.job, _state_after(back)) for back in backs] + [(job, JobState.CANCELLED) for job in superseded]
    await _give_all(session, left, limit_now)
    await tell_followers(PostgresTransaction(session, now, limit_now), _cancelled(backs, superseded))
    return Recovered(returned=[back.job.id for back in backs if not back.job.cancel_requested])


async def _take_back_lost(session: Session, node: str, now: int, limit_now: int, held: frozenset[str]) -> Recovered:
    jobs = await _lock_all(session, node, held)
    await _keep_attempts(session, [(job.id, "lost", None) for job in jobs], now)
    doomed = [job for job in jobs if is_poisonous(job.lost + 1) and not job.cancel_requested]
    returned = [job for job in jobs if not is_poisonous(job.lost + 1) or job.cancel_requested]
    if doomed:
        await session.execute(
            "fail_poisonous",
            now=now,
            ids=[job.id for job in doomed],
            errors=[optional_json(poison_error(job.lost + 1)) for job in doomed],
            held=[job.kept(JobState.FAILED) for job in doomed],
        )
    superseded = await supersede(session, returned, now)
    backs = [Back(job, unspent=False, lost=True) for job in returned if job not in superseded]
    await _wait_again(session, backs, now, limit_now)
    left = [(job, JobState.FAILED) for job in doomed] + [(back.job, _state_after(back)) for back in backs]
    await _give_all(session, left + [(job, JobState.CANCELLED) for job in superseded], limit_now)
    ended = [job.ended(JobState.FAILED) for job in doomed] + _cancelled(backs, superseded)
    await tell_followers(PostgresTransaction(session, now, limit_now), ended)
    return Recovered(
        returned=[back.job.id for back in backs if not back.job.cancel_requested],
        poisonous=[job.id for job in doomed],
    )


async def _lock_all(session: Session, node: str, held: frozenset[str]) -> list[Running]:
    """The running jobs of a node, locked; but for those that are `held`, or that somebody else has locked."""
    jobs = [job for job in _jobs(await session.fetch("running", node=node)) if job.id not in held]
    await _lock_buckets_of(session, jobs, {})
    return _jobs(await session.fetch("lock_ending", node=node, ids=[job.id for job in jobs]))


async def _give_all(session: Session, jobs: Iterable[tuple[Running, JobState]], limit_now: int) -> None:
    given = [job.gives(state) for job, state in jobs]
    tx = PostgresTransaction(session, limit_now, limit_now)
    await give_permits(tx, [each for each in given if each is not None])


def _jobs(rows: Iterable[Any]) -> list[Running]:
    return [
        Running(id, fence, queue, drawn_by, cancel_requested, asked, *rest)
        for id, fence, queue, draws, cancel_requested, terms, *rest in rows
        for drawn_by, asked in (draws_and_terms(id, draws, terms),)
    ]
