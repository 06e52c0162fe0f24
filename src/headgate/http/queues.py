"""Queues: their jobs by state, their pauses, and the purge of what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from headgate.admin import Activity, BulkResult, DeclaredLimit, DeclaredQueue, QueueKeys, QueueOverview
from headgate.http.caller import Caller
from headgate.http.jobs import BulkCancel
from headgate.http.tasks import activity, limits_named
from headgate.views import view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView(QueueOverview):
    """A queue with what its jobs have done since `active_since`; null: not read yet.

    `throughput` is how many finished per second, `failure_share` the part of these that failed, `wait_p95` the seconds
    that 95 of 100 started jobs had been due at most, and `trend` the jobs that finished in each minute.
    """

    throughput: float | None
    failure_share: float | None
    wait_p95: float | None
    trend: Sequence[int]


class QueuePage(msgspec.Struct, frozen=True):
    """All queues, as of `now`; their unfinished jobs were counted at `counted_at` (null: not yet).

    What they have done is known from `active_since` on: the last 15 minutes; null: not yet.
    """

    items: Sequence[QueueView]
    now: datetime
    counted_at: datetime | None
    active_since: datetime | None
    next: None = None


class QueueDetails(msgspec.Struct, frozen=True):
    """A queue, null if it is not declared, has no jobs and is not paused; its tasks, and the limits that they use.

    Its unfinished jobs were counted at `counted_at` (null: not yet). `declared` is null unless this app declares it,
    and `keys` unless it is fair.
    """

    queue: QueueOverview | None
    declared: DeclaredQueue | None
    keys: QueueKeys | None
    tasks: Sequence[str]
    limits: Sequence[DeclaredLimit]
    now: datetime
    counted_at: datetime | None


async def queues(caller: Caller) -> QueuePage:
    """Return all queues by name: those that are declared, have jobs or are paused; with what they have done."""
    overview, recent = await caller.overview(), await activity(caller)
    done = {} if recent is None else recent.queues
    items = [
        view_of(
            QueueView,
            each,
            throughput=None if recent is None else found.throughput,
            failure_share=found.failure_share,
            wait_p95=found.wait_p95,
            trend=found.trend,
        )
        for each in overview.queues
        for found in (done.get(each.queue, Activity()),)
    ]
    return QueuePage(items, overview.now, overview.counted_at, None if recent is None else recent.since)


async def queue(caller: Caller, name: str) -> QueueDetails:
    """Return one queue, the tasks that this app declares for it, and the limits that their jobs use.

    Of a fair queue, `keys` are the 20 keys with most waiting jobs.
    """
    overview = await caller.overview()
    own = caller.admin.queues.declared(name)
    declared = [each for each in caller.admin.declared_tasks if each.queue == name]
    return QueueDetails(
        queue=next((each for each in overview.queues if each.queue == name), None),
        declared=own,
        keys=await caller.admin.queues.keys(name) if own is not None and own.fair_by else None,
        tasks=[each.task for each in declared],
        limits=limits_named(caller, [limit for each in declared for limit in each.limits]),
        now=overview.now,
        counted_at=overview.counted_at,
    )


async def pause_queue(caller: Caller, name: str) -> bool:
    """Start no job of a queue on any node until it is resumed; running jobs continue."""
    return await caller.admin.queues.pause(name)


async def resume_queue(caller: Caller, name: str) -> bool:
    """End the pause of a queue."""
    return await caller.admin.queues.resume(name)


async def purge_queue(caller: Caller, name: str, body: BulkCancel) -> BulkResult:
    """Cancel the waiting jobs of a queue, scheduled and blocked ones included; running jobs continue."""
    return await caller.admin.queues.purge(name, most=body.most, dry_run=body.dry_run)
