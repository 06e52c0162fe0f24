"""Store: the verbs that engines, admins and clients call, on the database of a driver.

Jobs wait in *lanes*. All waiting jobs of one queue that draw on the same buckets share a lane, and the jobs without
draws share the queue's open lane. A lane is empty, due, asleep until its earliest `run_at`, or waits behind exactly one
closed bucket. Jobs with the same draws are in different lanes if their *variant* differs: jobs that do not wait are
rejected when they meet a closed bucket, and jobs of one owner share its permits.

`claim` reads the lanes that are due and those behind buckets that have opened, decides by the rules how many jobs may
start, charges the buckets and marks the jobs as running, in one commit.

Instants are wall microseconds, except where a name says limit time (`limit_now`): the store's own time for limits,
which never goes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from headgate.jobs.alert import AlertRecord, HeldCondition
from headgate.jobs.audit import AuditEntry, AuditFilter, AuditRecord
from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.gating import NO_GATES, GateChange, GatedJob, KnownGates
from headgate.jobs.history import Flush, JobsStep, LimitStep
from headgate.jobs.job import AttemptRecord, Draw, JobRecord, JobState, NewJob
from headgate.jobs.lifecycle import Ending
from headgate.jobs.report import AttemptReport, LogLine
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.driver import Driver, ReadKind
from headgate.storage.facts import Contradiction, IndexFacts, StoreFacts
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.live_rules import EditSetting, LimitSetting
from headgate.storage.migrations import Migration
from headgate.storage.procedures import alerts as alert_rows
from headgate.storage.procedures import (
    audit,
    downstream,
    failures,
    finish,
    following,
    graph,
    history,
    limits,
    listing,
    nodes,
    schedules,
    upkeep,
    waiting,
)
from headgate.storage.procedures import gates as gate_notes
from headgate.storage.procedures.following import without_held
from headgate.storage.procedures.reports import logs, report
from headgate.storage.procedures.settings import read_settings
from headgate.storage.records import (
    FINAL_STATES,
    GATE_LIVES,
    Amendment,
    Beat,
    Blocker,
    BucketPlace,
    BucketRecord,
    Claim,
    Claimed,
    Deletion,
    DeployRecord,
    Deposit,
    DownstreamJob,
    Dropped,
    EditNode,
    EndedAttempt,
    JobCount,
    JobFilter,
    JobGraph,
    JobName,
    JobPage,
    LimitFigures,
    NodeRecord,
    NodeSetting,
    QueueCounts,
    QueuePosition,
    QueueRecord,
    RecordedStart,
    Recovered,
    StartMove,
    StoredError,
    Ties,
    Upkeep,
    ViewCount,
    WaitingByKey,
    WaitingByLimit,
    WaitingCount,
)
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord

R = TypeVar("R")


class Store:
    """The storage of jobs. What a verb has changed is durable when it returns; else it raises StorageUnavailable.

    The tests that a store has to pass with each driver are in `tests/conformance/storage_suite`.
    """

    driver: Driver

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __str__(self) -> str:
        return str(self.driver)

    @property
    def is_in_process(self) -> bool:
        """Whether its jobs are in the memory of this process: no other process can read them, and they end with it."""
        return self.driver.is_in_process

    @property
    def place(self) -> object | None:
        """Where its tables are, equal to the `place` of a bucket store in the same place; None if there can be none."""
        return self.driver.place

    async def open(self, *, migrate: bool = True) -> None:
        """Connect, and create or migrate the tables.

        Without `migrate` nothing is created. Raises StorageUnusable for what is not a Headgate database, and without
        `migrate` also for one that does not exist or lacks a migration.
        """
        await self.driver.open(migrate=migrate)

    async def close(self) -> None:
        """Close all connections; a second call does nothing."""
        await self.driver.close()

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Bring the schema up to date without opening the store; what was applied, or with `dry_run` would be."""
        return await self.driver.migrate(dry_run=dry_run)

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], Store]]:
        """Make an empty store beside this one, on the same disk or server; the returned function opens it, repeatedly.

        It is deleted when the block ends, even by an error. Every store that was opened must be closed before. Raises
        StorageUnusable where none can be made, as beside a store that `is_in_process`.
        """
        async with self.driver.scratch() as make:
            yield lambda: Store(make())

    def watch(self, wake: Callable[[], None], *, endings: bool = True) -> Callable[[], None]:
        """Call `wake` on the loop when jobs may have become claimable or final, in this or another process.

        Without `endings` it is not called for jobs that became final if no job became claimable by that. It may be
        called without a change, and once for many changes. Returns the function that ends the watch.
        """
        return self.driver.watch(wake, endings=endings)

    def now(self) -> int:
        """Return the store's wall time in microseconds: all stored instants are compared with it.

        It is the same for all nodes, so a node with a wrong clock runs nothing early or late.
        """
        return self.driver.now()

    def limit_now(self) -> int:
        """Return limit time in microseconds."""
        return self.driver.limit_now()

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        """Store waiting jobs, all or none. Returns, by the ids of duplicates, the ids of the existing jobs.

        Batches are stored with all their jobs, and before jobs that follow them. A job that follows one which is not
        final is blocked and in no lane. The commit that makes its leader final puts it into its lane, ready then or at
        its own `run_at`; or cancels it and its own followers. Raises LeaderNotFound.

        Jobs with unique keys are stored as if one after the other. Raises DuplicateJob. An own id under which another
        enqueue has stored a job is mapped to itself. Raises IdInUse if it is a job of another task.
        """
        return await self.driver.add(jobs, batches)

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `add`, but the jobs exist if and only if the open transaction of the caller's connection commits.

        That commit wakes the watchers. It suspends only where the connection itself is awaited. Raises UnfitConnection,
        for any connection if the store `is_in_process`.
        """
        return await self.driver.add_in(connection, jobs)

    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        """Complete a running job if and only if the open transaction of the caller's connection commits.

        However its attempt ends then, and also if its node dies, the job has succeeded. False if it does not run under
        this fence any more. It suspends only where the connection itself is awaited. Raises UnfitConnection, as
        `add_in` does.
        """
        return await self.driver.complete_in(connection, job_id, fence)

    async def producer(self) -> int | None:
        """Return the number with which this process is to make ids; None if the database gives none."""
        if not self.driver.numbers_producers:
            return None
        return int(await self.driver.write(lambda tx: tx.value("next_producer"), is_atomic=False))

    async def is_complete(self, job_id: str, fence: int) -> bool:
        """Whether the attempt has completed the job by `complete_in`."""
        return await self.driver.read(lambda tx: finish.is_complete(tx, job_id, fence), "lookup")

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a connection for the caller, with a transaction that commits at the end of the block.

        Raises UnfitConnection if the store `is_in_process`, StorageUnavailable if it cannot be reached.
        """
        return self.driver.transaction()

    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may run now, and charge their buckets, atomically."""
        return await self.driver.claim(claim)

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """Write how attempts ended; False for each whose job is no longer running under this node and fence.

        None is for each whose job another open transaction has locked: it is not written and has to be tried again. It
        delays no other ending.

        To repeat it changes nothing: an ending that is already stored, by this node under this fence, counts as
        written. A job whose cancellation was requested is cancelled instead of waiting again. Permits that its terms do
        not keep are returned in the same commit.
        """
        return await self.driver.finish(node, endings)

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Correct the cost and time of starts in their buckets; the next claim can use what is refunded."""
        refunds = any(amendment.actual < amendment.cost for amendment in amendments)
        await self.driver.write(
            lambda tx: limits.amend(tx, amendments, rules, self.driver.live), wakes=refunds, has_rows=True
        )

    async def move_starts(
        self, node: str, starts: Sequence[StartMove], rules: Mapping[str, AnyRule]
    ) -> Mapping[tuple[str, int], int]:
        """Count jobs that the node is about to start from now on, in their buckets and their rows.

        Returns, by id and fence, the limit time at which each counts. Left out and unchanged are jobs that the node no
        longer owns under that fence, jobs that another transaction has locked, and jobs whose charge may have made room
        for others by now. A repeated move counts the start once, at the later instant.
        """
        return await self.driver.write(
            lambda tx: limits.move_starts(tx, node, starts, rules, self.driver.live), has_rows=True
        )

    async def cancel(
        self, job_id: str, *, audit_record: AuditRecord | None = None, waiting_only: bool = False
    ) -> JobState | None:
        """Cancel a waiting job, or request the cancellation of a running one unless `waiting_only`.

        Returns the state it was in, None if there is no such job; a final job is left as it is. A verb that takes a
        `audit_record` stores it in the commit that changes something; for a job, only if the job is audited in full.
        """
        return await self.driver.write(
            lambda tx: waiting.cancel(tx, job_id, audit_record, waiting_only=waiting_only),
            wakes=True,
            changes_job=job_id,
            empties_lanes=True,
        )

    async def downstream_of(self, batch_id: str) -> Sequence[DownstreamJob]:
        """Return the jobs to cancel with a batch, by id, as far as they are not final.

        Its jobs, those of the batches in it, and each job after them that then would wait for nothing else.
        """
        return await self.driver.read(lambda tx: downstream.downstream_of(tx, batch_id), "scan")

    async def cancel_blocked(
        self, job_ids: Sequence[str], *, audit_records: Sequence[AuditRecord] = ()
    ) -> Sequence[str]:
        """Cancel those of the jobs that are blocked, in one commit, so that none releases another; return their ids.

        A job that another transaction has locked is left as it is.
        """
        return await without_held(
            lambda held: self.driver.write(
                lambda tx: downstream.cancel_blocked(tx, [id for id in job_ids if id not in held], audit_records),
                wakes=bool,
            )
        )

    async def retry(self, job_id: str, *, audit_record: AuditRecord | None = None) -> JobState | None:
        """Let a failed or cancelled job wait again, with all its attempts.

        It is blocked if its leader is not final. Its followers that were cancelled because of it are blocked again.
        Raises LeaderNotRetried if it needs the success of a leader that failed or was cancelled: the leader has to be
        retried first. Returns the state it was in, None if there is no such job. Raises IllegalTransition for any other
        state.
        """
        return await self.driver.write(
            lambda tx: waiting.retry(tx, job_id, audit_record), wakes=True, changes_job=job_id
        )

    async def run_now(self, job_id: str, *, audit_record: AuditRecord | None = None) -> JobState | None:
        """Make a waiting job ready whose `run_at` is in the future; its limits still apply.

        Returns the state it was in, None if there is no such job. Raises IllegalTransition if it is not scheduled.
        """
        return await self.driver.write(
            lambda tx: waiting.run_now(tx, job_id, audit_record), wakes=True, changes_job=job_id
        )

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: int | None = None,
        priority: int | None = None,
        audit_record: AuditRecord | None = None,
    ) -> JobState | None:
        """Change the `run_at` of a waiting job, its priority, or both; None leaves it as it is.

        A `run_at` in the past means now. The time that it may wait for its limits counts from the new `run_at`. Returns
        the state it was in, None if there is no such job. Raises IllegalTransition if it is not waiting; it may be
        blocked.
        """
        return await self.driver.write(
            lambda tx: waiting.reschedule(tx, job_id, run_at, priority, audit_record), wakes=True, changes_job=job_id
        )

    async def report(self, node: str, reports: Sequence[AttemptReport], most_lines: int) -> Sequence[bool | None]:
        """Store what running attempts report; False for each that is not running under this node and fence.

        None, as from `finish`, is for each that was not stored and has to be tried again.

        The first `most_lines` log lines of a job are stored, over all its attempts, and a line that says that there
        were more. To repeat it changes nothing.
        """
        return await self.driver.write(lambda tx: report(tx, node, reports, most_lines), has_rows=True)

    async def logs(
        self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False, level: int = 0
    ) -> Sequence[LogLine]:
        """Return the log lines of a job, oldest first: the first `count` after number `after`, or the `newest`.

        Lines below `level` are left out.
        """
        return await self.driver.read(lambda tx: logs(tx, job_id, after, count, level, newest=newest), "list")

    async def add_audit_record(self, audit_record: AuditRecord) -> None:
        """Store an audit record of an action that no other verb stores."""
        await self.driver.write(lambda tx: audit.add_audit_record(tx, audit_record), is_atomic=False)

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        """Return a page of audit entries, newest first."""
        return await self.driver.read(lambda tx: audit.audit_log(tx, filter), "scan")

    async def sign_outs(self, since: int) -> Sequence[AuditEntry]:
        """Return the sign-outs of users since then (wall time), oldest first."""
        return await self.driver.read(lambda tx: audit.sign_outs(tx, since), "lookup")

    async def job(self, job_id: str) -> JobRecord | None:
        """Return a job as it is now; None if there is no such job."""
        return await self.driver.read(lambda tx: listing.job(tx, job_id), "lookup")

    async def batch(self, batch_id: str) -> BatchRecord | None:
        """Return a batch as it is now; None if there is no such batch."""
        return await self.driver.read(lambda tx: listing.batch(tx, batch_id), "lookup")

    async def jobs_of_batch(self, batch_id: str, *, after: str = "", count: int = 1000) -> Sequence[str]:
        """Return a page of the ids of the jobs of a batch, and of the batches in it, in order.

        Those of a join are the leaders that it counts. `after` is the last id of the page before.
        """
        return await self.driver.read(lambda tx: listing.jobs_of_batch(tx, batch_id, after, count), "scan")

    async def ties(self, job_id: str) -> Ties:
        """Return what a job follows, and what follows it."""
        return await self.driver.read(lambda tx: listing.ties(tx, job_id), "lookup")

    async def graph(self, id: str, most: int) -> JobGraph:
        """Return the jobs and batches that are connected with a job or a batch, up to `most`.

        Jobs of a batch that follow nothing and are not followed are not part of it.
        """
        return await self.driver.read(lambda tx: graph.graph(tx, id, most), "list")

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        """Return a page of batches but no joins, newest first by id; `cursor` is the last id of the page before."""
        return await self.driver.read(
            lambda tx: listing.batches(tx, pending_only=pending_only, cursor=cursor, count=count), "scan"
        )

    async def tasks_of_batches(self, batch_ids: Collection[str], most: int = 100) -> Mapping[str, Sequence[str]]:
        """Return the tasks of each batch by name, of up to `most` of its jobs, whichever they are."""
        return await self.driver.read(lambda tx: listing.tasks_of_batches(tx, batch_ids, most), "list")

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return those of the jobs that are final."""
        return await self.driver.read(lambda tx: listing.jobs_by_id(tx, job_ids, final=True), "lookup")

    async def attempts(self, job_id: str) -> Sequence[AttemptRecord]:
        """Return the attempts of a job that did not succeed, oldest first."""
        return await self.driver.read(lambda tx: listing.attempts(tx, job_id), "list")

    async def newest_failed(self, since: int, count: int) -> Sequence[str]:
        """Return the ids of the jobs that failed since then, the last ones first; it reads an index of failed jobs."""
        return await self.driver.read(lambda tx: failures.newest_failed(tx, since, count), "search")

    async def newest_attempts(self, count: int) -> Sequence[EndedAttempt]:
        """Return the attempts that did not succeed, the last ones first, of jobs whose audit level keeps them."""
        return await self.driver.read(lambda tx: failures.newest_attempts(tx, count), "search")

    async def job_errors(self, job_ids: Sequence[str]) -> Sequence[StoredError]:
        """Return those of these jobs that are stored, with their last errors."""
        return await self.driver.read(lambda tx: failures.job_errors(tx, job_ids), "search")

    async def jobs_by_id(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return those of these jobs that are stored."""
        return await self.driver.read(lambda tx: listing.jobs_by_id(tx, job_ids), "list")

    async def page(self, filter: JobFilter) -> JobPage:
        """Return a page of jobs, for which at most 5,000 are read, so it may end before it is full.

        The following pages have the other jobs that match.
        """
        return await self.driver.read(lambda tx: listing.page(tx, filter), _bounded_kind(filter))

    async def bounded_count(self, filter: JobFilter, most: int) -> JobCount:
        """Count the jobs that match a filter, up to `most`; at most 5,000 jobs are read."""
        return await self.driver.read(lambda tx: listing.bounded_count(tx, filter, most), _bounded_kind(filter))

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Return a full page of jobs, or the last one; all jobs may be read for it."""
        return await self.driver.read(lambda tx: listing.jobs(tx, filter), _kind(filter))

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        """Count the jobs that match a filter, from its cursor on and up to `most`; all jobs may be read for it."""
        return await self.driver.read(lambda tx: listing.count_jobs(tx, filter, most), _kind(filter))

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        """Count waiting jobs by queue, task and what they wait for, over at most `most` jobs, whichever they are."""
        return await self.driver.read(lambda tx: listing.waiting(tx, most), "count")

    async def views(self, *, running: bool = False) -> Sequence[ViewCount]:
        """Count all waiting jobs by queue and what they wait for, from the counts of their lanes.

        With `running`, running jobs are counted too, in the same statement: no job is counted twice or missed.
        """
        return await self.driver.read(lambda tx: listing.views(tx, running=running), "count")

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        """Whether a job of these queues is running on any node, or a job of these tasks is left to run in one of them.

        Jobs in a paused queue do not count. With `ready_only`, nor do jobs that wait for a limit, for their time or for
        another job. It is one read, so it never misses a job that was added by another before that one ended.
        """
        return await self.driver.read(lambda tx: listing.is_work_left(tx, queues, tasks, ready_only=ready_only), "scan")

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        """Count jobs by queue and state.

        Without `finals`, final jobs are left out: each of them has to be read.
        """
        return await self.driver.read(lambda tx: listing.counts(tx, finals=finals), "count")

    async def queues(self) -> Sequence[QueueRecord]:
        """Return the queues that are paused or have waiting jobs, by name; it reads lanes, never all their jobs.

        Added jobs count at once, whether a node is running or not.
        """
        return await self.driver.read(listing.queues, "count")

    async def paused_queues(self) -> Mapping[str, int]:
        """Return the paused queues, and since when; it reads no lane and no job."""
        return await self.driver.read(listing.paused_queues, "lookup")

    async def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused; it reads no lane and no job."""
        return await self.driver.read(lambda tx: listing.is_paused(tx, queue), "lookup")

    async def backlog(self, queue: str) -> int:
        """Return how many jobs wait in the lanes of a queue; it adds up the counts of the lanes, and reads no job."""
        return await self.driver.read(lambda tx: listing.backlog(tx, queue), "lookup")

    async def waiting_by_key(self, queue: str, count: int) -> WaitingByKey:
        """Return the `count` keys of a fair queue with most waiting jobs; none if no job draws on its order.

        It reads up to 2,000 lanes that are next in line, 2,000 that wait for limits, and 2,000 arrivals, and no job.
        """
        return await self.driver.read(lambda tx: listing.waiting_by_key(tx, queue, count), "list")

    async def pause_queue(self, queue: str, *, audit_record: AuditRecord | None = None) -> bool:
        """Pause a queue: from the next claim on, no node gets its jobs until it is resumed. False if it was paused.

        Its jobs can still be added, expired, cancelled and finished. A claim ignores the queue: it causes no `more` and
        no `next_in`. The queue need not have had a job.
        """
        return await self.driver.write(lambda tx: upkeep.pause_queue(tx, queue, audit_record), wakes=True)

    async def resume_queue(self, queue: str, *, audit_record: AuditRecord | None = None) -> bool:
        """End a pause and wake the watchers; False if the queue was not paused."""
        return await self.driver.write(lambda tx: upkeep.pause_queue(tx, queue, audit_record, ends=True), wakes=True)

    async def blockers(self) -> Sequence[Blocker]:
        """Return the sessions that delay the store now, longest first; none for databases that have no sessions."""
        # Not a scan: the scans may be waiting for the sessions that this finds.
        return await self.driver.read(listing.blockers, "lookup")

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        """Return buckets, most waiting first; `prefix` is how their keys begin, `after` the end of the page before.

        Where lanes wait behind more than 5,000 buckets, all are ordered by limit and key.
        """
        return await self.driver.read(lambda tx: listing.buckets(tx, limit, key, count, prefix, after), "scan")

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        """Return buckets that lanes wait behind, most waiting first; of over 5,000 it ranks those that open first."""
        return await self.driver.read(lambda tx: listing.throttled(tx, count), "scan")

    async def buckets_by_trouble(self, count: int) -> Sequence[BucketRecord]:
        """Return buckets: penalized ones that lanes wait behind, others by their waiting jobs, then the rest by name.

        Where lanes wait behind more than 2,000 buckets, it ranks 1,000 that open first and 1,000 that open last.
        """
        return await self.driver.read(lambda tx: listing.buckets_by_trouble(tx, count), "scan")

    async def keys(self, limits: Sequence[str], prefix: str, count: int) -> Sequence[Draw]:
        """Return up to `count` keys of these limits that begin so, by limit and key; each limit is looked up once.

        Keys for which no job has started yet are found if their jobs wait in one of 50,000 lanes.
        """
        return await self.driver.read(lambda tx: listing.keys(tx, limits, prefix, count), "lookup")

    async def names_of_jobs(self, prefix: str, count: int) -> Sequence[JobName]:
        """Return the ids of jobs that begin so, with their tasks, newest first."""
        return await self.driver.read(lambda tx: listing.names_of_jobs(tx, prefix, count), "lookup")

    async def batch_ids(self, prefix: str, count: int) -> Sequence[str]:
        """Return the ids of batches that begin so, newest first."""
        return await self.driver.read(lambda tx: listing.batch_ids(tx, prefix, count), "lookup")

    async def waiting_by_limit(self) -> WaitingByLimit:
        """Count the jobs that wait for each limit, behind the 5,000 buckets that open first."""
        return await self.driver.read(listing.waiting_by_limit, "scan")

    async def keys_by_limit(self) -> Mapping[str, int]:
        """Return how many keys of each limit have a stored state; limits without are left out. It reads all of them."""
        return await self.driver.read(listing.keys_by_limit, "scan")

    async def limit_figures(self, limits: Sequence[str], *, step: int, since: int, most: int) -> Sequence[LimitFigures]:
        """Return figures of these limits, by name: their keys, counted to `most`, and what was not charged since then.

        `since` is the beginning of a step of `step` seconds of the history.
        """
        return await self.driver.read(lambda tx: listing.limit_figures(tx, limits, step, since, most), "scan")

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        """Store starts that were fetched from another store, in place of earlier ones, and wake the lanes behind."""
        await self.driver.write(lambda tx: limits.deposit(tx, deposits), wakes=True)

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        """Remove what is left of these deposits, so that it can be given back. Returns how much was left of each."""
        return await self.driver.write(lambda tx: limits.withdraw(tx, deposits))

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], change: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        """Call `change` with a `BucketVisit` of the bucket, and store what it changes, atomically.

        It may be called again if the commit fails. What it stores under an `id` is there at the next visit with that
        id, until it is deleted.
        """
        answer, _ = await self.driver.write(
            lambda tx: limits.visit(tx, draw, rules, change, id, self.driver.live),
            wakes=lambda visited: visited[1],
            takes_buckets=True,
        )
        return answer  # type: ignore[no-any-return]

    async def queue_position(self, job_id: str) -> QueuePosition | None:
        """Return the queue position of a job; None if it is not waiting."""
        return await self.driver.read(lambda tx: listing.queue_position(tx, job_id), "list")

    async def prediction_input(self, queue: str, draws: Sequence[Draw], variant: str = "") -> QueuePosition:
        """Return the queue position of a job that would be added to this lane now."""
        return await self.driver.read(lambda tx: listing.prediction_input(tx, queue, draws, variant), "lookup")

    async def starts(
        self,
        limit: str,
        key: str | None,
        since: int,
        *,
        until: int = NEVER,
        skip: int = 0,
        count: int = 10_000,
        is_bounded: bool = False,
    ) -> Sequence[RecordedStart]:
        """Return the newest `count` starts that were charged to a limit, newest first, without those of deleted jobs.

        They are from `since` to `until`, both limit time and both included, without the first `skip`. To read the next
        page, pass the instant of the last start as `until`, and skip the starts of that instant. If it `is_bounded`, it
        reads beside the lists, like a search, and raises SearchTooLong and TooManySearches.
        """
        kind: ReadKind = "search" if is_bounded else "scan"
        return await self.driver.read(lambda tx: listing.starts(tx, limit, key, since, until, skip, count), kind)

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        """Store that this release has these gates, by subject; every node repeats that several times in `lives`.

        Returns the subjects for which no newer gate is alive, each with whether its backlog still has to be moved to
        this gate. The newer gate is the one that was noted first at a later time, so the gate of an old worker that
        restarts is not newer. A gate is alive for `lives` microseconds after it was last noted, so after a rollback the
        older gate is the newest again. The backlog has to be moved to a new gate, and again if another gate was noted
        since it was moved. After this returns, no claim starts a job of a subject for a node whose gate is not the
        newest. What a release declares about a schedule is noted in the same way, as "schedule NAME", without a
        backlog; and the rule of a limit as "limit NAME": the newest one is in force for all nodes and plain code, and
        lanes that wait for the limit are visited again under it.
        """
        noted = await self.driver.write(lambda tx: gate_notes.note_gates(tx, gates, lives))
        if noted.changed:
            # A claim that is running may start jobs for a node whose gate is no longer the newest.
            await self.driver.write(lambda tx: gate_notes.await_claims(tx, noted.changed), wakes=True)
        return noted.to_move

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        """Store that the backlog of these subjects has been moved to these gates, and no longer to others."""
        await self.driver.write(lambda tx: gate_notes.gates_done(tx, gates), is_atomic=False)

    async def tasks_of_other_limits(self, limits: frozenset[str]) -> Sequence[str]:
        """Return the tasks of the first waiting jobs of up to 100 lanes that draw on a limit not in `limits`."""
        return await self.driver.read(lambda tx: listing.tasks_of_other_limits(tx, limits), "list")

    async def gated_jobs(
        self,
        tasks: frozenset[str],
        *,
        unknown_to: frozenset[str] | None = None,
        other_than: KnownGates = NO_GATES,
        ids: Sequence[str] | None = None,
        after: str = "",
        count: int = 100,
    ) -> Sequence[GatedJob]:
        """Return waiting jobs of these tasks that carry other gates, by id; of `ids` only those, whatever they carry.

        With `unknown_to`, those that draw on a limit that is not in that set.
        """
        kind: ReadKind = "list" if ids is None else "lookup"
        return await self.driver.read(
            lambda tx: listing.gated_jobs(tx, tasks, unknown_to, other_than, ids, after, count), kind
        )

    async def failed_holders(
        self, tasks: frozenset[str], *, other_than: KnownGates, after: str = "", count: int = 100
    ) -> Sequence[GatedJob]:
        """Return failed jobs of these tasks that hold permits and carry other gates than these, by id."""
        return await self.driver.read(lambda tx: listing.failed_holders(tx, tasks, other_than, after, count), "list")

    async def release_failed(self, jobs: Sequence[GateChange]) -> int:
        """Release the permits that failed jobs would not keep under their new draws and terms; return of how many.

        The jobs themselves stay as they are.
        """
        return await self.driver.write(lambda tx: waiting.release_failed(tx, jobs), wakes=True, is_atomic=False)

    async def change_gates(self, jobs: Sequence[GateChange]) -> int:
        """Move jobs that are still waiting to the lanes of their new draws. Returns how many were moved.

        They keep their priority and their order by `run_at`, and nodes with the new gate can start them. A permit that
        a job holds and no longer needs is returned.
        """
        return await self.driver.write(
            lambda tx: waiting.change_gates(tx, jobs), wakes=True, is_atomic=False, empties_lanes=True
        )

    async def settings(self) -> Sequence[LimitSetting]:
        """Return the settings of limits that were made at run time, and the newest declaration of each limit."""
        return await self.driver.read(read_settings, "lookup")

    async def edit_setting(
        self, about: LimitSetting, edit: EditSetting, *, audit_record: AuditRecord | None = None
    ) -> bool:
        """Change the setting for the limit, scope and target of `about` by `edit`. Returns whether that is a change.

        `edit` gets the stored setting, and no other change comes in between. A setting that sets nothing is removed.
        The audit record is stored with a change. Lanes that wait for the limit are visited again under the new rules.
        """
        becomes = await self.driver.write(lambda tx: limits.edit_setting(tx, about, edit, audit_record))
        if becomes is None:
            return False
        await self.driver.write(lambda tx: limits.reopen(tx, becomes), wakes=True)
        return True

    async def penalize(self, draw: Draw, until: int, *, audit_record: AuditRecord | None = None) -> None:
        """Let nothing start on a bucket before that limit time."""
        await self.driver.write(lambda tx: limits.penalize(tx, draw, until, audit_record))

    async def reset(self, draw: Draw, *, audit_record: AuditRecord | None = None) -> int:
        """Reset a bucket and take back permits of jobs that are not running. Returns how many permits are still held.

        For a dynamic window, the bucket with the key "" is the state of all keys.
        """
        return await self.driver.write(lambda tx: limits.reset(tx, draw, audit_record), wakes=True, empties_lanes=True)

    async def forget(self, limit: str, *, audit_record: AuditRecord | None = None) -> bool:
        """Delete a limit's settings and buckets; False if there were none, and then the audit record is not stored.

        Raises LimitInUse while jobs wait for it or hold its permits.
        """
        return await self.driver.write(lambda tx: limits.forget(tx, limit, audit_record))

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        """Store a schedule in place of the one with its name and the revision `replaces` (None: there is none).

        False, and nothing is written, if the stored revision differs. The store itself counts the jobs of the schedule:
        it ignores `open` in the record, and `runs` unless it begins `anew`.
        """
        return await self.driver.write(lambda tx: schedules.put_schedule(tx, record, replaces, anew=anew), wakes=True)

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        """Store a schedule in place of the one with the name `was` and that revision, in one commit.

        Jobs of the old schedule that are not final are moved to the new name, and its count is kept. False, and nothing
        is written, if the stored revision differs or the new name is taken.
        """
        return await self.driver.write(lambda tx: schedules.take_over_schedule(tx, record, was, replaces), wakes=True)

    async def schedules(
        self, *, name: str | None = None, formerly: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        """Return schedules by name, beyond `after`: all, the one of that `name`, or those once named `formerly`."""
        return await self.driver.read(lambda tx: schedules.schedules(tx, name, formerly, after, count), "list")

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        """Return schedules of these tasks that are due and not paused, except those that a node is `unable` to fire."""
        return await self.driver.read(lambda tx: schedules.due_schedules(tx, tasks, unable, count), "engine")

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        """Return schedules due before then and not paused, of other tasks than these or in `unable`."""
        return await self.driver.read(
            lambda tx: schedules.overdue_schedules(tx, before, tasks, unable, count), "engine"
        )

    async def schedules_ahead(
        self,
        tasks: frozenset[str],
        *,
        after: int,
        unable: frozenset[str] = frozenset(),
        beyond: str = "",
        count: int = 100,
    ) -> Sequence[ScheduleRecord]:
        """Return schedules of these tasks that were declared or had an occurrence after then, by name, `beyond` one."""
        return await self.driver.read(
            lambda tx: schedules.schedules_ahead(tx, after, tasks, unable, beyond, count), "engine"
        )

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        """Add the jobs of occurrences and advance their schedules, in one commit; False for each that has changed.

        So each occurrence is enqueued once, however many nodes try, and a schedule whose advance is lost has not
        enqueued anything either.
        """
        return await self.driver.write(lambda tx: schedules.fire(tx, fired), wakes=True)

    async def remove_schedule(self, name: str) -> bool:
        """Delete a schedule; the jobs that it has enqueued stay. Returns whether there was one."""
        return await self.driver.write(lambda tx: schedules.remove_schedule(tx, name), wakes=True, is_atomic=False)

    async def nodes(self) -> Sequence[NodeRecord]:
        """Return all nodes."""
        return await self.driver.read(lambda tx: nodes.nodes(tx, self.driver.clock.boot_id()), "engine")

    async def upkeep(self, node: str = "") -> Upkeep:
        """Return what a node reads every second: its peers, what it is set to do, and whether there is other work.

        Until a node has joined, everything in it is empty.
        """
        driver = self.driver
        return await driver.read(
            lambda tx: nodes.upkeep(tx, node, driver.clock.boot_id(), driver.arrival_floor), "engine"
        )

    async def join(
        self,
        node: str,
        name: str,
        *,
        setting: NodeSetting | None = None,
        labels: Sequence[str] = (),
        tasks: Mapping[str, Sequence[str]] | None = None,
        version: str = "",
        release: str | None = None,
    ) -> None:
        """Register a node with its slots, before its first claim. A registered node stays as it is.

        `tasks` are the names that it declares, by queue. If no other node runs its `release`, and the last deploy was
        of another one, this is a deploy.
        """
        driver = self.driver
        chosen = setting or NodeSetting({})
        await driver.write(
            lambda tx: nodes.join(
                tx, node, name, driver.clock.boot_id(), chosen, labels, tasks or {}, version, release, driver.port
            ),
            is_atomic=False,
            may_repeat=True,
        )

    async def deploys(self, since: int, count: int = 100) -> Sequence[DeployRecord]:
        """Return the last `count` deploys since then, oldest first."""
        return await self.driver.read(lambda tx: nodes.deploys(tx, since, count), "list")

    async def declared_subjects(self) -> frozenset[str]:
        """Return what nodes that claim declare for queues that they serve, each as `task@queue`."""
        return frozenset(await self.driver.read(nodes.declared_subjects, "list"))

    async def beat(
        self,
        node: str,
        *,
        lingering: Sequence[str] = (),
        tasks: Mapping[str, Sequence[str]] | None = None,
        started_since: int = 0,
        is_stopping: bool = False,
    ) -> Beat:
        """Renew a node's lease, store which jobs linger on it and that it stops, and return the jobs that it owns.

        Only those that started since `started_since` (wall time in microseconds); by default all. `tasks` as in `join`,
        if they have changed.
        """
        return await self.driver.write(
            lambda tx: nodes.beat(tx, node, lingering, tasks, started_since, is_stopping=is_stopping), is_atomic=False
        )

    async def set_node(self, node: str, edit: EditNode, *, audit_record: AuditRecord | None = None) -> bool | None:
        """Change what a node is set to do by `edit`. Returns whether that is a change; None if there is no such node.

        `edit` gets what is stored, and no other change comes in between. The audit record is stored with a change. The
        node reads it within a second.
        """
        return await self.driver.write(lambda tx: nodes.set_node(tx, node, edit, audit_record))

    async def rename_node(self, node: str, name: str, *, audit_record: AuditRecord | None = None) -> bool | None:
        """Give a node another name. Returns whether that is a change; None if there is no such node."""
        return await self.driver.write(lambda tx: nodes.rename_node(tx, node, name, audit_record))

    async def cancels(self, node: str, ids: Collection[str]) -> frozenset[str]:
        """Return those of these jobs that run on the node and whose cancellation was requested."""
        return await self.driver.read(lambda tx: nodes.cancels(tx, node, list(ids)), "engine")

    async def leave(self, node: str) -> Recovered:
        """Remove a node that has stopped; jobs that it still owns wait again, and their attempts do not count."""
        return await without_held(lambda held: self.driver.write(lambda tx: nodes.leave(tx, node, held), wakes=True))

    async def recover(self, node: str, beat: int) -> Recovered | None:
        """Take back the jobs of a dead node; None if it has sent a heartbeat since `beat`."""
        return await without_held(
            lambda held: self.driver.write(
                lambda tx: nodes.recover(tx, node, beat, held), wakes=lambda recovered: recovered is not None
            )
        )

    async def add_missing_nodes(self) -> int:
        """Add the nodes that running jobs name and that are not there, as dead ones; `recover` takes their jobs back.

        Returns how many.
        """
        return await self.driver.write(nodes.add_missing_nodes, is_atomic=False, may_repeat=True)

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        """End up to `count` waiting jobs whose `expires_at` or `give_up_at` has passed."""
        return await without_held(
            lambda held: self.driver.write(
                lambda tx: waiting.expire(tx, count, held=held), wakes=bool, empties_lanes=True
            )
        )

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        """Release or cancel up to about `count` more followers of final jobs and batches, in one commit.

        The commit that makes a job or batch final handles the first `FOLLOWERS_AT_ONCE`, and notes that others are
        left. Returns for how many leaders followers were read; 0 if none are left or other nodes work on all of them.
        """
        if not await self.driver.read(following.are_followers_left, "engine"):
            return 0
        return await without_held(
            lambda held: self.driver.write(lambda tx: following.release_followers(tx, count, held), wakes=bool)
        )

    async def prune(
        self,
        finished_before: int,
        count: int = 1000,
        states: frozenset[JobState] = FINAL_STATES,
        *,
        since: int = 0,
    ) -> int:
        """Delete up to `count` jobs that finished in these states before then, and not before `since`; return how many.

        Jobs with their own retention are kept. Jobs that another open transaction has locked are skipped.

        Their attempts, log lines and audit entries are deleted with them. Fewer jobs are deleted at once if they have
        logged much; 0 means that none are left.
        """
        return await self.driver.write(
            lambda tx: upkeep.prune(tx, since, finished_before, count, states), reads_summaries=True
        )

    async def delete(
        self, ids: Sequence[str], *, finished_before: int, audit_record: AuditRecord | None = None
    ) -> Deletion:
        """Delete those of these jobs that finished before then, whatever their retention, in one commit.

        Kept are jobs that an unfinished job follows, or whose batch it follows, as it may read their results, and jobs
        that another open transaction has locked. What they held is released. Fewer jobs are deleted at once if they
        have logged much. The audit record is stored if a job was deleted.
        """
        return await self.driver.write(
            lambda tx: upkeep.delete(tx, ids, finished_before, audit_record), wakes=True, reads_summaries=True
        )

    async def prune_by_own_retention(self, count: int = 1000) -> int:
        """Delete up to `count` jobs whose own retention has ended, as `prune` does. Returns how many were deleted.

        A job is kept as long as a job that follows it, or its batch, is not final: that one may read its result.
        """
        return await self.driver.write(lambda tx: upkeep.prune_by_own_retention(tx, count))

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        """Delete up to `count` audit entries from before then that are not about a job. Returns how many."""
        return await self.driver.write(lambda tx: audit.prune_audit(tx, before, count), is_atomic=False)

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
            await self.driver.write(procedure, may_be_lost=True)

    async def gather_history(self, count: int = 1000) -> int:
        """Add up to `count` notes of what the store has counted itself to its history. Returns how many there were.

        Nodes call it every ten seconds. A store in which commits can add to the same rows without waiting for each
        other leaves no notes.
        """
        return await self.driver.write(lambda tx: history.gather_history(tx, count), is_atomic=False)

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        """Return the steps of length `step` from `since` on, in order: of a queue and a task, a queue and ALL, or ALL.

        For ALL queues and one task, it returns the steps of each queue and does not add them up. Steps in which nothing
        happened are not stored.
        """
        return await self.driver.read(lambda tx: history.jobs_history(tx, step, queue, task, since), "list")

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        """Return the same for a limit: of one key, or of all keys together."""
        return await self.driver.read(lambda tx: history.limit_history(tx, step, limit, key, since), "list")

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        """Delete up to `count` steps of that length from before then, and as many of limits. Returns how many."""
        return await self.driver.write(lambda tx: history.prune_history(tx, step, before, count))

    async def take_alert_turns(self, alerts: Collection[str], every: int) -> Set[str]:
        """Take and return those of these alerts that no node has taken for `every` microseconds: it looks at them."""
        return await self.driver.write(lambda tx: alert_rows.take_alert_turns(tx, alerts, every))

    async def note_alerts(
        self, held: Sequence[HeldCondition], *, ends: Collection[str] = (), unread: Collection[tuple[str, str]] = ()
    ) -> None:
        """Store that these conditions hold; each that is new begins an alert.

        Of the alerts in `ends` those end whose condition has not held for a minute, unless it is in `unread`: alerts
        and those of their conditions that may hold or not. One that has ended begins again only after its end was
        delivered.
        """
        await self.driver.write(lambda tx: alert_rows.note_alerts(tx, held, ends, unread))

    async def due_alerts(self, alerts: Collection[str], count: int = 100) -> Sequence[AlertRecord]:
        """Return those of these alerts whose next message is due, the longest due first."""
        return await self.driver.read(lambda tx: alert_rows.due_alerts(tx, alerts, count), "engine")

    async def try_alert(self, record: AlertRecord, until: int) -> bool:
        """Store that this process sends the next message of an alert as it was read; False if another process does.

        If its answer is not stored, the message is due again at the instant `until`. Its next form has one more try.
        """
        return await self.driver.write(lambda tx: alert_rows.try_alert(tx, record, until), is_atomic=False)

    async def alert_tried(self, record: AlertRecord, error: str | None, send_at: int) -> bool:
        """Store whether the message was delivered (no `error`); the next one, or the same again, is due at `send_at`.

        After a delivery the end of an alert is due at once, and an alert whose end was delivered is deleted. False if
        the alert has changed meanwhile.
        """
        return await self.driver.write(lambda tx: alert_rows.alert_tried(tx, record, error, send_at), is_atomic=False)

    async def alerts(self, count: int = 1000) -> Sequence[AlertRecord]:
        """Return the alerts that last or whose end is not delivered, the oldest first."""
        return await self.driver.read(lambda tx: alert_rows.alerts(tx, count), "lookup")

    async def lost_nodes(self, since: int) -> Sequence[str]:
        """Return the names of the nodes that were found dead since then, at most a day ago."""
        return await self.driver.read(lambda tx: tx.values("lost_nodes", since=since), "engine")

    async def evict(self, count: int = 1000) -> int:
        """Delete up to `count` idle buckets and empty lanes, which frees space and changes nothing else."""
        return await self.driver.write(lambda tx: upkeep.evict(tx, count), is_atomic=False)

    async def identity(self) -> str:
        """Return the id of the database, which another one with the same tables does not have, unless it is a copy."""
        return await self.driver.read(upkeep.identity, "lookup")

    async def is_folder_used(self, url: str) -> bool:
        """Return whether large payloads have been in the folder of this URL."""
        return await self.driver.read(lambda tx: upkeep.is_folder_used(tx, url), "lookup")

    async def note_folder_used(self, url: str) -> None:
        """Store for ever that large payloads have been in the folder of this URL."""
        await self.driver.write(lambda tx: upkeep.note_folder_used(tx, url), may_repeat=True)

    async def stored_ids(self, job_ids: Sequence[str]) -> Sequence[str]:
        """Return which of these jobs are stored, whatever their state."""
        return await self.driver.read(lambda tx: upkeep.stored_ids(tx, job_ids), "lookup")

    async def facts(self) -> StoreFacts:
        """Return facts about the store and the machine that it runs on."""
        return await self.driver.facts()

    async def check(self, declared: Mapping[str, AnyRule] | None = None) -> Sequence[Contradiction]:
        """Return the contradictions between jobs, nodes, lanes and buckets, and rows that do not agree with themselves.

        The states of buckets are read by the rules of their limits: those set at run time, else those `declared`.
        """
        return await self.driver.read(lambda tx: upkeep.check(tx, declared or {}), "scan")

    async def check_indexes(self) -> IndexFacts:
        """Return whether indexes have the rows of their tables; all tables and indexes are read for it."""
        return await self.driver.check_indexes()


def _kind(filter: JobFilter) -> ReadKind:
    return "scan" if filter.text is None else "search"


def _bounded_kind(filter: JobFilter) -> ReadKind:
    # For those of a key, all lanes may be read.
    return "list" if filter.text is None and filter.key is None else _kind(filter)
