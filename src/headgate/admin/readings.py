"""Readings: what an app's store, nodes and limits do now, of which overviews and checkups are made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headgate.admin.actor import this_process
from headgate.admin.alerts import AlertStatus, alert_status
from headgate.admin.checkup import Checkup, is_declared
from headgate.admin.columns import Column
from headgate.admin.history import ActivityReport, HistoryAdmin
from headgate.admin.limits import LimitsAdmin
from headgate.admin.nodes import LOST_SHOWN, NodeStatus, by_process, lost_status, node_status
from headgate.admin.overview import (
    Overview,
    UnfinishedCounts,
    blocker_status,
    by_queue,
    node_counts,
    queue_overview,
    totals_of,
    unknown_tasks_in,
    with_finals,
    with_pauses,
    with_undeclared,
)
from headgate.admin.pauses import pauses_with_jobs
from headgate.admin.queues import QueuesAdmin, QueueStatus, describe_queue
from headgate.admin.schedules import SchedulesAdmin
from headgate.admin.verdict import verdict
from headgate.clock import SECOND, Clock, to_datetime
from headgate.engine.backlog_migrator import LIVE_FOR
from headgate.engine.remote_limits import GuardedStore
from headgate.jobs.query import JobQuery
from headgate.jobs.state import JobState
from headgate.storage.background_counts import PATIENCE, BackgroundCounts, CountReading
from headgate.storage.records import BacklogCounts, Blocker, QueueCounts, ViewCount, WaitingCount
from headgate.storage.store import Store
from headgate.tasks.registry import Registry

FIRST_PATIENCE = 0.5
"""Seconds that the first overview waits for the jobs in queues, which it needs."""


FINALS_MAX_AGE = 60 * SECOND
"""Microseconds: the age of the counts of final jobs; to count millions takes a second or more."""


class SlowCounts:
    """Counts for an overview, read in the background: with 200,000 keys, counting takes a second.

    Keep one between overviews. Each waits at most `patience` seconds for a running count, and shows the last one
    otherwise; the first one waits `queue_patience` for the jobs in queues (0.5 s; None: until they are counted).
    """

    def __init__(
        self, clock: Clock, *, patience: float = PATIENCE, queue_patience: float | None = FIRST_PATIENCE
    ) -> None:
        self.unfinished: BackgroundCounts[UnfinishedCounts] = BackgroundCounts(
            clock,
            "waiting jobs",
            patience=patience,
            first_patience=queue_patience,
            # In a small store, the next overview shows each change.
            fresh_for=0,
        )
        self.finals: BackgroundCounts[Sequence[QueueCounts]] = BackgroundCounts(
            clock, "final jobs", patience=patience, first_patience=patience, max_age=FINALS_MAX_AGE
        )
        self.tasks: BackgroundCounts[Sequence[WaitingCount]] = BackgroundCounts(
            clock, "waiting jobs by task", patience=patience, first_patience=patience
        )
        self.activity: BackgroundCounts[ActivityReport] = BackgroundCounts(
            clock, "finished jobs by task", patience=patience, first_patience=FIRST_PATIENCE
        )

    async def close(self) -> None:
        """End the running counts."""
        await asyncio.gather(*(each.close() for each in (self.unfinished, self.finals, self.tasks, self.activity)))


MOST_FAILED = 10_000
"""Up to how many jobs that failed in the last hour are counted."""


@dataclass(frozen=True, slots=True)
class DeclaredTask:
    """A task that an app declares: the queue of its jobs unless a call names another, and its arguments by name.

    `required` are those of its arguments that have no default. `limits` are those that its jobs use: those of the
    task, then those of the queue. `requires` are the labels that a node needs to run its jobs, `tags` those of all its
    jobs. `unique_key` is the template of their unique keys; a function is shown by its name.
    """

    task: str
    queue: str
    arguments: Sequence[str] = ()
    required: Sequence[str] = ()
    limits: Sequence[str] = ()
    requires: Sequence[str] = ()
    tags: Sequence[str] = ()
    unique_key: str | None = None


TASK_COLUMNS = (
    Column("task", "Task"),
    Column("queue", "Queue"),
    Column("limits", "Limits", "names"),
    Column("throughput", "Throughput", "rate", only="dashboard"),
    Column("failure_share", "Failures", "share", only="dashboard"),
    Column("run_p95", "Run, p95", "duration", only="dashboard"),
    Column("waiting", "Waiting", "count"),
    Column("oldest", "Oldest", "duration", only="dashboard"),
    Column("requires", "Requires", "names", is_rare=True),
    Column("tags", "Tags", "names", is_rare=True),
    Column("unique_key", "Unique key", is_rare=True),
)


class Readings:
    """What an app declares, and what its store, its nodes and its limits do now. `Admin` adds jobs and actions."""

    def __init__(
        self,
        storage: Store,
        other_stores: Mapping[str, GuardedStore],
        registry: Registry,
        schedules: SchedulesAdmin,
        *,
        address: str,
    ) -> None:
        self.actor: str = this_process()
        self._storage = storage
        self.address = address
        self._registry = registry
        self.queues: QueuesAdmin = QueuesAdmin(
            storage, {name: describe_queue(queue) for name, queue in registry.queues.items()}, self.actor
        )
        # The order of a fair queue makes no job wait, so it is not shown as a limit.
        limits = {name: rule for name, rule in registry.rules.items() if not rule.orders_turns}
        self.limits: LimitsAdmin = LimitsAdmin(
            storage, limits, other_stores, self.actor, registry.call_sizes, registry.keyed, registry.costs
        )
        self.history: HistoryAdmin = HistoryAdmin(storage, limits)
        self.schedules = schedules

    def now(self) -> datetime:
        """Return the store's wall time, aware: all instants in answers are comparable with it."""
        return to_datetime(self._storage.now())

    async def counts(self) -> Sequence[QueueCounts]:
        """Return the numbers of jobs by queue and state."""
        return await self._storage.counts()

    async def nodes(self, *, lost: bool = False) -> Sequence[NodeStatus]:
        """Return the nodes by machine, including those that have died and are not recovered yet.

        With `lost`, the last 20 nodes that were declared dead in the last day follow, the last one first.
        `jobs(node=…, state=JobState.RUNNING)` returns the jobs that a node runs.
        """
        now = self.now()
        lease, records = self._registry.lease, await self._storage.nodes()
        found = sorted((node_status(record, now, lease) for record in records), key=by_process)
        if lost:
            # One that has joined again under its id, or keeps jobs that are locked, is there already.
            there = {node.id for node in found}
            dead = await self._storage.lost_nodes(LOST_SHOWN)
            found += [lost_status(each, now) for each in dead if each.id not in there]
        return found

    async def waiting(self) -> Sequence[WaitingCount]:
        """Count waiting jobs by queue, task and what they wait for, among the first 100,000 that the store finds."""
        return await self._storage.waiting()

    async def views(self) -> Sequence[ViewCount]:
        """Count all waiting jobs by queue and what they wait for."""
        return await self._storage.views()

    async def unfinished(self) -> BacklogCounts:
        """Count all jobs that run and wait, at one instant: by queue, and those that wait for limits by limit and key.

        For each limit it names the 20 keys with most waiting jobs.
        """
        return await self._storage.count_unfinished()

    @property
    def tasks(self) -> frozenset[str]:
        """The names and aliases of the tasks that this app declares."""
        return self._registry.names

    async def declared_by_nodes(self) -> frozenset[str]:
        """Return what running nodes declare for queues that they serve, each as `task@queue`.

        A node that is stopping starts no more jobs, so it does not count.
        """
        return await self._storage.declared_subjects()

    @property
    def declared_tasks(self) -> Sequence[DeclaredTask]:
        """The tasks that this app declares, and their aliases, by name."""
        # The order of a fair queue is not shown as a limit.
        return [
            DeclaredTask(
                name,
                task.queue,
                task.payload.parameters,
                task.payload.required,
                [
                    limit
                    for limit in self._registry.limit_set(task, task.queue).names
                    if not self._registry.rules[limit].orders_turns
                ],
                sorted(task.requires),
                task.tags,
                task.unique_template,
            )
            for name, task in sorted(self._registry.named(), key=lambda named: named[0])
        ]

    async def overview(self, counts: SlowCounts | None = None) -> Overview:
        """Return an overview of queues, nodes, limits and problems.

        Pass a `SlowCounts` to reuse counts between calls: without it, all final jobs are counted each time, which takes
        PostgreSQL a second for two million.
        """
        # One part after the other: an overview takes one connection of the store.
        if counts is not None:
            # These counts run while the rest is read.
            counts.unfinished.begin(self._count_unfinished, self.now)
            counts.finals.begin(self.counts, self.now)
            counts.tasks.begin(self.waiting, self.now)
        nodes = node_counts(await self.nodes())
        blockers = await self.blockers()
        overdue = await self.schedules.overdue()
        if counts is not None:
            paused = await self.queues.paused()
            counted, finals, tasks = await asyncio.gather(
                counts.unfinished.read(), counts.finals.read(), counts.tasks.read()
            )
            queues = with_finals(with_pauses(() if counted is None else counted.found.queues, paused), finals)
            finals_at = None if finals is None else finals.at
        else:
            now = self.now()
            counted = CountReading(now, await self._count_unfinished(finals=True))
            tasks = CountReading(now, await self.waiting())
            queues, finals_at = [*counted.found.queues], now
        failed = None if counted is None else counted.found.failed_last_hour
        waiting = () if tasks is None else tasks.found
        queues = with_undeclared(queues, waiting, self.tasks, await self.declared_by_nodes())
        alerts = await self.alerts()
        lately = await self.history.jobs(step=10, span=300)
        totals = totals_of(queues, is_counted=counted is not None, has_finals=finals_at is not None)
        # A page that begins to load after this instant has all that is in here, and does not load again for it.
        now = self.now()
        seen = Overview(
            now=now,
            store=self.address,
            totals=totals,
            queues=queues,
            nodes=nodes if totals.running is None else nodes.with_running(totals.running),
            throttled=() if counted is None else counted.found.throttled,
            unknown_tasks=unknown_tasks_in(waiting, self.tasks),
            overdue_schedules=overdue,
            blockers=[blocker_status(blocker, now) for blocker in blockers],
            failed_last_hour=None if failed is None else min(failed, MOST_FAILED),
            finals_at=finals_at,
            counted_at=None if counted is None else counted.at,
            tasks_at=None if tasks is None else tasks.at,
            retried_lately=sum(each.retried for each in lately),
            succeeded_lately=sum(each.succeeded for each in lately),
            alerts=alerts,
            is_failed_cut=failed is not None and failed > MOST_FAILED,
            limits=() if counted is None else counted.found.limits,
        )
        return replace(seen, verdict=verdict(seen))

    async def _count_unfinished(self, *, finals: bool = False) -> UnfinishedCounts:
        unfinished = await self.unfinished()
        views = by_queue(unfinished.views)
        queues = {queue.queue: queue for queue in await self.queues.list(finals=finals)}
        query = JobQuery(state=JobState.FAILED, finished_after=self.now() - timedelta(hours=1))
        failed = await self._storage.count_jobs(query.filter(), MOST_FAILED + 1)
        limits, throttled = await self.limits.statuses(unfinished)
        return UnfinishedCounts(
            [
                queue_overview(queues.get(name) or QueueStatus(name, 0, 0, 0, 0, 0), views.get(name, {}))
                for name in sorted(queues.keys() | views.keys())
            ],
            failed,
            limits,
            throttled,
        )

    async def blockers(self) -> Sequence[Blocker]:
        """Return what delays the store: long transactions, connections that block others, who holds a SQLite file."""
        found = await self._storage.blockers()
        if self._storage.file is None:
            return found
        from headgate.storage.sqlite import connection  # Jobs in PostgreSQL do not need it.

        return [*found, *connection.blockers(self._storage.file, self._storage.now())]

    async def alerts(self) -> Sequence[AlertStatus]:
        """Return the alerts of `app.alert` that last, or whose messages are not all delivered, the oldest first.

        There are up to 1,000, of all apps that use the store.
        """
        return [alert_status(record) for record in await self._storage.alerts()]

    async def checkup(self, *, deep: bool = False) -> Checkup:
        """Return the facts for `headgate doctor`; `headgate.admin.findings.findings_of` evaluates them.

        `deep` also checks whether jobs, nodes, lanes and buckets agree, and indexes with their tables; it reads all of
        them.
        """
        waiting, rules = await self.waiting(), self._registry.rules
        # Batches of another app may hold its limits. Jobs of a limit that another release has may start there.
        others = [job for job in await self._storage.jobs_of_other_limits(frozenset(rules)) if job.task in self.tasks]
        elsewhere = {each.limit for each in await self._storage.settings(LIVE_FOR) if each.scope == "declared"}
        unknown, undeclared, subjects = Counter[str](), Counter[tuple[str, str]](), await self.declared_by_nodes()
        for each in waiting:
            if is_declared(each.task, each.queue, self.tasks, subjects):
                continue
            if each.task not in self.tasks:
                unknown[each.task] += each.jobs
            elif each.view in ("ready", "throttled"):
                undeclared[each.task, each.queue] += each.jobs
        return Checkup(
            now=self.now(),
            store=await self._storage.facts(),
            nodes=await self.nodes(),
            waiting=waiting,
            pauses=await pauses_with_jobs(self._storage, waiting),
            queues=self._registry.queues,
            unknown_tasks=unknown,
            undeclared=undeclared,
            unknown_limits={limit: job.id for job in others for limit in job.held_by_batch(rules.keys() | elsewhere)},
            overdue=await self.schedules.overdue(),
            blockers=await self.blockers(),
            alerts=await self.alerts(),
            contradictions=await self._storage.check(rules) if deep else None,
            indexes=await self._storage.check_indexes() if deep else None,
        )
