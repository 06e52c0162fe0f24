"""What the memory storage counts, against what it holds, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.jobs.job import JobState
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.job import RUNNING, WAITING
from headgate.storage.memory.jobs import Jobs
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node


def contradictions(jobs: Jobs, lanes: Lanes, nodes: Mapping[str, Node]) -> Iterator[str]:
    """One sentence for each thing that does not agree with another one; none in a sound store."""
    found: dict[str, dict[JobState, int]] = {name: dict.fromkeys(JobState, 0) for name in lanes.queues}
    waiting: dict[Lane, int] = {}
    running: dict[Lane, int] = {}
    for job in jobs.by_id.values():
        found[job.new.queue][job.state] += 1
        if not job.state.is_final:
            lane = job.lane
            if lanes.queues[job.new.queue].lanes.get(job.new.draws) is not lane:
                yield f"job {job.id} is {job.state}, and its lane is gone"
                continue
            counts = waiting if job.state is WAITING else running
            counts[lane] = counts.get(lane, 0) + 1
        if job.state is RUNNING:
            node = None if job.node is None else nodes.get(job.node)
            if node is None or node.running.get(job.id) is not job:
                yield f"job {job.id} is running, and no node owns it"
        if job.state.is_final != (job.finished_at is not None):
            yield f"job {job.id} is {job.state}, and finished_at is {job.finished_at}"
    for node in nodes.values():
        for id, job in node.running.items():
            if job.state is not RUNNING or job.node != node.id:
                yield f"node {node.id} owns job {id}, which is {job.state} on {job.node}"
    for queue in lanes.queues.values():
        for state, count in found[queue.name].items():
            if count != queue.tally.number(state):
                yield f"queue {queue.name} counts {queue.tally.number(state)} {state} jobs and has {count}"
        for lane in queue.lanes.values():
            yield from _lane_contradictions(lanes, lane, waiting.get(lane, 0), running.get(lane, 0))
    for bucket in lanes.buckets.values():
        yield from _bucket_contradictions(bucket)


def _lane_contradictions(lanes: Lanes, lane: Lane, waiting: int, running: int) -> Iterator[str]:
    if lane.waiting != waiting:
        yield f"{lane} counts {lane.waiting} waiting jobs and has {waiting}"
    if lane.waiting != lane.held():
        yield f"{lane} counts {lane.waiting} waiting jobs and holds {lane.held()} in order"
    if lane.running != running:
        yield f"{lane} counts {lane.running} running jobs and has {running}"
    if lane.is_open:
        return
    for bucket in lane.own_buckets:
        if lanes.buckets.get(bucket.draw) is not bucket:
            yield f"{lane} draws on a bucket {bucket.draw} that was forgotten"
    if lane.behind is not None:
        assert isinstance(lane.behind, Bucket)
        waiters = lane.behind.waiters.get(lane.group.opening)
        is_listed = waiters is not None and lane in waiters.line
    elif lane.is_awake:
        is_listed = lane in lane.group.due
    elif lane.wakes_at is not None:
        is_listed = lane in lane.group.asleep
    else:
        is_listed = True
        if lane.has_fresh():
            yield f"{lane} has jobs, and nothing will look at them"
    if not is_listed:
        yield f"{lane} is in none of the lines that a claim looks at"
    if lane.wakes_at is not None and lane.wakes_at != lane.earliest():
        yield f"{lane} sleeps until {lane.wakes_at}; its earliest job is at {lane.earliest()}"


def _bucket_contradictions(bucket: Bucket[Lane]) -> Iterator[str]:
    if (bucket.opens_at is not None) != bool(bucket.waiters):
        yield f"bucket {bucket.draw} opens at {bucket.opens_at}, with {len(bucket.waiters)} wait lists"
    for opening, waiters in bucket.waiters.items():
        lanes = list(waiters.line)
        if len(lanes) != waiters.count or not lanes:
            yield f"bucket {bucket.draw} counts {waiters.count} lanes behind it and has {len(lanes)}"
        if any(lane.behind is not bucket for lane in lanes):
            yield f"bucket {bucket.draw} lists a lane that is not behind it"
        if waiters.opens_at != bucket.opens_at or waiters not in opening:
            yield f"bucket {bucket.draw} opens at {bucket.opens_at}, and no timer says so"
