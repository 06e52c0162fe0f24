"""Replacing a waiting job by a new one of the same task and unique key."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from headgate.jobs.draw_set import DrawSet, difference, draws_where, union, without
from headgate.jobs.job import Draw, NewJob
from headgate.jobs.terms import GateTerms, kept_permits

Lane = tuple[str, tuple[Draw, ...], str]
"""A queue, draws, and the variant."""


class WaitingJob(NamedTuple):
    """A waiting job before the replacement."""

    id: str
    queue: str
    draws: tuple[Draw, ...]
    terms: GateTerms | None
    held: DrawSet
    passed: DrawSet
    has_costs: bool
    delayed: bool
    run_at: int

    @property
    def lane(self) -> Lane:
        return lane_of(self.queue, self.draws, self.terms, union(self.held, self.passed))


class Replacement(NamedTuple):
    """The job after the replacement, the permits that it still holds, and the ones that it gives back (`gone`).

    Its attempts are reset. With `stays` it stays in its lane. With `draws_alike` the starts of its earlier attempts
    still belong to the limits that it draws on; otherwise they are dropped.
    """

    new: NewJob
    held: DrawSet
    gone: DrawSet
    lane: Lane
    stays: bool
    draws_alike: bool


def replacement(old: WaitingJob, new: NewJob) -> Replacement:
    """Return the new job with the id of the old one, and its place if both are in one lane and not delayed."""
    keeps = kept_permits(old.id, old.draws, old.terms, old.held, new.draws, new.terms)
    held = draws_where(draw in keeps for draw in new.draws)
    gone = difference(old.held, draws_where(draw in keeps for draw in old.draws))
    lane = lane_of(new.queue, new.draws, new.terms, held)
    stays = lane == old.lane
    run_at = old.run_at if stays and not old.delayed and not new.delayed else new.run_at
    draws_alike = old.draws == new.draws and not old.has_costs and new.costs is None
    return Replacement(replace(new, id=old.id, run_at=run_at), held, gone, lane, stays, draws_alike)


def lane_of(queue: str, draws: tuple[Draw, ...], terms: GateTerms | None, exempt_draws: DrawSet) -> Lane:
    remaining = without(draws, exempt_draws)
    return queue, remaining, terms.variant(exempt_draws) if terms is not None and remaining else ""
