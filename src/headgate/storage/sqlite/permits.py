"""Giving back permits, and looking for those that nobody holds, in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Set
from typing import Protocol

from headgate.jobs.batch import BatchRecord
from headgate.jobs.job import Draw, JobState
from headgate.jobs.terms import GateTerms
from headgate.limits.concurrency import OF_BATCH, Semaphore, dump_permits, load_permits, without_unused
from headgate.limits.rule import NEVER
from headgate.storage import permits
from headgate.storage.live_rules import LiveRules
from headgate.storage.permits import Given, Holder, PermitBucket, leaving_holders, permits_left
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.settings import decode_settings
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.stored_rows import RowDecoder

_decode_batches = RowDecoder(BatchRecord, "batch").decode
_decode_holders = RowDecoder(Holder, "job").decode


class Holding(Protocol):
    """A row of a job that may hold permits: `held` of its draws."""

    @property
    def seq(self) -> int: ...

    @property
    def id(self) -> str: ...

    @property
    def draws(self) -> tuple[Draw, ...]: ...

    @property
    def terms(self) -> GateTerms | None: ...

    @property
    def held(self) -> int: ...


def give_all(connection: sqlite3.Connection, left: Iterable[tuple[Holding, JobState]], limit_now: int) -> None:
    """Take back what these jobs hold and do not keep in their new states."""
    given: list[Given] = []
    for row, state in left:
        if row.held and row.terms is not None:
            kept = row.terms.kept(row.held, state)
            given.append(Given(row.seq, row.id, row.draws, row.terms, row.held & ~kept, kept))
    if given:
        give_permits(connection, given, limit_now)


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


def give_up(connection: sqlite3.Connection, holdings: Iterable[tuple[str, Draw]], limit_now: int) -> None:
    """Batches are final, and hold permits of these buckets no more."""
    leaving: dict[Draw, list[str]] = {}
    for batch, draw in holdings:
        leaving.setdefault(draw, []).append(OF_BATCH + batch)
    rows: list[tuple[str, str, str, int]] = []
    for row in decode_buckets(fetch(connection, "buckets_of", draws=as_json(list(leaving)))) if leaving else ():
        held = left = load_permits(row.state)
        for holder in leaving[Draw(row.limit, row.key)]:
            left = Semaphore.release(left, holder)
        if left is not held:
            rows.append((row.limit, row.key, dump_permits(left), NEVER if left.holders else limit_now))
    if rows:
        execute(connection, "give_permits", buckets=as_json(rows), limit_now=limit_now)


def give_up_unused(connection: sqlite3.Connection, draw: Draw, limit_now: int) -> int:
    """Take permits from batches of which no job runs; how many are held by others."""
    (row,) = decode_buckets(fetch(connection, "buckets_of", draws=as_json([draw])))
    held = load_permits(row.state)
    left = without_unused(held)
    if left != held:
        buckets = [(draw.limit, draw.key, dump_permits(left), NEVER if left.holders else limit_now)]
        execute(connection, "give_permits", buckets=as_json(buckets), limit_now=limit_now)
    return left.held


def contradictions(connection: sqlite3.Connection) -> Iterator[str]:
    """Where buckets and jobs do not agree on who holds permits, one sentence each."""
    buckets = decode_buckets(fetch(connection, "buckets_of_permits"))
    found = {Draw(row.limit, row.key): PermitBucket(row.state, row.opens_at) for row in buckets}
    holding = permits.holding_batches(bucket.state for bucket in found.values())
    batches = _decode_batches(fetch(connection, "batches", ids=as_json(sorted(holding))))
    pending = {batch.id for batch in batches if batch.pending}
    rules = LiveRules(decode_settings(fetch(connection, "settings")))
    return permits.contradictions(_decode_holders(fetch(connection, "holders")), found, pending, rules)
