"""One look at everything that `headgate top` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headgate.admin import Admin, NodeStatus, Overview
from headgate.admin.history import JobsPoint
from headgate.admin.slow_counts import SlowCounts
from headgate.jobs.job import JobState
from headgate.tasks.handle import JobStatus

MOST_FAILURES = 5

STEP = 10
"""Seconds of one bar of the throughput."""

BARS = 60

LATELY = 6
"""Steps whose mean is the throughput now."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Jobs a second over the last minute, and how many ended in each 10 s of the last ten minutes, oldest first.

    `enqueued` and `started` are None where no history is kept: then it is told from the counts of two looks.
    """

    finished: float
    failed: float
    enqueued: float | None = None
    started: float | None = None
    bars: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """The whole answer, as of the store's `at`."""

    at: datetime
    overview: Overview
    nodes: Sequence[NodeStatus]
    throughput: Throughput | None
    failures: Sequence[JobStatus]


async def read_snapshot(admin: Admin, before: LiveSnapshot | None, counts: SlowCounts | None) -> LiveSnapshot:
    """Ask for everything; the look `before` tells the throughput where no history is kept.

    Who looks again and again keeps `counts`, so that no look waits until millions of final jobs are counted.
    """
    overview = await admin.overview(counts)
    points = await admin.history.jobs(step=STEP, span=STEP * BARS)
    failures: Sequence[JobStatus] = ()
    if overview.failed_last_hour:
        since = overview.now - timedelta(hours=1)
        failures = await admin.jobs(state=JobState.FAILED, finished_after=since, count=MOST_FAILURES)
    return LiveSnapshot(
        at=overview.now,
        overview=overview,
        nodes=await admin.nodes(),
        throughput=throughput_of(points, overview.now) if points else throughput_between(before, overview),
        failures=failures,
    )


def throughput_of(points: Sequence[JobsPoint], now: datetime) -> Throughput:
    """The throughput by what history has; steps that are not there had nothing."""
    first = now.timestamp() // STEP - BARS + 1
    bars = [0] * BARS
    lately = [0] * 4
    for point in points:
        place = int(point.at.timestamp() // STEP - first)
        ended = point.succeeded + point.failed + point.cancelled
        if 0 <= place < BARS:
            bars[place] += ended
        # The step that goes on is not counted: it would look like a fall.
        if BARS - 1 - LATELY <= place < BARS - 1:
            for at, count in enumerate((ended, point.failed, point.enqueued, point.started)):
                lately[at] += count
    finished, failed, enqueued, started = (count / (LATELY * STEP) for count in lately)
    return Throughput(finished, failed, enqueued, started, bars)


def throughput_between(before: LiveSnapshot | None, overview: Overview) -> Throughput | None:
    """The throughput by the final jobs that two looks counted; None for the first one. What is pruned is missed."""
    then = None if before is None else before.overview
    if then is None or then.finals_at is None or overview.finals_at is None:
        return None
    seconds = (overview.finals_at - then.finals_at).total_seconds()
    if seconds <= 0:
        # Nobody has counted since.
        return None if before is None else before.throughput
    ended, failed = _ended(overview) - _ended(then), (overview.totals.failed or 0) - (then.totals.failed or 0)
    return Throughput(max(0, ended) / seconds, max(0, failed) / seconds)


def _ended(overview: Overview) -> int:
    totals = overview.totals
    return (totals.succeeded or 0) + (totals.failed or 0) + (totals.cancelled or 0)
