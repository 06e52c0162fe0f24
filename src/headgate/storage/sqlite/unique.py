"""Adding jobs that have unique keys, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

import msgspec

from headgate.jobs.batch import NewBatch
from headgate.jobs.draw_set import NO_DRAWS, DrawSet
from headgate.jobs.job import Draw, NewJob
from headgate.jobs.replacing import Waited, replacement
from headgate.jobs.terms import GateTerms
from headgate.jobs.uniqueness import (
    Following,
    Kept,
    Key,
    Replaced,
    Stands,
    Stored,
    decide,
    following,
    key_of,
    require_no_duplicate,
    successor,
)
from headgate.storage.driver import run_to_end
from headgate.storage.permits import Given
from headgate.storage.procedures.lanes import Lane
from headgate.storage.procedures.permits import give_permits
from headgate.storage.sqlite.lanes import Lanes
from headgate.storage.sqlite.procedure_transaction import SqliteTransaction
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.stored_rows import RowDecoder


class Standing(msgspec.Struct, array_like=True):
    """A job that is not final."""

    seq: int
    id: str
    state: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet
    has_costs: int
    delayed: int
    run_at: int
    task: str
    unique_key: str

    @property
    def key(self) -> Key:
        return self.task, self.unique_key


_decode_standing = RowDecoder(Standing, "job", state="waiting").decode
_decode_ids = msgspec.json.Decoder(set[str]).decode


class Unique:
    """Stores jobs some of which have unique keys."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        store: Callable[[Sequence[NewJob], Sequence[NewBatch]], None],
        lanes: Lanes,
        tx: SqliteTransaction,
    ) -> None:
        self._connection = connection
        self._store = store
        self._lanes = lanes
        self._tx = tx

    def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> dict[str, str]:
        """By their ids, those for which another one stands. Raises DuplicateJob before anything is written."""
        ids = as_json([job.id for job in jobs])
        # A repeat of what is stored already changes nothing.
        stored = _decode_ids(fetch(self._connection, "stored_ids", ids=ids))
        new = [job for job in jobs if job.id not in stored]
        keys = {key for job in new if (key := key_of(job)) is not None}
        require_no_duplicate(new, {key: _stands(rows) for key, rows in self._standing(keys).items()})
        others: dict[str, str] = {}
        self._store((), batches)
        for job in new:
            self._add(following(job, others), others)
        return others

    def _add(self, job: NewJob, others: dict[str, str]) -> None:
        key = key_of(job)
        rows = [] if key is None else self._standing([key]).get(key, [])
        match Stored() if key is None else decide(job, _stands(rows)):
            case Stored():
                self._store([job], ())
            case Kept(id):
                others[job.id] = id
            case Replaced(id):
                self._replace(next(row for row in rows if row.id == id), job)
                others[job.id] = id
            case Following(id):
                self._store([successor(job, id)], ())

    def _standing(self, keys: Iterable[Key]) -> dict[Key, list[Standing]]:
        found: dict[Key, list[Standing]] = {}
        for row in _decode_standing(fetch(self._connection, "standing_under", keys=as_json(list(keys)))):
            found.setdefault(row.key, []).append(row)
        return found

    def _replace(self, row: Standing, new: NewJob) -> None:
        waited = Waited(
            row.id,
            row.queue,
            row.draws,
            row.terms,
            row.held,
            row.passed,
            bool(row.has_costs),
            bool(row.delayed),
            row.run_at,
        )
        after = replacement(waited, new)
        if after.gone and row.terms is not None:
            given = Given(row.seq, row.id, row.draws, row.terms, after.gone, NO_DRAWS)
            run_to_end(give_permits(self._tx, [given]))
        in_lane = row.state == "waiting"
        before, lane = Lane(*waited.lane), Lane(*after.lane)
        if in_lane and not after.stays:
            self._lanes.leave(before, have_costs=bool(row.has_costs))
        job = as_json(after.new)
        execute(self._connection, "replace_job", seq=row.seq, new=job, lane=lane.id, held=after.held)
        if not after.draws_alike:
            execute(self._connection, "forget_starts", seq=row.seq)
        if in_lane and after.stays:
            time = after.new
            self._lanes.rearm(lane, time.run_at, delayed=time.delayed, have_costs=bool(row.has_costs))
        elif in_lane:
            self._lanes.arm([row.seq])


def _stands(rows: Iterable[Standing]) -> Stands:
    waiting = next((row.id for row in rows if row.state != "running"), None)
    running = next((row.id for row in rows if row.state == "running"), None)
    return Stands(waiting, running)
