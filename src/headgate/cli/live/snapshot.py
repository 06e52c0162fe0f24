"""A snapshot of everything that `headgate top` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headgate.admin import Admin, NodeStatus, Overview
from headgate.admin.history import JobsPoint
from headgate.admin.readings import SlowCounts
from headgate.jobs.job import JobState
from headgate.tasks.status import JobStatus

MOST_FAILURES = 5

STEP = 10
"""Seconds of one throughput bar."""

BARS = 60

LATELY = 6
"""The number of whole steps whose mean is the current throughput."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Jobs per second over the last minute, and the jobs that ended in each 10 s of the last ten minutes, oldest first.

    `enqueued` and `started` are None without history; then the rest comes from the counts of two snapshots.
    """

    finished: float
    failed: float
    enqueued: float | None = None
    started: float | None = None
    bars: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """A snapshot at `at` (store time)."""

    at: datetime
    overview: Overview
    nodes: Sequence[NodeStatus]
    throughput: Throughput | None
    failures: Sequence[JobStatus]


async def read_snapshot(admin: Admin, before: LiveSnapshot | None, counts: SlowCounts | None) -> LiveSnapshot:
    """Read a snapshot; without history the throughput comes from the snapshot `before`.

    Pass the same `counts` each time, so that no snapshot waits until millions of final jobs are counted.
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
        nodes=await admin.nodes(lost=True),
        throughput=throughput_of(points, overview.now) if points else throughput_between(before, overview),
        failures=failures,
    )


def throughput_of(points: Sequence[JobsPoint], now: datetime) -> Throughput:
    """Return the throughput from history; a missing step had no jobs."""
    first = now.timestamp() // STEP - BARS + 1
    bars = [0] * BARS
    lately = [0] * 4
    for point in points:
        place = int(point.at.timestamp() // STEP - first)
        ended = point.succeeded + point.failed + point.cancelled + point.skipped
        if 0 <= place < BARS:
            bars[place] += ended
        # The current step is incomplete, and the one before it may be: processes write their counts every ten seconds.
        if BARS - 2 - LATELY <= place < BARS - 2:
            for at, count in enumerate((ended, point.failed, point.enqueued, point.started)):
                lately[at] += count
    finished, failed, enqueued, started = (count / (LATELY * STEP) for count in lately)
    return Throughput(finished, failed, enqueued, started, bars)


def throughput_between(before: LiveSnapshot | None, overview: Overview) -> Throughput | None:
    """Return the throughput from the final jobs of two snapshots, without pruned ones; None for the first."""
    then = None if before is None else before.overview
    if then is None or then.finals_at is None or overview.finals_at is None:
        return None
    seconds = (overview.finals_at - then.finals_at).total_seconds()
    if seconds <= 0:
        # There is no newer count.
        return None if before is None else before.throughput
    ended, failed = _ended(overview) - _ended(then), (overview.totals.failed or 0) - (then.totals.failed or 0)
    return Throughput(max(0, ended) / seconds, max(0, failed) / seconds)


def _ended(overview: Overview) -> int:
    totals = overview.totals
    return (totals.succeeded or 0) + (totals.failed or 0) + (totals.cancelled or 0) + (totals.skipped or 0)
