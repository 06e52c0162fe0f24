"""Admin: what operators read and change."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Self, Unpack

import msgspec
from msgspec.structs import replace as replaced

from headgate.admin.bulk import CANCEL, RETRY, RUN_NOW, BulkOptions, BulkResult, cancel_batch, change_many, reschedule
from headgate.admin.ended import AT_ONCE, EndCriteria, EndEvent, EndPage, EndQuery, Place, end_page, follow
from headgate.admin.enqueueing import (
    EnqueueCalls,
    EnqueuedJob,
    Payload,
    TaskArgument,
    arguments_of,
    call_of,
    declared_task,
    options_of,
    stored_call_of,
)
from headgate.admin.explain import Explanation, Turn, reason_for, with_last_error
from headgate.admin.failures import FailureDetails, FailureReport, failures, failures_like
from headgate.admin.find import Found, FoundKind, find
from headgate.admin.holders import holders_of
from headgate.admin.limits import BucketStatus
from headgate.admin.listed import BatchDetails, ListedAction, ListedJob, ListedPage
from headgate.admin.nodes import find_node, node_ended, with_slots
from headgate.admin.pauses import Pause, pause_of_limit, pause_of_queue
from headgate.admin.purge import purge
from headgate.admin.readings import Readings
from headgate.admin.schedules import SchedulesAdmin
from headgate.admin.set_rules import SetRules
from headgate.admin.timeline import Stretch, TimelineEntry, stretches, timeline
from headgate.arguments import LARGEST_COUNT, MOST_SLOTS, parse_count, parse_duration, parse_instant, require_storable
from headgate.clock import FARTHEST, SECOND, Duration, to_datetime
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.remote_limits import GuardedStore
from headgate.errors import BatchNotFound, DeclarationError, IllegalTransition, JobHeld, JobNotFound, PayloadError
from headgate.jobs.audit import AuditEntry, AuditFilter, AuditLevel, AuditRecord, SignInAction, SubjectKind
from headgate.jobs.identity import require_process_name
from headgate.jobs.job import AttemptRecord, BucketRef, JobRecord, JobState
from headgate.jobs.lifecycle import Unchanged
from headgate.jobs.limit_sets import subject_of
from headgate.jobs.query import PAGE_AND_ONE, JobCriteria, JobQuery
from headgate.jobs.report import LogLine
from headgate.storage.live_rules import LiveRules
from headgate.storage.prediction import predict
from headgate.storage.procedures import listing
from headgate.storage.records import BucketRecord, Dependencies, EditNode, EndsRead, JobCount, JobGraph, QueuePosition
from headgate.storage.store import Store
from headgate.tasks.call import Call
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.options import EnqueueOptions, require_priority
from headgate.tasks.registry import Registry, intended_queue
from headgate.tasks.status import JobStatus, batch_status, status_of

LAST_LINES = 20
"""How many log lines are shown with a job."""

NEXT_AMONG = 100
"""How many waiting jobs of a key are read to find those that start next."""


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its payload and result, the attempts that did not succeed, its timeline, and its last log lines.

    `dependencies` are the jobs and batches that it follows, and those that follow it, the first 100 of each. Payload
    and result are as they are stored; `Admin.decoded` decodes those that a codec has encoded, and `Admin.loaded` also
    reads those that are in a folder. The job's audit level determines how much of its timeline is stored beside its
    row.
    """

    status: JobStatus
    record: JobRecord
    attempts: Sequence[AttemptRecord]
    timeline: Sequence[TimelineEntry]
    stretches: Sequence[Stretch]
    last_lines: Sequence[LogLine]
    dependencies: Dependencies


class Admin(Readings):
    """Reads and changes one app's storage, whichever process runs the jobs.

    `limits`, `queues` and `schedules` are for those; `history` has the data of charts. Actions are recorded with the
    `actor` (default: the user of this process and its machine), those on jobs if the job is audited in full; `by` sets
    another actor. `address` is the path of the store's file, or its URL without a password.
    """

    def __init__(
        self,
        storage: Store,
        other_stores: Mapping[str, GuardedStore],
        registry: Registry,
        schedules: SchedulesAdmin,
        *,
        enqueue: EnqueueCalls,
        address: str,
        large_payloads: LargePayloads | None,
    ) -> None:
        super().__init__(storage, other_stores, registry, schedules, address=address)
        self._large_payloads = large_payloads
        self._enqueue = enqueue

    def by(self, actor: str) -> Self:
        """Return a copy for another actor: `app.admin.by("ada@dashboard").cancel(id)`."""
        require_storable(actor, "actor")
        other = copy(self)
        other.actor = actor
        other.queues, other.limits, other.schedules = copy(self.queues), copy(self.limits), copy(self.schedules)
        other.queues.actor = other.limits.actor = other.schedules.actor = actor
        return other

    def decoded(self, stored: str) -> str:
        """Return a stored payload or result as JSON. Raises PayloadError if this app cannot decode it."""
        return self._registry.codecs.decode(stored, "it")

    async def loaded(self, stored: str) -> str:
        """Like `decoded`, but also read from the folder of large payloads. Raises FolderUnavailable, too."""
        if self._large_payloads is not None:
            stored = await self._large_payloads.load(stored, "it")
        return self._registry.codecs.decode(stored, "it")

    async def sweep_large_payloads(self) -> int:
        """Delete what is in the folder of large payloads and whose jobs have been pruned; return how many objects.

        Workers do so a few times a day. Objects of the last two days stay. Raises DeclarationError for an app without
        such a folder, and FolderUnavailable at the end if some cannot be deleted.
        """
        if self._large_payloads is None:
            raise DeclarationError("this app has no folder of large payloads: pass large_payloads= to Headgate")
        return await self._large_payloads.sweep()

    async def jobs(
        self,
        query: JobQuery | None = None,
        *,
        before: str | None = None,
        count: int = 50,
        oldest_first: bool = False,
        **criteria: Unpack[JobCriteria],
    ) -> Sequence[JobStatus]:
        """Return a page of the jobs that match the query, newest first.

        `before` is the last id of the page before it; a page has up to 500 jobs, and an empty one is the end. The
        fields of `JobQuery` may also be passed as keywords: `admin.jobs(state=JobState.FAILED, queue="mail")`.
        """
        filter = _query(query, criteria).filter(cursor=before, count=count, oldest_first=oldest_first)
        now = self._storage.now()
        return [status_of(each, now) for each in await self._storage.jobs(filter)]

    async def page(
        self,
        query: JobQuery | None = None,
        *,
        before: str | None = None,
        count: int = 50,
        oldest_first: bool = False,
        **criteria: Unpack[JobCriteria],
    ) -> ListedPage[ListedJob]:
        """As `jobs`, with payloads, and fast however many jobs there are.

        At most 10,000 jobs are read for it, so it may end before it is full; `next` is then the `before` of the next
        page.
        """
        filter = _query(query, criteria).filter(cursor=before, count=count, oldest_first=oldest_first)
        found = await self._storage.page(filter)
        now = self._storage.now()
        listed = [ListedJob(status_of(each, now), each.payload, each.headers) for each in found.items]
        if found.next is None or len(listed) == filter.count:
            return ListedPage(listed, found.next)
        last = await self._storage.job(found.next)
        return ListedPage(listed, found.next, listing.AT_ONCE, None if last is None else to_datetime(last.enqueued_at))

    async def count(self, query: JobQuery | None = None, *, most: int = 10_000, **criteria: Unpack[JobCriteria]) -> int:
        """Count the jobs that match the query, up to `most`; all jobs may be read for it."""
        return await self._storage.count_jobs(_query(query, criteria).filter(), most)

    async def bounded_count(
        self, query: JobQuery | None = None, *, most: int = 10_000, **criteria: Unpack[JobCriteria]
    ) -> JobCount:
        """As `count`, but fast: at most 10,000 jobs are read. A result that is not exact is a lower bound."""
        return await self._storage.bounded_count(_query(query, criteria).filter(), most)

    async def status(self, job_id: str) -> JobStatus:
        """Return one job with its queue position, and when its limits will let it start. Raises JobNotFound."""
        record = await self._record(job_id)
        return self._predicted(record, await self._position(record), await self._live(record))

    async def next_jobs(self, limit: str, key: str = "", *, count: int = 10) -> Sequence[ListedJob]:
        """Return the waiting jobs of a key that start next, in order, predicted; found among its hundred oldest."""
        query = JobQuery(state=JobState.WAITING, limit=limit, key=key)
        page = await self._storage.page(query.filter(count=NEXT_AMONG, oldest_first=True))
        # As their lane is sorted: a retried job has an old id, but a late run_at.
        first = sorted(page.items, key=lambda record: (-record.priority, record.run_at))[:count]
        live, found = LiveRules(await self._storage.settings()), []
        for record in first:
            status = self._predicted(record, await self._position(record), live)
            found.append(ListedJob(status, record.payload, record.headers))
        return sorted(found, key=lambda job: math.inf if job.status.position is None else job.status.position)

    async def job(self, job_id: str) -> JobDetails:
        """Return one job with everything that is stored about it. Raises JobNotFound."""
        record = await self._record(job_id)
        status = self._predicted(record, await self._position(record), await self._live(record))
        attempts = await self._storage.attempts(job_id)
        entries = await self._storage.audit_log(AuditFilter(kind="job", subject=job_id, count=100))
        lines = await self._storage.logs(job_id, count=LAST_LINES, newest=True)
        life = timeline(record, attempts, entries[::-1])
        parts = stretches(record, attempts, self._storage.now())
        return JobDetails(status, record, attempts, life, parts, lines, await self._storage.dependencies(job_id))

    async def failures(
        self, *, span: Duration | None = 3600, task: str | None = None, queue: str | None = None
    ) -> FailureReport:
        """Return the jobs that failed in the last `span` (seconds), grouped by task and root cause, and their trends.

        Pass a task or a queue to read only its failures. With a `span` of None you get all failed jobs that are kept.
        Jobs that wait for a retry after a failure count too, unless their audit level keeps no attempts. It reads the
        newest 10,000 failures. Raises DeclarationError.
        """
        return await failures(self._storage, _span(span), task, queue)

    async def failures_like(
        self, job_id: str, *, span: Duration | None = 3600, most: int = 100
    ) -> FailureDetails | None:
        """Return the failures that share this job's task and root cause, and list up to `most` one by one.

        `retry_many` takes their ids. None if the job has not failed, or has been retried. Raises JobNotFound,
        DeclarationError.
        """
        return await failures_like(self._storage, await self._record(job_id), _span(span), most)

    async def ended_jobs(
        self, after: str | datetime | None = None, *, count: int = AT_ONCE, **criteria: Unpack[EndCriteria]
    ) -> EndPage:
        """Return the next jobs that became final after a cursor or an instant, the first ones first, for polling.

        It reads up to `count` ends for a page, from 1 to 500, so with filters a page may have fewer. Pass the `next` of
        a page as the following `after`: you get each end at least once if it is committed within ten seconds. None
        begins ten seconds ago. Raises DeclarationError.
        """
        return await end_page(self._storage, after, EndQuery(**criteria), min(max(count, 1), AT_ONCE))

    def follow_ended_jobs(
        self, after: str | datetime | None = None, **criteria: Unpack[EndCriteria]
    ) -> AsyncIterator[EndEvent]:
        """Return an iterator of jobs as they become final, without end, which reads once a second.

        To continue later, pass the `cursor` of the last event as `after`: some events then come again, with the same
        ids. Raises DeclarationError, and StorageUnavailable while the store does not answer.
        """
        return follow(self._storage, self._storage.clock, after, EndQuery(**criteria))

    async def read_ends(self, after: Place) -> EndsRead:
        """Return the first ends after a place, for an `EndFollower`."""
        return await self._storage.ended(*after, AT_ONCE)

    async def batch(self, batch_id: str) -> BatchDetails:
        """Return the tasks of a batch, and how many jobs are in each state. Raises BatchNotFound."""
        record = await self._storage.batch(batch_id)
        if record is None:
            raise BatchNotFound(batch_id)
        tasks = await self._storage.tasks_of_batches([batch_id])
        return BatchDetails(**asdict(batch_status(record)), tasks=tasks.get(batch_id, ()))

    async def batches(
        self, *, pending_only: bool = False, before: str | None = None, count: int = 50
    ) -> Sequence[BatchDetails]:
        """Return a page of batches with their tasks, newest first; an empty page is the end.

        `before` is the last id of the page before. `jobs(batch=id)` lists the jobs of a batch.
        """
        count = min(max(count, 1), PAGE_AND_ONE)
        found = await self._storage.batches(pending_only=pending_only, cursor=before, count=count)
        tasks = await self._storage.tasks_of_batches([record.id for record in found])
        return [BatchDetails(**asdict(batch_status(each)), tasks=tasks.get(each.id, ())) for each in found]

    async def graph(self, id: str, *, most: int = 200) -> JobGraph:
        """Return the jobs and batches that are connected with a job or a batch, and what follows what.

        More than `most` (up to 1,000) are folded into groups by task and depth: the graph then `is_folded`. Jobs of a
        batch that follow nothing and are not followed are left out; the graph of their batch has them as groups by
        task. Raises JobNotFound.
        """
        found = await self._storage.graph(id, min(max(most, 1), 1_000))
        if not found.nodes:
            raise JobNotFound(id)
        return found

    async def find(
        self, text: str, *, kind: FoundKind | None = None, queues: Iterable[str] = (), count: int = 6
    ) -> Sequence[Found]:
        """Return what has this text in its name, best matches first, up to `count` of each kind or of `kind`.

        It finds jobs, batches and limit keys by how their id or key begins, everything else by any part of its name.
        It searches the tasks and limits that this app declares (keys in the first 100 limits), the first 1,000
        schedules by name, the nodes, and these `queues`. Case is ignored, except in keys.
        """
        return await find(self, self._storage, text, kind, queues, count)

    async def logs(
        self, job_id: str, *, after: int = 0, count: int = 100, newest: bool = False, level: int = 0
    ) -> Sequence[LogLine]:
        """Return the log lines of a job, oldest first: the first lines after number `after`, or the `newest`.

        `level` is the lowest level of a line, as in `logging` (default: all lines). Instants are wall microseconds.
        Raises JobNotFound.
        """
        lines = await self._storage.logs(job_id, after=after, count=count, newest=newest, level=level)
        if not lines:
            await self._record(job_id)
        return lines

    async def audit_log(
        self,
        *,
        kind: SubjectKind | None = None,
        subject: str | None = None,
        actor: str | None = None,
        before: int | None = None,
        count: int = 50,
    ) -> Sequence[ListedAction]:
        """Return a page of sign-ins and actions on jobs, limits, queues, schedules and nodes, newest first.

        `before` is the last number of the previous page. A job's entries are deleted with it, others after the time
        that the retention sets as `audit` (90 days).
        """
        count = min(max(count, 1), PAGE_AND_ONE)
        before = None if before is None else min(max(before, 0), LARGEST_COUNT)
        found = await self._storage.audit_log(
            AuditFilter(kind=kind, subject=subject, actor=actor, before=before, count=count)
        )
        return [ListedAction(**{**msgspec.structs.asdict(each), "at": to_datetime(each.at)}) for each in found]

    async def record_sign_in(self, action: SignInAction, detail: str) -> None:
        """Store that the actor has signed in to the dashboard or out of it; `detail` is the session that has ended."""
        await self._storage.add_audit_record(AuditRecord(self.actor, action, "user", self.actor, detail))

    async def sign_outs(self, since: int) -> Sequence[AuditEntry]:
        """Return the sign-outs since then (wall microseconds), oldest first; they are kept for 12 hours at least."""
        return await self._storage.sign_outs(since)

    async def explain(self, job_id: str) -> Explanation:
        """Return why a job has not started, or how it ended, from the current state. Raises JobNotFound."""
        record = await self._record(job_id)
        position, live = await self._position(record), await self._live(record)
        status = self._predicted(record, position, live)
        buckets = () if position is None else position.buckets
        away, rules = list[GuardedStore](), SetRules(self._storage, live)
        limits = [
            await self.limits.status_of(bucket, rules, await holders_of(self._storage, bucket), away)
            for bucket in buckets
            if not self._orders_turns(bucket)
        ]
        # Their own stores do not answer, or their rules raise an error. Between two tries, they count as open.
        held = {(each.limit, each.key): each.is_waited_for for each in limits if each.rule and each.used is None}
        waits_for = status.waits_for or next((bucket for bucket, is_waited_for in held.items() if is_waited_for), None)
        if waits_for in held:
            status = replace(status, waits_for=waits_for, predicted_start=None)
        leader = status.follows if status.is_blocked else None
        batch = None if leader is None else await self._storage.batch(leader)
        leading = None if leader is None or batch is not None else await self._storage.job(leader)
        reason = reason_for(
            record,
            status,
            limits,
            await self._storage.nodes(),
            batch=batch,
            leaders=(await self._storage.dependencies(job_id)).leaders if batch is not None and batch.is_join else (),
            is_leader_final=not batch.pending if batch is not None else leading is not None and leading.state.is_final,
            registry=self._registry,
            declared=await self.declared_by_nodes(),
            pause=None if record.state is not JobState.WAITING else await self._pause(record, limits, live),
            turn=None if position is None else self._turn(position),
            limit_sets=await self._limit_sets(record),
            now=to_datetime(self._storage.now()),
        )
        return Explanation(status=status, reason=with_last_error(reason, status), limits=limits)

    # ---------------------------------------------------------------------------------------------- changing

    def arguments(self, task: str) -> Sequence[TaskArgument]:
        """Return the arguments of a declared task, with their kinds and defaults. Raises UnknownTask."""
        return arguments_of(declared_task(self._registry, task))

    async def enqueue(self, task: str, payload: Payload = "{}", **options: Unpack[EnqueueOptions]) -> EnqueuedJob:
        """Store a job of a declared task, with these arguments by name: JSON text, or a dict.

        `options` are those of `task.using(…)`. If a unique key or an own id finds a stored job, that one is
        returned, and is not new. Raises UnknownTask, PayloadError for arguments that do not fit, and what
        `Task.enqueue` raises.
        """
        found = declared_task(self._registry, task)
        chosen = self._registry.with_options(found, options)
        return await self._enqueue_call(chosen, call_of(chosen, payload))

    async def run_again(self, job_id: str, payload: Payload | None = None) -> EnqueuedJob:
        """Store a new job like this one, with these arguments (default: the same ones).

        It has the task, queue, priority, headers, tags, timeout, retries, retention and audit level of the old job, in
        whatever state that is; not its time, its own id, nor its chain, batch or schedule. A unique key that the task
        declares is computed from the arguments. The audit entries of both jobs name the other. Raises JobNotFound,
        UnknownTask, PayloadError, also if one of the same arguments is a result, and what `Task.enqueue` raises.
        """
        record = await self._record(job_id)
        if payload is None and record.origin is not None and record.origin.results:
            raise PayloadError(
                f"job {job_id} has results of other jobs as arguments ({', '.join(record.origin.results)}), and a job "
                "outside of its chain or batch gets none: pass all arguments, on the command line with --payload"
            )
        if self._large_payloads is not None and payload is None:
            loaded = await self._large_payloads.load(record.payload, f"the payload of job {job_id}")
            record = replaced(record, payload=loaded)
        if record.unreadable is not None:
            raise IllegalTransition(f"job {job_id} cannot be run again: it cannot be read ({record.unreadable})")
        chosen = self._registry.with_options(declared_task(self._registry, record.task), options_of(record))
        call = stored_call_of(chosen, record) if payload is None else call_of(chosen, payload)
        new = await self._enqueue_call(chosen, call, f"again, as job {job_id}")
        if new.is_new and record.audit >= AuditLevel.FULL:
            await self._storage.add_audit_record(self._audit_record("run again", job_id, f"as job {new.id}"))
        return new

    async def _enqueue_call(self, task: TaskDefinition, call: Call[Any], detail: str | None = None) -> EnqueuedJob:
        (job,) = await self._enqueue(task, (call,))
        template, is_changed = task.template, job.is_new
        # Another job with the same id is kept as it is.
        if not job.is_new and template.unique is not None and job.id != template.id:
            is_changed = template.unique.on_conflict in ("replace", "cancel_running")
            detail = "replaced what waited under its key" + (f", {detail}" if detail else "")
        if is_changed and template.fields["audit"] >= AuditLevel.FULL:
            await self._storage.add_audit_record(self._audit_record("enqueue", job.id, detail))
        return EnqueuedJob(job.id, job.is_new)

    async def retry(self, job_id: str) -> None:
        """Let a failed or cancelled job wait again, with all its attempts; one that is not needed any more is skipped.

        Raises JobNotFound, IllegalTransition; LeaderNotRetried if its leader has to be retried first.
        """
        if await self._storage.retry(job_id, audit_record=self._audit_record("retry", job_id)) is None:
            raise JobNotFound(job_id)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a waiting job, or request the cancellation of a running one; False if it was final and so unchanged.

        A request that is repeated is True again, and not recorded again. Raises JobNotFound.
        """
        try:
            return not (await self._cancel(job_id)).is_final
        except Unchanged:
            return True

    async def _cancel(self, job_id: str) -> JobState:
        """Return the state that the job was in. Raises Unchanged if the cancellation was requested before."""
        state = await self._storage.cancel(job_id, audit_record=self._audit_record("cancel", job_id))
        if state is None:
            raise JobNotFound(job_id)
        return state

    async def run_now(self, job_id: str) -> None:
        """Make a job ready that waits for its time, or for its next attempt; its limits still apply.

        Raises JobNotFound, and IllegalTransition for any other job, such as one that waits for a limit.
        """
        try:
            state = await self._storage.run_now(job_id, audit_record=self._audit_record("run now", job_id))
        except IllegalTransition:
            record = await self._record(job_id)
            if record.waits_for is None:
                raise
            whose = f" of key {record.waits_for.key!r}" if record.waits_for.key else ""
            raise IllegalTransition(
                f"job {job_id} waits for limit {record.waits_for.limit!r}{whose}, not for its time, and to run it now "
                "would exceed the limit; `headgate limits set` raises the limit, `headgate limits reset` resets its use"
            ) from None
        if state is None:
            raise JobNotFound(job_id)

    async def reschedule(
        self, job_id: str, *, at: datetime | None = None, delay: Duration | None = None, priority: int | None = None
    ) -> None:
        """Change when a waiting job is ready, `at` a time or after a `delay`, its priority, or both.

        It keeps its limits, its attempts and its unique key; a time in the past means now, as far as its limits allow.
        Raises JobNotFound, IllegalTransition if it is not waiting, DeclarationError for invalid values.
        """
        run_at = self._new_time(at, delay, priority)
        with contextlib.suppress(Unchanged):
            await self._reschedule(job_id, run_at, priority)

    def _new_time(self, at: datetime | None, delay: Duration | None, priority: int | None) -> int | None:
        """Return the time that jobs are rescheduled to; None for no change. Raises DeclarationError."""
        if at is not None and delay is not None:
            raise DeclarationError("pass at or delay, not both")
        if at is None and delay is None and priority is None:
            raise DeclarationError("pass a time as at or delay, a priority, or both")
        now = self._storage.now()
        run_at = None if at is None else max(now, parse_instant(at, "at", "reschedule"))
        if delay is not None:
            run_at = now + parse_duration(delay, "delay", "reschedule")
        if run_at is not None and run_at - now > FARTHEST:
            raise DeclarationError(f"{delay if at is None else at!s} is more than a hundred years ahead")
        if priority is not None:
            require_priority(priority, "a job")
        return run_at

    async def _reschedule(self, job_id: str, run_at: int | None, priority: int | None) -> None:
        said = [] if run_at is None else [f"to {to_datetime(run_at).isoformat(timespec='seconds')}"]
        if priority is not None:
            said.append(f"priority {priority}")
        audit_record = self._audit_record("reschedule", job_id, ", ".join(said))
        if await self._storage.reschedule(job_id, run_at=run_at, priority=priority, audit_record=audit_record) is None:
            raise JobNotFound(job_id)

    async def delete(self, job_id: str) -> None:
        """Delete a final job for good, with its result, attempts, log lines and audit entries.

        The action is recorded on its queue. Its batch keeps its counts, and the job can no longer be retried.

        Raises JobNotFound; IllegalTransition if it is not final, or if an unfinished job follows it or its batch and
        may read its result; JobHeld if another open transaction has locked it.
        """
        record = await self._record(job_id)
        if not record.state.is_final:
            raise IllegalTransition(f"job {job_id} is {record.state}; only final jobs are deleted, so cancel it first")
        detail = f"job {job_id} of task {record.task}, {record.state}"
        audit_record = AuditRecord(self.actor, "delete", "queue", record.queue, detail)
        # Its end may be ahead: the clock was set back, or another process reads that of the server a little apart.
        before = max(self._storage.now(), record.finished_at or 0) + 1
        deletion = await self._storage.delete([job_id], finished_before=before, audit=lambda _: audit_record)
        if job_id in deletion.needed:
            raise IllegalTransition(
                f"job {job_id} is followed by a job that is not final and may read its result; delete it after that one"
            )
        if job_id not in deletion.deleted:
            if (await self._record(job_id)).state.is_final:
                raise JobHeld(f"another open transaction has locked job {job_id}; try again")
            raise IllegalTransition(f"job {job_id} was changed meanwhile and is not final")

    async def cancel_many(self, query: JobQuery | Sequence[str], **options: Unpack[BulkOptions]) -> BulkResult:
        """Cancel the unfinished jobs that a query matches: waiting ones, then running ones, then those that have moved.

        It chooses the jobs, then changes the oldest first, 200 at a time, and may be stopped and repeated. A chosen job
        that is cancelled with the one it follows is counted, as in a dry run. Final jobs are skipped, and not counted.
        Instead of a query it takes job ids; then it counts those that it cannot change as refused, and skips unknown
        ids. `headgate.admin.bulk.BulkOptions` describes the options.
        """
        return await change_many(self._storage, query, CANCEL, self._cancel, **options)

    async def cancel_batch(self, batch_id: str, **options: Unpack[BulkOptions]) -> BulkResult:
        """Cancel the unfinished jobs in a batch and in its inner batches, and what then waits for nothing else.

        So it cancels the steps after the batch, whatever end they need; a step that also waits for other jobs stays,
        and ends or runs as it needs. It may be stopped and repeated. Jobs that another open transaction has locked are
        counted as refused. Raises BatchNotFound.
        """
        await self.batch(batch_id)
        options.setdefault("most", 1_000_000)
        record = partial(self._audit_record, "cancel", detail=f"with batch {batch_id}")
        return await cancel_batch(self._storage, batch_id, self._cancel, record, **options)

    async def retry_many(self, query: JobQuery | Sequence[str], **options: Unpack[BulkOptions]) -> BulkResult:
        """Retry the jobs that a query matches, as `cancel_many` cancels: first failed ones, then cancelled ones."""

        async def lone(job_ids: Sequence[str]) -> Sequence[str]:
            audit_records = [self._audit_record("retry", job_id) for job_id in job_ids]
            return await self._storage.retry_lone(job_ids, audit_records=audit_records)

        return await change_many(self._storage, query, RETRY, self.retry, change_together=lone, **options)

    async def run_many_now(self, query: JobQuery | Sequence[str], **options: Unpack[BulkOptions]) -> BulkResult:
        """Run now the jobs that a query matches, as `cancel_many` cancels: those that wait for their time."""
        return await change_many(self._storage, query, RUN_NOW, self.run_now, **options)

    async def reschedule_many(
        self,
        query: JobQuery | Sequence[str],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        **options: Unpack[BulkOptions],
    ) -> BulkResult:
        """Reschedule the waiting jobs that a query matches, as `cancel_many` cancels.

        All get the same time, the priority, or both; jobs that have them already are not counted. To repeat a call that
        was cut, pass `at`: with a `delay`, it moves the same jobs again. Raises DeclarationError for invalid values.
        """
        run_at = self._new_time(at, delay, priority)
        change, verb = partial(self._reschedule, run_at=run_at, priority=priority), reschedule(run_at, priority)
        return await change_many(self._storage, query, verb, change, **options)

    async def purge(
        self, query: JobQuery | Sequence[str] | None = None, *, older_than: Duration = 0, **options: Unpack[BulkOptions]
    ) -> BulkResult:
        """Delete the final jobs that a query matches and that finished longer than `older_than` seconds ago.

        Instead of a query it takes job ids. Their results, attempts, log lines and audit entries are deleted with them,
        for good; each commit is recorded, in one entry on the queue of the query. It keeps jobs that an unfinished job
        follows, itself or by their batch, because it may read their results. It deletes 200 in a commit, oldest first,
        and may be stopped and repeated. Raises DeclarationError if the query selects jobs that are not final.
        """
        return await purge(
            self._storage,
            JobQuery() if query is None else query,
            actor=self.actor,
            # Ends may be ahead by that: another process reads the clock of the server a little apart.
            before=self._storage.now() + SECOND // 10 - parse_duration(older_than, "older_than", "purge"),
            **options,
        )

    async def quiet_node(self, node: str) -> bool:
        """Let a node claim nothing until it is resumed; its running jobs continue. False if it was quiet already.

        `node` is the id of a node, or its name if no other running node has it. The node reads a change within a
        second. Raises NodeNotFound, AmbiguousNode, as do the other methods that change nodes.
        """
        return await self._set_node(node, "quiet", lambda controls: replaced(controls, is_quiet=True))

    async def resume_node(self, node: str) -> bool:
        """Let a quiet node claim jobs again, in the slots that it had. Returns whether it was quiet."""
        return await self._set_node(node, "resume", lambda controls: replaced(controls, is_quiet=False))

    async def stop_node(self, node: str) -> bool:
        """Stop a node as SIGTERM does: it claims nothing, and its jobs may continue for its grace.

        False if it is stopping already. Inside a program that does other work, only the node ends.
        """
        return await self._set_node(node, "stop", lambda controls: replaced(controls, is_stopping=True))

    async def set_node_slots(self, node: str, slots: int, *, queue: str | None = None) -> bool:
        """Set how many jobs a node runs at once, from one queue or from all together. Return whether it changed.

        More slots are used at once. With fewer, running jobs continue, and the node claims again when fewer run. It
        stays so until the node ends; a quiet node is resumed. 0 lets the node be quiet, or serve that queue no more.

        Without a `queue`, a node with one queue gets that many slots for it; a node with several gets a common bound,
        up to the slots that they have. Raises UnknownQueue for a queue that the node does not serve, DeclarationError
        for more slots than its queues have.
        """
        parse_count(slots, "slots", f"node {node}", least=0, most=MOST_SLOTS)
        detail = f"{slots}" if queue is None else f"{queue}: {slots}"
        return await self._set_node(
            node, "set slots", lambda controls: with_slots(node, controls, slots, queue), detail
        )

    async def rename_node(self, node: str, name: str) -> bool:
        """Give a node, by its id or name, another name until its process ends; return whether it had a different one.

        Names need not be unique: a node whose name another one has is steered by its id. Raises DeclarationError for a
        name that is not 1 to 200 printable characters without spaces, NodeNotFound, AmbiguousNode.
        """
        require_process_name(name)
        record = find_node(await self._storage.nodes(), node)
        audit_record = AuditRecord(self.actor, "rename", "node", record.name, f"{name} ({record.id})")
        changed = await self._storage.rename_node(record.id, name, audit_record=audit_record)
        if changed is None:
            raise node_ended(record)
        return changed

    async def _set_node(self, node: str, action: str, edit: EditNode, detail: str | None = None) -> bool:
        record = find_node(await self._storage.nodes(), node)
        audit_record = AuditRecord(self.actor, action, "node", record.name, detail)
        changed = await self._storage.set_node(record.id, edit, audit_record=audit_record)
        if changed is None:
            raise node_ended(record)
        return changed

    # ----------------------------------------------------------------------------------------------- helpers

    def _audit_record(self, action: str, job_id: str, detail: str | None = None) -> AuditRecord:
        return AuditRecord(self.actor, action, "job", job_id, detail)

    async def _record(self, job_id: str) -> JobRecord:
        record = await self._storage.job(job_id)
        if record is None:
            raise JobNotFound(job_id)
        return record

    async def _position(self, record: JobRecord) -> QueuePosition | None:
        if record.state is not JobState.WAITING or not record.buckets:
            return None
        return await self._storage.queue_position(record.id)

    async def _live(self, record: JobRecord) -> LiveRules:
        return LiveRules(await self._storage.settings() if record.buckets else ())

    def _predicted(self, record: JobRecord, position: QueuePosition | None, live: LiveRules) -> JobStatus:
        """Return the status of a job with the prediction of the limits."""
        now, limit_now = self._storage.now(), self._storage.limit_now()
        status = status_of(record, now)
        if position is None:
            return status
        prediction = predict(position, self._registry.rules, live, limit_now)
        start = None
        # In a fair queue, what limits let start now waits for its turn, which depends on the jobs of other keys.
        is_ordered_by_turns = prediction.waits_for is None and any(map(self._orders_turns, position.buckets))
        if prediction.starts_at is not None and not is_ordered_by_turns:
            start = max(to_datetime(now + prediction.starts_at - limit_now), status.run_at)
        waits_for = status.waits_for
        if prediction.waits_for is not None:
            waits_for = (prediction.waits_for.limit, prediction.waits_for.key)
        throttled_until = status.throttled_until
        if throttled_until is None and prediction.opens_at is not None and not status.is_scheduled:
            # No claim has met the closed bucket yet, as while no worker runs.
            throttled_until = to_datetime(now + prediction.opens_at - limit_now)
        return replace(
            status,
            position=position.position,
            predicted_start=start,
            waits_for=waits_for,
            throttled_until=throttled_until,
        )

    async def _pause(self, record: JobRecord, limits: Sequence[BucketStatus], live: LiveRules) -> Pause | None:
        """Return the pause that holds the job: its queue's, or that of its first paused limit."""
        since = (await self.queues.paused()).get(record.queue)
        if since is not None:
            return await pause_of_queue(self._storage, record.queue, since)
        setting = next((found for each in limits if (found := live.pausing(BucketRef(each.limit, each.key)))), None)
        return None if setting is None else await pause_of_limit(self._storage, setting)

    async def _limit_sets(self, record: JobRecord) -> Sequence[str]:
        """Return the limit sets of `reason_for`; none for a job that went to a fallback queue with those of its own."""
        found = await self._storage.gated_jobs_by_id(frozenset({record.task}), [record.id])
        newest = (await self._storage.newest_limit_sets()).get(subject := subject_of(record.task, record.queue))
        if not found or newest is None or intended_queue(found[0].limit_set) is not None:
            return ()
        known = (found[0].limit_set, newest, self._registry.subjects().get(subject, newest))
        return () if len({*known}) == 1 else known

    def _turn(self, position: QueuePosition) -> Turn | None:
        """Return the place of a job in a fair queue; None for one that is in no fair queue, or not in line."""
        order = next((bucket for bucket in position.buckets if self._orders_turns(bucket)), None)
        if order is None or not position.is_due:
            return None
        before = None if position.position is None else position.position - 1
        return Turn(order.ref.key, before, is_only_bucket=len(position.buckets) == 1)

    def _orders_turns(self, bucket: BucketRecord) -> bool:
        rule = self._registry.rules.get(bucket.ref.limit)
        return rule is not None and rule.orders_turns


def _query(query: JobQuery | None, criteria: JobCriteria) -> JobQuery:
    return msgspec.structs.replace(query or JobQuery(), **criteria)


def _span(span: Duration | None) -> int | None:
    return None if span is None else parse_duration(span, "span", "failures", allow_zero=False)
