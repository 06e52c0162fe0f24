"""A write transaction on a SQLite file, which the caller commits: adding, claiming, ending, nodes and pruning."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.jobs.audit import Deed
from headgate.jobs.draw_set import NO_DRAWS, DrawSet
from headgate.jobs.job import Draw, JobState
from headgate.jobs.terms import GateTerms
from headgate.storage.driver import run_to_end
from headgate.storage.endings import prunable_at_once
from headgate.storage.following import Ended
from headgate.storage.permits import Given
from headgate.storage.procedures import following
from headgate.storage.procedures.audit import keep_deed
from headgate.storage.procedures.permits import give_permits
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.protocol import (
    Claim,
    Claimed,
)
from headgate.storage.sqlite.claim import ClaimTransaction
from headgate.storage.sqlite.procedure_transaction import Places, SqliteTransaction
from headgate.storage.sqlite.statements import as_json, execute, fetch
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

    # ---------------------------------------------------------------------------------------------- jobs

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
