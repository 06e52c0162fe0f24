"""Late starts: decides what to do when a job starts later than it was charged.

A limit counts a start at the instant of its charge, and its margin allows for a short delay until the call. When a slow
disk, a late reply or a busy event loop makes the delay longer, the next start has to be measured from the actual start.

The invariant: a handler is called only while the charge that the store of the jobs holds is at most this short delay
old. So whatever happens to the process a moment later, no charge is earlier than its rule allows, and a job that is
taken back from a dead node keeps its charge. An older charge is moved first, and the call waits for that commit. A
limit in another store has its charge moved after the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from headgate.clock import SECOND
from headgate.jobs.job import ClaimedJob
from headgate.limits.limit import AnyRule

TOLERATED = SECOND // 4
"""How late a start may be (µs) under a limit without a margin. More than the delay under normal load, because each late
start costs one more write."""

MOVES = 5
"""How often the charge of a start is moved before the job is returned, if the store is slower each time."""

MOVE_AGAIN = 0.1
"""Seconds until a charge is moved again that the store could not move."""


class StartDecision(Enum):
    """How a claimed job may start."""

    ON_TIME = "on time"
    LATE = "late"
    TOO_LATE = "too late"


def decide_start(job: ClaimedJob, rules: Mapping[str, AnyRule], now: int, moved_to: int | None = None) -> StartDecision:
    """Return whether `job` may start at limit time `now`, and whether its charge has to be moved first.

    On time: within half of each limit's margin, or a quarter of a second without a margin. Late: the job may start once
    it is stored that its charge was moved. Too late, as after a freeze of the process: the delay exceeds half of the
    time until the charge makes room, so the job is returned and no attempt is spent. `moved_to` is the limit time to
    which the charge was moved already.
    """
    start = StartDecision.ON_TIME
    for index, draw in enumerate(job.draws):
        rule = rules.get(draw.limit)
        # Permits have no period: the time at which they were taken does not matter.
        if rule is None or not rule.period:
            continue
        charged_at = _charged_at(job, index) if moved_to is None else moved_to
        lateness = now - charged_at
        if lateness <= (rule.margin // 2 if rule.margin else TOLERATED):
            continue
        if 2 * lateness > rule.counts_until(charged_at) - charged_at:
            return StartDecision.TOO_LATE
        start = StartDecision.LATE
    return start


def _charged_at(job: ClaimedJob, index: int) -> int:
    """Return when a draw was charged, as limit time."""
    remote = None if job.remote_charges is None else job.remote_charges[index]
    return job.charged_at if remote is None else remote.at - remote.ahead
