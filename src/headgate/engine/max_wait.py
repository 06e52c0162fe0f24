"""Rejects new jobs whose predicted wait for their limits exceeds `max_wait`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headgate.jobs.job import Draw, JobState, NewJob
from headgate.limits.limit import AnyRule
from headgate.storage.admission import demand_of
from headgate.storage.endings import rejection_error
from headgate.storage.live_rules import LiveRules
from headgate.storage.prediction import predict
from headgate.storage.records import Dropped, QueuePosition
from headgate.storage.store import Store


async def reject_over_max_wait(storage: Store, rules: Mapping[str, AnyRule], jobs: Sequence[NewJob]) -> list[NewJob]:
    """Return the jobs; those that cannot start within their `max_wait` carry a rejection and are stored as final."""
    live = LiveRules(await storage.settings())
    now = storage.now()
    limit_now = storage.limit_now()
    lanes: dict[tuple[str, tuple[Draw, ...], str], QueuePosition] = {}
    checked: list[NewJob] = []
    for job in jobs:
        if job.give_up_at is None or job.delayed or (job.origin is not None and job.origin.follows is not None):
            checked.append(job)
            continue
        lane = (job.queue, job.draws, job.variant)
        position = lanes.get(lane) or await storage.prediction_input(*lane)
        position = replace(position, demands=demand_of(job.id, job.costs, job.terms))
        starts_at, waits_for = predict(position, rules, live, limit_now)
        if starts_at is not None and starts_at - limit_now > job.give_up_at - now:
            error = rejection_error(waits_for, now + starts_at - limit_now, job.give_up_at - now)
            checked.append(replace(job, rejection=error))
        else:
            checked.append(job)
            lanes[lane] = replace(position, position=(position.position or 0) + 1, waiting=position.waiting + 1)
    return checked


def rejected(jobs: Sequence[NewJob]) -> list[Dropped]:
    """Return the rejected ones among the jobs, in the form that is published."""
    return [
        Dropped(job.id, job.task, job.queue, _rejected_as(job), job.rejection)
        for job in jobs
        if job.rejection is not None
    ]


def _rejected_as(job: NewJob) -> JobState:
    return JobState.FAILED if job.terms is None else job.terms.rejected_as
