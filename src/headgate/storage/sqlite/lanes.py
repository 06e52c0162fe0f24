"""Lanes: found for jobs that come to wait, and left by those that do not wait any more, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms, without
from headgate.storage.sqlite.statements import as_json, execute, fetch


class Lanes:
    """What one write transaction does to lanes."""

    def __init__(self, connection: sqlite3.Connection, limit_now: int) -> None:
        self._connection = connection
        self._limit_now = limit_now

    def of(self, queue: str, draws: Sequence[Draw], terms: GateTerms | None, passes: int = 0) -> int:
        """The lane of a job that passes some of its draws; made if it is not there."""
        asked = without(draws, passes)
        variant = terms.variant(passes) if terms is not None and asked else ""
        return self.find(queue, asked, variant)

    def find(self, queue: str, asked: Sequence[Draw], variant: str) -> int:
        """The lane of a queue for what is asked; made if it is not there."""
        return int(fetch(self._connection, "find_lane", queue=queue, draws=as_json(asked), variant=variant))

    def arm(self, seqs: Sequence[int]) -> None:
        """These jobs wait again."""
        execute(self._connection, "arm", seqs=as_json(seqs), limit_now=self._limit_now)

    def rearm(self, lane: int, run_at: int, *, delayed: bool, have_costs: bool) -> None:
        """A job of a lane asks for something else; the lane keeps its own place in line."""
        execute(self._connection, "rearm", lane=lane, delayed=int(delayed), run_at=run_at, limit_now=self._limit_now)
        if have_costs:
            # A bucket may have been closed for what the job cost before.
            behind = fetch(self._connection, "lanes_behind", lanes=as_json([lane]))
            execute(self._connection, "reopen_buckets", buckets=behind, limit_now=self._limit_now)

    def leave(self, lane: int, jobs: int, *, have_costs: bool) -> None:
        """So many jobs do not wait in a lane any more."""
        behind = fetch(self._connection, "lanes_behind", lanes=as_json([lane]))
        execute(self._connection, "leave_lane", lane=lane, jobs=jobs)
        if behind != "[]":
            execute(self._connection, "clear_timers", buckets=behind)
            if have_costs:
                # It may have been closed for their costs, and be open for what others ask.
                execute(self._connection, "reopen_buckets", buckets=behind, limit_now=self._limit_now)
