"""Jobs whose limits would keep them waiting longer than they may: they are rejected before they wait at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headgate.jobs.job import Draw, JobState, NewJob
from headgate.limits.limit import AnyRule
from headgate.storage.admission import ask_of
from headgate.storage.endings import rejection_error
from headgate.storage.live_rules import LiveRules
from headgate.storage.prediction import predict
from headgate.storage.records import Dropped, QueuePosition
from headgate.storage.store import Store


async def reject_over_max_wait(storage: Store, rules: Mapping[str, AnyRule], jobs: Sequence[NewJob]) -> list[NewJob]:
    """The same jobs; those that could not start within their `max_wait` are to be stored as final at once."""
    live = LiveRules(await storage.settings())
    now = storage.now()
    limit_now = storage.limit_now()
    lanes: dict[tuple[str, tuple[Draw, ...], str], QueuePosition] = {}
    judged: list[NewJob] = []
    for job in jobs:
        if job.give_up_at is None or job.delayed or (job.origin is not None and job.origin.follows is not None):
            judged.append(job)
            continue
        lane = (job.queue, job.draws, job.variant)
        standing = lanes.get(lane) or await storage.outlook(*lane)
        standing = replace(standing, asks=ask_of(job.id, job.costs, job.terms))
        starts_at, waits_for = predict(standing, rules, live, limit_now)
        if starts_at is not None and starts_at - limit_now > job.give_up_at - now:
            error = rejection_error(waits_for, now + starts_at - limit_now, job.give_up_at - now)
            judged.append(replace(job, rejection=error))
        else:
            judged.append(job)
            lanes[lane] = replace(standing, place=(standing.place or 0) + 1, waiting=standing.waiting + 1)
    return judged


def rejected(jobs: Sequence[NewJob]) -> list[Dropped]:
    """Those of the jobs that are stored as final, as they are told of."""
    return [
        Dropped(job.id, job.task, job.queue, _rejected_as(job), job.rejection)
        for job in jobs
        if job.rejection is not None
    ]


def _rejected_as(job: NewJob) -> JobState:
    return JobState.FAILED if job.terms is None else job.terms.rejected_as
