"""Lanes: jobs come to them and leave them.

Where several clients write, nobody but a claim writes a lane: arrivals are noted, and the next claim merges them. So
adding, returning and cancelling jobs never wait for each other, and a transaction that a user holds open keeps no lane
from anybody. Where there is one writer, lanes are written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from headgate.jobs.draw_set import NO_DRAWS, DrawSet, without
from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms
from headgate.storage.driver import Transaction
from headgate.storage.row_ids import lane_id


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A lane by what it is."""

    queue: str
    draws: tuple[Draw, ...]
    variant: str

    @property
    def id(self) -> str:
        return lane_id(self.queue, self.draws, self.variant)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """So many jobs came to a lane, or left it.

    `wakes_at` is when the earliest delayed one is due, `ready_at` the earliest `run_at` of the others; None: any.
    """

    to: Lane
    jobs: int
    is_ready: bool = False
    wakes_at: int | None = None
    ready_at: int | None = None


class _ArrivalRow(NamedTuple):
    """An arrival as it is passed; its fields are in the order in which the statement names them."""

    lane: str
    queue: str
    draws: tuple[Draw, ...]
    variant: str
    jobs: int
    is_ready: bool
    wakes_at: int | None
    ready_at: int | None


def lane_of(queue: str, draws: Sequence[Draw], terms: GateTerms | None, passes: DrawSet = NO_DRAWS) -> Lane:
    """The lane of a job that passes some of its draws."""
    asked = without(draws, passes)
    return Lane(queue, asked, terms.variant(passes) if terms is not None and asked else "")


def arrival_of(lane: Lane, run_at: int, *, delayed: bool, jobs: int = 1) -> Arrival:
    """The arrival of a job in a lane; with `jobs` 0 of one that was in it already and has another `run_at` now."""
    if delayed:
        return Arrival(lane, jobs, wakes_at=run_at)
    return Arrival(lane, jobs, is_ready=True, ready_at=run_at)


async def arrive(tx: Transaction, arrivals: Iterable[Arrival]) -> None:
    """Count jobs that came and jobs that left, once they are written: floors of arrivals need that order."""
    come = [
        _ArrivalRow(
            to.id, to.queue, to.draws, to.variant, arrival.jobs, arrival.is_ready, arrival.wakes_at, arrival.ready_at
        )
        for arrival in arrivals
        for to in (arrival.to,)
    ]
    if not come:
        return
    if not tx.has_one_writer:
        await tx.execute("arrive", come=come, since=tx.limit_now)
        return
    left = {row.lane for row in come if row.jobs < 0}
    behind = await tx.values("behind_of_lanes", lanes=list(left)) if left else []
    await tx.execute("arrive", come=come, since=tx.take_places(len(come)))
    if behind:
        await tx.execute("clear_timers", ids=behind)


async def reopen_behind(tx: Transaction, lanes: Iterable[str]) -> None:
    """Look again at the buckets that lanes wait behind: they may have been closed for the cost of a job that goes."""
    ids = list(lanes)
    behind = await tx.values("behind_of_lanes", lanes=ids) if ids else []
    if behind:
        await tx.execute("reopen_buckets", ids=behind, limit_now=tx.limit_now)


async def leave(tx: Transaction, lane: Lane, *, have_costs: bool) -> None:
    """One job is gone from a lane without having been claimed."""
    if have_costs:
        await reopen_behind(tx, [lane.id])
    await arrive(tx, [Arrival(lane, -1)])
