"""The overview: queues, nodes, limits and problems of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headgate.admin.alerts import AlertStatus
from headgate.admin.checkup import is_declared
from headgate.admin.limits import BucketStatus, LimitStatus
from headgate.admin.nodes import NodeStatus
from headgate.admin.queues import QueueStatus
from headgate.admin.sentence import Sentence
from headgate.clock import to_datetime
from headgate.storage.background_counts import CountReading
from headgate.storage.records import Blocker, CountedView, QueueCounts, ViewCount, WaitingCount
from headgate.tasks.status import ScheduleStatus
from headgate.views import view_of

FINAL_COUNTS = ("succeeded", "failed", "cancelled", "skipped")


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Jobs over all queues by state, and waiting ones by what they wait for; None: not counted yet."""

    waiting: int | None = 0
    ready: int | None = 0
    throttled: int | None = 0
    scheduled: int | None = 0
    blocked: int | None = 0
    running: int | None = 0
    succeeded: int | None = 0
    failed: int | None = 0
    cancelled: int | None = 0
    skipped: int | None = 0
    undeclared: int | None = 0


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue as in `QueueStatus`, and what its waiting jobs wait for.

    `undeclared` are jobs of tasks that no running node declares; they are in neither `ready` nor `throttled`, since no
    slot and no limit lets them start.
    """

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
    skipped: int | None
    oldest: float | None
    lag: float
    paused_at: datetime | None
    is_paused: bool
    undeclared: int = 0


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many nodes there are in each state, with the slots and the running jobs of those that are alive.

    `lost` are the running jobs of the other nodes, `quiet` the alive nodes that claim no jobs. The running jobs are
    those of the totals of the same answer.
    """

    alive: int = 0
    silent: int = 0
    gone: int = 0
    slots: int = 0
    running: int = 0
    lost: int = 0
    quiet: int = 0

    def with_running(self, total: int) -> NodeCounts:
        """Return it with the running jobs of all nodes as they were counted; nodes were read at another instant."""
        return replace(self, running=max(0, total - self.lost), lost=min(total, self.lost))


@dataclass(frozen=True, slots=True)
class UnknownTaskCount:
    """A task that has waiting jobs, and is not declared by this app."""

    task: str
    queue: str
    jobs: int


@dataclass(frozen=True, slots=True)
class BlockerStatus:
    """What delays the store, for how many seconds: a session, or with pid 0 a prepared transaction.

    `statement` is the beginning of the last one, if readable.
    """

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
    """The state of the queues, the nodes and the limits, and what is wrong.

    Nothing in it was read after `now`. The jobs of `queues` that are not final were counted at `counted_at`, final ones
    at `finals_at`, tasks of waiting jobs at `tasks_at`. Where there are many jobs that is a while ago, rarely more than
    10 s, for final jobs a minute. None: not counted yet; then `queues` are the paused queues, without jobs, and
    `totals` are None. Pauses of queues are always current. `limits` are all that are declared or waited for, most
    waiting jobs first, and `throttled` the ten buckets with most waiting jobs, both of `counted_at`: the limits' sum is
    the throttled jobs of the totals. Unknown tasks are searched among the first 100,000 waiting jobs.
    `failed_last_hour` is counted up to 10,000, at `counted_at`; if more jobs failed, it `is_failed_cut`.
    `retried_lately` are the attempts that failed in the last five minutes and are retried, `succeeded_lately` the jobs
    that succeeded; without history both are 0. `alerts` are those of `Admin.alerts`. Jobs that wait and run are counted
    at one instant. `verdict` says in one to three sentences what matters most. It is the last known state if the store
    has not answered since `silent_since`.
    """

    now: datetime
    store: str
    totals: JobTotals
    queues: Sequence[QueueOverview]
    nodes: NodeCounts
    throttled: Sequence[BucketStatus]
    unknown_tasks: Sequence[UnknownTaskCount]
    overdue_schedules: Sequence[ScheduleStatus]
    blockers: Sequence[BlockerStatus]
    failed_last_hour: int | None
    finals_at: datetime | None
    counted_at: datetime | None
    tasks_at: datetime | None
    is_failed_cut: bool = False
    retried_lately: int = 0
    succeeded_lately: int = 0
    alerts: Sequence[AlertStatus] = ()
    limits: Sequence[LimitStatus] = ()
    verdict: Sequence[Sentence] = ()
    silent_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedCounts:
    """The queues with their jobs that are not final, and the limits and keys that jobs wait for, of one instant.

    `failed_last_hour` are the jobs that failed in the last hour, up to one too many.
    """

    queues: Sequence[QueueOverview]
    failed_last_hour: int
    limits: Sequence[LimitStatus]
    throttled: Sequence[BucketStatus]


def queue_overview(queue: QueueStatus, views: Mapping[CountedView, int]) -> QueueOverview:
    """Return a queue with how many of its jobs run, and what the others wait for."""
    running = views.get("running", 0)
    return view_of(
        QueueOverview,
        queue,
        waiting=sum(views.values()) - running,
        ready=views.get("ready", 0),
        throttled=views.get("throttled", 0),
        scheduled=views.get("scheduled", 0),
        blocked=views.get("blocked", 0),
        running=running,
        undeclared=0,
    )


def with_pauses(queues: Sequence[QueueOverview], paused: Mapping[str, datetime]) -> list[QueueOverview]:
    """Return the queues with their current pauses; while a queue is paused, no job lacks a slot."""
    named = {queue.queue: queue for queue in queues}
    for name in paused.keys() - named.keys():
        named[name] = queue_overview(QueueStatus(name, 0, 0, 0, 0, 0), {})
    return [
        replace(queue, paused_at=paused.get(name), is_paused=name in paused, lag=0.0 if name in paused else queue.lag)
        for name, queue in named.items()
    ]


def with_undeclared(
    queues: Sequence[QueueOverview], waiting: Sequence[WaitingCount], tasks: frozenset[str], subjects: frozenset[str]
) -> list[QueueOverview]:
    """Return the queues with the jobs of undeclared tasks apart from those that wait for a slot or a limit."""
    undeclared = Counter[tuple[str, str]]()
    for each in waiting:
        if not is_declared(each.task, each.queue, tasks, subjects):
            undeclared[each.queue, each.view] += each.jobs
    found: list[QueueOverview] = []
    for queue in queues:
        ready = min(queue.ready, undeclared[queue.queue, "ready"])
        throttled = min(queue.throttled, undeclared[queue.queue, "throttled"])
        found.append(
            replace(
                queue, ready=queue.ready - ready, throttled=queue.throttled - throttled, undeclared=ready + throttled
            )
        )
    return found


def with_finals(
    queues: Sequence[QueueOverview], finals: CountReading[Sequence[QueueCounts]] | None
) -> list[QueueOverview]:
    """Return the queues by name with the counts of final jobs, including queues that have only final jobs."""
    counted = {} if finals is None else {each.queue: each for each in finals.found}
    named = {queue.queue: queue for queue in queues}
    found: list[QueueOverview] = []
    for name in sorted(named.keys() | counted.keys()):
        queue = named.get(name) or queue_overview(QueueStatus(name, 0, 0, 0, 0, 0), {})
        counts = counted.get(name) or QueueCounts(name, 0, 0, 0, 0, 0)
        shown: dict[str, Any] = {each: None if finals is None else getattr(counts, each) for each in FINAL_COUNTS}
        found.append(replace(queue, **shown))
    return found


def by_queue(views: Sequence[ViewCount]) -> Mapping[str, Mapping[CountedView, int]]:
    found: dict[str, dict[CountedView, int]] = {}
    for each in views:
        found.setdefault(each.queue, {})[each.view] = each.jobs
    return found


def totals_of(queues: Sequence[QueueOverview], *, is_counted: bool, has_finals: bool) -> JobTotals:
    def total(name: str) -> int | None:
        counts = [getattr(queue, name) for queue in queues]
        return None if None in counts else sum(counts)

    unfinished = ("waiting", "ready", "throttled", "scheduled", "blocked", "running", "undeclared")
    return JobTotals(
        **{name: total(name) if is_counted else None for name in unfinished},
        **{name: total(name) if has_finals else None for name in FINAL_COUNTS},
    )


def node_counts(nodes: Sequence[NodeStatus]) -> NodeCounts:
    states = Counter(node.state for node in nodes)
    alive = [node for node in nodes if node.state == "alive"]
    return NodeCounts(
        alive=states["alive"],
        silent=states["silent"],
        gone=states["gone"],
        slots=sum(node.slots for node in alive),
        running=sum(node.running for node in alive),
        lost=sum(node.running for node in nodes if node.state != "alive"),
        quiet=sum(node.is_quiet for node in alive),
    )


def unknown_tasks_in(waiting: Sequence[WaitingCount], declared: frozenset[str]) -> Sequence[UnknownTaskCount]:
    jobs = Counter[tuple[str, str]]()
    for each in waiting:
        if each.task not in declared:
            jobs[each.task, each.queue] += each.jobs
    return [UnknownTaskCount(task, queue, count) for (task, queue), count in sorted(jobs.items())]


def blocker_status(blocker: Blocker, now: datetime) -> BlockerStatus:
    age = max(0.0, (now - to_datetime(blocker.since)).total_seconds())
    return view_of(BlockerStatus, blocker, age=round(age, 3))
