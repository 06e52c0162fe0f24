"""Permits that come back when their jobs leave the states in which they hold them, for stores that keep rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms
from headgate.limits.concurrency import Permits, Semaphore, load_permits


class Given(NamedTuple):
    """What a job gives back, and what it keeps: sets of its draws. `seq` is what the store knows it by."""

    seq: int | str
    job_id: str
    draws: tuple[Draw, ...]
    terms: GateTerms
    given: int
    kept: int


class Holder(msgspec.Struct, array_like=True):
    """A job that holds permits."""

    id: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: int


def leaving_holders(jobs: Iterable[Given]) -> dict[Draw, list[str]]:
    """Who leaves each bucket."""
    leaving: dict[Draw, list[str]] = {}
    for job in jobs:
        for index, holding in enumerate(job.terms.holds):
            if holding is not None and job.given >> index & 1:
                leaving.setdefault(job.draws[index], []).append(holding.holder(job.job_id))
    return leaving


def permits_left(state: str | None, leaving: Iterable[str]) -> Permits:
    """The permits of a bucket after these holders have left."""
    permits = load_permits(state)
    for holder in leaving:
        permits = Semaphore.give(permits, holder)
    return permits


def contradictions(holders: Iterable[Holder], states: Mapping[Draw, str | None]) -> Iterator[str]:
    """Where buckets and jobs do not agree on who holds permits, one sentence each."""
    expected: dict[Draw, Counter[str]] = {}
    for job in holders:
        for index, holding in enumerate(job.terms.holds if job.terms is not None else ()):
            if holding is not None and job.held >> index & 1:
                expected.setdefault(job.draws[index], Counter())[holding.holder(job.id)] += 1
    for draw, state in states.items():
        permits = load_permits(state)
        by_bucket = {holder: hold.uses for holder, hold in permits.holders.items()}
        by_jobs = dict(expected.pop(draw, {}))
        if by_bucket != by_jobs:
            yield f"bucket {draw.limit}:{draw.key} is held by {by_bucket}, and jobs hold {by_jobs}"
        if permits.held != sum(hold.cost for hold in permits.holders.values()):
            yield f"bucket {draw.limit}:{draw.key} counts {permits.held} held, which its holders do not add up to"
    for draw, by_jobs in expected.items():
        yield f"jobs hold {dict(by_jobs)} of bucket {draw.limit}:{draw.key}, which knows nothing of it"
