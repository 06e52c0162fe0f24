"""Occurrences: the job, or the graph of jobs, that a schedule enqueues each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headgate.errors import USER_CODE_ERRORS
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import NewJob, Origin, truncated_error
from headgate.jobs.scheduled import ScheduledCall, ScheduledGraph
from headgate.jobs.terms import LimitTerms
from headgate.schedules.schedule import ready_at
from headgate.storage.records import ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.limit_set import UNGATED, ignore_skip
from headgate.tasks.registry import Registry


class Occurrence(NamedTuple):
    """The jobs that a schedule enqueues for one instant. The next one follows `id`; `last` is the last job."""

    id: str
    last: str
    jobs: Sequence[NewJob]
    batches: Sequence[NewBatch] = ()


def occurrence(
    record: ScheduleRecord,
    registry: Registry,
    new_id: Callable[..., str],
    *,
    occurs_at: int,
    now: int,
    follows: str | None = None,
) -> Occurrence:
    """Return the jobs of a schedule for one instant, with the current limits of their tasks.

    If a limit's key or cost cannot be computed from a payload, that job is stored as failed with that error: it must
    not run without the limit. `follows` is the job or batch that it runs after, if any.
    """
    ready = max(now, ready_at(record.name, record.rules, occurs_at))
    origin = Origin(follows=follows, on="final", schedule=record.name, occurs_at=occurs_at)
    graph = record.call.graph
    if graph is None:
        id = new_id(is_batch=False)
        job = _job(record, record.call, registry, id, origin, now=now, ready=ready)
        return Occurrence(id, id, [job])
    kinds = {step.id: False for step in graph.steps} | {batch.id: True for batch in graph.batches}
    ids = {number: new_id(is_batch=kinds[number]) for number in sorted(kinds, key=int)}
    ended = _ended_at_once(graph)
    jobs: list[NewJob] = []
    for step in graph.steps:
        is_first = step.origin.follows in ended and step.origin.on != "failure"
        place = replace(_with_ids(step.origin, ids), schedule=record.name, occurs_at=occurs_at)
        if is_first and follows is not None:
            place = replace(place, follows=follows, on="final")
        jobs.append(_job(record, step.call, registry, ids[step.id], place, now=now, ready=ready, is_first=is_first))
    batches = [
        NewBatch(
            ids[each.id], each.total, now, None if each.batch is None else ids[each.batch],
            tuple(ids[leader] for leader in each.leaders), schedule=record.name if each.id == graph.run else None,
            name=each.name,
        )
        for each in graph.batches
    ]  # fmt: skip
    return Occurrence(ids[graph.run], ids[graph.last], jobs, batches)


def _ended_at_once(graph: ScheduledGraph) -> set[str | None]:
    """Return what first jobs follow: nothing, or batches without a job in them and joins of these."""
    used = {step.origin.batch for step in graph.steps}
    for batch in reversed(graph.batches):  # each one is before those in it
        if batch.id in used:
            used.add(batch.batch)
    empty = {None, *(batch.id for batch in graph.batches if not batch.leaders and batch.id not in used)}
    return empty | {batch.id for batch in graph.batches if batch.leaders and empty.issuperset(batch.leaders)}


def _with_ids(origin: Origin, ids: Mapping[str, str]) -> Origin:
    results = origin.results and {
        name: [ids[each] for each in value] if isinstance(value, list) else ids[value]
        for name, value in origin.results.items()
    }
    follows = None if origin.follows is None else ids[origin.follows]
    return replace(origin, follows=follows, batch=None if origin.batch is None else ids[origin.batch], results=results)


def _job(
    record: ScheduleRecord,
    call: ScheduledCall,
    registry: Registry,
    id: str,
    origin: Origin,
    *,
    now: int,
    ready: int,
    is_first: bool = True,
) -> NewJob:
    task = registry.find(call.task)
    assert task is not None, f"schedule {record.name!r} is of a task that was not requested"
    # First the name, as in `Enqueuer`.
    limit_set_name = registry.limit_set_name(call.task, call.queue)
    limit_set = registry.limit_set(task, call.queue)
    buckets, costs, terms = UNGATED
    rejection = None
    if limit_set.limits:
        try:
            payload = task.payload
            arguments = (
                payload.decode_part(call.payload, origin.results) if origin.results else payload.arguments(call.payload)
            )
            # A limit that is skipped was published when the schedule was declared.
            buckets, costs, terms = limit_set.ask(arguments, call.headers or {}, ignore_skip)
        except USER_CODE_ERRORS as error:  # including errors of the task's own key or cost
            rejection = truncated_error(error)
    run_at = ready if is_first else now
    ends = [record.rules.until if is_first else None, None if call.expires_in is None else ready + call.expires_in]
    if record.call.graph is None:
        terms = (terms or LimitTerms()).skipping()
    return NewJob(
        id=id,
        task=call.task,
        queue=call.queue,
        payload=call.payload,
        priority=call.priority,
        delayed=run_at > now,
        run_at=run_at,
        enqueued_at=now,
        aging=registry.aging(call.queue),
        expires_at=min((at for at in ends if at is not None), default=None),
        buckets=buckets,
        costs=costs,
        headers=call.headers,
        options=call.options,
        terms=terms if rejection is None else None,
        wait_mode="" if terms is None else terms.wait_mode(),
        give_up_at=None if terms is None or not terms.patience else run_at + terms.patience,
        rejection=rejection,
        origin=origin,
        audit=call.audit,
        limit_set=limit_set_name,
    )


async def last_job_of(storage: Store, record: ScheduleRecord) -> str | None:
    """Return the job or batch that the next one of a schedule has to follow; None if there is none or it is final."""
    if record.last_job is None or not record.course.open:
        return None
    batch = await storage.batch(record.last_job)
    if batch is not None:
        return batch.id if batch.pending else None
    job = await storage.job(record.last_job)
    return None if job is None or job.state.is_final else job.id
