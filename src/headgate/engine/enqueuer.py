"""The intake: turns calls into jobs and stores them, alone, tied, in the caller's transaction, or by a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.engine.backlog import Admitted, Backlogs
from headgate.engine.bus import EventBus, publish_use
from headgate.engine.call_groups import CallGroup, group_calls, queue_counts
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.declaration import declare, warn_if_too_fast
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.housekeeper import publish_dropped
from headgate.engine.max_wait import reject_over_max_wait, rejected
from headgate.errors import DeclarationError
from headgate.jobs.batch import NewBatch
from headgate.jobs.event import JobEnqueued, JobReplaced, LimitSkipped
from headgate.jobs.identity import IdSource
from headgate.jobs.job import NewJob, Origin
from headgate.jobs.scheduled import ScheduledCall
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.storage.store import Store
from headgate.tasks.batch_gate import BatchGate
from headgate.tasks.flow import FlowCall
from headgate.tasks.gate import UNGATED, GatedCall
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import ScheduleSpec
from headgate.tasks.task import Call, Task
from headgate.tasks.tracing import Tracing

NO_QUEUES: Mapping[str, str] = {}

_SCHEDULED = frozenset(ScheduledCall.__struct_fields__)
"""What a schedule keeps of the options of its task."""


class Enqueuer:
    """What enqueueing does in one process. Raises what `Task.enqueue` says that it raises."""

    def __init__(
        self,
        storage: Store,
        registry: Registry,
        *,
        clock: Clock,
        bus: EventBus,
        ids: IdSource,
        teller: CallbackRunner,
        historian: HistoryWriter,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._ids = ids
        self._teller = teller
        self._historian = historian
        self.tracing: Tracing | None = None
        self._backlogs = Backlogs(storage, clock, registry.queues.__getitem__)
        self._skipped: set[tuple[str, str]] = set()

    def close(self) -> None:
        """The app is not open any more; whoever waits for room in a queue is told so."""
        self._backlogs.close()

    async def take(self, task: Task[Any, Any], parts: Sequence[CallGroup]) -> list[str]:
        """Store the calls as jobs in one commit; the ids of the jobs that stand for them."""
        counts = queue_counts(parts)
        if not self._backlogs.are_bounded(counts):
            return await self._store(self._jobs_of(task, parts))
        with await self._backlogs.admit(counts) as admitted:
            return await self._store(self._jobs_of(task, parts, admitted.queues), admitted)

    async def _store(self, jobs: Sequence[NewJob], admitted: Admitted | None = None) -> list[str]:
        is_patient = any(job.give_up_at is not None for job in jobs)
        if is_patient:
            jobs = await reject_over_max_wait(self._storage, self._registry.rules, jobs)
        if admitted is not None:
            admitted.store()
        others = await self._add(jobs)
        self._tell(jobs, others)
        if is_patient:
            # One that was folded into another is not stored.
            self._tell_rejected([job for job in jobs if job.id not in others])
        return standing_ids(jobs, others)

    def check(self, task: Task[Any, Any], call: Call[Any]) -> None:
        """Raise what `take` would say of the call itself, whatever is in the store."""
        _, arguments = task.payload.encode(call.args, call.kwargs)
        options = task.options
        queue, headers = options.get("queue") or task.queue, options.get("headers") or {}
        # A call that a limit would skip is told once it is enqueued.
        self._registry.gate(task, queue).ask(arguments, headers, lambda _limit, _reason: None)

    async def take_tied(self, calls: Sequence[FlowCall], batches: Sequence[tuple[str, int]]) -> None:
        """Store the calls of a chain or a batch, and the batches with their sizes, in one commit."""
        counts = Counter(call.queue for call in calls)
        with await self._backlogs.admit(counts) as admitted:
            gates: dict[str, BatchGate] = {}
            jobs = [self._tied_job(call, admitted.queues[call.queue], gates) for call in calls]
            if any(job.give_up_at is not None for job in jobs):
                jobs = await reject_over_max_wait(self._storage, self._registry.rules, jobs)
            now = self._storage.now()
            admitted.store()
            await self._add(jobs, [NewBatch(id, total, now) for id, total in batches])
        self._tell(jobs, {})
        self._tell_rejected(jobs)

    async def jobs_to_enlist(self, task: Task[Any, Any], parts: Sequence[CallGroup]) -> list[NewJob]:
        """Jobs for a transaction of the caller's. Whether their limits reject them is judged when they are there."""
        counts = queue_counts(parts)
        # Waiting for room with a transaction open would keep others waiting, and on SQLite those who make room.
        with await self._backlogs.admit(counts, may_wait=False) as admitted:
            jobs = self._jobs_of(task, parts, admitted.queues)
            # Stored when the caller commits, of which nobody hears: they count as soon as the store counts them.
            admitted.store()
            return jobs

    async def enlist(self, connection: Any, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Add the jobs to the transaction of the caller's connection; returns what `Store.add_in` does.

        Raises DeclarationError for an app whose jobs are in memory.
        """
        if self._storage.is_in_process:
            raise DeclarationError(
                "connection= needs an app whose jobs are in a database, and this one keeps them in memory; use "
                "sqlite:///path or postgresql://…"
            )
        if self.tracing is None or not jobs:
            return await self._storage.add_in(connection, jobs)
        with self.tracing.sending(jobs) as sent:
            return await self._storage.add_in(connection, sent)

    def must_promise(self, task: Task[Any, Any], parts: Sequence[CallGroup]) -> list[bool]:
        """Of each call, whether it is to be told what the limits of its job promise."""
        asked: list[bool] = []
        for part in parts:
            is_asked = part.options.get("promise") and self._registry.gate(task, part.queue).limits
            asked += [bool(is_asked)] * len(part.calls)
        return asked

    def scheduled_call(self, task: Task[Any, Any], spec: ScheduleSpec, call: Call[Any]) -> ScheduledCall:
        """What a schedule enqueues again and again. Raises DeclarationError for what is said of one job only."""
        options = task.options
        if not options.keys().isdisjoint(("delay", "at", "expires_at")):
            raise DeclarationError(
                f"schedule {spec.name!r}: delay, at and expires_at are of one job; the trigger says when, and first= "
                "and until= where it begins and ends"
            )
        if not options.keys().isdisjoint(("unique_key", "connection")):
            raise DeclarationError(
                f"schedule {spec.name!r}: unique_key and connection are of one job; overlap= says what becomes of an "
                "occurrence while the one before is not over"
            )
        payload, arguments = task.payload.encode(call.args, call.kwargs)
        queue, headers = options.get("queue") or task.queue, options.get("headers") or {}
        # A key or a cost that cannot be is told here, and not by a node at six in the morning.
        self._registry.gate(task, queue).ask(arguments, headers, partial(self._skip, task.name))
        fields = {name: value for name, value in task.template.fields.items() if name in _SCHEDULED}
        return ScheduledCall(queue=queue, payload=payload, **fields)

    async def put_schedule(self, task: Task[Any, Any], spec: ScheduleSpec, call: Call[Any]) -> None:
        """Store a schedule at run time. Raises DeclarationError for what is said of one job, or by code, only."""
        if not isinstance(spec.trigger, Cron | Every | Calendar):
            raise DeclarationError(
                f"schedule {spec.name!r}: a trigger of your own cannot be stored, so nodes would not know it; declare "
                "the schedule in the code with @app.schedule"
            )
        scheduled = self.scheduled_call(task, spec, call)
        record, _ = await declare(self._storage, spec, scheduled, again=True)
        assert record is not None
        warn_if_too_fast(record, spec.trigger, self._registry, self._bus, self._clock)

    async def _add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        asked_at = self._clock.monotonic()
        if self.tracing is not None and jobs:
            with self.tracing.sending(jobs) as sent:
                others = await self._storage.add(sent, batches)
        elif batches:
            others = await self._storage.add(jobs, batches)
        else:
            others = await self._storage.add(jobs)
        publish_use(self._bus, self._clock, "add", asked_at, len(jobs))
        return others

    def _tied_job(self, tied: FlowCall, queue: str, gates: dict[str, BatchGate]) -> NewJob:
        task, batch = tied.task, tied.origin.batch
        (job,) = self._new_jobs(task, group_calls(task, (tied.call,))[0], queue)
        if tied.limits and batch is not None:
            gate = gates.get(batch) or BatchGate(batch, tied.limits, self._registry.limits)
            gates[batch] = gate
            asked = GatedCall(job.draws, job.costs, job.terms)
            arguments = task.payload.arguments(job.payload)
            draws, costs, terms = gate.joined(
                asked, job.task, task.payload.parameters, arguments, job.headers or {}, task.payload.fields
            )
            variant = "" if terms is None else terms.variant()
            job = replace(job, draws=draws, costs=costs, terms=terms, variant=variant)
        is_tied = tied.origin != Origin()
        return replace(job, id=tied.id, origin=tied.origin if is_tied else None)

    def _jobs_of(
        self, task: Task[Any, Any], parts: Sequence[CallGroup], queues: Mapping[str, str] = NO_QUEUES
    ) -> list[NewJob]:
        """Return the jobs of all parts; `queues` are those that they go to in place of their own."""
        jobs: list[NewJob] = []
        for part in parts:
            jobs += self._new_jobs(task, part, queues.get(part.queue, part.queue))
        return jobs

    def _new_jobs(self, task: Task[Any, Any], part: CallGroup, queue: str) -> list[NewJob]:
        now = self._storage.now()
        fields, delay, at = part.template
        asked_for = at if delay is None else now + delay
        delayed = asked_for is not None and asked_for > now
        run_at = asked_for if delayed and asked_for is not None else now
        instead_of = None if queue == part.queue else part.queue
        gate = self._registry.gate(task, queue, instead_of)
        gate_name = self._registry.gate_name(task.name, queue, instead_of)
        encode, on_skip = task.payload.encode, partial(self._skip, task.name)
        new_id, headers = self._ids.next, fields["headers"] or {}
        jobs: list[NewJob] = []
        for call in part.calls:
            payload, arguments = encode(call.args, call.kwargs)
            draws, costs, terms = gate.ask(arguments, headers, on_skip) if gate.limits else UNGATED
            jobs.append(
                NewJob(
                    id=new_id(now),
                    queue=queue,
                    payload=payload,
                    delayed=delayed,
                    run_at=run_at,
                    enqueued_at=now,
                    draws=draws,
                    costs=costs,
                    terms=terms,
                    variant="" if terms is None else terms.variant(),
                    give_up_at=None if terms is None or not terms.patience else run_at + terms.patience,
                    gate=gate_name,
                    **fields,
                )
            )
        return jobs

    def _skip(self, task: str, limit: str, reason: str) -> None:
        # Once for each task and limit: a thousand jobs without a key are one mistake.
        if (task, limit) not in self._skipped:
            self._skipped.add((task, limit))
            self._bus.publish(LimitSkipped(at=self._clock.now(), task=task, limit=limit, reason=reason))

    def _tell_rejected(self, jobs: Sequence[NewJob]) -> None:
        publish_dropped(self._bus, self._teller, self._clock, rejected(jobs))

    def _tell(self, jobs: Sequence[NewJob], others: Mapping[str, str]) -> None:
        self._historian.note_enqueued(jobs, others)
        if not self._bus.wants(JobEnqueued) and not self._bus.wants(JobReplaced):
            return
        at = self._clock.now()
        for job in jobs:
            id = others.get(job.id, job.id)
            kind = JobEnqueued if id == job.id else JobReplaced
            if kind is JobEnqueued or job.on_conflict == "replace":
                self._bus.publish(kind(at=at, job_id=id, task=job.task, queue=job.queue, run_at=job.run_at))


def standing_ids(jobs: Sequence[NewJob], others: Mapping[str, str]) -> list[str]:
    """The ids of the jobs that stand for these: their own, but where another was there already."""
    return [others.get(job.id, job.id) for job in jobs]
