"""One firing of a schedule, as the job that it enqueues."""

from __future__ import annotations

from headgate.engine.described import OWN_ERRORS
from headgate.jobs.job import NewJob, Origin, truncated_error
from headgate.jobs.terms import GateTerms
from headgate.storage.schedules import ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.gate import UNGATED
from headgate.tasks.registry import Registry


def occurrence(
    record: ScheduleRecord, registry: Registry, *, id: str, occurs_at: int, now: int, follows: str | None = None
) -> NewJob:
    """The job of a schedule for one instant, with the limits that its task has now; it follows another one, or none.

    If these cannot be told from its payload any more, the job has failed with that error instead of passing them by.
    """
    call, rules = record.call, record.rules
    task = registry.find(call.task)
    assert task is not None, f"schedule {record.name!r} is of a task that was not asked for"
    gate = registry.gate(task, call.queue)
    draws, costs, terms = UNGATED
    rejection = None
    if gate.limits:
        try:
            draws, costs, terms = gate.ask(task.payload.arguments(call.payload), call.headers or {}, _not_told)
        except OWN_ERRORS as error:  # and whatever the task's own key or cost raises
            rejection = truncated_error(error)
    skipping = (terms or GateTerms()).skipping()
    return NewJob(
        id=id,
        task=call.task,
        queue=call.queue,
        payload=call.payload,
        priority=call.priority,
        delayed=False,
        run_at=now,
        enqueued_at=now,
        expires_at=rules.until,
        draws=draws,
        costs=costs,
        headers=call.headers,
        options=call.options,
        terms=skipping if rejection is None else None,
        variant=skipping.variant(),
        give_up_at=now + skipping.patience if skipping.patience else None,
        rejection=rejection,
        origin=Origin(follows=follows, on="any", schedule=record.name, occurs_at=occurs_at),
        audit=call.audit,
        gate=registry.gate_name(call.task, call.queue),
    )


async def last_job_of(storage: Store, record: ScheduleRecord) -> str | None:
    """The job that the next one has to wait for, if the jobs of a schedule queue up; None if it is over."""
    if record.last_job is None or not record.course.open:
        return None
    job = await storage.job(record.last_job)
    return None if job is None or job.state.is_final else job.id


def _not_told(limit: str, reason: str) -> None:
    """Whoever declared the schedule was told already."""
