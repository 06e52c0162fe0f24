"""A write transaction on a SQLite file, which the caller commits: adding, claiming, ending, nodes and pruning."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headgate.clock import Clock
from headgate.jobs.audit import Deed
from headgate.jobs.job import JobState
from headgate.storage.driver import run_to_end
from headgate.storage.following import Ended
from headgate.storage.procedures import following
from headgate.storage.procedures.audit import keep_deed
from headgate.storage.procedures.claim import claim_alone
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.protocol import (
    Claim,
    Claimed,
)
from headgate.storage.sqlite.procedure_transaction import Places, SqliteTransaction
from headgate.storage.sqlite.statements import as_json, fetch
from headgate.storage.stored_rows import RowDecoder

_decode_ties = RowDecoder(Ended, "job", state=JobState.FAILED).decode


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
        self.tx = SqliteTransaction(connection, clock.now(), clock.monotonic() + ahead, places)

    # ---------------------------------------------------------------------------------------------- jobs

    def claim(self, claim: Claim) -> Claimed:
        # Dated as late as can be: what was written before in this transaction has taken its time.
        now, limit_now = self._clock.now(), self._clock.monotonic() + self._ahead
        tx = SqliteTransaction(self._connection, now, limit_now, self._places)
        return run_to_end(claim_alone(tx, claim, self.live, self._clock))

    def note(self, deed: Deed | None) -> None:
        """Keep what somebody did, in the commit that does it."""
        run_to_end(keep_deed(self.tx, deed))

    def _tell(self, seqs: Sequence[int]) -> bool:
        """These jobs have become final: whoever follows them hears of it in the same commit; whether anybody does."""
        ended = _decode_ties(fetch(self._connection, "ended_all", seqs=as_json(seqs))) if seqs else []
        if ended:
            run_to_end(following.tell_followers(self.tx, ended))
        return any(job.is_followed or job.batch is not None for job in ended)
