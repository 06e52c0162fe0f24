"""Store: the verbs that engines, admins and clients call. Most are procedures, which a database runs as a `Driver`.

Jobs wait in *lanes*. All waiting jobs of one queue that use the same buckets share a lane, and the jobs without
buckets share the queue's open lane. A lane is empty, due, asleep until its earliest `run_at`, or waits behind exactly
one closed bucket. Jobs with the same buckets are in different lanes if their *wait mode* differs: jobs that do not wait
are rejected when they meet a closed bucket, and jobs of one owner share its permits.

`claim` reads the lanes that are due and those behind buckets that have opened, decides by the rules how many jobs may
start, charges the buckets and marks the jobs as running, in one commit.

Instants are wall microseconds, except where a name says limit time (`limit_now`): the store's own time for limits,
which never goes back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from headgate.jobs.audit import AuditRecord
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import BucketRef, JobRecord
from headgate.jobs.query import JobFilter
from headgate.limits.limit import AnyRule
from headgate.storage.driver import Driver, ReadKind, Transaction, WriteOptions
from headgate.storage.live_rules import CachedRules, EditSetting, LimitSetting, read_limit_sets, read_settings
from headgate.storage.procedures import alerts as alert_rows
from headgate.storage.procedures import (
    audit,
    failures,
    finish,
    following,
    history,
    limits,
    listing,
)
from headgate.storage.procedures import graph as graph_rows
from headgate.storage.procedures import limit_sets as limit_set_notes
from headgate.storage.procedures import nodes as node_rows
from headgate.storage.procedures import reports as report_rows
from headgate.storage.procedures import schedules as schedule_rows
from headgate.storage.procedures import upkeep as upkeep_rows
from headgate.storage.procedures import waiting as waiting_jobs
from headgate.storage.procedures.following import without_held
from headgate.storage.records import (
    LIMIT_SET_LIVES,
    Amendment,
    Dropped,
    NodeControls,
    NodeRecord,
    NodeUpdate,
    Recovered,
    StartMove,
)

P = ParamSpec("P")
R = TypeVar("R")


def _kind(filter: JobFilter, *_: object, **__: object) -> ReadKind:
    return "scan" if filter.text is None else "search"


def _bounded_kind(filter: JobFilter, *_: object, **__: object) -> ReadKind:
    # For those of a key, all lanes may be read.
    return "list" if filter.text is None and filter.key is None else _kind(filter)


def read(
    procedure: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]], kind: ReadKind | Callable[P, ReadKind]
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, R]]:
    """Return a verb that runs a procedure which only reads, with the signature and the promise of the procedure.

    The kind of the read may depend on the arguments. The verb is Final in its class: only then type checkers agree on a
    type that is not written down.
    """

    @wraps(procedure)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        kind_of_it = kind(*args, **kwargs) if callable(kind) else kind
        return await self.read(lambda tx: procedure(tx, *args, **kwargs), kind_of_it)

    return verb


def write(
    procedure: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]],
    *,
    changes_job: bool = False,
    **options: Unpack[WriteOptions],
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, R]]:
    """Return the same for a procedure that runs in a transaction, with the options of `Driver.write`.

    With `changes_job`, its first argument is the id of a job that a caller waits to have changed.
    """

    @wraps(procedure)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        job = str(args[0] if args else kwargs["job_id"]) if changes_job else None
        return await self.write(lambda tx: procedure(tx, *args, **kwargs), changes_job=job, **options)

    return verb


def write_without_held(
    procedure: Callable[Concatenate[Transaction, frozenset[str], P], Coroutine[Any, Any, R]],
    **options: Unpack[WriteOptions],
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, R]]:
    """Return the same for a procedure that raises FollowersHeld: it runs again without the jobs that are held."""

    @wraps(procedure)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await without_held(lambda held: self.write(lambda tx: procedure(tx, held, *args, **kwargs), **options))

    return verb


class Store(Driver):
    """The storage of jobs, as engines, admins and clients use it.

    The tests that a store has to pass with each database are in `tests/conformance/storage_suite`.
    """

    live: CachedRules
    """The rules and settings of limits as this process last read them."""

    @abstractmethod
    def scratch(self) -> AbstractAsyncContextManager[Callable[[], Store]]:
        """Make an empty store beside this one, on the same disk or server; the returned function opens it, repeatedly.

        It is deleted when the block ends, even by an error. Every store that was opened must be closed before. Raises
        StorageUnusable where none can be made, as beside a store that `is_in_process`.
        """

    async def producer(self) -> int | None:
        """Return the number with which this process is to make ids; None if the database gives none."""
        if not self.numbers_producers:
            return None
        return int(await self.write(lambda tx: tx.value("next_producer"), is_atomic=False))

    is_complete: Final = read(finish.is_complete, "lookup")

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Correct the cost and time of starts in their buckets; the next claim can use what is refunded."""
        refunds = any(amendment.actual < amendment.cost for amendment in amendments)
        await self.write(lambda tx: limits.amend(tx, amendments, rules, self.live), wakes=refunds, has_rows=True)

    async def move_starts(
        self, node: str, starts: Sequence[StartMove], rules: Mapping[str, AnyRule]
    ) -> Mapping[tuple[str, int], int]:
        """Count jobs that the node is about to start from now on, in their buckets and their rows.

        Returns, by id and fence, the limit time at which each counts. Left out and unchanged are jobs that the node no
        longer owns under that fence, jobs that another transaction has locked, and jobs whose charge may have made room
        for others by now. A repeated move counts the start once, at the later instant.
        """
        return await self.write(lambda tx: limits.move_starts(tx, node, starts, rules, self.live), has_rows=True)

    cancel: Final = write(waiting_jobs.cancel, wakes=True, changes_job=True, empties_lanes=True)
    downstream_of: Final = read(graph_rows.downstream_of, "scan")
    cancel_blocked: Final = write_without_held(following.cancel_blocked, wakes=bool)
    retry: Final = write(waiting_jobs.retry, wakes=True, changes_job=True)
    retry_lone: Final = write(waiting_jobs.retry_lone, wakes=bool)
    run_now: Final = write(waiting_jobs.run_now, wakes=True, changes_job=True)
    reschedule: Final = write(waiting_jobs.reschedule, wakes=True, changes_job=True)
    report: Final = write(report_rows.report, has_rows=True)
    logs: Final = read(report_rows.logs, "list")
    add_audit_record: Final = write(audit.add_audit_record, is_atomic=False)
    audit_log: Final = read(audit.audit_log, "scan")
    sign_outs: Final = read(audit.sign_outs, "lookup")
    job: Final = read(listing.job, "lookup")
    batch: Final = read(listing.batch, "lookup")
    batches_by_id: Final = read(listing.batches_by_id, "lookup")
    jobs_of_batch: Final = read(listing.jobs_of_batch, "scan")
    pruned_members: Final = read(listing.pruned_members, "scan")
    dependencies: Final = read(listing.dependencies, "lookup")
    graph: Final = read(graph_rows.graph, "list")
    batches: Final = read(listing.batches, "scan")
    tasks_of_batches: Final = read(listing.tasks_of_batches, "list")

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return those of the jobs that are final."""
        return await self.read(lambda tx: listing.jobs_by_id(tx, job_ids, final=True), "lookup")

    attempts: Final = read(listing.attempts, "list")
    newest_failed: Final = read(failures.newest_failed, "search")
    newest_attempts: Final = read(failures.newest_attempts, "search")
    job_errors: Final = read(failures.job_errors, "search")
    ended: Final = read(failures.ended, "search")
    jobs_by_id: Final = read(listing.jobs_by_id, "list")
    page: Final = read(listing.page, _bounded_kind)
    bounded_count: Final = read(listing.bounded_count, _bounded_kind)
    jobs: Final = read(listing.jobs, _kind)
    count_jobs: Final = read(listing.count_jobs, _kind)
    waiting: Final = read(listing.waiting, "count")
    views: Final = read(listing.views, "count")
    count_unfinished: Final = read(listing.count_unfinished, "count")
    is_work_left: Final = read(listing.is_work_left, "scan")
    counts: Final = read(listing.counts, "count")
    queues: Final = read(listing.queues, "count")
    paused_queues: Final = read(listing.paused_queues, "lookup")
    backlog: Final = read(listing.backlog, "lookup")
    waiting_by_key: Final = read(listing.waiting_by_key, "list")
    pause_queue: Final = write(upkeep_rows.pause_queue, wakes=True)
    resume_queue: Final = write(upkeep_rows.resume_queue, wakes=True)
    blockers: Final = read(listing.blockers, "lookup")
    buckets: Final = read(listing.buckets, "scan")
    is_ranked: Final = read(listing.is_ranked, "lookup")
    buckets_by_trouble: Final = read(listing.buckets_by_trouble, "scan")
    keys: Final = read(listing.keys, "lookup")
    jobs_beginning: Final = read(listing.jobs_beginning, "lookup")
    batch_ids: Final = read(listing.batch_ids, "lookup")
    keys_by_limit: Final = read(listing.keys_by_limit, "scan")
    limit_figures: Final = read(listing.limit_figures, "scan")
    deposit: Final = write(limits.deposit, wakes=True)
    withdraw: Final = write(limits.withdraw)

    async def visit(
        self, ref: BucketRef, rules: Mapping[str, AnyRule], change: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        """Call `change` with a `BucketVisit` of the bucket, and store what it changes, atomically.

        It may be called again if the commit fails. What it stores under an `id` is there at the next visit with that
        id, until it is deleted.
        """
        answer, _ = await self.write(
            lambda tx: limits.visit(tx, ref, rules, change, id, self.live),
            wakes=lambda visited: visited[1],
            takes_buckets=True,
        )
        return answer  # type: ignore[no-any-return]

    queue_position: Final = read(listing.queue_position, "list")
    prediction_input: Final = read(listing.prediction_input, "lookup")
    starts: Final = read(listing.starts, "scan")
    # For the audit of a request: it reads beside the lists, and raises SearchTooLong and TooManySearches.
    bounded_starts: Final = read(listing.starts, "search")

    async def note_limit_sets(
        self, limit_sets: Mapping[str, str], *, lives: int = LIMIT_SET_LIVES
    ) -> Mapping[str, bool]:
        """Store that this release has these limit sets, by subject; every node repeats that several times in `lives`.

        Returns the subjects without a newer live limit set, each with whether its backlog still has to be moved to this
        one. The newer limit set is the one that was noted first at a later time, so that of an old worker that restarts
        is not newer. A limit set lives for `lives` microseconds after it was last noted, so after a rollback the older
        one is the newest again. The backlog has to be moved to a new limit set, and again if another one was noted
        since. After this returns, no claim starts a job of a subject for a node whose limit set is not the newest.

        What a release declares about a schedule is noted in the same way, as "schedule NAME", without a backlog; and
        the rule of a limit as "limit NAME": the newest one is in force for all nodes and plain code, and lanes that
        wait for the limit are visited again under it.
        """
        noted = await self.write(lambda tx: limit_set_notes.note_limit_sets(tx, limit_sets, lives))
        if noted.changed:
            # A claim that is running may start jobs for a node whose limit set is no longer the newest.
            await self.write(lambda tx: limit_set_notes.await_claims(tx, noted.changed), wakes=True)
        return noted.to_move

    limit_sets_done: Final = write(limit_set_notes.limit_sets_done, is_atomic=False)
    jobs_of_other_limits: Final = read(listing.jobs_of_other_limits, "list")

    gated_jobs: Final = read(listing.gated_jobs, "list")
    gated_jobs_by_id: Final = read(listing.gated_jobs_by_id, "lookup")
    failed_holders: Final = read(listing.failed_holders, "list")
    release_failed: Final = write(waiting_jobs.release_failed, wakes=True, is_atomic=False)
    change_limit_sets: Final = write(waiting_jobs.change_limit_sets, wakes=True, is_atomic=False, empties_lanes=True)
    settings: Final = read(read_settings, "lookup")
    newest_limit_sets: Final = read(read_limit_sets, "lookup")

    async def edit_setting(
        self, about: LimitSetting, edit: EditSetting, *, audit_record: AuditRecord | None = None
    ) -> bool:
        """Change the setting for the limit, scope and target of `about` by `edit`. Returns whether that is a change.

        `edit` gets the stored setting, and no other change comes in between. A setting that sets nothing is removed.
        The audit record is stored with a change. Lanes that wait for the limit are visited again under the new rules.
        """
        becomes = await self.write(lambda tx: limits.edit_setting(tx, about, edit, audit_record))
        if becomes is None:
            return False
        await self.write(lambda tx: limits.reopen(tx, becomes), wakes=True)
        return True

    penalize: Final = write(limits.penalize)
    reset: Final = write(limits.reset, wakes=True, empties_lanes=True)
    forget: Final = write(limits.forget)
    put_schedule: Final = write(schedule_rows.put_schedule, wakes=True)
    take_over_schedule: Final = write(schedule_rows.take_over_schedule, wakes=True)
    schedules: Final = read(schedule_rows.schedules, "list")
    due_schedules: Final = read(schedule_rows.due_schedules, "engine")
    overdue_schedules: Final = read(schedule_rows.overdue_schedules, "engine")
    schedules_ahead: Final = read(schedule_rows.schedules_ahead, "engine")
    fire: Final = write(schedule_rows.fire, wakes=True)
    remove_schedule: Final = write(schedule_rows.remove_schedule, wakes=True, is_atomic=False)

    async def nodes(self) -> Sequence[NodeRecord]:
        """Return all nodes."""
        return await self.read(lambda tx: node_rows.nodes(tx, self.clock.boot_id()), "engine")

    lost_nodes: Final = read(node_rows.lost_nodes, "engine")

    async def node_update(self, node: str = "") -> NodeUpdate:
        """Return what a node reads every second: its peers, what it is set to do, and whether there is other work.

        Until a node has joined, everything in it is empty.
        """
        return await self.read(
            lambda tx: node_rows.node_update(tx, node, self.clock.boot_id(), self.arrival_floor), "engine"
        )

    async def join(
        self,
        node: str,
        name: str,
        *,
        controls: NodeControls | None = None,
        labels: Sequence[str] = (),
        tasks: Mapping[str, Sequence[str]] | None = None,
        version: str = "",
        release: str | None = None,
    ) -> None:
        """Register a node with its slots, before its first claim. A registered node stays as it is.

        `tasks` are the names that it declares, by queue. If no other node runs its `release`, and the last deploy was
        of another one, this is a deploy.
        """
        chosen = controls or NodeControls({})
        await self.write(
            lambda tx: node_rows.join(
                tx, node, name, self.clock.boot_id(), chosen, labels, tasks or {}, version, release, self.port
            ),
            is_atomic=False,
            may_repeat=True,
        )

    deploys: Final = read(node_rows.deploys, "list")
    declared_subjects: Final = read(node_rows.declared_subjects, "list")
    runs_elsewhere: Final = read(node_rows.runs_elsewhere, "engine")
    declare: Final = write(node_rows.declare)
    beat: Final = write(node_rows.beat, is_atomic=False)
    set_node: Final = write(node_rows.set_node)
    rename_node: Final = write(node_rows.rename_node)
    cancels: Final = read(node_rows.cancels, "engine")

    async def leave(self, node: str) -> Recovered:
        """Remove a node that has stopped; jobs that it still owns wait again, and their attempts do not count."""
        return await without_held(lambda held: self.write(lambda tx: node_rows.leave(tx, held, node), wakes=True))

    recover: Final = write_without_held(node_rows.recover, wakes=bool)
    add_missing_nodes: Final = write(node_rows.add_missing_nodes, is_atomic=False, may_repeat=True)

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        """End up to `count` waiting jobs whose `expires_at` or `give_up_at` has passed."""
        return await without_held(
            lambda held: self.write(lambda tx: waiting_jobs.expire(tx, held, count), wakes=bool, empties_lanes=True)
        )

    release_followers: Final = write_without_held(following.release_followers, wakes=bool)
    prune: Final = write(upkeep_rows.prune)
    delete: Final = write(upkeep_rows.delete, wakes=True)
    prune_audit: Final = write(audit.prune_audit, is_atomic=False)

    async def prune_by_own_retention(self, count: int = 1000, *, until: int | None = None) -> int:
        """Delete up to `count` jobs whose own retention had ended by `until` (now) and that no unfinished job reads.

        Returns how many. No write waits for the search: of a batch that a job follows, it may pass very many.
        """
        now = until or self.now()
        ids = await self.read(lambda tx: tx.ids("ended_retentions", now=now, count=count), "list")
        # A job may have run again since: if the clock was set back, its new end is before `now`.
        deletion = partial(upkeep_rows.delete, ids=ids, finished_before=now + 1, kept_until=now)
        return len((await self.write(deletion)).deleted)

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        """Add these steps to the stored history of jobs and limits; several nodes may do it at once.

        It delays no other verb, so it may take several commits. To repeat the last `flush` of a writer with the same
        steps within an hour adds only what was not added; without a flush, or later, everything is counted twice.

        The store itself counts what no attempt reports, in the commit that does it: jobs that become final without an
        attempt (rejected, expired, cancelled while they wait or with their leader, poisonous, or cancelled instead of
        waiting again), and the jobs that `fire` and `add_in` have added.
        """
        for start in range(0, max(len(jobs), len(limits)), history.STEPS_AT_ONCE):
            portion = slice(start, start + history.STEPS_AT_ONCE)
            procedure = partial(
                history.add_history, jobs=jobs[portion], limits=limits[portion], flush=flush, portion=start
            )
            await self.write(procedure, may_be_lost=True)

    gather_history: Final = write(history.gather_history, is_atomic=False)
    jobs_history: Final = read(history.jobs_history, "list")
    recent_history: Final = read(history.recent_history, "list")
    limit_history: Final = read(history.limit_history, "list")
    prune_history: Final = write(history.prune_history)
    take_alert_turns: Final = write(alert_rows.take_alert_turns)
    note_alerts: Final = write(alert_rows.note_alerts)
    due_alerts: Final = read(alert_rows.due_alerts, "engine")
    try_alert: Final = write(alert_rows.try_alert, is_atomic=False)
    alert_tried: Final = write(alert_rows.alert_tried, is_atomic=False)
    alerts: Final = read(alert_rows.alerts, "lookup")

    async def lost_names(self, since: int) -> Sequence[str]:
        """Return the names of the nodes that were found dead since then, at most a day ago."""
        return await self.read(lambda tx: tx.values("lost_names", since=since), "engine")

    evict: Final = write(upkeep_rows.evict, is_atomic=False)
    identity: Final = read(upkeep_rows.identity, "lookup")
    is_folder_used: Final = read(upkeep_rows.is_folder_used, "lookup")
    note_folder_used: Final = write(upkeep_rows.note_folder_used, is_atomic=False, may_repeat=True)
    stored_ids: Final = read(upkeep_rows.stored_ids, "lookup")

    check: Final = read(upkeep_rows.check, "check")
