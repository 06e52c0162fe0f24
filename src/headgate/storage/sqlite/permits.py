"""Permits that come back when their jobs leave the states in which they hold them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

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


def give_permits(connection: sqlite3.Connection, jobs: Iterable[Given], limit_now: int) -> None:
    """Take permits from their holders; whoever waits for one is looked at by the next claim."""
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
        return
    rows: list[tuple[str, str, str, int]] = []
    for row in decode_buckets(fetch(connection, "buckets_of", draws=as_json(list(leaving)))):
        permits = load_permits(row.state)
        for holder in leaving[Draw(row.limit, row.key)]:
            permits = Semaphore.give(permits, holder)
        rows.append((row.limit, row.key, dump_permits(permits), NEVER if permits.holders else limit_now))
    execute(connection, "give_permits", buckets=as_json(rows), limit_now=limit_now)
