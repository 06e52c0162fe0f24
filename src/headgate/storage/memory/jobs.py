"""All jobs of one store, and how they go from one state to the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from headgate.jobs.gating import Regated
from headgate.jobs.job import Attempt, Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Charge, Ending, Finished, Returned
from headgate.jobs.terms import bits, kept_permits, spread, without
from headgate.storage.endings import late_ending
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.holders import Holders
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.protocol import Dropped


class Jobs:
    """The jobs by id, and in the orders of id, of end and of deadline. `wall` and `now` are wall and limit time."""

    def __init__(self, lanes: Lanes) -> None:
        self.by_id: dict[str, Job[Lane]] = {}
        self.holders = Holders(lanes)
        self._lanes = lanes
        self._ids: list[str] = []
        self._ticks = 0
        self._finals: list[tuple[int, int, Job[Lane]]] = []
        self._deadlines: list[tuple[int, int, Job[Lane]]] = []
        self._deadlines_limit = 64

    def add(self, jobs: Sequence[NewJob], now: int) -> None:
        stored = self.by_id
        ids = self._ids
        lane: Lane | None = None
        for new in jobs:
            id = new.id
            if id in stored:
                continue
            if new.rejection is not None:
                # It waits nowhere.
                lane = self._lanes.lane(new.queue, ())
            elif lane is None or new.draws != lane.draws or new.queue != lane.queue or new.variant != lane.variant:
                lane = self._lanes.lane(new.queue, new.draws, new.variant)
            self._ticks += 1
            stored[id] = job = Job(new, self._ticks, lane)
            if ids and id < ids[-1]:
                insort(ids, id)
            else:
                ids.append(id)
            if new.expires_at is not None or new.give_up_at is not None:
                job.set_deadlines(new.expires_at, new.give_up_at)
            if new.rejection is not None:
                state = FAILED if new.terms is None else new.terms.rejected_as
                self.end(job, state, new.enqueued_at, now, new.rejection)
                continue
            lane.waiting += 1
            lane.tally.waiting += 1
            band = lane.first_band
            if band.priority == new.priority and not new.delayed and (new.run_at >= band.last_run_at or not band.fifo):
                band.fifo.append(job)
                band.last_run_at = new.run_at
            else:
                lane.place(job)
            if not lane.is_awake:
                self._lanes.arm(lane, job, now)
            if job.deadline is not None:
                self._watch_deadline(job)

    def newest_first(self, before: str | None) -> Iterator[Job[Lane]]:
        """By id, below `before`."""
        end = len(self._ids) if before is None else bisect_left(self._ids, before)
        for position in range(end - 1, -1, -1):
            job = self.by_id.get(self._ids[position])
            if job is not None:
                yield job

    def wait(self, job: Job[Lane], now: int) -> None:
        """Put a job that was running or final into the lane of what it asks for next."""
        job.state = WAITING
        job.node = None
        job.cancel_requested = False
        self._enter(job, now)
        if job.deadline is not None:
            self._watch_deadline(job)

    def _enter(self, job: Job[Lane], now: int) -> None:
        lane = job.lane
        lane.waiting += 1
        lane.tally.waiting += 1
        lane.place(job)
        if not lane.is_awake:
            self._lanes.arm(lane, job, now)

    def stop_waiting(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        """End a waiting job other than by a claim."""
        self._leave(job, now)
        self.end(job, state, wall, now, error)

    def _leave(self, job: Job[Lane], now: int) -> None:
        lane = job.lane
        behind = lane.behind if job.new.costs is not None else None
        lane.waiting -= 1
        lane.tally.waiting -= 1
        lane.stale += 1
        # Its entry must not look fresh again when the job is retried.
        job.version += 1
        if not lane.waiting:
            self._lanes.empty(lane)
        elif lane.wakes_at is not None and job.run_at <= lane.wakes_at:
            self._lanes.sleep(lane)
        if lane.stale > lane.waiting + 64:
            lane.drop_stale()
        if isinstance(behind, Bucket):
            # It may have been closed for this job's cost, and be open for what others ask.
            self._lanes.reopen(behind, now)

    def finish(self, node: Node, ending: Ending, wall: int, now: int) -> bool:
        """Whether the job still was this attempt of the node, and now is what the ending says."""
        job = self.by_id.get(ending.id)
        if job is None or job.state is not RUNNING or job.node != node.id or job.fence != ending.fence:
            return False
        del node.running[ending.id]
        if ending.charge is not None:
            self.settle(job, ending.charge)
        if isinstance(ending, Finished):
            state = ending.state
            if state is not SUCCEEDED:
                self.keep_attempt(job, state.value, ending.error, wall)
            job.result = ending.result
            lane = job.lane
            lane.running -= 1
            lane.tally.running -= 1
            self.end(job, state, wall, now, ending.error)
        else:
            self._hand_back(job, ending, wall, now)
        return True

    def wait_or_cancel(self, job: Job[Lane], wall: int, now: int, ready_at: int | None = None) -> bool:
        """Whether the job, which was running, waits again; False if its cancellation had been asked for."""
        self.stop_running(job)
        if job.cancel_requested:
            self.end(job, CANCELLED, wall, now, error=job.error)
            return False
        if job.new.terms is not None:
            self.holders.keep(job, WAITING, now)
            self.wait_elsewhere(job, wall if ready_at is None else ready_at)
        self.wait(job, now)
        return True

    def wait_elsewhere(self, job: Job[Lane], ready_at: int) -> None:
        """Choose the lane and the deadlines of a job that will wait again, ready at that wall time."""
        terms = job.new.terms
        patience = None if terms is None else terms.patience
        job.set_deadlines(job.expires_at, ready_at + patience if patience else None)
        job.lane = self._lanes.lane_of(job.new, job.passes)

    def stop_running(self, job: Job[Lane]) -> None:
        job.lane.running -= 1
        job.lane.tally.running -= 1

    def end(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        if job.held:
            self.holders.keep(job, state, now)
        job.state = state
        job.error = error
        job.finished_at = wall
        lane = job.lane
        job.lane = lane.open
        if state is SUCCEEDED:
            lane.tally.succeeded += 1
        else:
            lane.tally.count(state, 1)
        self._ticks += 1
        heappush(self._finals, (wall, self._ticks, job))

    def keep_attempt(self, job: Job[Lane], outcome: str, error: JobError | None, wall: int) -> None:
        if job.attempts is None:
            job.attempts = []
        job.attempts.append(Attempt(job.attempt, job.node, job.started_at or wall, wall, outcome, error))
        start = job.start
        if start is not None and job.new.draws:
            job.starts = [*(job.starts or ()), start]
        job.charged_at = job.settled = None

    def settle(self, job: Job[Lane], charge: Charge) -> None:
        """Write down what its start came to be charged."""
        job.charged_at = charge.at
        job.settled = None if charge.costs is None else tuple(spread(charge.costs, job.uncharged))

    def take_back(self, draw: Draw, now: int) -> None:
        """Take the permits of a bucket from jobs that do not run."""
        for job, given in self.holders.idle(draw):
            self.holders.give(job, given, now)
            if job.state is WAITING:
                # It asks for that permit again, so it waits elsewhere.
                self._leave(job, now)
                job.lane = self._lanes.lane_of(job.new, job.passes)
                self._enter(job, now)

    def oldest_first(self, after: str) -> Iterator[Job[Lane]]:
        """By id, above `after`."""
        for position in range(bisect_right(self._ids, after), len(self._ids)):
            job = self.by_id.get(self._ids[position])
            if job is not None:
                yield job

    def regate(self, change: Regated, now: int) -> bool:
        """Let a job that waits and asks what it did before ask for something else; whether it was so."""
        job = self.by_id.get(change.id)
        if job is None or job.state is not WAITING or job.new.draws != change.before:
            return False
        before, terms = job.new, change.terms
        held = kept_permits(job.id, before.draws, before.terms, job.held, change.draws, terms)
        gone = job.held & bits(draw not in held for draw in before.draws)
        if gone:
            self.holders.give(job, gone, now)
        self._leave(job, now)
        variant = "" if terms is None else terms.variant()
        job.become(replace(before, draws=change.draws, costs=change.costs, terms=terms, variant=variant))
        job.held = bits(draw in held for draw in change.draws)
        job.passed = 0 if terms is None or not job.passed else terms.free_retries
        job.lane = self._lanes.lane_of(job.new, job.passes)
        self._enter(job, now)
        return True

    def expire(self, wall: int, now: int, count: int) -> list[Dropped]:
        dropped: list[Dropped] = []
        while len(dropped) < count and self._deadlines and self._deadlines[0][0] <= wall:
            deadline, _, job = heappop(self._deadlines)
            if job.state is WAITING and job.deadline == deadline:
                new, behind = job.new, job.lane.behind
                state, error = late_ending(
                    wall, job.expires_at, job.give_up_at, new.terms, None if behind is None else behind.draw
                )
                self.stop_waiting(job, state, wall, now, error)
                dropped.append(Dropped(new.id, new.task, new.queue, state, error))
        return dropped

    def prune(self, finished_before: int, now: int, count: int) -> int:
        deleted = 0
        while deleted < count and self._finals and self._finals[0][0] < finished_before:
            finished_at, _, job = heappop(self._finals)
            if job.finished_at == finished_at and self.by_id.get(job.id) is job:
                # A permit that was kept for a job until it succeeds is not kept longer than the job.
                self.holders.keep(job, SUCCEEDED, now)
                del self.by_id[job.id]
                job.lane.tally.count(job.state, -1)
                deleted += 1
        if len(self._ids) > 2 * len(self.by_id) + 64:
            self._ids = [id for id in self._ids if id in self.by_id]
        return deleted

    def _hand_back(self, job: Job[Lane], ending: Returned, wall: int, now: int) -> None:
        self.keep_attempt(job, ending.outcome, ending.error, wall)
        terms = job.new.terms
        if not ending.spent:
            job.attempt -= 1
        elif terms is not None:
            job.passed = terms.free_retries
        if ending.run_at is not None:
            job.run_at = ending.run_at
            job.delayed = True
        if ending.error is not None:
            job.error = ending.error
        if ending.closed_for is not None:
            # Permits are no business of the callee's.
            for draw in without(job.new.draws, 0 if terms is None else terms.permits):
                self._lanes.bucket(draw).penalize(now + ending.closed_for)
        self.wait_or_cancel(job, wall, now, ending.run_at)

    def _watch_deadline(self, job: Job[Lane]) -> None:
        assert job.deadline is not None
        self._ticks += 1
        heappush(self._deadlines, (job.deadline, self._ticks, job))
        if len(self._deadlines) > self._deadlines_limit:
            # Jobs that ended long before their deadline must not be kept for it.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].state.is_final]
            heapify(self._deadlines)
            self._deadlines_limit = max(64, 2 * len(self._deadlines))
