"""A write transaction on a SQLite file, which the caller commits: adding, claiming, ending, nodes and pruning."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import DuplicateJob
from headgate.jobs.audit import Deed
from headgate.jobs.batch import NewBatch
from headgate.jobs.draw_set import NO_DRAWS, DrawSet
from headgate.jobs.job import Draw, JobState, NewJob
from headgate.jobs.terms import GateTerms
from headgate.storage.driver import run_to_end
from headgate.storage.endings import prunable_at_once
from headgate.storage.following import Ended, Place, final_at_once
from headgate.storage.permits import Given
from headgate.storage.procedures import following, history, schedules
from headgate.storage.procedures.audit import keep_deed
from headgate.storage.procedures.permits import give_permits
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.protocol import (
    Claim,
    Claimed,
)
from headgate.storage.row_ids import lane_id
from headgate.storage.schedules import Fired
from headgate.storage.sqlite.claim import ClaimTransaction
from headgate.storage.sqlite.lanes import Lanes
from headgate.storage.sqlite.procedure_transaction import Places, SqliteTransaction
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.sqlite.unique import Unique
from headgate.storage.stored_rows import RowDecoder


class Prunable(msgspec.Struct, array_like=True):
    seq: int
    id: str
    held: DrawSet
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    lines: int
    batch: str | None


_decode_prunable = RowDecoder(Prunable, "job").decode
_decode_ties = RowDecoder(Ended, "job", state=JobState.FAILED).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_queues = msgspec.json.Decoder(frozenset[str]).decode


class Transaction:
    """What one write transaction can do. `now` is wall time, `limit_now` limit time, both fixed for its length."""

    def __init__(
        self, connection: sqlite3.Connection, clock: Clock, ahead: int, live: CachedRules, places: Places
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._ahead = ahead
        self.live = live
        self._places = places
        self._now = clock.now()
        self._limit_now = clock.monotonic() + ahead
        self.tx = SqliteTransaction(connection, self._now, self._limit_now, places)
        self._lanes = Lanes(connection, self.tx)

    # ---------------------------------------------------------------------------------------------- jobs

    def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> None:
        if not jobs and not batches:
            return
        are_plain = all(job.is_plain for job in jobs)
        placed = None if are_plain and not batches else run_to_end(following.places_of(self.tx, jobs, batches))
        rows = as_json(jobs)
        lanes = as_json(_lanes_of([job for job in jobs if placed is None or placed[job.id].enters_lane], jobs))
        execute(self._connection, "add_lanes", lanes=lanes)
        try:
            execute(self._connection, "add_jobs" if are_plain else "add_jobs_in_full", jobs=rows)
        except sqlite3.IntegrityError as error:
            new = self._not_stored(jobs)
            if len(new) == len(jobs):
                raise error from None
            # A repeat after a lost reply: what is stored stays as it is.
            self.add(new, batches)
            return
        if placed is not None:
            self._keep_back(jobs, placed)
            run_to_end(following.store_ties(self.tx, jobs, batches, placed))
        unrun = final_at_once(jobs, placed or {})
        run_to_end(history.note_unrun(self.tx, [job.id for job, _ in unrun]))
        execute(self._connection, "add_arm", lanes=lanes, limit_now=self.tx.take_places(max(1, len(jobs))))

    def _keep_back(self, jobs: Sequence[NewJob], placed: Mapping[str, Place]) -> None:
        """Keep new jobs that follow others out of their lanes."""
        kept = [
            (job.id, "blocked" if placed[job.id].is_blocked else placed[job.id].state, placed[job.id].error)
            for job in jobs
            if not placed[job.id].enters_lane
        ]
        if kept:
            execute(self._connection, "place_jobs", jobs=as_json(kept))

    def add_all(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        """Store jobs, with unique keys or without. Raises DuplicateJob before anything is written."""
        if any(job.unique_key is not None for job in jobs):
            return Unique(self._connection, self.add, self._lanes, self.tx).add(jobs, batches)
        self.add(jobs, batches)
        return {}

    def enlist(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Store jobs in a transaction that somebody else may yet undo, and with them that they were enqueued."""
        others = self.add_all(jobs)
        run_to_end(history.note_enqueued(self.tx, [job for job in jobs if job.id not in others]))
        return others

    def add_unique(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch]) -> Mapping[str, str] | DuplicateJob:
        """The same, but a duplicate is told by its error, so that others' writes in this transaction go on."""
        try:
            return self.add_all(jobs, batches)
        except DuplicateJob as error:
            return error

    def _not_stored(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        by_id = {job.id: job for job in jobs}
        for stored in _decode_ids(fetch(self._connection, "stored_ids", ids=as_json(list(by_id)))):
            del by_id[stored]
        return list(by_id.values())

    def claim(self, claim: Claim) -> Claimed:
        # Dated as late as can be: what was written before in this transaction has taken its time.
        now, limit_now = self._clock.now(), self._clock.monotonic() + self._ahead
        paused = _decode_queues(fetch(self._connection, "paused_queues"))
        if paused:
            rooms = {queue: room for queue, room in claim.rooms.items() if queue not in paused}
            claim = replace(claim, rooms=rooms)
        tx = SqliteTransaction(self._connection, now, limit_now, self._places)
        return ClaimTransaction(self._connection, claim, self.live, now, limit_now, tx, self._tell).run()

    def pause_queue(self, queue: str, deed: Deed | None) -> bool:
        """Let no claim take a job of a queue; whether it was not paused before."""
        is_changed = execute(self._connection, "pause_queue", queue=queue, now=self._now) == 1
        if is_changed:
            self.note(deed)
        return is_changed

    def resume_queue(self, queue: str, deed: Deed | None) -> bool:
        is_changed = execute(self._connection, "resume_queue", queue=queue) == 1
        if is_changed:
            self.note(deed)
        return is_changed

    def note(self, deed: Deed | None) -> None:
        """Keep what somebody did, in the commit that does it."""
        run_to_end(keep_deed(self.tx, deed))

    def _tell(self, seqs: Sequence[int]) -> bool:
        """These jobs have become final: whoever follows them hears of it in the same commit; whether anybody does."""
        ended = _decode_ties(fetch(self._connection, "ended_all", seqs=as_json(seqs))) if seqs else []
        if ended:
            run_to_end(following.tell_followers(self.tx, ended))
        return any(job.is_followed or job.batch is not None for job in ended)

    def fire(self, fired: Sequence[Fired]) -> list[bool]:
        """Add the jobs of the schedules that have not changed."""
        written = run_to_end(schedules.advance_schedules(self.tx, fired))
        jobs = [job for each in written for job in each.jobs]
        self.add(jobs)
        run_to_end(history.note_enqueued(self.tx, jobs))
        return [each in written for each in fired]

    # --------------------------------------------------------------------------------------- housekeeping

    def prune(
        self, finished_before: int, count: int, states: Iterable[JobState], ids: Sequence[str] | None = None
    ) -> int:
        asked: dict[str, Any] = {"before": finished_before, "count": count, "states": as_json(sorted(states))}
        if ids is None:
            found = _decode_prunable(fetch(self._connection, "prunable", **asked))
        else:
            found = _decode_prunable(fetch(self._connection, "prunable_by_id", ids=as_json(ids), **asked))
        rows = found[: prunable_at_once([row.lines for row in found])]
        if not rows and ids is not None:
            return 0
        if not rows:
            # Those that had no job, or whose jobs were all pruned before they were so old.
            execute(self._connection, "prune_batches", before=finished_before, count=count)
            return 0
        # A permit that was kept for a job until it succeeds is not kept longer than the job.
        given = [
            Given(row.seq, row.id, row.draws, row.terms, row.held, NO_DRAWS)
            for row in rows
            if row.held and row.terms is not None
        ]
        run_to_end(give_permits(self.tx, given))
        pruned_ids = as_json([row.id for row in rows])
        execute(self._connection, "prune_attempts", ids=pruned_ids)
        if any(row.lines for row in rows):
            execute(self._connection, "prune_lines", ids=pruned_ids)
        execute(self._connection, "prune_deeds", ids=pruned_ids)
        pruned = execute(self._connection, "prune_jobs", seqs=as_json([row.seq for row in rows]))
        batches = {row.batch for row in rows if row.batch is not None}
        if batches:
            execute(self._connection, "prune_batches_of", ids=as_json(sorted(batches)), before=finished_before)
        return pruned

    def evict(self, count: int) -> int:
        buckets = execute(self._connection, "evict_buckets", limit_now=self._limit_now, count=count)
        buckets += execute(self._connection, "evict_notes", limit_now=self._limit_now, count=count)
        return buckets + execute(self._connection, "evict_lanes", count=count)


LaneArrivals = tuple[str, str, str, str, int, int, int | None]
"""A lane: id, queue, draws, variant; how many jobs come, how many are ready, when the first delayed one is due."""


def _lanes_of(entering: Sequence[NewJob], jobs: Sequence[NewJob]) -> list[LaneArrivals]:
    """What comes to each lane, of the jobs that enter one; the others name theirs only, and it is made for them."""
    # Counted here rather than in SQL, where it took two more passes over all rows: 7.4 µs a job against 5.3.
    lanes: dict[tuple[str, tuple[Draw, ...], str], list[int]] = {}
    earliest: dict[tuple[str, tuple[Draw, ...], str], int] = {}
    if len(entering) < len(jobs):
        lanes = {(job.queue, job.draws, job.variant): [0, 0] for job in jobs}
    for job in entering:
        lane = (job.queue, job.draws, job.variant)
        counts = lanes.get(lane)
        if counts is None:
            counts = lanes[lane] = [0, 0]
        if job.rejection is not None:
            continue
        counts[0] += 1
        if not job.delayed:
            counts[1] += 1
        elif job.run_at < earliest.get(lane, job.run_at + 1):
            earliest[lane] = job.run_at
    return [
        (
            lane_id(queue, draws, variant),
            queue,
            as_json(draws),
            variant,
            total,
            ready,
            earliest.get((queue, draws, variant)),
        )
        for (queue, draws, variant), (total, ready) in lanes.items()
    ]
