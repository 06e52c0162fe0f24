"""The enqueuer: turns calls into jobs and stores them, as flows, in the caller's transaction, or by a schedule.

The functions of `@app.around_enqueue` get drafts of the calls before, and may change them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from msgspec.structs import replace

from headgate.engine.backlog import Backlogs, ReservedRoom
from headgate.engine.bus import publish_use
from headgate.engine.large_payloads import LargePayloads
from headgate.engine.max_wait import reject_over_max_wait, rejected
from headgate.engine.schedule_declaration import declare, warn_if_too_fast
from headgate.engine.services import Services, WithServices
from headgate.errors import DeclarationError, HeadgateError
from headgate.jobs.batch import NewBatch
from headgate.jobs.encoded import is_in_folder
from headgate.jobs.event import JobEnqueued, JobReplaced, LimitSkipped, StorageUsed
from headgate.jobs.identity import NEW_IDS_TRIES, IdTaken
from headgate.jobs.job import NewJob, Origin
from headgate.jobs.scheduled import ScheduledCall
from headgate.jobs.uniqueness import replaces
from headgate.schedules.stored_trigger import is_storable
from headgate.tasks.batch_limits import BatchLimits
from headgate.tasks.call import Call, FlowCall
from headgate.tasks.definition import JobTemplate, TaskDefinition, job_template
from headgate.tasks.hooks import AroundEnqueue, JobDraft, call_around
from headgate.tasks.limit_set import UNGATED, GatedCall, ignore_skip
from headgate.tasks.options import NO_OPTIONS, EnqueueOptions, options_of_call, plain_headers
from headgate.tasks.schedule import ScheduleSpec
from headgate.tasks.status import EnqueuePrediction
from headgate.tasks.tracing import Tracing


class CallGroup(NamedTuple):
    """Consecutive calls of a task that have the same options; `queue` is the queue of those options."""

    options: EnqueueOptions
    template: JobTemplate
    queue: str
    calls: Sequence[Call[Any]]


class StoredCall(NamedTuple):
    """The id that a caller gets for a call: of its new job, or of one that was there; and what limits predict."""

    id: str
    is_new: bool = True
    prediction: EnqueuePrediction | None = None


def group_calls(task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[CallGroup]:
    """Group the calls by their own options, or by those of the task. Raises DeclarationError."""
    options = task.options
    for called in {call.task for call in calls}:
        if called is not None and called.options is not options and called.options is not NO_OPTIONS:
            return _groups_by_options(task, calls)
    # Nearly always it is one group.
    return [CallGroup(options, task.template, options.get("queue") or task.queue, calls)] if calls else []


def _groups_by_options(task: TaskDefinition, calls: Sequence[Call[Any]]) -> list[CallGroup]:
    options = task.options

    def options_for(call: Call[Any]) -> EnqueueOptions:
        own = NO_OPTIONS if call.task is None else call.task.options
        return options if own is NO_OPTIONS or own is options else options_of_call(own, options)

    groups = [
        CallGroup(own, job_template(task, own), own.get("queue") or task.queue, list(same))
        for own, same in groupby(calls, options_for)
    ]
    for id, count in Counter(group.template.id for group in groups).items():
        if id is not None and count > 1:
            raise DeclarationError(f"task {task.name!r}: id={id!r} is for one job, and you pass it {count} times")
    if options.get("connection") is not None and any(group.options.get("predict") for group in groups):
        raise DeclarationError(f"task {task.name!r}: predict= needs a committed job; leave it out with connection=")
    return groups


def queue_counts(groups: Sequence[CallGroup]) -> dict[str, int]:
    """Return the number of calls by queue."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.queue] = counts.get(group.queue, 0) + len(group.calls)
    return counts


class _NeedsLoop(Exception):
    """Jobs cannot be stored in a thread beside the loop; nothing is stored."""


NO_QUEUES: Mapping[str, str] = {}

StoreDrafts = Callable[[], Awaitable[Sequence[str]]]
"""Stores the drafts as they are now, and returns the id of each."""

_SCHEDULED = frozenset(ScheduledCall.__struct_fields__)
"""The options of its task that a schedule keeps."""


class Enqueuer(WithServices):
    """Enqueues jobs for one process. Raises the errors that `Task.enqueue` documents."""

    def __init__(self, services: Services, large_payloads: LargePayloads | None) -> None:
        super().__init__(services)
        self._large_payloads = large_payloads
        self.tracing: Tracing | None = None
        self._backlogs = Backlogs(services.storage, services.clock, services.registry.queues.__getitem__)
        self._skipped: set[tuple[str, str]] = set()

    def close(self) -> None:
        """End all waits for room in a queue with NotOpen, because the app is closed."""
        self._backlogs.close()

    async def enqueue(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> list[StoredCall]:
        """Store the calls as jobs in one commit."""
        if not self._ids.has_producer:
            self._ids.set_producer(await self._storage.producer())
        counts = queue_counts(groups)
        if not self._are_bounded(counts):
            return await self._store(self._jobs_of(task, groups))
        with await self._backlogs.reserve(counts) as room:
            return await self._store(self._jobs_of(task, groups, room.queues), room)

    def enqueue_in_thread(
        self, task: TaskDefinition, groups: Sequence[CallGroup], loop: asyncio.AbstractEventLoop
    ) -> list[StoredCall] | None:
        """As `enqueue`, in a thread beside the loop of the app; None if the loop has to do it, and nothing is stored.

        Raises what `enqueue` raises.
        """
        if self._needs_loop(task, groups):
            return None
        try:
            jobs = self._jobs_of(task, groups, is_beside_loop=True)
            duplicates = self._storage.add_in_thread(jobs)
        except (_NeedsLoop, IdTaken):
            return None
        if duplicates is None:
            return None
        self._history_writer.note_enqueued_in_thread(jobs, duplicates, loop)
        return resolved_ids(jobs, duplicates)

    def _needs_loop(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> bool:
        """Whether enqueueing these calls awaits something, publishes an event or calls a hook."""
        if not groups or not self._storage.can_add_in_thread or not self._ids.has_producer:
            return True
        if self._registry.hooks.around_enqueue or self.tracing is not None or self._large_payloads is not None:
            return True
        if not self._bus.has_no_listener(JobEnqueued, JobReplaced, StorageUsed):
            return True
        return self._are_bounded(group.queue for group in groups) or any(
            group.options.get("predict")
            or any(each.wait_terms.longest for each in self._registry.limit_set(task, group.queue).limits)
            for group in groups
        )

    def _are_bounded(self, queues: Iterable[str]) -> bool:
        """Whether one of these queues has a `max_backlog`."""
        return any(self._registry.queues[queue].max_backlog is not None for queue in queues)

    async def _store(self, jobs: Sequence[NewJob], room: ReservedRoom | None = None) -> list[StoredCall]:
        has_max_wait = any(job.give_up_at is not None for job in jobs)
        if has_max_wait:
            jobs = await reject_over_max_wait(self._storage, self._registry.rules, jobs)
        if room is not None:
            room.note_storing()
        jobs, duplicates = await self._add_new(jobs)
        self._publish_enqueued(jobs, duplicates)
        if has_max_wait:
            # A job that was merged into an existing one is not stored.
            self._publish_dropped(rejected([job for job in jobs if job.id not in duplicates]))
        return resolved_ids(jobs, duplicates)

    def check(self, task: TaskDefinition, call: Call[Any]) -> None:
        """Raise what `enqueue` would raise for the call itself, whatever the store holds."""
        _, arguments = task.payload.encode(call.args, call.kwargs)
        options, unique = task.options, task.template.unique
        queue, headers = options.get("queue") or task.queue, options.get("headers") or {}
        # A skipped limit is published when the call is enqueued.
        self._registry.limit_set(task, queue).ask(arguments, headers, ignore_skip)
        if unique is not None:
            unique.key_for(arguments)

    async def enqueue_flow(self, calls: Sequence[FlowCall], batches: Sequence[NewBatch]) -> None:
        """Store the calls of a chain, a batch or a graph in one commit, and the batches, as enqueued now."""
        counts = Counter(call.queue for call in calls)
        with await self._backlogs.reserve(counts) as room:
            limit_sets: dict[str, BatchLimits] = {}
            jobs = [self._flow_job(call, room.queues[call.queue], limit_sets) for call in calls]
            if any(job.give_up_at is not None for job in jobs):
                jobs = await reject_over_max_wait(self._storage, self._registry.rules, jobs)
            now = self._storage.now()
            room.note_storing()
            try:
                await self._add(jobs, [replace(each, enqueued_at=now) for each in batches])
            except IdTaken:
                self._ids.set_producer(None)
                raise
        self._publish_enqueued(jobs, {})
        self._publish_dropped(rejected(jobs))

    async def jobs_for_transaction(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> list[NewJob]:
        """Return jobs for a transaction of the caller; `max_wait` is checked after the caller has committed."""
        counts = queue_counts(groups)
        # A wait for room with a transaction open would block others, on SQLite even those that make room.
        with await self._backlogs.reserve(counts, may_wait=False) as room:
            jobs = self._jobs_of(task, groups, room.queues)
            # The caller's commit is not notified here, so these jobs count once the store counts them.
            room.note_storing()
            if self._large_payloads is not None:
                jobs = list(await self._large_payloads.store_payloads(jobs, in_transaction=True))
            return jobs

    async def add_in_transaction(self, connection: Any, jobs: Sequence[NewJob]) -> list[StoredCall]:
        """Add the jobs to the transaction of the caller's connection; return what `enqueue` returns.

        Raises DeclarationError if the app keeps its jobs in memory.
        """
        if self._storage.is_in_process:
            raise DeclarationError(
                "connection= needs an app whose jobs are in a database; this app keeps them in memory. Use "
                "sqlite:///path or postgresql://…"
            )
        if self.tracing is None or not jobs:
            return await self._add_in(connection, jobs)
        with self.tracing.sending(jobs) as sent:
            return await self._add_in(connection, sent)

    async def _add_in(self, connection: Any, jobs: Sequence[NewJob]) -> list[StoredCall]:
        for _ in range(NEW_IDS_TRIES):
            try:
                return resolved_ids(jobs, await self._storage.add_in(connection, jobs))
            except IdTaken as error:
                # The others may be stored: to store them again changes nothing.
                if any(is_in_folder(job.payload) for job in jobs if job.id in error.taken):
                    raise
                jobs = self._with_new_ids(jobs, error.taken)
        return resolved_ids(jobs, await self._storage.add_in(connection, jobs))

    def prediction_flags(self, task: TaskDefinition, groups: Sequence[CallGroup]) -> list[bool]:
        """Return for each call whether `predict=` is set and its job has limits."""
        flags: list[bool] = []
        for group in groups:
            is_requested = group.options.get("predict") and self._registry.limit_set(task, group.queue).limits
            flags += [bool(is_requested)] * len(group.calls)
        return flags

    def scheduled_call(self, task: TaskDefinition, spec: ScheduleSpec, call: Call[Any]) -> ScheduledCall:
        """Return the call that a schedule enqueues. Raises DeclarationError for options of a single job."""
        options, template = task.options, task.template
        if not options.keys().isdisjoint(("delay", "at", "expires_at")):
            raise DeclarationError(
                f"schedule {spec.name!r}: delay, at and expires_at are options of one job; the trigger sets the times, "
                "first= and until= set where it starts and ends, and expires_in= is the time that each job has"
            )
        if not options.keys().isdisjoint(("unique_key", "connection")):
            raise DeclarationError(
                f"schedule {spec.name!r}: unique_key and connection are options of one job; overlap= sets what happens "
                "to an occurrence while the previous one is not final"
            )
        if template.unique is not None:
            raise DeclarationError(
                f"schedule {spec.name!r}: task {task.name!r} declares a unique_key, which jobs of a schedule do not "
                "take: schedule a task without one; overlap= sets what happens to an occurrence while the previous one "
                "is not final"
            )
        if "id" in options:
            raise DeclarationError(f"schedule {spec.name!r}: id is an option of one job; each occurrence has its own")
        arguments: dict[str, Any]
        if call.later:
            payload, arguments = task.payload.encode_part(call.kwargs, call.later, is_declared=True)
        else:
            payload, arguments = task.payload.encode(call.args, call.kwargs, is_declared=True)
        queue, headers = options.get("queue") or task.queue, options.get("headers") or {}
        # An impossible key or cost is raised here, and not later on a node.
        self._registry.limit_set(task, queue).ask(arguments, headers, partial(self._skip, task.name))
        fields = {name: value for name, value in template.fields.items() if name in _SCHEDULED}
        return ScheduledCall(
            queue=queue, payload=payload, headers=template.headers, expires_in=template.expires_in, **fields
        )

    async def put_schedule(self, spec: ScheduleSpec, scheduled: ScheduledCall) -> None:
        """Store a schedule at run time. Raises DeclarationError for a custom trigger."""
        if not is_storable(spec.trigger):
            raise DeclarationError(
                f"schedule {spec.name!r}: a custom trigger, or a function in exclude=, cannot be stored, so other "
                "nodes cannot load it; declare the schedule in the code with @app.schedule"
            )
        record, _ = await declare(self._storage, spec, scheduled, again=True, codecs=self._registry.codecs)
        assert record is not None
        warn_if_too_fast(record, spec.trigger, self._registry, self._bus, self._clock)

    async def _add_new(self, jobs: Sequence[NewJob]) -> tuple[Sequence[NewJob], Mapping[str, str]]:
        """Store jobs that follow none of each other; all get new ids if another producer has stored one of theirs."""
        for _ in range(NEW_IDS_TRIES):
            try:
                return jobs, await self._add(jobs)
            except IdTaken:
                jobs = self._with_new_ids(jobs, {job.id for job in jobs if not job.has_own_id})
        return jobs, await self._add(jobs)

    def _with_new_ids(self, jobs: Sequence[NewJob], ids: Collection[str]) -> list[NewJob]:
        # Numbers that two producers share go on being taken.
        self._ids.set_producer(None)
        return [replace(job, id=self._ids.next(job.enqueued_at)) if job.id in ids else job for job in jobs]

    async def _add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        if self._large_payloads is not None:
            jobs = await self._large_payloads.store_payloads(jobs)
        asked_at = self._clock.monotonic()
        if self.tracing is not None and jobs:
            with self.tracing.sending(jobs) as sent:
                duplicates = await self._storage.add(sent, batches)
        else:
            duplicates = await self._storage.add(jobs, batches)
        publish_use(self._bus, self._clock, "add", asked_at, len(jobs))
        return duplicates

    def _flow_job(self, flow_call: FlowCall, queue: str, limit_sets: dict[str, BatchLimits]) -> NewJob:
        task, batch = flow_call.task, flow_call.origin.batch
        (job,) = self._new_jobs(task, group_calls(task, (flow_call.call,))[0], queue)
        if flow_call.limits and batch is not None:
            limit_set = limit_sets.get(batch) or BatchLimits(batch, flow_call.limits, self._registry.limits)
            limit_sets[batch] = limit_set
            own = GatedCall(job.buckets, job.costs, job.terms)
            arguments = task.payload.decode_part(job.payload, flow_call.call.later)
            buckets, costs, terms = limit_set.joined(own, task, arguments, job.headers or {})
            wait_mode = "" if terms is None else terms.wait_mode()
            job = replace(job, buckets=buckets, costs=costs, terms=terms, wait_mode=wait_mode)
        is_in_flow = flow_call.origin != Origin()
        return replace(job, id=flow_call.id, origin=flow_call.origin if is_in_flow else None)

    def _jobs_of(
        self,
        task: TaskDefinition,
        groups: Sequence[CallGroup],
        queues: Mapping[str, str] = NO_QUEUES,
        *,
        is_beside_loop: bool = False,
    ) -> list[NewJob]:
        """Return the jobs of all groups; `queues` maps queues to their fallbacks.

        `is_beside_loop`: in a thread beside the loop.
        """
        jobs: list[NewJob] = []
        for group in groups:
            jobs += self._new_jobs(task, group, queues.get(group.queue, group.queue), is_beside_loop=is_beside_loop)
        return jobs

    def _new_jobs(
        self, task: TaskDefinition, group: CallGroup, queue: str, *, is_beside_loop: bool = False
    ) -> list[NewJob]:
        now = self._storage.now()
        fields, shared_headers, delay, at, expires_in, expires_at, unique, own_id = group.template
        if own_id is not None and len(group.calls) > 1:
            raise DeclarationError(f"task {task.name!r}: id={own_id!r} is for one job, not for {len(group.calls)}")
        requested_at = at if delay is None else now + delay
        delayed = requested_at is not None and requested_at > now
        run_at = requested_at if delayed and requested_at is not None else now
        if expires_in is not None:
            expires_at = run_at + expires_in
        instead_of = None if queue == group.queue else group.queue
        # First the name: if another thread declares limits in between, nodes see that the job has to be moved.
        limit_set_name = self._registry.limit_set_name(task.name, queue, instead_of)
        limit_set = self._registry.limit_set(task, queue, instead_of)
        aging = self._registry.aging(queue)
        encode, skip = task.payload.encode, partial(self._skip, task.name, is_beside_loop=is_beside_loop)
        new_id = self._ids.next
        jobs: list[NewJob] = []
        arguments: dict[str, Any]
        for call in group.calls:
            if call.later:
                payload, arguments = task.payload.encode_part(call.kwargs, call.later)
            else:
                payload, arguments = encode(call.args, call.kwargs)
            headers = shared_headers if call.headers is None else call.headers or None
            buckets, costs, terms = limit_set.ask(arguments, headers or {}, skip) if limit_set.limits else UNGATED
            job = NewJob(
                id=own_id or new_id(now),
                queue=queue,
                payload=payload,
                delayed=delayed,
                run_at=run_at,
                enqueued_at=now,
                aging=aging,
                expires_at=expires_at,
                buckets=buckets,
                costs=costs,
                terms=terms,
                wait_mode="" if terms is None else terms.wait_mode(),
                give_up_at=None if terms is None or not terms.patience else run_at + terms.patience,
                limit_set=limit_set_name,
                headers=headers,
                has_own_id=own_id is not None,
                **fields,
            )
            if unique is not None:
                job = unique.with_key(job, arguments, expires_with_start=expires_in is not None)
            jobs.append(job)
        return jobs

    def _skip(self, task: str, limit: str, reason: str, *, is_beside_loop: bool = False) -> None:
        # Published once per task and limit: a thousand jobs without a key are one mistake.
        if (task, limit) not in self._skipped:
            if is_beside_loop:
                raise _NeedsLoop
            self._skipped.add((task, limit))
            self._bus.publish(LimitSkipped(at=self._clock.now(), task=task, limit=limit, reason=reason))

    def _publish_enqueued(self, jobs: Sequence[NewJob], duplicates: Mapping[str, str]) -> None:
        self._history_writer.note_enqueued(jobs, duplicates)
        if not self._bus.has_listener(JobEnqueued) and not self._bus.has_listener(JobReplaced):
            return
        at = self._clock.now()
        for job in jobs:
            id = duplicates.get(job.id)
            kind = JobEnqueued if id is None else JobReplaced
            # A job that is stored under its own id is kept, not replaced.
            if id is None or (id != job.id and replaces(job)):
                self._bus.publish(kind(at=at, job_id=id or job.id, task=job.task, queue=job.queue, run_at=job.run_at))


def resolved_ids(jobs: Sequence[NewJob], duplicates: Mapping[str, str]) -> list[StoredCall]:
    """Return what callers get: the id of the existing job where one was found."""
    if not duplicates:
        return [StoredCall(job.id) for job in jobs]
    return [StoredCall(duplicates.get(job.id, job.id), job.id not in duplicates) for job in jobs]


async def call_around_enqueue(
    functions: Sequence[AroundEnqueue], drafts: Sequence[JobDraft], store: StoreDrafts
) -> None:
    """Call the functions, the first outermost, around `store`.

    Raises what the outermost raises, else what `store` raised, even if a function has suppressed it, and HeadgateError
    if `store` was not called.
    """
    failure: BaseException | None = None
    is_stored = False

    async def enqueue() -> None:
        nonlocal failure, is_stored
        try:
            ids = await store()
        except BaseException as error:
            failure = error
            raise
        is_stored = True
        for draft, id in zip(drafts, ids, strict=True):
            draft.id = id

    await call_around(functions, drafts, enqueue)
    if failure is not None:
        # There is no job to return.
        raise failure
    if not is_stored:
        raise HeadgateError(
            "a function of @app.around_enqueue returned without `await enqueue()`, so nothing is stored; to refuse "
            "jobs, raise an error"
        )


def drafts_of_groups(task: TaskDefinition, groups: Sequence[CallGroup]) -> list[JobDraft]:
    """Return a draft for each call, in order. Raises TypeError for arguments that do not fit the signature."""
    return [_draft(task, group.queue, group.template.headers, call) for group in groups for call in group.calls]


def changed_groups(task: TaskDefinition, groups: Sequence[CallGroup], drafts: Sequence[JobDraft]) -> list[CallGroup]:
    """Return the groups with the calls as the drafts have them. Raises DeclarationError for headers."""
    left = iter(drafts)
    return [
        group._replace(calls=[_changed(task, call, draft) for call, draft in zip(group.calls, left, strict=False)])
        for group in groups
    ]


def drafts_of_flow(calls: Sequence[FlowCall]) -> list[JobDraft]:
    """As `drafts_of_groups`, for a chain or a batch."""
    return [_draft(each.task, each.queue, each.task.template.headers, each.call) for each in calls]


def changed_flow(calls: Sequence[FlowCall], drafts: Sequence[JobDraft]) -> list[FlowCall]:
    """As `changed_groups`, for a chain or a batch."""
    return [
        each._replace(call=_changed(each.task, each.call, draft)) for each, draft in zip(calls, drafts, strict=True)
    ]


def _draft(task: TaskDefinition, queue: str, headers: Mapping[str, str] | None, call: Call[Any]) -> JobDraft:
    arguments = dict(call.kwargs) if call.later else task.payload.bind(call.args, call.kwargs)
    return JobDraft(task.name, queue, arguments, dict(headers or {}))


def _changed(task: TaskDefinition, call: Call[Any], draft: JobDraft) -> Call[Any]:
    headers = plain_headers(draft.headers, f"task {task.name!r}")
    if call.later:
        return replace(call, kwargs=dict(draft.arguments), headers=headers)
    positional, named = task.payload.as_call(draft.arguments)
    return Call(tuple(positional), named, call.task, headers)
