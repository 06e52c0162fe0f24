"""Permits that come back when their jobs leave the states in which they hold them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

import msgspec

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms
from headgate.limits.concurrency import Semaphore, dump_permits, load_permits
from headgate.limits.rule import NEVER
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.statements import as_json, execute, fetch


class Given(NamedTuple):
    """What a job gives back, and what it keeps: sets of its draws."""

    seq: int
    job_id: str
    draws: tuple[Draw, ...]
    terms: GateTerms
    given: int
    kept: int


def give_permits(connection: sqlite3.Connection, jobs: Iterable[Given], limit_now: int) -> Set[Draw]:
    """Take permits from their holders; whoever waits for one is looked at by the next claim. The buckets of it."""
    leaving: dict[Draw, list[str]] = {}
    kept: list[tuple[int, int]] = []
    for job in jobs:
        kept.append((job.seq, job.kept))
        for index, holding in enumerate(job.terms.holds):
            if holding is not None and job.given >> index & 1:
                leaving.setdefault(job.draws[index], []).append(holding.holder(job.job_id))
    if kept:
        execute(connection, "keep_permits", jobs=as_json(kept))
    if not leaving:
        return leaving.keys()
    rows: list[tuple[str, str, str, int]] = []
    for row in decode_buckets(fetch(connection, "buckets_of", draws=as_json(list(leaving)))):
        permits = load_permits(row.state)
        for holder in leaving[Draw(row.limit, row.key)]:
            permits = Semaphore.give(permits, holder)
        rows.append((row.limit, row.key, dump_permits(permits), NEVER if permits.holders else limit_now))
    execute(connection, "give_permits", buckets=as_json(rows), limit_now=limit_now)
    return leaving.keys()


class _Holder(msgspec.Struct, array_like=True):
    id: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: int


_decode_holders = msgspec.json.Decoder(list[_Holder]).decode


def contradictions(connection: sqlite3.Connection) -> Iterator[str]:
    """Where buckets and jobs do not agree on who holds permits, one sentence each."""
    expected: dict[Draw, Counter[str]] = {}
    for job in _decode_holders(fetch(connection, "holders")):
        for index, holding in enumerate(job.terms.holds if job.terms is not None else ()):
            if holding is not None and job.held >> index & 1:
                expected.setdefault(job.draws[index], Counter())[holding.holder(job.id)] += 1
    for row in decode_buckets(fetch(connection, "buckets_of_permits")):
        permits = load_permits(row.state)
        by_bucket = {holder: hold.uses for holder, hold in permits.holders.items()}
        by_jobs = dict(expected.pop(Draw(row.limit, row.key), {}))
        if by_bucket != by_jobs:
            yield f"bucket {row.limit}:{row.key} is held by {by_bucket}, and jobs hold {by_jobs}"
        if permits.held != sum(hold.cost for hold in permits.holders.values()):
            yield f"bucket {row.limit}:{row.key} counts {permits.held} held, which its holders do not add up to"
    for draw, by_jobs in expected.items():
        yield f"jobs hold {dict(by_jobs)} of bucket {draw.limit}:{draw.key}, which knows nothing of it"
