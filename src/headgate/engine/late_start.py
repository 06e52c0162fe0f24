"""Punctuality: what to do when a job starts later than it was charged.

A limit counts a start at the instant of its charge, and its margin allows for the little that lies between that and
the call. When a slow disk, a late reply or a busy event loop makes it more, the next start has to be measured from the
start itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from headgate.clock import SECOND
from headgate.jobs.job import ClaimedJob
from headgate.limits.limit import AnyRule

TOLERATED = SECOND // 4
"""How late a start may be (µs) under a limit without a margin: more than starts are under any load that is normal, or
each would need one more write."""


class StartDecision(Enum):
    """How a claimed job may start."""

    ON_TIME = "on time"
    LATE = "late"
    TOO_LATE = "too late"


def decide_start(job: ClaimedJob, rules: Mapping[str, AnyRule], now: int) -> StartDecision:
    """Whether `job` may start at limit time `now`, and whether its buckets have to be told.

    Within half of each limit's margin, or a quarter of a second where it has none: on time. Later: it starts, and its
    charge is moved to now, which reaches the store long before the charge makes room for others. Later than half of the
    time until then, as after a freeze of the process, that is no longer sure: it goes back unspent instead.
    """
    start = StartDecision.ON_TIME
    for index, draw in enumerate(job.draws):
        rule = rules.get(draw.limit)
        # Permits have no period: they are held, and it does not matter since when.
        if rule is None or not rule.period:
            continue
        charged_at = _charged_at(job, index)
        lateness = now - charged_at
        if lateness <= (rule.margin // 2 if rule.margin else TOLERATED):
            continue
        if 2 * lateness > rule.counts_until(charged_at) - charged_at:
            return StartDecision.TOO_LATE
        start = StartDecision.LATE
    return start


def _charged_at(job: ClaimedJob, index: int) -> int:
    """When a draw was charged, as limit time."""
    elsewhere = None if job.elsewhere is None else job.elsewhere[index]
    return job.charged_at if elsewhere is None else elsewhere.at - elsewhere.ahead
