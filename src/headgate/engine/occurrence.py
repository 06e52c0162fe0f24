"""Occurrences: the job that a schedule enqueues each time."""

from __future__ import annotations

from headgate.engine.error_text import USER_CODE_ERRORS
from headgate.jobs.job import NewJob, Origin, truncated_error
from headgate.jobs.terms import GateTerms
from headgate.schedules.schedule import ready_at
from headgate.storage.schedules import ScheduleRecord
from headgate.storage.store import Store
from headgate.tasks.gate import UNGATED
from headgate.tasks.registry import Registry


def occurrence(
    record: ScheduleRecord, registry: Registry, *, id: str, occurs_at: int, now: int, follows: str | None = None
) -> NewJob:
    """Return the job of a schedule for one instant, with the current limits of its task.

    If a limit's key or cost cannot be computed from the payload, the job is stored as failed with that error: it must
    not run without the limit. `follows` is the job that it runs after, if any.
    """
    call, rules = record.call, record.rules
    task = registry.find(call.task)
    assert task is not None, f"schedule {record.name!r} is of a task that was not requested"
    gate = registry.gate(task, call.queue)
    draws, costs, terms = UNGATED
    rejection = None
    if gate.limits:
        try:
            draws, costs, terms = gate.ask(task.payload.arguments(call.payload), call.headers or {}, _ignore_skip)
        except USER_CODE_ERRORS as error:  # including errors of the task's own key or cost
            rejection = truncated_error(error)
    run_at = max(now, ready_at(record.name, rules, occurs_at))
    ends = [rules.until, None if call.expires_in is None else run_at + call.expires_in]
    skipping = (terms or GateTerms()).skipping()
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
        draws=draws,
        costs=costs,
        headers=call.headers,
        options=call.options,
        terms=skipping if rejection is None else None,
        variant=skipping.variant(),
        give_up_at=run_at + skipping.patience if skipping.patience else None,
        rejection=rejection,
        origin=Origin(follows=follows, on="final", schedule=record.name, occurs_at=occurs_at),
        audit=call.audit,
        gate=registry.gate_name(call.task, call.queue),
    )


async def last_job_of(storage: Store, record: ScheduleRecord) -> str | None:
    """Return the job that the next one of a schedule has to follow; None if there is none or it is final."""
    if record.last_job is None or not record.course.open:
        return None
    job = await storage.job(record.last_job)
    return None if job is None or job.state.is_final else job.id


def _ignore_skip(limit: str, reason: str) -> None:
    """Do nothing: the skipped limit was published when the schedule was declared."""
