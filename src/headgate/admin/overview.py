"""The overview: what is going on in a store, in one look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headgate.admin.limits import BucketStatus
from headgate.admin.nodes import NodeStatus
from headgate.admin.queues import QueueStatus
from headgate.admin.slow_counts import CountReading, SlowCounts
from headgate.clock import to_datetime
from headgate.jobs.state import JobState
from headgate.storage.records import Blocker, JobView, QueueCounts, ViewCount, WaitingCount
from headgate.tasks.schedule import ScheduleStatus

if TYPE_CHECKING:
    from headgate.admin.admin import Admin

MOST_THROTTLED = 10
"""How many buckets that jobs wait for are told."""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Jobs over all queues by state, and those that wait by what they wait for; None: not counted yet."""

    waiting: int = 0
    ready: int = 0
    throttled: int = 0
    scheduled: int = 0
    blocked: int = 0
    running: int = 0
    succeeded: int | None = 0
    failed: int | None = 0
    cancelled: int | None = 0


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue as `QueueStatus` has it, and what its waiting jobs wait for."""

    queue: str
    waiting: int
    ready: int
    throttled: int
    scheduled: int
    blocked: int
    running: int
    succeeded: int | None
    failed: int | None
    cancelled: int | None
    oldest: float | None
    lag: float
    paused_at: datetime | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many nodes there are in each state, with the slots and the running jobs of those that are alive."""

    alive: int = 0
    silent: int = 0
    gone: int = 0
    slots: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class UnknownTaskCount:
    """A task that has waiting jobs, and is not declared by this app."""

    task: str
    queue: str
    jobs: int


@dataclass(frozen=True, slots=True)
class BlockerStatus:
    """What stands in the way of the store, for how many seconds, and how its last statement begins, if that is seen."""

    kind: str
    pid: int
    since: datetime
    age: float
    what: str
    statement: str | None = None

    def __str__(self) -> str:
        return self.what if self.statement is None else f"{self.what}; last statement: {self.statement}"


@dataclass(frozen=True, slots=True)
class Overview:
    """What is going on: in the queues, on the nodes, at the limits, and what is wrong.

    Final jobs were counted at `finals_at`, which may be a while ago where there are millions; None: not yet.
    `throttled` are the ten buckets with most waiting jobs. Unknown tasks are looked for among the first 100,000 waiting
    jobs, and `failed_last_hour` is counted up to 10,000.
    """

    now: datetime
    store: str
    totals: JobTotals
    queues: Sequence[QueueOverview]
    nodes: NodeCounts
    throttled: Sequence[BucketStatus]
    unknown_tasks: Sequence[UnknownTaskCount]
    overdue_schedules: Sequence[ScheduleStatus]
    obstacles: Sequence[BlockerStatus]
    failed_last_hour: int
    finals_at: datetime | None


async def overview(admin: Admin, counts: SlowCounts | None = None) -> Overview:
    """Asks for each part, one after the other, so that a look takes one connection of the store.

    Who looks again and again keeps `counts`, and does not wait until a million final jobs are counted each time.
    """
    if counts is not None:
        # While it counts the rest is asked for.
        counts.finals.begin(admin.counts, admin.now)
    queues = await admin.queues.list(finals=counts is None)
    views = await admin.views()
    buckets = await admin.limits.throttled(MOST_THROTTLED)
    nodes = await admin.nodes()
    obstacles = await admin.obstacles()
    overdue = await admin.schedules.overdue()
    now = admin.now()
    failed = await admin.count(state=JobState.FAILED, finished_after=now - timedelta(hours=1))
    by_queue = _by_queue(views)
    told = [queue_overview(queue, by_queue.get(queue.queue, {})) for queue in queues]
    finals_at: datetime | None = now
    if counts is None:
        waiting = await admin.waiting()
    else:
        # On SQLite there is one reader: what takes it for long is asked last.
        counts.tasks.begin(admin.waiting, admin.now)
        finals, tasks = await counts.finals.look(), await counts.tasks.look()
        told, finals_at = with_finals(told, finals), None if finals is None else finals.at
        waiting = () if tasks is None else tasks.found
    return Overview(
        now=now,
        store=admin.address,
        totals=_totals(told),
        queues=told,
        nodes=_node_counts(nodes),
        throttled=[bucket for bucket in buckets if bucket.waiting],
        unknown_tasks=_unknown(waiting, admin.tasks),
        overdue_schedules=overdue,
        obstacles=[_obstacle(obstacle, now) for obstacle in obstacles],
        failed_last_hour=failed,
        finals_at=finals_at,
    )


def queue_overview(queue: QueueStatus, views: Mapping[JobView, int]) -> QueueOverview:
    """A queue with what its jobs wait for."""
    return QueueOverview(
        queue=queue.queue,
        waiting=queue.waiting,
        ready=views.get("ready", 0),
        throttled=views.get("throttled", 0),
        scheduled=views.get("scheduled", 0),
        blocked=views.get("blocked", 0),
        running=queue.running,
        succeeded=queue.succeeded,
        failed=queue.failed,
        cancelled=queue.cancelled,
        oldest=queue.oldest,
        lag=queue.lag,
        paused_at=queue.paused_at,
        is_paused=queue.is_paused,
    )


def with_finals(
    queues: Sequence[QueueOverview], finals: CountReading[Sequence[QueueCounts]] | None
) -> list[QueueOverview]:
    """The queues by name with the final jobs as they were counted, and those that have no others."""
    counted = {} if finals is None else {each.queue: each for each in finals.found}
    named = {queue.queue: queue for queue in queues}
    found: list[QueueOverview] = []
    for name in sorted(named.keys() | counted.keys()):
        queue = named.get(name) or queue_overview(QueueStatus(name, 0, 0, 0, 0, 0), {})
        if finals is None:
            found.append(replace(queue, succeeded=None, failed=None, cancelled=None))
        else:
            each = counted.get(name) or QueueCounts(name, 0, 0, 0, 0, 0)
            found.append(replace(queue, succeeded=each.succeeded, failed=each.failed, cancelled=each.cancelled))
    return found


def _by_queue(views: Sequence[ViewCount]) -> Mapping[str, Mapping[JobView, int]]:
    found: dict[str, dict[JobView, int]] = {}
    for each in views:
        found.setdefault(each.queue, {})[each.view] = each.jobs
    return found


def _totals(queues: Sequence[QueueOverview]) -> JobTotals:
    def total(name: str) -> int | None:
        return _sum(getattr(queue, name) for queue in queues)

    return JobTotals(
        **{name: total(name) or 0 for name in ("waiting", "ready", "throttled", "scheduled", "blocked", "running")},
        succeeded=total("succeeded"),
        failed=total("failed"),
        cancelled=total("cancelled"),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _node_counts(nodes: Sequence[NodeStatus]) -> NodeCounts:
    states = Counter(node.state for node in nodes)
    alive = [node for node in nodes if node.state == "alive"]
    return NodeCounts(
        alive=states["alive"],
        silent=states["silent"],
        gone=states["gone"],
        slots=sum(node.slots for node in alive),
        running=sum(node.running for node in alive),
    )


def _unknown(waiting: Sequence[WaitingCount], declared: frozenset[str]) -> Sequence[UnknownTaskCount]:
    jobs = Counter[tuple[str, str]]()
    for each in waiting:
        if each.task not in declared:
            jobs[each.task, each.queue] += each.jobs
    return [UnknownTaskCount(task, queue, count) for (task, queue), count in sorted(jobs.items())]


def _obstacle(obstacle: Blocker, now: datetime) -> BlockerStatus:
    since = to_datetime(obstacle.since)
    age = max(0.0, (now - since).total_seconds())
    return BlockerStatus(obstacle.kind, obstacle.pid, since, round(age, 3), obstacle.what, obstacle.statement)
