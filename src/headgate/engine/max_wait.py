"""Rejects new jobs whose predicted wait for their limits exceeds `max_wait`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headgate.jobs.job import MAX_PRIORITY, BucketRef, JobState, NewJob
from headgate.jobs.terms import CLAIM_TIME
from headgate.limits.limit import AnyRule
from headgate.storage.admission import call_of, demand_of
from headgate.storage.endings import rejection_error
from headgate.storage.live_rules import LiveRules
from headgate.storage.prediction import predict
from headgate.storage.records import Dropped, QueuePosition
from headgate.storage.store import Store


class LateStart(NamedTuple):
    """The predicted start of a job that may not wait so long: in wall time, None if unknown; and for which bucket."""

    starts_at: int | None
    waits_for: BucketRef | None


async def reject_over_max_wait(storage: Store, rules: Mapping[str, AnyRule], jobs: Sequence[NewJob]) -> list[NewJob]:
    """Return the jobs; those that cannot start within their `max_wait` carry a rejection and are stored as final."""
    # A job that may not wait at all is rejected by its claim, which decides exactly.
    late = await late_starts(storage, rules, jobs, lambda job: job.give_up_at is not None)
    return [
        job if start is None else replace(job, rejection=rejection_error(start.waits_for, start.starts_at, job.terms))
        for job, start in zip(jobs, late, strict=True)
    ]


async def late_starts(
    storage: Store, rules: Mapping[str, AnyRule], jobs: Sequence[NewJob], is_checked: Callable[[NewJob], bool]
) -> list[LateStart | None]:
    """Return the predicted starts of new jobs that cannot start as soon as their limits demand, else None.

    Of jobs that are ready and follow no other job, those that `is_checked` selects. If a start cannot be predicted
    (a permit is held, a limit is paused), only a job that may not wait at all is late; for a rule that raises, none is.
    """
    live = LiveRules(await storage.settings())
    now = storage.now()
    limit_now = storage.limit_now()
    positions: dict[tuple[str, tuple[BucketRef, ...], str, int, int | None], QueuePosition] = {}
    added = Counter[tuple[str, tuple[BucketRef, ...], str, int]]()
    late: list[LateStart | None] = []
    for job in jobs:
        late.append(None)
        if job.delayed or (job.origin is not None and job.origin.follows is not None) or not is_checked(job):
            continue
        lane = (job.queue, job.buckets, job.wait_mode)
        at = (*lane, job.priority, job.aging)
        position = positions[at] = positions.get(at) or await storage.prediction_input(*at)
        before = sum(added[*lane, priority] for priority in range(job.priority, MAX_PRIORITY + 1))
        place, demand = position.position and position.position + before, demand_of(job.id, job.costs, job.terms)
        position = replace(position, position=place, demand=demand, call=call_of(job.terms))
        starts_at, waits_for, _, is_flawed = predict(position, rules, live, limit_now)
        if starts_at is None:
            is_late = job.give_up_at is None
        else:
            # Its limits have to open by then. They may do so at that very moment: it gives up only after a claim.
            is_late = starts_at - limit_now > (0 if job.give_up_at is None else job.give_up_at - CLAIM_TIME - now)
        if is_late and not is_flawed:
            late[-1] = LateStart(None if starts_at is None else now + starts_at - limit_now, waits_for)
        else:
            added[*lane, job.priority] += 1
    return late


def rejected(jobs: Sequence[NewJob]) -> list[Dropped]:
    """Return the rejected ones among the jobs, in the form that is published."""
    dropped: list[Dropped] = []
    for job in jobs:
        if job.rejection is not None:
            state = JobState.FAILED if job.terms is None else job.terms.rejected_as()
            dropped.append(Dropped(job.id, job.task, job.queue, state, job.rejection))
    return dropped
