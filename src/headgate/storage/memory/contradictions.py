"""What the memory storage counts, against what it holds, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headgate.jobs.job import Draw, JobState
from headgate.jobs.uniqueness import key_of
from headgate.limits.concurrency import batches_of
from headgate.limits.rule import NEVER
from headgate.storage.live_rules import LiveRules
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.job import RUNNING, WAITING, Job
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
        if job.is_blocked:
            yield from _blocked_contradictions(jobs, job)
        elif not job.state.is_final:
            lane = job.lane
            if lanes.queues[job.new.queue].lanes.get((lane.draws, lane.variant)) is not lane:
                yield f"job {job.id} is {job.state}, and its lane is gone"
                continue
            if job.state is WAITING and lanes.lane_of(job.new, job.passes) is not lane:
                yield f"job {job.id} waits in {lane}, which is not for what it asks"
            counts = waiting if job.state is WAITING else running
            counts[lane] = counts.get(lane, 0) + 1
        if job.state is RUNNING:
            node = None if job.node is None else nodes.get(job.node)
            if node is None or node.running.get(job.id) is not job:
                yield f"job {job.id} is running, and no node owns it"
        key = key_of(job.new)
        if key is not None and job.state.is_final is any(job is each for each in jobs.under_key.get(key, ())):
            yield f"job {job.id} is {job.state}, and is among those that stand under {key}, or the other way round"
        if bool(job.held) != (jobs.holders.jobs.get(job.id) is job):
            yield f"job {job.id} holds {job.held:b}, and is not among those that hold permits, or the other way round"
        if job.state.is_final != (job.finished_at is not None):
            yield f"job {job.id} is {job.state}, and finished_at is {job.finished_at}"
    yield from jobs.schedules.contradictions(jobs.by_id.values())
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
    for key, standing in jobs.under_key.items():
        if sum(job.state is WAITING for job in standing) > 1:
            yield f"{[job.id for job in standing]} wait under {key}"
    yield from _batch_contradictions(jobs, lanes.buckets.values())
    users = _users(lanes)
    holds = _holds(jobs)
    for bucket in lanes.buckets.values():
        if bucket.users != users.get(bucket, 0):
            yield f"bucket {bucket.draw} counts {bucket.users} users and has {users.get(bucket, 0)}"
        yield from _bucket_contradictions(bucket)
        yield from _permit_contradictions(bucket, holds.pop(bucket.draw, {}), lanes.settings.live)
    for draw, holders in holds.items():
        yield f"{holders} hold permits of a bucket {draw} that was forgotten"


def _lane_contradictions(lanes: Lanes, lane: Lane, waiting: int, running: int) -> Iterator[str]:
    if lane.waiting != waiting:
        yield f"{lane} counts {lane.waiting} waiting jobs and has {waiting}"
    held = sum(1 for _ in lane.all_waiting())
    if lane.waiting != held:
        yield f"{lane} counts {lane.waiting} waiting jobs and holds {held} in order"
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


def _blocked_contradictions(jobs: Jobs, job: Job[Lane]) -> Iterator[str]:
    leader = job.leader
    if job.state is not WAITING or leader is None or job not in jobs.following.blocked_by(leader):
        yield f"job {job.id} is blocked, and is {job.state} or nobody's follower"
        return
    other, batch = jobs.by_id.get(leader), jobs.following.batches.get(leader)
    if (other is None or other.state.is_final) and (batch is None or not batch.pending):
        yield f"job {job.id} is blocked, and {leader}, which it follows, is final"


def _batch_contradictions(jobs: Jobs, buckets: Iterable[Bucket[Lane]]) -> Iterator[str]:
    pending: dict[str, int] = {}
    for job in jobs.by_id.values():
        if job.batch is not None:
            pending[job.batch] = pending.get(job.batch, 0) + (not job.state.is_final)
    for bucket in buckets:
        for id in batches_of(bucket.permits):
            holder = jobs.following.batches.get(id)
            if holder is None or not holder.pending:
                yield f"bucket {bucket.draw} is held by batch {id}, which is final"
    for batch in jobs.following.batches.values():
        found = pending.get(batch.id, 0)
        if batch.pending != found:
            yield f"batch {batch.id} counts {batch.pending} pending jobs and has {found}"
    if jobs.following.ended:
        yield f"{len(jobs.following.ended)} jobs have ended, and their followers were not told"


def _users(lanes: Lanes) -> dict[Bucket[Lane], int]:
    """How many lanes draw on each bucket, and for how many other buckets it keeps the state."""
    drawn = [bucket for queue in lanes.queues.values() for lane in queue.lanes.values() for bucket in lane.own_buckets]
    homes = [bucket.home for bucket in lanes.buckets.values() if bucket.home is not bucket]
    users: dict[Bucket[Lane], int] = {}
    for bucket in (*drawn, *homes):
        users[bucket] = users.get(bucket, 0) + 1
    return users


def _holds(jobs: Jobs) -> dict[Draw, dict[str, int]]:
    """By bucket, who holds its permits and by how many jobs, as the jobs have it."""
    holds: dict[Draw, dict[str, int]] = {}
    for job in jobs.by_id.values():
        terms = job.new.terms
        for index, draw in enumerate(job.new.draws):
            holding = None if terms is None or not job.held >> index & 1 else terms.holds[index]
            if holding is not None:
                holders = holds.setdefault(draw, {})
                name = holding.holder(job.id)
                holders[name] = holders.get(name, 0) + 1
    return holds


def _permit_contradictions(bucket: Bucket[Lane], holders: dict[str, int], rules: LiveRules) -> Iterator[str]:
    permits = bucket.permits
    # A batch keeps its permit when none of its jobs uses it.
    uses = {holder: hold.uses for holder, hold in permits.holders.items() if hold.uses}
    if uses != holders:
        yield f"bucket {bucket.draw} is held by {uses}, and jobs hold {holders}"
    if permits.held != sum(hold.cost for hold in permits.holders.values()):
        yield f"bucket {bucket.draw} counts {permits.held} permits and gave {permits.holders}"
    if bucket.opens_at == NEVER and not permits.holders and not rules.is_paused(bucket.draw):
        yield f"bucket {bucket.draw} opens when a permit comes back, and nobody holds one"


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
