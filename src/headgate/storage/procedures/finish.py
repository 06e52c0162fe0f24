"""Attempts that end: their jobs become final or wait again.

Buckets are locked before jobs, in the order of their ids. It never waits for jobs that another transaction has locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec

from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, difference, spread, union, without
from headgate.jobs.identity import JobId, job_number
from headgate.jobs.job import BucketRef, JobError, JobState
from headgate.jobs.lifecycle import Ending, Finished, Returned
from headgate.jobs.uniqueness import superseded_error
from headgate.limits.fair import PREFIX
from headgate.limits.limit import AnyRule
from headgate.storage.driver import Transaction
from headgate.storage.live_rules import CachedRules
from headgate.storage.procedures.buckets import (
    BucketViews,
    amend_starts,
    buckets_of_batch,
    close_buckets,
    leaving_holders,
    lock_buckets,
    lock_views,
    remove_holders,
)
from headgate.storage.procedures.following import resolve_followers
from headgate.storage.procedures.lanes import Arrival, LaneMember, add_arrivals, arrival_of, lane_of
from headgate.storage.procedures.unique import rivals
from headgate.storage.records import Amendment
from headgate.storage.stored_rows import RowDecoder

STATEMENTS = (
    "running_of",
    "buckets_for_update",
    "lock_running",
    "reopen_buckets",
    "settle_charges",
    "keep_attempts",
    "finish",
    "unique_rivals",
    "give_back",
    "add_arrivals",
    "write_permits",
    "close_buckets",
    "ended_on",
)
"""The statements that `finish` runs while it holds its locks, except those for batches and followers."""

AttemptId = tuple[str, int]
"""An attempt by its job's id and its fence."""


class RunningJob(LaneMember):
    """A running job."""

    fence: int
    cancel_requested: bool
    lost: int
    uncharged: BucketMask
    is_unique: bool
    is_complete: bool
    """Whether this attempt has completed the job in a user's transaction: it has succeeded, however it ends."""
    charged_at: int | None
    """The instant at which its start counts in its buckets (limit time)."""

    @property
    def attempt(self) -> AttemptId:
        return self.id, self.fence

    @property
    def rates(self) -> tuple[BucketRef, ...]:
        """The buckets that count its starts."""
        others = without(self.buckets, NO_BUCKETS if self.terms is None else self.terms.permits)
        return tuple(ref for ref in others if not ref.limit.startswith(PREFIX))


class _EndedHere(msgspec.Struct, array_like=True):
    """The stored state of a job that ran on a node; `state` is as stored, so it may be "blocked"."""

    id: JobId
    fence: int
    state: str
    error: JobError | None
    cancel_requested: int
    is_complete: bool

    def is_by(self, ending: Ending) -> bool:
        """Whether this ending was written before and only its reply was lost.

        A job that became final by another way has another error; a cancellation by a user has none, and counts if one
        was requested. A job that its attempt had completed has succeeded, whatever this ending says.
        """
        if self.fence == ending.fence and self.is_complete and self.state == JobState.SUCCEEDED:
            return True
        if self.fence != ending.fence or not isinstance(ending, Finished) or ending.state != self.state:
            return False
        if ending.state is JobState.CANCELLED and ending.error is None:
            return bool(self.cancel_requested)
        return ending.error == self.error


_RUNNING = RowDecoder(RunningJob, "job")
_ENDED = RowDecoder(_EndedHere, "job")


async def finish_plain(
    tx: Transaction, node: str, endings: Sequence[Ending], *, passes_locked: bool = False
) -> Collection[AttemptId]:
    """Write, in one statement, the successes that change nothing but their jobs. Returns the attempts that are written.

    With `passes_locked`, it leaves out jobs that another transaction has locked. That costs a fifth of a worker's
    throughput, so it is used only after a locked job was found.
    """
    plain = [ending for ending in endings if _is_plain(ending)]
    if not plain:
        return ()
    # As tuples, which are sent as they are.
    rows = [(each.id, each.fence, each.result, None if each.charge is None else each.charge.at) for each in plain]
    if not tx.has_one_writer:
        # By this statement, not by a second one: a job that ends may be pruned before that.
        statement = "finish_free" if passes_locked else "finish_plain"
        written = set(await tx.value(statement, ended=rows, node=node, now=tx.now) or ())
        are_all = len(written) == len(plain)
        return [(each.id, each.fence) for each in plain if are_all or job_number(each.id) in written]
    # Only the number of rows is returned: each returned row is a step of its own, and their ids are seldom needed.
    count = await tx.execute("finish_plain", ended=rows, node=node, now=tx.now)
    if not count:
        return ()
    if count == len(plain):
        return [(each.id, each.fence) for each in plain]
    return await _written_before(tx, node, plain)


async def finish(
    tx: Transaction,
    node: str,
    endings: Sequence[Ending],
    rules: Mapping[str, AnyRule],
    live: CachedRules,
    held: frozenset[str] = frozenset(),
) -> dict[AttemptId, bool | None]:
    """Write any endings, and return for each attempt what `Store.finish` returns for it.

    Endings of jobs that are `held` are not written. Raises FollowersHeld.
    """
    if not endings:
        return {}
    by_attempt = {(ending.id, ending.fence): ending for ending in endings if ending.id not in held}
    running = await still_running(tx, node, by_attempt)
    if any(by_attempt[attempt].corrections for attempt in running):
        await live.refresh(tx)
        rules = live.rules.usable(rules)
    corrected = {each.ref for attempt in running for each in by_attempt[attempt].corrections if each.ref.limit in rules}
    beside = _buckets_to_lock(tx, running, by_attempt)
    buckets = await lock_views(tx, corrected, rules, live.rules, beside=beside)
    jobs = {attempt: job for attempt, job in (await lock_attempts(tx, node, running)).items() if attempt in by_attempt}
    # In the order of the endings: if several jobs would wait under one unique key, the first does.
    ended = [
        (jobs[attempt], _as_completed(jobs[attempt], ending))
        for attempt, ending in by_attempt.items()
        if attempt in jobs
    ]
    finished = [(job, ending) for job, ending in ended if isinstance(ending, Finished)]
    returned = [(job, ending) for job, ending in ended if isinstance(ending, Returned)]
    await _correct(tx, buckets, ended, rules)
    await _settle(tx, ended)
    failed = [(job, ending.state, ending.error) for job, ending in finished if ending.state is not JobState.SUCCEEDED]
    await keep_attempts(tx, [*failed, *((job, ending.outcome, ending.error) for job, ending in returned)])
    await end(tx, [(job, ending.state, ending.result, ending.error) for job, ending in finished])
    states = await wait_again(tx, returned)
    await release_held(tx, [*((job, ending.state) for job, ending in finished), *states])
    for attempt, job in jobs.items():
        closed_for = _closed_for(by_attempt[attempt])
        if closed_for is not None:
            await close_buckets(tx, job.rates, tx.limit_now + closed_for)
    with_followers = [job.ended(ending.state) for job, ending in finished if job.is_followed or job.batch is not None]
    cancelled = [job.ended(state) for job, state in states if state.is_final]
    if with_followers or cancelled:
        await resolve_followers(tx, cancelled, counted_by_node=with_followers)
    # A job that could not be locked is held by another transaction, and is tried again after that one.
    written: dict[AttemptId, bool | None] = {**dict.fromkeys(running), **dict.fromkeys(jobs, True)}
    not_running = [ending for attempt, ending in by_attempt.items() if attempt not in written]
    repeated = await _written_before(tx, node, not_running)
    written |= {(ending.id, ending.fence): (ending.id, ending.fence) in repeated for ending in not_running}
    return written | {(ending.id, ending.fence): None for ending in endings if ending.id in held}


class FinishResult(NamedTuple):
    """The result of `Store.finish`, and whether jobs may have become claimable."""

    written: Sequence[bool | None]
    wakes: bool


async def finish_all(
    tx: Transaction, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule], live: CachedRules
) -> FinishResult:
    """As `Store.finish`, in one transaction, in which no other client can hold a lock."""
    plain = await finish_plain(tx, node, endings)
    if len(plain) == len(endings):
        return FinishResult([True] * len(endings), wakes=False)
    written: dict[AttemptId, bool | None] = dict.fromkeys(plain, True)
    written |= await finish(tx, node, [each for each in endings if (each.id, each.fence) not in written], rules, live)
    return FinishResult([written[ending.id, ending.fence] for ending in endings], wakes=True)


async def complete(tx: Transaction, job_id: str, fence: int) -> bool:
    """As `Store.complete_in`, in the transaction of the user."""
    return await tx.execute("complete", id=job_id, fence=fence) == 1


async def is_complete(tx: Transaction, job_id: str, fence: int) -> bool:
    """Whether the attempt has completed the job by `complete_in`."""
    return bool(await tx.values("is_complete", id=job_id, fence=fence))


async def still_running(tx: Transaction, node: str, attempts: Collection[AttemptId]) -> dict[AttemptId, RunningJob]:
    """Return those of these attempts that run on the node, with their jobs."""
    ids = list({id: None for id, _ in attempts})
    rows = await tx.fetch(_RUNNING, "running_of", node=node, ids=ids) if ids else []
    return {attempt: job for job in rows if (attempt := job.attempt) in attempts}


async def lock_all(tx: Transaction, node: str, held: Collection[str]) -> list[RunningJob]:
    """Lock and return the running jobs of a node, except those that are `held` or locked by another transaction."""
    jobs = {job.attempt: job for job in await running_on(tx, node) if job.id not in held}
    await lock_buckets(tx, _buckets_to_lock(tx, jobs, {}))
    return list((await lock_attempts(tx, node, jobs)).values())


async def lock_attempts(tx: Transaction, node: str, jobs: dict[AttemptId, RunningJob]) -> dict[AttemptId, RunningJob]:
    """Lock and return the jobs that still run on the node, except those that another transaction has locked."""
    if tx.has_one_writer or not jobs:
        return jobs
    locked = await tx.fetch(_RUNNING, "lock_running", node=node, ids=[id for id, _ in jobs])
    return {job.attempt: job for job in locked}


async def running_on(tx: Transaction, node: str, *, since: int = 0) -> list[RunningJob]:
    """Return the running jobs of a node that started since then (wall time); by default all."""
    return await tx.fetch(_RUNNING, "running_on", node=node, since=since)


async def keep_attempts(tx: Transaction, attempts: Iterable[tuple[RunningJob, str, JobError | None]]) -> None:
    """Store attempts that did not succeed: of which jobs, with which outcomes and errors."""
    rows = [(job.id, outcome, error) for job, outcome, error in attempts]
    if rows:
        await tx.execute("keep_attempts", ended=rows, now=tx.now)


async def end(
    tx: Transaction, jobs: Sequence[tuple[RunningJob, JobState, str | None, JobError | None]], *, are_lost: bool = False
) -> None:
    """Make running jobs final: in which states, with which results and errors."""
    if jobs:
        rows = [(job.id, state, result, error, job.kept(state)) for job, state, result, error in jobs]
        await tx.execute("finish", ended=rows, now=tx.now, lost=int(are_lost))


async def wait_again(
    tx: Transaction, returned: Sequence[tuple[RunningJob, Returned]], *, are_lost: bool = False
) -> list[tuple[RunningJob, JobState]]:
    """Let running jobs wait again in the lanes of their next buckets. Returns their new states.

    Jobs are cancelled instead whose cancellation was requested, or whose unique key another waiting job has by now.
    Attempts that `are_lost` ended with their node.
    """
    superseded = await _supersede(tx, [job for job, _ in returned])
    states: list[tuple[RunningJob, JobState]] = []
    rows: list[tuple[Any, ...]] = []
    arrivals: list[Arrival] = []
    for job, ending in returned:
        is_cancelled = job.cancel_requested or job.id in superseded
        state = JobState.CANCELLED if is_cancelled else JobState.WAITING
        states.append((job, state))
        if job.id in superseded:
            continue
        is_retry = ending.spent and not are_lost
        held = job.kept(state)
        passed = job.terms.free_retries if is_retry and job.terms is not None else job.passed
        lane = lane_of(job.queue, job.buckets, job.terms, union(held, passed))
        # Without a requested time, its time and its rank stay.
        delayed = job.delayed or ending.run_at is not None
        run_at = job.run_at if ending.run_at is None else ending.run_at
        give_up_at = job.waits_until(ending.run_at or tx.now)
        unspent, lost = int(not ending.spent), int(are_lost)
        rows.append((job.id, unspent, lost, delayed, run_at, ending.error, give_up_at, held, passed, lane.id))
        if not is_cancelled:
            arrivals.append(arrival_of(lane, run_at, job.rank, delayed=delayed))
    if rows:
        await tx.execute("give_back", back=rows, now=tx.now)
        await add_arrivals(tx, arrivals)
    return states


async def release_held(tx: Transaction, jobs: Iterable[tuple[RunningJob, JobState]]) -> None:
    """Release the permits that these jobs do not keep in their new states; their rows are written already."""
    given = [each for job, state in jobs if job.held for each in job.gives(difference(job.held, job.kept(state)))]
    if given:
        await remove_holders(tx, leaving_holders(given))


def _is_plain(ending: Ending) -> TypeGuard[Finished]:
    if not isinstance(ending, Finished) or ending.state is not JobState.SUCCEEDED or ending.corrections:
        return False
    return ending.charge is None or (ending.charge.at is not None and ending.charge.costs is None)


def _as_completed(job: RunningJob, ending: Ending) -> Ending:
    """Return the ending; a job that was completed in a user's transaction has succeeded, whatever came after."""
    if not job.is_complete or (isinstance(ending, Finished) and ending.state is JobState.SUCCEEDED):
        return ending
    return Finished(ending.id, ending.fence, JobState.SUCCEEDED, charge=ending.charge, corrections=ending.corrections)


def _closed_for(ending: Ending) -> int | None:
    return ending.closed_for if isinstance(ending, Returned) else None


async def _written_before(tx: Transaction, node: str, endings: Sequence[Ending]) -> set[AttemptId]:
    """Return the attempts whose endings are already written: a moment ago, or earlier if the reply was lost."""
    if not endings:
        return set()
    rows = await tx.fetch(_ENDED, "ended_on", node=node, ids=[ending.id for ending in endings])
    ended = {row.id: row for row in rows}
    return {(each.id, each.fence) for each in endings if each.id in ended and ended[each.id].is_by(each)}


def _buckets_to_lock(
    tx: Transaction, jobs: Mapping[AttemptId, RunningJob], endings: Mapping[AttemptId, Ending]
) -> set[BucketRef]:
    """Return the buckets of permits that jobs may release, and those that their endings close."""
    buckets: set[BucketRef] = set()
    if tx.has_one_writer:
        return buckets
    for attempt, job in jobs.items():
        buckets.update(chosen(job.buckets, job.held))
        # The job may be the last of its batch.
        buckets.update(buckets_of_batch(job.buckets, job.terms))
        ending = endings.get(attempt)
        if ending is not None and _closed_for(ending) is not None:
            buckets.update(job.rates)
    return buckets


async def _correct(
    tx: Transaction,
    buckets: BucketViews,
    ended: Iterable[tuple[RunningJob, Ending]],
    rules: Mapping[str, AnyRule],
) -> None:
    """Correct what starts cost, each at the instant at which its job's row says that it counts."""
    amendments = [
        Amendment(each.ref, job.charged_at, each.cost, job.charged_at, each.actual, each.is_refused)
        for job, ending in ended
        if job.charged_at is not None
        for each in ending.corrections
        # Permits are released by themselves.
        if each.ref.limit in rules and not buckets.rule_of(each.ref).holds_permits
    ]
    await amend_starts(tx, buckets, amendments)


async def _settle(tx: Transaction, endings: Iterable[tuple[RunningJob, Ending]]) -> None:
    rows = [
        (job.id, charge.at, None if charge.costs is None else spread(charge.costs, job.uncharged, 1))
        for job, ending in endings
        if (charge := ending.charge) is not None
    ]
    if rows:
        await tx.execute("settle_charges", settled=rows)


async def _supersede(tx: Transaction, jobs: Sequence[RunningJob]) -> Collection[str]:
    """End running jobs that would wait again under a key under which another job is waiting. Returns their ids."""
    unique = {job.id: job for job in jobs if job.is_unique and not job.cancel_requested}
    waiting: dict[tuple[str, str], str] = {}
    successors: dict[str, str] = {}
    rows = {row.id: row for row in await rivals(tx, list(unique))}
    for id in unique:
        row = rows[id]
        # Several may be running under one key after an operator has retried one: the first of them waits.
        successor = row.rival or waiting.setdefault((row.task, row.unique_key), id)
        if successor != id:
            successors[id] = successor
    await end(
        tx,
        [(unique[id], JobState.CANCELLED, None, superseded_error(successor)) for id, successor in successors.items()],
    )
    return successors.keys()
