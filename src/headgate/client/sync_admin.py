"""The operations for operators, for code that cannot await: the verbs of `Admin` under the same names."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, Unpack

from headgate.admin import Admin
from headgate.admin.ended import EndCriteria, EndEvent
from headgate.admin.history import HistoryAdmin
from headgate.admin.limits import LimitsAdmin
from headgate.admin.queues import QueuesAdmin
from headgate.admin.readings import DeclaredTask
from headgate.admin.schedules import SchedulesAdmin
from headgate.client.portal import Blocking, Portal

A = TypeVar("A")


class SyncVerbs(Generic[A]):
    """Runs verbs of an admin on the app's event loop; the first one opens the app."""

    def __init__(self, admin: Callable[[], A], portal: Portal) -> None:
        self._admin = admin
        self._portal = portal

    def _run(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def answer() -> Any:
            result = verb(self._admin(), *args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._portal.run(answer())


class SyncQueuesAdmin(SyncVerbs[QueuesAdmin]):
    """As `QueuesAdmin`, for code that cannot await."""

    list: Final = Blocking(QueuesAdmin.list)
    keys: Final = Blocking(QueuesAdmin.keys)
    paused: Final = Blocking(QueuesAdmin.paused)
    is_paused: Final = Blocking(QueuesAdmin.is_paused)
    pause: Final = Blocking(QueuesAdmin.pause)
    resume: Final = Blocking(QueuesAdmin.resume)
    purge: Final = Blocking(QueuesAdmin.purge)
    declared: Final = Blocking(QueuesAdmin.declared)


class SyncSchedulesAdmin(SyncVerbs[SchedulesAdmin]):
    """As `SchedulesAdmin`, for code that cannot await."""

    list: Final = Blocking(SchedulesAdmin.list)
    page: Final = Blocking(SchedulesAdmin.page)
    status: Final = Blocking(SchedulesAdmin.status)
    overdue: Final = Blocking(SchedulesAdmin.overdue)
    next_runs: Final = Blocking(SchedulesAdmin.next_runs)
    definition: Final = Blocking(SchedulesAdmin.definition)
    create: Final = Blocking(SchedulesAdmin.create)
    edit: Final = Blocking(SchedulesAdmin.edit)
    preview: Final = Blocking(SchedulesAdmin.preview)
    day: Final = Blocking(SchedulesAdmin.day)
    pause: Final = Blocking(SchedulesAdmin.pause)
    resume: Final = Blocking(SchedulesAdmin.resume)
    trigger: Final = Blocking(SchedulesAdmin.trigger)
    skip: Final = Blocking(SchedulesAdmin.skip)
    reencode: Final = Blocking(SchedulesAdmin.reencode)
    remove: Final = Blocking(SchedulesAdmin.remove)


class SyncLimitsAdmin(SyncVerbs[LimitsAdmin]):
    """As `LimitsAdmin`, for code that cannot await."""

    list: Final = Blocking(LimitsAdmin.list)
    bucket: Final = Blocking(LimitsAdmin.bucket)
    is_ranked: Final = Blocking(LimitsAdmin.is_ranked)
    statuses: Final = Blocking(LimitsAdmin.statuses)
    what_if: Final = Blocking(LimitsAdmin.what_if)
    summary: Final = Blocking(LimitsAdmin.summary)
    paused: Final = Blocking(LimitsAdmin.paused)
    settings: Final = Blocking(LimitsAdmin.settings)
    audit: Final = Blocking(LimitsAdmin.audit)
    audit_newest: Final = Blocking(LimitsAdmin.audit_newest)
    set: Final = Blocking(LimitsAdmin.set)
    set_rule: Final = Blocking(LimitsAdmin.set_rule)
    set_rules: Final = Blocking(LimitsAdmin.set_rules)
    unset: Final = Blocking(LimitsAdmin.unset)
    assign: Final = Blocking(LimitsAdmin.assign)
    pause: Final = Blocking(LimitsAdmin.pause)
    resume: Final = Blocking(LimitsAdmin.resume)
    reset: Final = Blocking(LimitsAdmin.reset)
    penalize: Final = Blocking(LimitsAdmin.penalize)
    remove: Final = Blocking(LimitsAdmin.remove)
    snapshot: Final = Blocking(LimitsAdmin.snapshot)
    described: Final = Blocking(LimitsAdmin.described)
    status_of: Final = Blocking(LimitsAdmin.status_of)
    all_declared: Final = Blocking(LimitsAdmin.all_declared)
    declared: Final = Blocking(LimitsAdmin.declared)


class SyncHistoryAdmin(SyncVerbs[HistoryAdmin]):
    """As `HistoryAdmin`, for code that cannot await."""

    jobs: Final = Blocking(HistoryAdmin.jobs)
    report: Final = Blocking(HistoryAdmin.report)
    activity: Final = Blocking(HistoryAdmin.activity)
    limit: Final = Blocking(HistoryAdmin.limit)


class SyncAdmin(SyncVerbs[Admin]):
    """As `Admin`, for code that cannot await."""

    counts: Final = Blocking(Admin.counts)
    nodes: Final = Blocking(Admin.nodes)
    declared_by_nodes: Final = Blocking(Admin.declared_by_nodes)
    waiting: Final = Blocking(Admin.waiting)
    views: Final = Blocking(Admin.views)
    unfinished: Final = Blocking(Admin.unfinished)
    overview: Final = Blocking(Admin.overview)
    blockers: Final = Blocking(Admin.blockers)
    alerts: Final = Blocking(Admin.alerts)
    checkup: Final = Blocking(Admin.checkup)
    jobs: Final = Blocking(Admin.jobs)
    page: Final = Blocking(Admin.page)
    count: Final = Blocking(Admin.count)
    bounded_count: Final = Blocking(Admin.bounded_count)
    status: Final = Blocking(Admin.status)
    next_jobs: Final = Blocking(Admin.next_jobs)
    job: Final = Blocking(Admin.job)
    failures: Final = Blocking(Admin.failures)
    failures_like: Final = Blocking(Admin.failures_like)
    read_ends: Final = Blocking(Admin.read_ends)
    ended_jobs: Final = Blocking(Admin.ended_jobs)
    batch: Final = Blocking(Admin.batch)
    batches: Final = Blocking(Admin.batches)
    graph: Final = Blocking(Admin.graph)
    find: Final = Blocking(Admin.find)
    logs: Final = Blocking(Admin.logs)
    audit_log: Final = Blocking(Admin.audit_log)
    record_sign_in: Final = Blocking(Admin.record_sign_in)
    sign_outs: Final = Blocking(Admin.sign_outs)
    explain: Final = Blocking(Admin.explain)
    enqueue: Final = Blocking(Admin.enqueue)
    run_again: Final = Blocking(Admin.run_again)
    retry: Final = Blocking(Admin.retry)
    cancel: Final = Blocking(Admin.cancel)
    run_now: Final = Blocking(Admin.run_now)
    reschedule: Final = Blocking(Admin.reschedule)
    cancel_many: Final = Blocking(Admin.cancel_many)
    cancel_batch: Final = Blocking(Admin.cancel_batch)
    retry_many: Final = Blocking(Admin.retry_many)
    run_many_now: Final = Blocking(Admin.run_many_now)
    delete: Final = Blocking(Admin.delete)
    reschedule_many: Final = Blocking(Admin.reschedule_many)
    purge: Final = Blocking(Admin.purge)
    quiet_node: Final = Blocking(Admin.quiet_node)
    resume_node: Final = Blocking(Admin.resume_node)
    stop_node: Final = Blocking(Admin.stop_node)
    set_node_slots: Final = Blocking(Admin.set_node_slots)
    rename_node: Final = Blocking(Admin.rename_node)
    loaded: Final = Blocking(Admin.loaded)
    sweep_large_payloads: Final = Blocking(Admin.sweep_large_payloads)
    decoded: Final = Blocking(Admin.decoded)
    now: Final = Blocking(Admin.now)
    arguments: Final = Blocking(Admin.arguments)

    def follow_ended_jobs(
        self, after: str | datetime | None = None, **criteria: Unpack[EndCriteria]
    ) -> Iterator[EndEvent]:
        """As `Admin.follow_ended_jobs`; waits for the next event."""
        events: AsyncIterator[EndEvent] = self._run(Admin.follow_ended_jobs, after, **criteria)

        async def next_event() -> EndEvent:
            return await anext(events)

        while True:
            yield self._portal.run(next_event())

    @property
    def actor(self) -> str:
        """As `Admin.actor`."""
        return str(self._run(attrgetter("actor")))

    @property
    def address(self) -> str:
        """As `Admin.address`."""
        return str(self._run(attrgetter("address")))

    @property
    def tasks(self) -> frozenset[str]:
        """As `Admin.tasks`."""
        return frozenset(self._run(attrgetter("tasks")))

    @property
    def declared_tasks(self) -> Sequence[DeclaredTask]:
        """As `Admin.declared_tasks`."""
        declared: Sequence[DeclaredTask] = self._run(attrgetter("declared_tasks"))
        return declared

    def by(self, actor: str) -> SyncAdmin:
        """As `Admin.by`."""
        return SyncAdmin(lambda: self._admin().by(actor), self._portal)

    @property
    def queues(self) -> SyncQueuesAdmin:
        """As `Admin.queues`."""
        return SyncQueuesAdmin(lambda: self._admin().queues, self._portal)

    @property
    def schedules(self) -> SyncSchedulesAdmin:
        """As `Admin.schedules`."""
        return SyncSchedulesAdmin(lambda: self._admin().schedules, self._portal)

    @property
    def limits(self) -> SyncLimitsAdmin:
        """As `Admin.limits`."""
        return SyncLimitsAdmin(lambda: self._admin().limits, self._portal)

    @property
    def history(self) -> SyncHistoryAdmin:
        """As `Admin.history`."""
        return SyncHistoryAdmin(lambda: self._admin().history, self._portal)
