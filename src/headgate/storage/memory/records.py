"""What the memory storage holds, as people look at it."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.jobs.gating import GatedJob
from headgate.jobs.job import Draw, JobRecord
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.job import RUNNING, SUCCEEDED, WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.protocol import BucketRecord, RecordedStart, Standing

FARTHEST_PLACE = 100_000


def job_record(job: Job[Lane], wall: int, now: int) -> JobRecord:
    """A job at that wall and limit time."""
    new = job.new
    throttled_until: int | None = None
    waits_for: Draw | None = None
    lane_waiting = 0
    if job.state is WAITING and not job.is_blocked:
        lane = job.lane
        lane_waiting = lane.waiting
        if lane.behind is not None and lane.behind.opens_at is not None and lane.behind.opens_at > now:
            opens_at = lane.behind.opens_at
            throttled_until = wall + (opens_at - now) if opens_at < NEVER else None
            waits_for = lane.behind.draw
    return JobRecord(
        new.id,
        new.task,
        new.queue,
        job.state,
        new.payload,
        new.priority,
        job.delayed,
        job.run_at,
        new.enqueued_at,
        job.expires_at,
        job.attempt,
        job.fence,
        job.lost,
        job.node,
        job.started_at,
        job.finished_at,
        job.cancel_requested,
        job.result,
        job.error,
        new.draws,
        new.headers,
        new.options,
        throttled_until,
        waits_for,
        lane_waiting,
        new.costs,
        new.terms,
        job.held,
        job.charged_at,
        job.uncharged,
        new.unique_key,
        new.origin,
        new.audit,
        job.progress,
        job.is_blocked,
    )


def bucket_record(lanes: Lanes, draw: Draw) -> BucketRecord:
    """A bucket, also one that was never seen. Of a dynamic window the state is the one that covers all keys."""
    bucket = lanes.buckets.get(draw)
    state = _dumped(bucket)
    if state is None:
        shared = lanes.buckets.get(Draw(draw.limit, FOR_ALL_KEYS))
        state = _dumped(shared) if is_shared(shared) else None
    if bucket is None:
        return BucketRecord(draw, state, 0, None)
    return BucketRecord(
        draw,
        state,
        sum(lane.waiting for waiters in bucket.waiters.values() for lane in waiters.line),
        bucket.opens_at,
        bucket.penalized_until,
        bucket.waiting_lanes,
    )


def is_shared(bucket: Bucket[Lane] | None) -> bool:
    """Whether it is where a dynamic window keeps the one state of all its keys."""
    return bucket is not None and bucket.draw.key == FOR_ALL_KEYS and bucket.rule.shares_state


def is_used(bucket: Bucket[Lane]) -> bool:
    """Whether there is anything to tell of it, but that jobs were added that draw on it."""
    return (bucket.state is not None and not is_shared(bucket)) or bucket.penalized_until > 0 or bool(bucket.waiters)


def _dumped(bucket: Bucket[Lane] | None) -> str | None:
    return None if bucket is None or bucket.state is None else bucket.rule.dump(bucket.state)


def standing(lanes: Lanes, job: Job[Lane]) -> Standing:
    """Where a waiting job stands."""
    lane = job.lane
    return Standing(
        _place(job),
        lane.waiting,
        lane.is_due,
        None if lane.behind is None else lane.behind.draw,
        [bucket_record(lanes, draw) for draw in lane.draws],
        job.ask,
    )


def outlook(lanes: Lanes, queue: str, draws: tuple[Draw, ...], variant: str) -> Standing:
    """Where a job would stand that was added to a lane now; nothing is made that is not there."""
    lane = lanes.find(queue, draws, variant)
    place = 1 if lane is None else lane.waiting + 1
    return Standing(
        place,
        place,
        False,
        None if lane is None or lane.behind is None else lane.behind.draw,
        [bucket_record(lanes, draw) for draw in draws],
    )


def recorded_starts(job: Job[Lane], limit: str, key: str | None) -> Iterator[RecordedStart]:
    """Its starts that were charged to a limit."""
    new = job.new
    starts = list(job.starts or ())
    if job.start is not None and job.state in (RUNNING, SUCCEEDED):
        starts.append(job.start)
    for index, draw in enumerate(new.draws):
        if draw.limit == limit and (key is None or draw.key == key):
            for start in starts:
                if not start.uncharged >> index & 1:
                    costs = new.costs if start.settled is None else start.settled
                    yield RecordedStart(draw.key, start.charged_at, 1 if costs is None else costs[index])


def _place(job: Job[Lane]) -> int | None:
    """1 is next; None beyond the farthest."""
    own = (-job.new.priority, job.run_at, job.seq)
    place = 1
    for other in job.lane.all_waiting():
        if (-other.new.priority, other.run_at, other.seq) < own:
            place += 1
            if place > FARTHEST_PLACE:
                return None
    return place


def gated_job(job: Job[Lane]) -> GatedJob:
    """A waiting job and its limits."""
    new = job.new
    return GatedJob(new.id, new.task, new.queue, new.payload, new.headers, new.draws, new.costs, new.terms, new.gate)
