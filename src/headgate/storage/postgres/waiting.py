"""Waiting jobs that leave their lanes without having run, or go to another one.

Jobs are locked first, and the buckets that they concern after them. A user's transaction may hold a job, so nobody who
holds a bucket waits for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.jobs.audit import Deed
from headgate.jobs.gating import Regated
from headgate.jobs.job import Draw, JobError, JobState
from headgate.jobs.lifecycle import require_retriable, require_scheduled
from headgate.jobs.rescheduling import new_time, require_waiting
from headgate.jobs.terms import GateTerms, bits, kept_permits
from headgate.jobs.uniqueness import key_taken
from headgate.limits.concurrency import load_permits
from headgate.storage.endings import late_ending
from headgate.storage.following import Ended
from headgate.storage.permits import Given, draws_of_batch
from headgate.storage.postgres import following
from headgate.storage.postgres.arrivals import Arrival, Lane, arrive, lane_of
from headgate.storage.postgres.bucket_views import lock_buckets
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.permits import give_permits, give_up_unused
from headgate.storage.postgres.rows import as_json, drawn, optional_json
from headgate.storage.postgres.trail import note
from headgate.storage.protocol import Dropped
from headgate.storage.stored_rows import draws_and_terms


class Found(NamedTuple):
    """A job in whatever state."""

    id: str
    state: JobState
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: int
    passed: int
    has_costs: bool
    is_blocked: bool
    is_followed: bool
    follows: str | None
    batch: str | None
    delayed: bool
    run_at: int
    on: str

    @property
    def lane(self) -> Lane:
        """Where it waits, if it waits."""
        return lane_of(self.queue, self.draws, self.terms, self.held | self.passed)

    def gives(self, gone: int) -> list[Given]:
        """What it gives back when these permits go."""
        if not gone or self.terms is None:
            return []
        return [Given(self.id, self.id, self.draws, self.terms, gone, self.held & ~gone)]


class Waiting:
    """What can be done to jobs that wait, inside a transaction."""

    def __init__(self, session: Session, now: int, limit_now: int) -> None:
        self._session = session
        self._now = now
        self._limit_now = limit_now

    async def cancel(self, job_id: str, deed: Deed | None = None) -> JobState | None:
        """Cancel a waiting job, or ask for the cancellation of a running one; the state it was in."""
        found = await self._locked(job_id)
        if found is None:
            return None
        if not found.state.is_final:
            await note(self._session, deed, self._now)
        ended = Ended(found.id, JobState.CANCELLED, found.is_followed, found.batch)
        if found.is_blocked:
            await following.cancel_blocked(self._session, [(found.id, None)], self._now)
            await following.tell_followers(self._session, [ended], self._now, self._limit_now)
        elif found.state is JobState.WAITING:
            await self._session.execute("cancel_waiting", id=found.id, now=self._now)
            await self._left(found.lane, have_costs=found.has_costs)
            kept = 0 if found.terms is None else found.terms.kept(found.held, JobState.CANCELLED)
            await give_permits(self._session, found.gives(found.held & ~kept), self._limit_now)
            await following.tell_followers(self._session, [ended], self._now, self._limit_now)
        elif found.state is JobState.RUNNING:
            await self._session.execute("request_cancel", id=found.id)
        return found.state

    async def retry(self, job_id: str, deed: Deed | None = None) -> JobState | None:
        """Let a failed or cancelled job wait again; the state it was in."""
        found = await self._locked(job_id, with_leader=True, with_buckets=False)
        if found is None:
            return None
        require_retriable(job_id, found.state)
        is_held_back = await following.is_held_back(self._session, found.id, found.follows, found.on)
        for id, _, _, rival in await self._session.fetch("rivals_under", ids=[found.id]):
            if rival is not None:
                raise key_taken(id, rival)
        await note(self._session, deed, self._now)
        ended = Ended(found.id, found.state, found.is_followed, found.batch)
        terms = found.terms
        # This may wait for whoever stores another under its unique key, so batches and buckets are locked after it.
        if is_held_back:
            await following.block(self._session, [found.id], self._now, is_retry=True)
            await following.come_back(self._session, ended, self._now)
            await give_permits(self._session, found.gives(found.held), self._limit_now)
            return found.state
        lane = lane_of(found.queue, found.draws, terms, found.held)
        give_up_at = None if terms is None or not terms.patience else self._now + terms.patience
        await self._session.execute("retry_job", id=found.id, lane=lane.id, now=self._now, give_up_at=give_up_at)
        await following.come_back(self._session, ended, self._now)
        await arrive(self._session, [Arrival(lane, 1, is_ready=True)], self._limit_now)
        return found.state

    async def run_now(self, job_id: str, deed: Deed | None = None) -> JobState | None:
        """Let a job that waits for its time be ready at once; the state it was in."""
        found = await self._locked(job_id)
        if found is None:
            return None
        require_scheduled(
            job_id,
            found.state,
            is_ahead=found.delayed and found.run_at > self._now,
            follows=found.follows if found.is_blocked else None,
        )
        terms = found.terms
        give_up_at = None if terms is None or not terms.patience else self._now + terms.patience
        await self._session.execute("run_now", id=found.id, now=self._now, give_up_at=give_up_at)
        # It is counted in its lane already, which only has to be looked at.
        await arrive(self._session, [Arrival(found.lane, 0, is_ready=True)], self._limit_now)
        await note(self._session, deed, self._now)
        return found.state

    async def reschedule(
        self, job_id: str, run_at: int | None, priority: int | None, deed: Deed | None = None
    ) -> JobState | None:
        """Give a waiting job another time or priority, in its lane; the state it was in."""
        found = await self._locked(job_id)
        if found is None:
            return None
        require_waiting(job_id, found.state)
        time = new_time(found.run_at, run_at, self._now, delayed=found.delayed)
        patience = None if found.terms is None else found.terms.patience
        await self._session.execute(
            "reschedule",
            id=found.id,
            run_at=time.run_at,
            delayed=time.delayed,
            priority=priority,
            give_up_at=time.run_at + patience if patience and time.has_changed else None,
        )
        if not found.is_blocked:
            if time.has_changed:
                # It is counted in its lane already, which has to know when to look at it.
                wakes_at = time.run_at if time.delayed else None
                await arrive(self._session, [Arrival(found.lane, 0, not time.delayed, wakes_at)], self._limit_now)
            if found.has_costs:
                await self._reopen_behind({found.lane.id})
        await note(self._session, deed, self._now)
        return found.state

    async def expire(
        self,
        count: int,
        lanes: Sequence[bytes] | None = None,
        tasks: Sequence[str] = (),
        *,
        held: frozenset[str] = frozenset(),
    ) -> list[Dropped]:
        """End up to so many jobs whose time to start has passed; of all, or of these tasks in these lanes.

        Those that somebody else has locked, or that are `held`, are left for later. Raises FollowersHeld.
        """
        asked = {"count": count, "lanes": lanes, "tasks": tasks, "held": list(held)}
        rows = await self._session.fetch("expired", now=self._now, **asked)
        late = [_Late.read(row, self._now) for row in rows]
        await lock_buckets(self._session, {draw for job in late for draw in job.concerned})
        waiting = await self._session.fetch("lock_waiting", ids=[job.id for job in late])
        # One that has gone to another lane since it was read is looked at again by the next.
        unmoved = {(row["id"], row["lane"], row["held"], row["waiting"]): row for row in waiting}
        late = [job for job in late if job.as_locked in unmoved]
        if not late:
            return []
        await self._session.fetch(
            "drop_waiting",
            ids=[job.id for job in late],
            lanes=[job.lane_id for job in late],
            states=[job.state for job in late],
            errors=[optional_json(job.error) for job in late],
            held=[job.kept for job in late],
            now=self._now,
        )
        await arrive(self._session, [Arrival(job.lane, -1) for job in late if job.is_waiting], self._limit_now)
        given = [
            Given(job.id, job.id, job.draws, job.terms, job.held & ~job.kept, job.kept)
            for job in late
            if job.held and job.terms is not None
        ]
        await give_permits(self._session, given, self._limit_now)
        await self._reopen_behind({job.lane_id for job in late if job.has_costs and job.is_waiting})
        rows = [(job, unmoved[job.as_locked]) for job in late]
        ended = [Ended(job.id, job.state, row["is_followed"], row["batch"]) for job, row in rows]
        await following.tell_followers(self._session, ended, self._now, self._limit_now)
        return [Dropped(job.id, job.task, job.queue, job.state, job.error, job.attempt) for job in late]

    async def regate_plain(self, jobs: Sequence[Regated]) -> set[str]:
        """Move those of the jobs, all at once, that hold nothing and have never been tried; the ids of those moved."""
        asked = {job.id: job for job in jobs}
        plain: list[Regated] = []
        lanes: list[Lane] = []
        arrivals: list[Arrival] = []
        for id, queue, draws, terms, delayed, run_at in await self._session.fetch("lock_plain", ids=list(asked)):
            job = asked[id]
            before, terms_before = draws_and_terms(id, draws, terms)
            if before == job.before:
                plain.append(job)
                lanes.append(lane := lane_of(queue, job.draws, job.terms))
                arrivals.append(Arrival(lane_of(queue, before, terms_before), -1))
                arrivals.append(Arrival(lane, 1, not delayed, run_at if delayed else None))
        if plain:
            await self._session.execute(
                "regate_plain",
                ids=[job.id for job in plain],
                draws=[as_json(job.draws) for job in plain],
                costs=[optional_json(job.costs) for job in plain],
                terms=[optional_json(job.terms) for job in plain],
                lanes=[lane.id for lane in lanes],
                gates=[job.gate for job in plain],
            )
            await arrive(self._session, arrivals, self._limit_now)
        return {job.id for job in plain}

    async def regate(self, job: Regated) -> bool:
        """Move a job that still waits to the lane of what it asks for now, unless somebody else has it locked."""
        found = await self._locked(job.id, waits=False)
        if found is None or found.state is not JobState.WAITING or found.draws != job.before:
            return False
        held = kept_permits(job.id, found.draws, found.terms, found.held, job.draws, job.terms)
        gone = found.held & bits(draw not in held for draw in found.draws)
        await give_permits(self._session, found.gives(gone), self._limit_now)
        kept = bits(draw in held for draw in job.draws)
        passed = 0 if job.terms is None or not found.passed else job.terms.free_retries
        lane = lane_of(found.queue, job.draws, job.terms, kept | passed)
        asked = {"id": found.id, "draws": as_json(job.draws), "costs": optional_json(job.costs)}
        await self._session.execute("forget_other_starts", **asked)
        ((delayed, run_at),) = await self._session.fetch(
            "regate",
            **asked,
            terms=optional_json(job.terms),
            held=kept,
            passed=passed,
            lane=lane.id,
            gate=job.gate,
        )
        if not found.is_blocked:
            await self._left(found.lane, have_costs=found.has_costs)
            await arrive(self._session, [Arrival(lane, 1, not delayed, run_at if delayed else None)], self._limit_now)
        return True

    async def release_idle(self, draw: Draw) -> int:
        """Take the permits of a bucket from jobs that do not run; how many are held by others."""
        locked = await lock_buckets(self._session, [draw])
        if not locked.rows or not load_permits(locked.rows[0].state).holders:
            return 0
        for row in await self._session.fetch("idle_holders", needle=as_json(draw)):
            job = _found(row)
            given = bits(each == draw for each in job.draws) & job.held
            if given and job.terms is not None:
                await give_permits(self._session, job.gives(given), self._limit_now)
                if job.state is JobState.WAITING:
                    # It asks for that permit again, so it waits elsewhere.
                    kept = job.held & ~given
                    lane = lane_of(job.queue, job.draws, job.terms, kept | job.passed)
                    await self._session.execute("set_held", id=job.id, held=kept, passed=job.passed, lane=lane.id)
                    # Whether it is delayed is not known here: the lane is looked at at once, and finds out.
                    await arrive(
                        self._session, [Arrival(job.lane, -1), Arrival(lane, 1, True, self._now)], self._limit_now
                    )
        return await give_up_unused(self._session, draw, self._limit_now)

    async def _locked(
        self, job_id: str, *, with_leader: bool = False, with_buckets: bool = True, waits: bool = True
    ) -> Found | None:
        """The job, locked after what it follows, and before the buckets that it may give permits back to.

        Where it does not wait for it, None also for one that somebody else has locked.
        """
        if with_leader:
            rows = await self._session.fetch("find_job", id=job_id)
            if not rows:
                return None
            await following.lock_leader(self._session, _found(rows[0]).follows)
        rows = await self._session.fetch("lock_job" if waits else "lock_job_free", id=job_id)
        if not rows:
            return None
        found = _found(rows[0])
        if with_buckets:
            asked = concerned(found.draws, found.held, found.terms, has_costs=found.has_costs)
            await lock_buckets(self._session, asked)
        return found

    async def _left(self, lane: Lane, *, have_costs: bool) -> None:
        await arrive(self._session, [Arrival(lane, -1)], self._limit_now)
        if have_costs:
            await self._reopen_behind({lane.id})

    async def _reopen_behind(self, lanes: set[bytes]) -> None:
        """A bucket may have been closed for the costs of jobs that are gone, and be open for what others ask."""
        if lanes:
            await self._session.execute("reopen_behind", lanes=list(lanes), limit_now=self._limit_now)


def concerned(draws: Sequence[Draw], held: int, terms: GateTerms | None, *, has_costs: bool) -> list[Draw]:
    """The buckets to lock when a job leaves its lane.

    Those whose permits it or its batch holds; and for a costly one all, as a claim may be about to close one for its
    cost.
    """
    return list(draws) if has_costs else [*drawn(draws, held), *draws_of_batch(draws, terms)]


class _Late(NamedTuple):
    """A waiting job whose time to start has passed, and what becomes of it."""

    id: str
    lane: Lane
    task: str
    queue: str
    terms: GateTerms | None
    draws: tuple[Draw, ...]
    held: int
    has_costs: bool
    state: JobState
    error: JobError
    lane_id: bytes
    is_waiting: bool
    attempt: int

    @property
    def as_locked(self) -> tuple[str, bytes, int, bool]:
        return self.id, self.lane_id, self.held, self.is_waiting

    @property
    def kept(self) -> int:
        return 0 if self.terms is None else self.terms.kept(self.held, self.state)

    @property
    def concerned(self) -> list[Draw]:
        """The buckets that may change when it leaves."""
        return concerned(self.draws, self.held, self.terms, has_costs=self.has_costs)

    @classmethod
    def read(cls, row: Any, now: int) -> _Late:
        draws, terms = draws_and_terms(row["id"], row["draws"], row["terms"])
        behind = None if row["limit_name"] is None else Draw(row["limit_name"], row["key"])
        state, error = late_ending(now, row["expires_at"], row["give_up_at"], terms, behind)
        lane = lane_of(row["queue"], draws, terms, row["held"] | row["passed"])
        return cls(
            row["id"],
            lane,
            row["task"],
            row["queue"],
            terms,
            draws,
            row["held"],
            row["has_costs"],
            state,
            error,
            row["lane"],
            row["waiting"],
            row["attempt"],
        )


def _found(row: Any) -> Found:
    id, state, queue, draws, terms, *rest = row
    return Found(id, JobState(state), queue, *draws_and_terms(id, draws, terms), *rest)
