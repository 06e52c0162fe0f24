"""Permits that jobs release when they leave the states in which they hold them, for stores that keep rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headgate.jobs.draw_set import DrawSet, chosen
from headgate.jobs.identity import JobId
from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms
from headgate.limits.concurrency import HeldPermits, Semaphore, batches_of, load_permits
from headgate.limits.rule import NEVER
from headgate.storage.live_rules import LiveRules


class PermitRelease(NamedTuple):
    """The permits that a job releases, and those that it keeps."""

    job_id: str
    draws: tuple[Draw, ...]
    terms: GateTerms
    given: DrawSet
    kept: DrawSet


class Holder(msgspec.Struct, array_like=True):
    """A job that holds permits."""

    id: JobId
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: DrawSet


def leaving_holders(jobs: Iterable[PermitRelease]) -> dict[Draw, list[str]]:
    """Return the holders that leave each bucket."""
    leaving: dict[Draw, list[str]] = {}
    for job in jobs:
        # A row that contradicts itself may name more permits than draws.
        for draw, holding in chosen(zip(job.draws, job.terms.holds, strict=False), job.given):
            if holding is not None:
                leaving.setdefault(draw, []).append(holding.holder(job.job_id))
    return leaving


def permits_left(state: str | None, leaving: Iterable[str]) -> HeldPermits:
    """Return the permits of a bucket after these holders have left."""
    permits = load_permits(state)
    for holder in leaving:
        permits = Semaphore.give(permits, holder)
    return permits


def draws_of_batch(draws: Sequence[Draw], terms: GateTerms | None) -> list[Draw]:
    """Return the buckets of which the job's batch holds permits."""
    return [] if terms is None else chosen(draws, terms.of_batch)


def holding_batches(states: Iterable[str | None]) -> set[str]:
    """Return the batches that hold permits of buckets in these states."""
    return {batch for state in states for batch in batches_of(load_permits(state))}


class PermitBucket(NamedTuple):
    """A bucket that grants permits: its stored state, and when it opens for the lanes behind it."""

    state: str | None
    opens_at: int | None


def contradictions(
    holders: Iterable[Holder], buckets: Mapping[Draw, PermitBucket], pending: Container[str], rules: LiveRules
) -> Iterator[str]:
    """Yield a sentence for each contradiction between buckets, jobs and `pending` batches about who holds permits."""
    expected: dict[Draw, Counter[str]] = {}
    for job in holders:
        holds = () if job.terms is None else job.terms.holds
        for draw, holding in chosen(zip(job.draws, holds, strict=False), job.held):
            if holding is not None:
                expected.setdefault(draw, Counter())[holding.holder(job.id)] += 1
    for draw, bucket in buckets.items():
        permits = load_permits(bucket.state)
        # A batch keeps its permit while none of its jobs uses it.
        by_bucket = {holder: hold.uses for holder, hold in permits.holders.items() if hold.uses}
        by_jobs = dict(expected.pop(draw, {}))
        for batch in batches_of(permits):
            if batch not in pending:
                yield f"bucket {draw.limit}:{draw.key} is held by batch {batch}, which is final"
        if by_bucket != by_jobs:
            yield f"bucket {draw.limit}:{draw.key} is held by {by_bucket}, and jobs hold {by_jobs}"
        if permits.held != sum(hold.cost for hold in permits.holders.values()):
            yield f"bucket {draw.limit}:{draw.key} counts {permits.held} held, but its holders have another sum"
        if bucket.opens_at == NEVER and not permits.holders and not rules.is_paused(draw):
            yield f"bucket {draw.limit}:{draw.key} opens when a permit is returned, but has no holder"
    for draw, by_jobs in expected.items():
        yield f"jobs hold {dict(by_jobs)} of bucket {draw.limit}:{draw.key}, which has no record of it"
