"""Lanes of jobs that come to wait, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from headgate.jobs.draw_set import NO_DRAWS, DrawSet
from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms
from headgate.storage.driver import run_to_end
from headgate.storage.procedures.lanes import Arrival, Lane, arrival_of, arrive, lane_of, leave, reopen_behind
from headgate.storage.sqlite.procedure_transaction import SqliteTransaction
from headgate.storage.sqlite.statements import as_json, fetch
from headgate.storage.stored_rows import RowDecoder


class _Back(msgspec.Struct, array_like=True):
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    passes: DrawSet
    delayed: int
    run_at: int


_decode_back = RowDecoder(_Back, "job").decode


class Lanes:
    """What one write transaction does to lanes."""

    def __init__(self, connection: sqlite3.Connection, tx: SqliteTransaction) -> None:
        self._connection = connection
        self._tx = tx

    def of(self, queue: str, draws: Sequence[Draw], terms: GateTerms | None, passes: DrawSet = NO_DRAWS) -> str:
        """The lane of a job that passes some of its draws."""
        return lane_of(queue, draws, terms, passes).id

    def find(self, queue: str, asked: tuple[Draw, ...], variant: str) -> str:
        """The lane of a queue for what is asked."""
        return Lane(queue, asked, variant).id

    def arm(self, seqs: Sequence[int]) -> None:
        """These jobs wait again."""
        rows = _decode_back(fetch(self._connection, "waiting_again", seqs=as_json(seqs)))
        lanes = [lane_of(row.queue, row.draws, row.terms, row.passes) for row in rows]
        come = [arrival_of(lane, row.run_at, delayed=bool(row.delayed)) for lane, row in zip(lanes, rows, strict=True)]
        run_to_end(arrive(self._tx, come))

    def rearm(self, lane: Lane, run_at: int, *, delayed: bool, have_costs: bool) -> None:
        """A job of a lane asks for something else; the lane keeps its own place in line."""
        if have_costs:
            run_to_end(reopen_behind(self._tx, [lane.id]))
        run_to_end(arrive(self._tx, [Arrival(lane, 0, not delayed, run_at if delayed else None)]))

    def leave(self, lane: Lane, *, have_costs: bool) -> None:
        """One job does not wait in a lane any more."""
        run_to_end(leave(self._tx, lane, have_costs=have_costs))
