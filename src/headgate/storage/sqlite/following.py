"""Jobs that follow others, and batches, in a SQLite file: what one write transaction does to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

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
from headgate.storage.sqlite import history
from headgate.storage.sqlite.permits import give_up
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.stored_rows import RowDecoder

LEADERS_AT_ONCE = 100
"""Of how many leaders followers are looked for in one commit."""

LaneOf = Callable[[str, Sequence[Draw], GateTerms | None], int]
"""The lane of a queue, draws and terms; made if it is not there."""


class _Leader(msgspec.Struct, array_like=True):
    id: str
    state: str | None
    failed: int
    cancelled: int
    pending: int

    @property
    def ended_as(self) -> JobState | None:
        if self.state is None:
            return None if self.pending else ended_as(self.failed, self.cancelled)
        return JobState(self.state) if self.state in ("succeeded", "failed", "cancelled") else None


class _Follower(msgspec.Struct, array_like=True):
    seq: int
    id: str
    leader: str
    on: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    run_at: int


class _Cancelled(msgspec.Struct, array_like=True):
    seq: int
    id: str
    state: JobState
    is_followed: bool
    batch: str | None


class _Member(msgspec.Struct, array_like=True):
    """A job of a batch that holds permits by its batch, if its terms say so."""

    id: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None


_decode_ended_leaders = RowDecoder(EndedLeader, "job").decode
_decode_leaders = RowDecoder(_Leader, "job").decode
_decode_ended = RowDecoder(Ended, "job", state=JobState.FAILED).decode
_decode_followers = RowDecoder(_Follower, "job").decode
_decode_cancelled = RowDecoder(_Cancelled, "job", state=JobState.CANCELLED).decode
_decode_causes = RowDecoder(Cause, "job").decode
_decode_members = RowDecoder(_Member, "job of batch").decode
decode_batches = RowDecoder(BatchRecord, "batch").decode


class Following:
    """Followers and batches, at one wall time, inside a write transaction."""

    def __init__(self, connection: sqlite3.Connection, now: int, limit_now: int, lane_of: LaneOf) -> None:
        self._connection = connection
        self._now = now
        self._limit_now = limit_now
        self._lane_of = lane_of

    def places(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> dict[str, Place]:
        """Where new jobs go that belong to something."""
        leaders = leaders_of(jobs)
        ends = self._ends(leaders) if leaders else {}
        return places(jobs, batches, ends, self._causes(went_wrong(ends)))

    def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch], placed: dict[str, Place]) -> None:
        """Keep back the new jobs that follow others, and store their batches."""
        kept = [
            (job.id, "blocked" if placed[job.id].is_blocked else placed[job.id].state, placed[job.id].error)
            for job in jobs
            if not placed[job.id].enters_lane
        ]
        if kept:
            execute(self._connection, "place_jobs", jobs=as_json(kept))
        leaders = leaders_of(jobs)
        if leaders:
            execute(self._connection, "mark_followed", ids=as_json(list(leaders)))
        if batches:
            rows = [
                (batch.id, batch.total, batch.enqueued_at, count.succeeded, count.failed, count.cancelled)
                for batch, count in zip(batches, new_batch_counts(batches, jobs, placed), strict=True)
            ]
            execute(self._connection, "add_batches", batches=as_json(rows), now=self._now)

    def tell(self, seqs: Sequence[int], *, as_told: Sequence[int] = ()) -> bool:
        """Let go or cancel those who follow jobs that have just become final, and whoever follows these.

        Where they are many, the first ones; that others are left is noted, for `release`. All of them are counted in
        the charts but those that are final `as_told` by their attempts: of these their nodes do it. Returns whether
        anybody was to be told.
        """
        ended = self._ended([*as_told, *seqs])
        unrun = [*seqs, *self._release(self._leaders(ended), Portion())]
        if unrun:
            history.note_unrun(self._connection, unrun, self._now)
        return bool(ended)

    def release(self, most: int) -> int:
        """Go on with some leaders of whose followers others are left; with how many of them."""
        leaders = _decode_ended_leaders(fetch(self._connection, "ended_leaders", count=LEADERS_AT_ONCE))
        if leaders:
            self._forget([leader.id for leader in leaders])
            history.note_unrun(self._connection, self._release(leaders, Portion(most)), self._now)
        return len(leaders)

    def _leaders(self, ended: Sequence[Ended]) -> list[EndedLeader]:
        """Those of the jobs that others follow, and their batches that are final now, in the order of their ids."""
        states = {job.id: job.state for job in ended if job.is_followed} | self._count(batch_counts(ended))
        return [EndedLeader(id, state) for id, state in sorted(states.items())]

    def _release(self, leaders: Sequence[EndedLeader], portion: Portion) -> list[int]:
        """Release and cancel a portion of their followers, and note what is left; those that are cancelled."""
        unrun: list[int] = []
        while leaders and portion.left > 0:
            asked = {"leaders": as_json(leaders), "count": portion.left}
            followers = _decode_followers(fetch(self._connection, "followers", **asked))
            portion.take(leaders, [(job.leader, job.id) for job in followers])
            cancelled = self._tell(followers, {each.id: each.state for each in leaders})
            unrun += cancelled
            leaders = self._leaders(self._ended(cancelled))
        left = [*portion.rest, *leaders]
        if left:
            execute(self._connection, "keep_ended_leaders", leaders=as_json(left))
        return unrun

    def _forget(self, leaders: Sequence[str]) -> None:
        execute(self._connection, "forget_ended_leaders", ids=as_json(leaders))

    def _tell(self, followers: Sequence[_Follower], leaders: dict[str, JobState]) -> list[int]:
        released = [job for job in followers if is_let_go(job.on, leaders[job.leader])]
        cancelled = [job for job in followers if not is_let_go(job.on, leaders[job.leader])]
        if released:
            rows = [
                (
                    job.seq,
                    self._lane_of(job.queue, job.draws, job.terms),
                    None if job.terms is None else job.terms.patience or None,
                )
                for job in released
            ]
            execute(self._connection, "release", jobs=as_json(rows), now=self._now)
            seqs = as_json([job.seq for job in released])
            execute(self._connection, "arm", seqs=seqs, limit_now=self._limit_now)
        if cancelled:
            causes = self._causes(sorted({job.leader for job in cancelled}))
            self.cancel(
                [(job.seq, leader_error(job.leader, leaders[job.leader], causes.get(job.leader))) for job in cancelled]
            )
        return [job.seq for job in cancelled]

    def cancel(self, jobs: Sequence[tuple[int, JobError | None]]) -> None:
        """Blocked jobs are cancelled."""
        execute(self._connection, "cancel_blocked", jobs=as_json(jobs), now=self._now)

    def is_held_back(self, job_id: str, leader: str | None, on: str) -> bool:
        """Whether a follower that is retried has to wait for its leader. Raises LeaderNotRetried."""
        ends = {} if leader is None else self._ends({leader})
        if leader is None or leader not in ends:
            return False
        ended = ends[leader]
        if ended is not None and not is_let_go(on, ended):
            raise not_retried(job_id, leader, ended, self._causes([leader]).get(leader))
        return ended is None

    def come_back(self, job: Ended) -> None:
        """A final job will be final no more: nor is its batch, and who was cancelled because of either is blocked."""
        back = [job]
        while back:
            leaders = [each.id for each in back]
            counts = [_undone(count) for count in batch_counts(back)]
            if counts:
                ids = [count.id for count in counts]
                leaders += [id for id, end in self._ends(set(ids)).items() if end is not None]
                execute(self._connection, "count_batches", counts=as_json(counts), now=self._now)
            self._forget(leaders)
            cancelled = _decode_cancelled(fetch(self._connection, "cancelled_followers", leaders=as_json(leaders)))
            self.block([each.seq for each in cancelled])
            back = [Ended(each.id, each.state, each.is_followed, each.batch) for each in cancelled]

    def block(self, seqs: Sequence[int], *, is_retry: bool = False) -> None:
        """Final jobs follow others again."""
        if seqs:
            execute(self._connection, "block", seqs=as_json(seqs), now=self._now, is_retry=int(is_retry))

    def _ended(self, seqs: Sequence[int]) -> list[Ended]:
        return _decode_ended(fetch(self._connection, "ended", seqs=as_json(seqs))) if seqs else []

    def _ends(self, leaders: set[str]) -> dict[str, JobState | None]:
        rows = _decode_leaders(fetch(self._connection, "leaders", ids=as_json(list(leaders))))
        return {row.id: row.ended_as for row in rows}

    def _causes(self, leaders: Sequence[str]) -> dict[str, Cause]:
        if not leaders:
            return {}
        found = _decode_causes(fetch(self._connection, "causes", leaders=as_json(leaders)))
        return {cause.leader: cause for cause in found}

    def _count(self, counts: Sequence[BatchCount]) -> dict[str, JobState]:
        """Count jobs of batches that have become final; how those batches ended of which none is pending any more."""
        if not counts:
            return {}
        execute(self._connection, "count_batches", counts=as_json(counts), now=self._now)
        ends = self._ends({count.id for count in counts})
        finals = {id: end for id, end in ends.items() if end is not None}
        if finals:
            members = _decode_members(fetch(self._connection, "members", batches=as_json(list(finals))))
            holdings = [(member.id, draw) for member in members for draw in draws_of_batch(member.draws, member.terms)]
            give_up(self._connection, holdings, self._limit_now)
        return finals


def _undone(count: BatchCount) -> BatchCount:
    return BatchCount(count.id, -count.succeeded, -count.failed, -count.cancelled)
