"""Giving back permits, and looking for those that nobody holds, in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Set

import msgspec

from headgate.jobs.job import Draw
from headgate.limits.concurrency import dump_permits
from headgate.limits.rule import NEVER
from headgate.storage import permits
from headgate.storage.permits import Given, Holder, leaving_holders, permits_left
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.statements import as_json, execute, fetch

_decode_holders = msgspec.json.Decoder(list[Holder]).decode


def give_permits(connection: sqlite3.Connection, jobs: Iterable[Given], limit_now: int) -> Set[Draw]:
    """Take permits from their holders; whoever waits for one is looked at by the next claim. The buckets of it."""
    jobs = list(jobs)
    leaving = leaving_holders(jobs)
    if jobs:
        execute(connection, "keep_permits", jobs=as_json([(job.seq, job.kept) for job in jobs]))
    if not leaving:
        return leaving.keys()
    rows: list[tuple[str, str, str, int]] = []
    for row in decode_buckets(fetch(connection, "buckets_of", draws=as_json(list(leaving)))):
        left = permits_left(row.state, leaving[Draw(row.limit, row.key)])
        rows.append((row.limit, row.key, dump_permits(left), NEVER if left.holders else limit_now))
    execute(connection, "give_permits", buckets=as_json(rows), limit_now=limit_now)
    return leaving.keys()


def contradictions(connection: sqlite3.Connection) -> Iterator[str]:
    """Where buckets and jobs do not agree on who holds permits, one sentence each."""
    buckets = decode_buckets(fetch(connection, "buckets_of_permits"))
    states = {Draw(row.limit, row.key): row.state for row in buckets}
    return permits.contradictions(_decode_holders(fetch(connection, "holders")), states)
