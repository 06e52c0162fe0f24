"""Store: the verbs that engines, admins and clients call, on whatever database a driver reaches.

Jobs wait in *lanes*: all waiting jobs of one queue that draw on the same buckets share one, and the jobs that draw on
none share the queue's open lane. A lane is empty, due, asleep until its earliest `run_at`, or waits behind exactly one
closed bucket. What else sets jobs apart is the lane's *variant*: those that do not wait are rejected when they meet a
closed bucket, those of one owner share its permits.

`claim` takes the lanes that are due and those behind buckets that have opened, asks the rules how many jobs may go,
takes that many, charges the buckets and marks the jobs running, in one commit.

Instants are wall microseconds, except where a name says limit time (`limit_now`): the store's own time for limits,
which never goes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeVar

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
from headgate.storage.facts import StoreFacts
from headgate.storage.following import FOLLOWERS_AT_ONCE
from headgate.storage.live_rules import EditSetting, LimitSetting
from headgate.storage.migrations import Migration
from headgate.storage.procedures import (
    audit,
    following,
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
    Deposit,
    Dropped,
    JobCount,
    JobFilter,
    JobPage,
    NodeRecord,
    QueueCounts,
    QueuePosition,
    QueueRecord,
    RecordedStart,
    Recovered,
    Upkeep,
    ViewCount,
    WaitingCount,
)
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord

R = TypeVar("R")


class Store:
    """Where jobs live. Every verb is durable when it returns, and raises StorageUnavailable when it may not be.

    `tests/conformance/storage_suite` holds the tests that a store has to pass with each driver.
    """

    driver: Driver

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __str__(self) -> str:
        return str(self.driver)

    @property
    def is_in_process(self) -> bool:
        """Whether its jobs are in the memory of this process: no other process sees them, and they end with it."""
        return self.driver.is_in_process

    @property
    def place(self) -> object | None:
        """Where its tables are, equal to the `place` of a bucket store that is there too; None if none can be."""
        return self.driver.place

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Raises StorageUnusable for what is not a Headgate database."""
        await self.driver.open()

    async def close(self) -> None:
        """Let go of everything; twice is fine."""
        await self.driver.close()

    async def migrate(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Bring the schema up to date without opening the store; what was applied, or with `dry_run` would be."""
        return await self.driver.migrate(dry_run=dry_run)

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Callable[[], Store]]:
        """Make an empty store beside this one, on the same disk or server; what is given opens it, any number of times.

        It is deleted when the block ends, however it ends; all that was opened has to be closed by then. Raises
        StorageUnusable where none can be made, as beside a store that `is_in_process`.
        """
        async with self.driver.scratch() as make:
            yield lambda: Store(make())

    def watch(self, wake: Callable[[], None], *, endings: bool = True) -> Callable[[], None]:
        """Call `wake` on the loop when jobs may have become claimable or final, also by other processes.

        Without `endings` it is not called for jobs that became final where nothing became claimable by that. It may be
        called without cause, and once for many causes. Returns the function that ends the watch.
        """
        return self.driver.watch(wake, endings=endings)

    def now(self) -> int:
        """Wall time as the store has it, microseconds: what every stored instant is compared with.

        It is the same for all nodes, so one whose own clock is wrong runs nothing early or late.
        """
        return self.driver.now()

    def limit_now(self) -> int:
        """Limit time, microseconds."""
        return self.driver.limit_now()

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        """Store waiting jobs, all or none; by their ids, those for which another job stands that was there already.

        Batches are stored with all their jobs, and before any that follow them. A job that follows one which is not
        final is blocked: it is in no lane, and goes there in the commit that makes its leader final, ready then or at
        its own `run_at`; or is cancelled by it, and whoever follows it in turn. Raises LeaderNotFound.

        Jobs with unique keys are stored as if one after the other. Raises DuplicateJob.
        """
        return await self.driver.add(jobs, batches)

    async def add_in(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As `add`, but the jobs are there if and only if the open transaction of the caller's connection commits.

        Watchers hear of them at that commit. It suspends only where the connection itself is awaited. Raises
        UnfitConnection, as for any connection where the store `is_in_process`.
        """
        return await self.driver.add_in(connection, jobs)

    async def claim(self, claim: Claim) -> Claimed:
        """Take jobs that may run now, and charge their buckets, atomically."""
        return await self.driver.claim(claim)

    async def finish(self, node: str, endings: Sequence[Ending]) -> Sequence[bool | None]:
        """Write how attempts ended; False for each whose job is no longer running under this node and fence.

        None is for each whose job somebody else holds in an open transaction: it is not written, and is to be tried
        again. Nobody else's ending waits for that.

        To repeat it changes nothing: what this node made final under this fence and as it says now counts as written.
        A job whose cancellation was asked for is cancelled instead of waiting again. Permits that its terms do not
        keep are given back in the same commit.
        """
        return await self.driver.finish(node, endings)

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Let starts count as what they were and when; what is refunded is there for the next claim."""
        refunds = any(amendment.actual < amendment.cost for amendment in amendments)
        await self.driver.write(lambda tx: limits.amend(tx, amendments, rules, self.driver.live), wakes=refunds)

    async def cancel(self, job_id: str, *, deed: AuditRecord | None = None) -> JobState | None:
        """Cancel a waiting job, or ask for the cancellation of a running one.

        Returns the state it was in; final jobs are left as they are. None if there is no such job. A verb that takes a
        `deed` keeps it in the commit that changes something; of a job, if it is audited in full.
        """
        return await self.driver.write(
            lambda tx: waiting.cancel(tx, job_id, deed), wakes=True, changes_job=job_id, empties_lanes=True
        )

    async def retry(self, job_id: str, *, deed: AuditRecord | None = None) -> JobState | None:
        """Let a failed or cancelled job wait again, with all its tries.

        It is blocked if what it follows is not final. What was cancelled because of it is blocked again. Raises
        LeaderNotRetried for one that needs the success of what failed or was cancelled: that is to be retried first.
        Returns the state it was in, None if there is no such job. Raises IllegalTransition for any other state.
        """
        return await self.driver.write(lambda tx: waiting.retry(tx, job_id, deed), wakes=True, changes_job=job_id)

    async def run_now(self, job_id: str, *, deed: AuditRecord | None = None) -> JobState | None:
        """Let a waiting job whose `run_at` is ahead be ready at once; its limits hold as ever.

        Returns the state it was in, None if there is no such job. Raises IllegalTransition if it is not scheduled.
        """
        return await self.driver.write(lambda tx: waiting.run_now(tx, job_id, deed), wakes=True, changes_job=job_id)

    async def reschedule(
        self, job_id: str, *, run_at: int | None = None, priority: int | None = None, deed: AuditRecord | None = None
    ) -> JobState | None:
        """Give a waiting job another time to be ready at, another priority, or both; None leaves it as it is.

        A `run_at` that has passed means now. What its limits let it wait counts from its new time. Returns the state it
        was in, None if there is no such job. Raises IllegalTransition if it does not wait. It may be blocked.
        """
        return await self.driver.write(
            lambda tx: waiting.reschedule(tx, job_id, run_at, priority, deed), wakes=True, changes_job=job_id
        )

    async def report(self, node: str, reports: Sequence[AttemptReport], most_lines: int) -> Sequence[bool | None]:
        """Keep what running attempts say of themselves; False for each that is not this node's under that fence.

        None, as by `finish`, is for what was not kept and is to be tried again.

        Of a job's lines the first `most_lines` are kept, over all its attempts, and one that tells that there were
        more. To repeat it changes nothing.
        """
        return await self.driver.write(lambda tx: report(tx, node, reports, most_lines))

    async def logs(self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False) -> Sequence[LogLine]:
        """What a job has logged, oldest first: the first lines after that number, or the `newest`."""
        return await self.driver.read(lambda tx: logs(tx, job_id, after, count, newest=newest), "list")

    async def note(self, deed: AuditRecord) -> None:
        """Keep what somebody did that no other verb keeps."""
        await self.driver.write(lambda tx: audit.add_audit_record(tx, deed), is_atomic=False)

    async def audit_log(self, filter: AuditFilter) -> Sequence[AuditEntry]:
        """A page of what people did, newest first."""
        return await self.driver.read(lambda tx: audit.audit_log(tx, filter), "scan")

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now."""
        return await self.driver.read(lambda tx: listing.job(tx, job_id), "lookup")

    async def batch(self, batch_id: str) -> BatchRecord | None:
        """One batch as it is now."""
        return await self.driver.read(lambda tx: listing.batch(tx, batch_id), "lookup")

    async def batches(
        self, *, pending_only: bool = False, cursor: str | None = None, count: int = 50
    ) -> Sequence[BatchRecord]:
        """A page of batches, by id and so the newest first; `cursor` is the id that ended the page before."""
        return await self.driver.read(
            lambda tx: listing.batches(tx, pending_only=pending_only, cursor=cursor, count=count), "scan"
        )

    async def final(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Those of the jobs that are final."""
        return await self.driver.read(lambda tx: listing.jobs_by_id(tx, job_ids, final=True), "lookup")

    async def attempts(self, job_id: str) -> Sequence[AttemptRecord]:
        """The attempts of a job that did not succeed, oldest first."""
        return await self.driver.read(lambda tx: listing.attempts(tx, job_id), "list")

    async def page(self, filter: JobFilter) -> JobPage:
        """A page of jobs, for which at most 5,000 are read: it may end before it is full.

        All that pass are on it, or on those that follow.
        """
        return await self.driver.read(lambda tx: listing.page(tx, filter), _bounded_kind(filter))

    async def bounded_count(self, filter: JobFilter, most: int) -> JobCount:
        """How many jobs a filter lets through, counted up to `most`; at most 5,000 are read for it."""
        return await self.driver.read(lambda tx: listing.bounded_count(tx, filter, most), _bounded_kind(filter))

    async def jobs(self, filter: JobFilter) -> Sequence[JobRecord]:
        """A page of jobs that is full, or the last one: all jobs may be read for it."""
        return await self.driver.read(lambda tx: listing.jobs(tx, filter), _kind(filter))

    async def count_jobs(self, filter: JobFilter, most: int) -> int:
        """How many jobs a filter lets through, from its cursor on; counted up to `most`, and all may be read for it."""
        return await self.driver.read(lambda tx: listing.count_jobs(tx, filter, most), _kind(filter))

    async def waiting(self, most: int = 100_000) -> Sequence[WaitingCount]:
        """What waiting jobs wait for, by queue and task; of at most so many jobs, whichever they are."""
        return await self.driver.read(lambda tx: listing.waiting(tx, most), "count")

    async def views(self) -> Sequence[ViewCount]:
        """What waiting jobs wait for, by queue; all of them, as their lanes have counted them."""
        return await self.driver.read(listing.views, "count")

    async def is_work_left(self, queues: Set[str], tasks: Set[str], *, ready_only: bool) -> bool:
        """Whether a job of these queues runs, on whichever node, or one of these tasks is left to run in one of them.

        What waits in a paused queue is not left; with `ready_only`, nor is what waits for a limit, for its time or for
        another job. It is one look at the store, so what a job adds before it ends is never missed.
        """
        return await self.driver.read(lambda tx: listing.is_work_left(tx, queues, tasks, ready_only=ready_only), "scan")

    async def counts(self, *, finals: bool = True) -> Sequence[QueueCounts]:
        """Jobs by queue and state.

        Without `finals` those that are final are left out: each of them has to be read.
        """
        return await self.driver.read(lambda tx: listing.counts(tx, finals=finals), "count")

    async def queues(self) -> Sequence[QueueRecord]:
        """The queues that are paused or have waiting jobs, by name; it looks at lanes, never at all their jobs.

        What was added counts at once, whether any node runs or not.
        """
        return await self.driver.read(listing.queues, "count")

    async def paused_queues(self) -> Mapping[str, int]:
        """The queues of which no job is given out, and since when; it reads no lane and no job."""
        return await self.driver.read(listing.paused_queues, "lookup")

    async def is_paused(self, queue: str) -> bool:
        """Whether no job of a queue is given out; it reads no lane and no job."""
        return await self.driver.read(lambda tx: listing.is_paused(tx, queue), "lookup")

    async def backlog(self, queue: str) -> int:
        """How many jobs wait in the lanes of a queue; it adds up what lanes count, and looks at no job."""
        return await self.driver.read(lambda tx: listing.backlog(tx, queue), "lookup")

    async def pause_queue(self, queue: str, *, deed: AuditRecord | None = None) -> bool:
        """Give out no job of a queue to any node from the next claim on, until it is resumed; False if it was paused.

        Its jobs are added, expired, cancelled and finished as ever. A claim behaves as if it had not asked for the
        queue: it is no reason for `more` or `next_in`. The queue need not have had a job.
        """
        return await self.driver.write(lambda tx: upkeep.pause_queue(tx, queue, deed), wakes=True)

    async def resume_queue(self, queue: str, *, deed: AuditRecord | None = None) -> bool:
        """End a pause, and wake whoever watches; False if there was none."""
        return await self.driver.write(lambda tx: upkeep.pause_queue(tx, queue, deed, ends=True), wakes=True)

    async def obstacles(self) -> Sequence[Blocker]:
        """What stands in the way of the store right now, longest first; nothing where nothing can."""
        # Not among the scans, which may be waiting for what this finds.
        return await self.driver.read(listing.obstacles, "lookup")

    async def buckets(
        self,
        limit: str | None = None,
        key: str | None = None,
        count: int = 100,
        *,
        prefix: str | None = None,
        after: BucketPlace | None = None,
    ) -> Sequence[BucketRecord]:
        """Buckets, most waiting first; `prefix` is how their keys begin, `after` where the page before ended.

        Where lanes wait behind more than 5,000 buckets, all come by limit and key.
        """
        return await self.driver.read(lambda tx: listing.buckets(tx, limit, key, count, prefix, after), "scan")

    async def throttled(self, count: int = 10) -> Sequence[BucketRecord]:
        """The buckets that lanes wait behind, most waiting first; of more than 5,000 it ranks those that open first."""
        return await self.driver.read(lambda tx: listing.throttled(tx, count), "scan")

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        """Lay down what was fetched from elsewhere, in place of what lies there; who waits for it is looked at."""
        await self.driver.write(lambda tx: limits.deposit(tx, deposits), wakes=True)

    async def withdraw(self, deposits: Sequence[Deposit]) -> Sequence[int]:
        """Take what is left of these deposits, so that it can be given back; how much of each."""
        return await self.driver.write(lambda tx: limits.withdraw(tx, deposits))

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], R], *, id: str | None = None
    ) -> R:
        """Call `look` with a `BucketVisit` of the bucket, and keep what it changes, atomically.

        It may be called again if the commit does not succeed. What it notes under an `id` is there at the next visit
        with that id, until it is forgotten.
        """
        answer, _ = await self.driver.write(
            lambda tx: limits.visit(tx, draw, rules, look, id, self.driver.live),
            wakes=lambda visited: visited[1],
            takes_buckets=True,
        )
        return answer  # type: ignore[no-any-return]

    async def standing(self, job_id: str) -> QueuePosition | None:
        """Where a job stands; None if it does not wait."""
        return await self.driver.read(lambda tx: listing.queue_position(tx, job_id), "list")

    async def outlook(self, queue: str, draws: Sequence[Draw], variant: str = "") -> QueuePosition:
        """Where a job would stand that was added to this lane now."""
        return await self.driver.read(lambda tx: listing.prediction_input(tx, queue, draws, variant), "lookup")

    async def starts(
        self, limit: str, key: str | None, since: int, *, until: int = NEVER, skip: int = 0, count: int = 10_000
    ) -> Sequence[RecordedStart]:
        """The newest `count` starts that were charged to a limit, newest first, as far as jobs are kept.

        Those from `since` to `until`, both limit time and both included; the first `skip` are left out. The next page
        is until the instant of the last one, and skips those of that instant.
        """
        return await self.driver.read(lambda tx: listing.starts(tx, limit, key, since, until, skip, count), "scan")

    async def note_gates(self, gates: Mapping[str, str], *, lives: int = GATE_LIVES) -> Mapping[str, bool]:
        """Note the gates of this release by their subjects; every node repeats that, several times in `lives`.

        Returns the subjects of which no newer gate lives, each with whether its backlog is still to be moved to this
        one. Newer is what was seen for the first time later, so an old worker that starts again is not; a gate lives
        for `lives` microseconds after it was last noted, so after a rollback the older one is the newest again. The
        backlog has to be moved to a gate that is new, and when another one was noted since it was moved to this one.
        Once it has returned, no claim starts a job of a subject for a node whose gate is not the newest one.
        What a release declares of a schedule is noted in the same way, as "schedule NAME", and has no backlog.
        """
        noted = await self.driver.write(lambda tx: gate_notes.note_gates(tx, gates, lives))
        if noted.has_changed:
            # A claim that is under way may be about to start jobs for a node whose gate is not the newest any more.
            await self.driver.write(gate_notes.await_claims, wakes=True)
        return noted.to_move

    async def gates_done(self, gates: Mapping[str, str]) -> None:
        """The backlog of these subjects is where these gates would have it, and no longer where others would."""
        await self.driver.write(lambda tx: gate_notes.gates_done(tx, gates), is_atomic=False)

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
        """Waiting jobs of these tasks that carry other gates, by id; of `ids` only those, whatever they carry.

        With `unknown_to`, those that draw on a limit that is not in that set.
        """
        kind: ReadKind = "list" if ids is None else "lookup"
        return await self.driver.read(
            lambda tx: listing.gated_jobs(tx, tasks, unknown_to, other_than, ids, after, count), kind
        )

    async def regate(self, jobs: Sequence[GateChange]) -> int:
        """Move jobs that still wait to the lanes of what they ask for now; how many were.

        They keep their priority and their place by `run_at`, and can be started by who knows their new gate. A permit
        that a job holds and does not ask for any more is given back.
        """
        return await self.driver.write(
            lambda tx: waiting.regate(tx, jobs), wakes=True, is_atomic=False, empties_lanes=True
        )

    async def settings(self) -> Sequence[LimitSetting]:
        """What is set about limits at run time."""
        return await self.driver.read(read_settings, "lookup")

    async def edit_setting(self, about: LimitSetting, edit: EditSetting, *, deed: AuditRecord | None = None) -> bool:
        """Let `edit` say what is set for the limit, scope and target of `about`; whether that is a change.

        It is given what is set, and no other change comes in between. What sets nothing any more is removed. The deed
        is recorded with a change. The jobs that wait for the limit are looked at again under what holds then.
        """
        becomes = await self.driver.write(lambda tx: limits.edit_setting(tx, about, edit, deed))
        if becomes is None:
            return False
        await self.driver.write(lambda tx: limits.reopen(tx, becomes), wakes=True)
        return True

    async def penalize(self, draw: Draw, until: int, *, deed: AuditRecord | None = None) -> None:
        """Let nothing start on a bucket before that limit time."""
        await self.driver.write(lambda tx: limits.penalize(tx, draw, until, deed))

    async def reset(self, draw: Draw, *, deed: AuditRecord | None = None) -> int:
        """Make a bucket as good as new; permits held by jobs that are not running come back. How many are still held.

        The bucket with the key "" of a dynamic window is the state of all its keys.
        """
        return await self.driver.write(lambda tx: limits.reset(tx, draw, deed), wakes=True, empties_lanes=True)

    async def forget(self, limit: str, *, deed: AuditRecord | None = None) -> bool:
        """Delete a limit's settings and buckets; False, and the deed is not kept, if there were none.

        Raises LimitInUse while jobs wait for it or hold its permits.
        """
        return await self.driver.write(lambda tx: limits.forget(tx, limit, deed))

    async def put_schedule(self, record: ScheduleRecord, *, replaces: int | None, anew: bool = False) -> bool:
        """Store a schedule in place of the one of its name and of that revision; None: there is none.

        False, and nothing is written, if that is not so any more. What its jobs come to is counted by the store: the
        `open` of the record is not looked at, and its `runs` only if it begins `anew`.
        """
        return await self.driver.write(lambda tx: schedules.put_schedule(tx, record, replaces, anew=anew), wakes=True)

    async def take_over_schedule(self, record: ScheduleRecord, *, was: str, replaces: int) -> bool:
        """Store a schedule in place of the one of another name, `was`, and of that revision, in one commit.

        Its jobs that are not final become those of the new name, and its count is kept. False, and nothing is written,
        if it is not so any more, or there is one of the new name.
        """
        return await self.driver.write(lambda tx: schedules.take_over_schedule(tx, record, was, replaces), wakes=True)

    async def schedules(
        self, *, name: str | None = None, formerly: str | None = None, after: str = "", count: int = 1000
    ) -> Sequence[ScheduleRecord]:
        """A page of schedules by name, above `after`: all, the one of that `name`, or those that had one `formerly`."""
        return await self.driver.read(lambda tx: schedules.schedules(tx, name, formerly, after, count), "list")

    async def due_schedules(
        self, tasks: frozenset[str], *, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> DueSchedules:
        """The schedules of these tasks that are due and not paused, but for those that a node is `unable` to fire."""
        return await self.driver.read(lambda tx: schedules.due_schedules(tx, tasks, unable, count), "engine")

    async def overdue_schedules(
        self, tasks: frozenset[str], *, before: int, unable: frozenset[str] = frozenset(), count: int = 100
    ) -> Sequence[ScheduleRecord]:
        """The schedules that were due before then and are not paused, of other tasks than these or named `unable`."""
        return await self.driver.read(
            lambda tx: schedules.overdue_schedules(tx, before, tasks, unable, count), "engine"
        )

    async def fire(self, fired: Sequence[Fired]) -> Sequence[bool]:
        """Add the jobs of occurrences and advance their schedules, in one commit; False for each that has changed.

        So each occurrence is enqueued once, however many nodes see that it is due, and a schedule whose advance is
        lost has not enqueued anything either.
        """
        return await self.driver.write(lambda tx: schedules.fire(tx, fired), wakes=True)

    async def remove_schedule(self, name: str) -> bool:
        """Delete a schedule; what it has enqueued stays. Whether there was one."""
        return await self.driver.write(lambda tx: schedules.remove_schedule(tx, name), wakes=True, is_atomic=False)

    async def nodes(self) -> Sequence[NodeRecord]:
        """All nodes."""
        return await self.driver.read(lambda tx: nodes.nodes(tx, self.driver.clock.boot_id()), "engine")

    async def upkeep(self) -> Upkeep:
        """What a node asks for every second: who lives, and what there is to expire, to release and to merge.

        It says that nothing is, as long as no node has joined.
        """
        return await self.driver.read(lambda tx: nodes.upkeep(tx, self.driver.clock.boot_id()), "engine")

    async def join(self, node: str, name: str, *, queues: Mapping[str, int] | None = None, version: str = "") -> None:
        """Register a node, before its first claim, with its slots by queue. One that is known stays as it is."""
        driver = self.driver
        await driver.write(
            lambda tx: nodes.join(tx, node, name, driver.clock.boot_id(), queues or {}, version, driver.port),
            is_atomic=False,
            may_repeat=True,
        )

    async def beat(self, node: str, *, lingering: Sequence[str] = ()) -> Beat:
        """Renew a node's lease, and tell which jobs linger on it."""
        return await self.driver.write(lambda tx: nodes.beat(tx, node, lingering), is_atomic=False)

    async def cancels(self, node: str) -> frozenset[str]:
        """The running jobs of a node that a user wants cancelled."""
        return await self.driver.read(lambda tx: nodes.cancels(tx, node), "engine")

    async def leave(self, node: str) -> Recovered:
        """Remove a node that has stopped; what it still owned goes back unspent."""
        return await without_held(lambda held: self.driver.write(lambda tx: nodes.leave(tx, node, held), wakes=True))

    async def recover(self, node: str, beat: int) -> Recovered | None:
        """Take back the jobs of a dead node, unless it has sent a heartbeat since `beat`: then None."""
        return await without_held(
            lambda held: self.driver.write(
                lambda tx: nodes.recover(tx, node, beat, held), wakes=lambda recovered: recovered is not None
            )
        )

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        """End up to `count` waiting jobs whose `expires_at` or `give_up_at` has passed."""
        return await without_held(
            lambda held: self.driver.write(
                lambda tx: waiting.expire(tx, count, held=held), wakes=bool, empties_lanes=True
            )
        )

    async def release_followers(self, count: int = FOLLOWERS_AT_ONCE) -> int:
        """Release or cancel up to about `count` more followers of what is final, in one commit.

        The commit that makes a job or batch final does so with the first `FOLLOWERS_AT_ONCE`, and notes that others are
        left. Returns of how many leaders some were looked for; 0 when none are left, or others work on all of them.
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
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete up to `count` jobs that finished in these states before then; how many were deleted.

        With `ids` only those of them; what somebody holds in an open transaction is passed over.

        With them go their attempts, log lines and audit entries. Fewer are deleted at once of those that have logged
        much; 0 means that there are none left.
        """
        return await self.driver.write(
            lambda tx: upkeep.prune(tx, finished_before, count, states, ids), reads_summaries=True
        )

    async def prune_audit(self, before: int, count: int = 1000) -> int:
        """Delete up to `count` audit entries of before then that are not about a job; how many were deleted."""
        return await self.driver.write(lambda tx: audit.prune_audit(tx, before, count), is_atomic=False)

    async def add_history(
        self, jobs: Sequence[JobsStep], limits: Sequence[LimitStep], flush: Flush | None = None
    ) -> None:
        """Add these steps to what is kept of the same curves; several nodes may do it at once.

        No other verb is kept waiting by it, so it may take several commits. To repeat the last `flush` of a writer with
        the same steps, within an hour, adds what was not added; without one, or later, everything is counted twice.

        What no attempt tells of is counted by the store itself, in the commit that does it: jobs that become final
        without an attempt's word (rejected, expired, cancelled as they wait or with what they follow, poisonous, or
        cancelled instead of waiting again), and what `fire` and `add_in` have added.
        """
        for start in range(0, max(len(jobs), len(limits)), history.STEPS_AT_ONCE):
            portion = slice(start, start + history.STEPS_AT_ONCE)
            procedure = partial(
                history.add_history, jobs=jobs[portion], limits=limits[portion], flush=flush, portion=start
            )
            await self.driver.write(procedure, may_be_lost=True)

    async def gather_history(self, count: int = 1000) -> int:
        """Add up to `count` notes of what the store has counted itself to its history; how many there were.

        Nodes do it every ten seconds. A store in which commits can add to the same rows without waiting for each other
        leaves no notes.
        """
        return await self.driver.write(lambda tx: history.gather_history(tx, count), is_atomic=False)

    async def jobs_history(self, step: int, queue: str, task: str, since: int) -> Sequence[JobsStep]:
        """The steps of that length which began then or later, in order: of a queue and a task, a queue and ALL, or ALL.

        Of ALL queues and one task they are those of each queue, and not added up. Steps in which nothing happened are
        not there.
        """
        return await self.driver.read(lambda tx: history.jobs_history(tx, step, queue, task, since), "list")

    async def limit_history(self, step: int, limit: str, key: str | None, since: int) -> Sequence[LimitStep]:
        """The same of a limit: of one key, or of all together."""
        return await self.driver.read(lambda tx: history.limit_history(tx, step, limit, key, since), "list")

    async def prune_history(self, step: int, before: int, count: int = 1000) -> int:
        """Forget up to `count` steps of that length of jobs, and as many of limits, of before then; how many."""
        return await self.driver.write(lambda tx: history.prune_history(tx, step, before, count))

    async def evict(self, count: int = 1000) -> int:
        """Forget up to `count` idle buckets and empty lanes; nothing changes by it but the room they take."""
        return await self.driver.write(lambda tx: upkeep.evict(tx, count), is_atomic=False)

    async def facts(self) -> StoreFacts:
        """What the store says of itself, and of the ground that it stands on."""
        return await self.driver.facts()

    async def check(self) -> Sequence[str]:
        """Look for contradictions between jobs, lanes and buckets; one sentence for each found."""
        return await self.driver.read(upkeep.check, "scan")


def _kind(filter: JobFilter) -> ReadKind:
    return "scan" if filter.text is None else "search"


def _bounded_kind(filter: JobFilter) -> ReadKind:
    # All lanes may be read for those of a key.
    return "list" if filter.text is None and filter.key is None else _kind(filter)
