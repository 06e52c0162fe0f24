"""Waiting jobs that leave their lanes without having run, or go to another one, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

import msgspec

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
from headgate.storage.permits import Given
from headgate.storage.protocol import Dropped
from headgate.storage.sqlite.following import Following
from headgate.storage.sqlite.lanes import Lanes
from headgate.storage.sqlite.permits import give_all, give_permits, give_up_unused
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.sqlite.trail import keep_deed
from headgate.storage.sqlite.unique import rivals
from headgate.storage.stored_rows import RowDecoder


class Found(msgspec.Struct, array_like=True):
    """A job in whatever state."""

    seq: int
    id: str
    state: JobState
    lane: int
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: int
    passed: int
    has_costs: int
    is_blocked: int = 0
    follows: str | None = None
    batch: str | None = None
    delayed: int = 0
    run_at: int = 0
    on: str = "success"


class Expiring(msgspec.Struct, array_like=True):
    seq: int
    lane: int
    id: str
    task: str
    queue: str
    expires_at: int | None
    give_up_at: int | None
    terms: GateTerms | None
    draws: tuple[Draw, ...]
    held: int
    behind_limit: str | None
    behind_key: str | None
    has_costs: int
    is_blocked: int
    attempt: int


_decode_found = RowDecoder(Found, "job", state=JobState.WAITING).decode_one
_decode_holders = RowDecoder(Found, "job", state=JobState.WAITING).decode
_decode_expiring = RowDecoder(Expiring, "job").decode


class Waiting:
    """What is done to jobs that wait, at one wall time."""

    def __init__(
        self, connection: sqlite3.Connection, now: int, limit_now: int, lanes: Lanes, following: Following
    ) -> None:
        self._connection = connection
        self._now = now
        self._limit_now = limit_now
        self._lanes = lanes
        self._following = following

    def cancel(self, job_id: str, deed: Deed | None) -> JobState | None:
        found = self._find(job_id)
        if found is None:
            return None
        if not found.state.is_final:
            keep_deed(self._connection, deed, self._now)
        if found.is_blocked:
            self._following.cancel([(found.seq, None)])
            self._following.tell([found.seq])
        elif found.state is JobState.WAITING:
            execute(self._connection, "cancel_waiting", seq=found.seq, now=self._now)
            self._lanes.leave(found.lane, 1, have_costs=bool(found.has_costs))
            give_all(self._connection, [(found, JobState.CANCELLED)], self._limit_now)
            self._following.tell([found.seq])
        elif found.state is JobState.RUNNING:
            execute(self._connection, "request_cancel", seq=found.seq)
        return found.state

    def retry(self, job_id: str, deed: Deed | None) -> JobState | None:
        found = self._find(job_id)
        if found is None:
            return None
        require_retriable(job_id, found.state)
        is_held_back = self._following.is_held_back(found.id, found.follows, found.on)
        rival = rivals(self._connection, [found.seq]).get(found.seq)
        if rival is not None:
            raise key_taken(found.id, rival)
        keep_deed(self._connection, deed, self._now)
        self._following.come_back(Ended(found.id, found.state, is_followed=True, batch=found.batch))
        terms = found.terms
        if is_held_back:
            if found.held and terms is not None:
                give_permits(
                    self._connection, [Given(found.seq, found.id, found.draws, terms, found.held, 0)], self._limit_now
                )
            self._following.block([found.seq], is_retry=True)
            return found.state
        lane = self._lanes.of(found.queue, found.draws, terms, found.held)
        give_up_at = None if terms is None or not terms.patience else self._now + terms.patience
        execute(self._connection, "retry_job", seq=found.seq, lane=lane, now=self._now, give_up_at=give_up_at)
        self._lanes.arm([found.seq])
        return found.state

    def run_now(self, job_id: str, deed: Deed | None) -> JobState | None:
        """Let a job that waits for its time be ready at once."""
        found = self._find(job_id)
        if found is None:
            return None
        require_scheduled(
            job_id,
            found.state,
            is_ahead=bool(found.delayed) and found.run_at > self._now,
            follows=found.follows if found.is_blocked else None,
        )
        terms = found.terms
        give_up_at = None if terms is None or not terms.patience else self._now + terms.patience
        execute(self._connection, "run_now", seq=found.seq, now=self._now, give_up_at=give_up_at)
        execute(self._connection, "wake_lane", lane=found.lane, limit_now=self._limit_now)
        keep_deed(self._connection, deed, self._now)
        return found.state

    def reschedule(self, job_id: str, run_at: int | None, priority: int | None, deed: Deed | None) -> JobState | None:
        """Give a waiting job another time or priority, in its lane."""
        found = self._find(job_id)
        if found is None:
            return None
        require_waiting(job_id, found.state)
        time = new_time(found.run_at, run_at, self._now, delayed=bool(found.delayed))
        patience = None if found.terms is None else found.terms.patience
        execute(
            self._connection,
            "reschedule",
            seq=found.seq,
            run_at=time.run_at,
            delayed=int(time.delayed),
            priority=priority,
            give_up_at=time.run_at + patience if patience and time.has_changed else None,
        )
        if not found.is_blocked:
            self._lanes.rearm(found.lane, time.run_at, delayed=time.delayed, have_costs=bool(found.has_costs))
        keep_deed(self._connection, deed, self._now)
        return found.state

    def expire(self, count: int) -> list[Dropped]:
        late = [
            self._late(row) for row in _decode_expiring(fetch(self._connection, "expired", now=self._now, count=count))
        ]
        if late:
            rows = [(row.seq, state, error) for row, state, error in late]
            execute(self._connection, "drop_waiting", jobs=as_json(rows), now=self._now)
            give_all(self._connection, [(row, state) for row, state, _ in late], self._limit_now)
            costly = {row.lane for row, _, _ in late if row.has_costs}
            for lane, jobs in Counter(row.lane for row, _, _ in late if not row.is_blocked).items():
                self._lanes.leave(lane, jobs, have_costs=lane in costly)
            self._following.tell([row.seq for row, _, _ in late])
        return [Dropped(row.id, row.task, row.queue, state, error, row.attempt) for row, state, error in late]

    def _late(self, row: Expiring) -> tuple[Expiring, JobState, JobError]:
        behind = None if row.behind_limit is None else Draw(row.behind_limit, row.behind_key or "")
        return row, *late_ending(self._now, row.expires_at, row.give_up_at, row.terms, behind)

    def regate(self, jobs: Sequence[Regated]) -> int:
        """Move waiting jobs to what they ask for now."""
        moved = sum(self._regate(job) for job in jobs if not job.stays)
        stays = [(job.id, as_json(job.before), job.gate) for job in jobs if job.stays]
        return moved + (execute(self._connection, "restamp", jobs=as_json(stays)) if stays else 0)

    def _regate(self, job: Regated) -> bool:
        found = self._find(job.id)
        if found is None or found.state is not JobState.WAITING or found.draws != job.before:
            return False
        held = kept_permits(job.id, found.draws, found.terms, found.held, job.draws, job.terms)
        gone = found.held & bits(draw not in held for draw in found.draws)
        if gone and found.terms is not None:
            given = Given(found.seq, job.id, found.draws, found.terms, gone, 0)
            give_permits(self._connection, [given], self._limit_now)
        kept = bits(draw in held for draw in job.draws)
        passed = 0 if job.terms is None or not found.passed else job.terms.free_retries
        if not found.is_blocked:
            self._lanes.leave(found.lane, 1, have_costs=bool(found.has_costs))
        costs = None if job.costs is None else as_json(job.costs)
        asked = {"seq": found.seq, "draws": as_json(job.draws), "costs": costs}
        execute(self._connection, "forget_other_starts", **asked)
        execute(
            self._connection,
            "regate",
            **asked,
            terms=None if job.terms is None else as_json(job.terms),
            held=kept,
            passed=passed,
            lane=self._lanes.of(found.queue, job.draws, job.terms, kept | passed),
            gate=job.gate,
        )
        self._lanes.arm([found.seq])
        return True

    def release_idle(self, draw: Draw) -> int:
        """Take the permits of a bucket from jobs that do not run; how many are held by others."""
        rows = decode_buckets(fetch(self._connection, "buckets_of", draws=as_json([draw])))
        if not rows or not load_permits(rows[0].state).holders:
            return 0
        for job in _decode_holders(fetch(self._connection, "idle_holders", limit=draw.limit, key=draw.key)):
            given = sum(1 << index for index, drawn in enumerate(job.draws) if drawn == draw) & job.held
            if given and job.terms is not None:
                kept = job.held & ~given
                give_permits(
                    self._connection, [Given(job.seq, job.id, job.draws, job.terms, given, kept)], self._limit_now
                )
                if job.state is JobState.WAITING:
                    # It asks for that permit again, so it waits elsewhere.
                    self._lanes.leave(job.lane, 1, have_costs=bool(job.has_costs))
                    lane = self._lanes.of(job.queue, job.draws, job.terms, kept | job.passed)
                    execute(self._connection, "set_held", seq=job.seq, held=kept, passed=job.passed, lane=lane)
                    self._lanes.arm([job.seq])
        return give_up_unused(self._connection, draw, self._limit_now)

    def _find(self, job_id: str) -> Found | None:
        rows = fetch(self._connection, "find_job", id=job_id)
        return None if rows is None else _decode_found(rows)
