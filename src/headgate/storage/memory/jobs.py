"""All jobs of one store, and how they go from one state to the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

from msgspec.structs import replace as msgspec_replace

from headgate.jobs.batch import NewBatch
from headgate.jobs.draw_set import NO_DRAWS, difference, draws_where, spread, without
from headgate.jobs.gating import Regated
from headgate.jobs.job import Attempt, Draw, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Charge, Ending, Finished, Returned
from headgate.jobs.replacing import Waited, replacement
from headgate.jobs.rescheduling import new_time
from headgate.jobs.terms import kept_permits
from headgate.jobs.uniqueness import Key, key_of, key_taken, superseded_error
from headgate.storage.endings import EndedHere, late_ending
from headgate.storage.following import (
    LEADER_NOT_SUCCEEDED,
    BatchCount,
    Cause,
    Ended,
    Place,
    batch_counts,
    is_let_go,
    leader_error,
    leaders_of,
    new_batch_counts,
    not_retried,
    places,
    went_wrong,
)
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.following import Batch, Following
from headgate.storage.memory.history import History
from headgate.storage.memory.holders import Holders
from headgate.storage.memory.job import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes
from headgate.storage.memory.node import Node
from headgate.storage.memory.schedules import Schedules
from headgate.storage.permits import draws_of_batch
from headgate.storage.protocol import Dropped


class Jobs:
    """The jobs by id, and in the orders of id, of end and of deadline. `wall` and `now` are wall and limit time."""

    def __init__(self, lanes: Lanes, history: History) -> None:
        self.by_id: dict[str, Job[Lane]] = {}
        self.holders = Holders(lanes)
        self.schedules = Schedules()
        # The jobs that are not final, by their unique keys.
        self.under_key: dict[Key, list[Job[Lane]]] = {}
        self.following = Following()
        self._lanes = lanes
        self._history = history
        self._ids: list[str] = []
        self._ticks = 0
        self._finals: dict[JobState, list[tuple[int, int, Job[Lane]]]] = {SUCCEEDED: [], FAILED: [], CANCELLED: []}
        self._deadlines: list[tuple[int, int, Job[Lane]]] = []
        self._deadlines_limit = 64

    def add(self, jobs: Sequence[NewJob], now: int, batches: Sequence[NewBatch] = (), wall: int = 0) -> None:
        stored = self.by_id
        ids = self._ids
        lane: Lane | None = None
        placed = self._placed(jobs, batches, wall)
        for new in jobs:
            id = new.id
            if id in stored:
                continue
            place = None if placed is None or new.origin is None else placed[id]
            if new.rejection is not None or (place is not None and not place.enters_lane):
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
            if job.leader is not None:
                self.following.follow(job, job.leader)
            if place is not None and place.is_blocked:
                self._block(job)
                continue
            if place is not None and place.error is not None:
                self._end_unheard(job, place.state, new.enqueued_at, now, place.error)
                self._history.note_unrun(new, place.state, new.enqueued_at)
                continue
            if new.rejection is not None:
                state = FAILED if new.terms is None else new.terms.rejected_as
                self._end_unheard(job, state, new.enqueued_at, now, new.rejection)
                self._history.note_unrun(new, state, new.enqueued_at)
                continue
            if new.unique_key is not None:
                self.stand(job)
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

    def _placed(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch], wall: int) -> dict[str, Place] | None:
        """Where those go that belong to something, once their batches are stored; None if none does."""
        if not batches and all(job.origin is None for job in jobs):
            return None
        new = [job for job in jobs if job.id not in self.by_id]
        batches = [batch for batch in batches if batch.id not in self.following.batches]
        ends = {id: end for id in leaders_of(new) if (end := self._end_of(id)) != "unknown"}
        placed = places(new, batches, ends, {id: self._cause_of(id) for id in went_wrong(ends)})
        for batch, count in zip(batches, new_batch_counts(batches, new, placed), strict=True):
            stored = self.following.batches[batch.id] = Batch(batch)
            stored.count(count, wall)
        for job in new:
            if job.terms is not None and job.terms.of_batch and job.origin is not None and job.origin.batch is not None:
                self.following.batches[job.origin.batch].draws = tuple(draws_of_batch(job.draws, job.terms))
        return placed

    def _end_of(self, leader: str) -> JobState | Literal["unknown"] | None:
        """How a leader ended; None if it has not."""
        job = self.by_id.get(leader)
        if job is not None:
            return job.state if job.state.is_final else None
        batch = self.following.batches.get(leader)
        return "unknown" if batch is None else batch.ended_as

    def _cause_of(self, leader: str) -> Cause:
        """Why a leader did not succeed."""
        job = self.by_id.get(leader)
        if job is not None:
            return Cause(leader, job.error)
        # Only who follows a batch that went wrong comes here.
        wrong = [
            (other.error is not None and other.error.type == LEADER_NOT_SUCCEEDED, other.id, other.error)
            for other in self.by_id.values()
            if other.batch == leader and other.state in (FAILED, CANCELLED)
        ]
        error = min(wrong, key=lambda each: each[:2])[2] if wrong else None
        return Cause(leader, error, is_batch=True)

    def _block(self, job: Job[Lane]) -> None:
        """It waits for what it follows, in no lane. How long its limits may make it wait counts from its release."""
        job.state = WAITING
        job.is_blocked = True
        job.node = None
        job.cancel_requested = False
        job.lane = job.lane.open
        job.lane.tally.waiting += 1
        if job.new.unique_key is not None:
            self.stand(job)
        job.set_deadlines(job.expires_at, None)
        if job.deadline is not None:
            self._watch_deadline(job)

    def _release(self, job: Job[Lane], wall: int, now: int) -> None:
        """It is ready now, or at the time that was asked for it."""
        job.is_blocked = False
        job.lane.tally.waiting -= 1
        job.delayed = job.delayed and job.run_at > wall
        job.run_at = max(job.run_at, wall)
        self.wait_elsewhere(job, job.run_at)
        self.wait(job, now)

    def tell_followers(self, wall: int, now: int) -> bool:
        """Let go or cancel those who follow what has become final; whether there was anything to tell."""
        following = self.following
        if not following.ended:
            return False
        while following.ended:
            ended, following.ended = following.ended, []
            leaders = {job.id: job.state for job in ended}
            for count in batch_counts([Ended(job.id, job.state, True, job.batch) for job in ended]):
                batch = following.batches.get(count.id)
                if batch is not None:
                    batch.count(count, wall)
                    if batch.ended_as is not None:
                        leaders[batch.id] = batch.ended_as
                        self.holders.give_up(batch.id, batch.draws, now)
            for leader, state in leaders.items():
                error: JobError | None = None
                for job in following.blocked_by(leader):
                    origin = job.new.origin
                    if origin is not None and is_let_go(origin.on, state):
                        self._release(job, wall, now)
                    else:
                        error = error or leader_error(leader, state, self._cause_of(leader))
                        self.stop_waiting(job, CANCELLED, wall, now, error)
        return True

    def require_place(self, job: Job[Lane]) -> None:
        """Raise IllegalTransition if another one waits where this one, which does not, would wait."""
        rival = self.rival(job)
        if rival is not None:
            raise key_taken(job.id, rival.id)

    def retry(self, job: Job[Lane], wall: int, now: int) -> None:
        """Let a final job that has a place to wait do so again, and whoever was cancelled because of it."""
        self._come_back(job, wall)
        leader = None if job.leader is None else self._end_of(job.leader)
        job.expires_at = None
        if job.error is not None and job.error.type == LEADER_NOT_SUCCEEDED:
            job.error = None
        if job.leader is not None and leader is None:
            if job.held:
                self.holders.give(job, job.held, now)
            self._block(job)
        else:
            self.wait_elsewhere(job, wall)
            self.wait(job, now)

    def require_leader(self, job: Job[Lane]) -> None:
        """Raise LeaderNotRetried if what the job follows is final, and not as the job needs it."""
        origin = job.new.origin
        if origin is None or origin.follows is None:
            return
        ended = self._end_of(origin.follows)
        if ended is not None and ended != "unknown" and not is_let_go(origin.on, ended):
            raise not_retried(job.id, origin.follows, ended, self._cause_of(origin.follows))

    def _come_back(self, job: Job[Lane], wall: int) -> None:
        """What is final no more: the job, its batch, and those who were cancelled because of either."""
        back = [job]
        while back:
            each = back.pop()
            each.lane.tally.count(each.state, -1)
            before = each.state
            each.attempt = each.lost = 0
            each.passed = NO_DRAWS
            each.finished_at = each.result = None
            leaders = [each.id]
            batch = None if each.batch is None else self.following.batches.get(each.batch)
            if batch is not None:
                if batch.ended_as is not None:
                    leaders.append(batch.id)
                batch.count(BatchCount(batch.id, 0, -(before is FAILED), -(before is CANCELLED)), wall)
            for leader in leaders:
                # Another one may wait under its key by now; then it stays cancelled.
                back += [other for other in self.following.cancelled_by(leader) if self.rival(other) is None]
            if each is not job:
                each.error = None
                self._block(each)

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
        job.cancel_requested = False
        if job.new.unique_key is not None:
            self.stand(job)
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

    def be_ready(self, job: Job[Lane], wall: int, now: int) -> None:
        """Let a job that waits for its time be ready at that one."""
        self._leave(job, now)
        job.run_at = wall
        job.delayed = False
        self.wait_elsewhere(job, wall)
        self._enter(job, now)
        if job.deadline is not None:
            self._watch_deadline(job)

    def reschedule(self, job: Job[Lane], wanted: int | None, priority: int | None, wall: int, now: int) -> None:
        """Give a waiting job another time or priority, in its lane."""
        time = new_time(job.run_at, wanted, wall, delayed=job.delayed)
        job.run_at, job.delayed = time.run_at, time.delayed
        if priority is not None:
            job.become(msgspec_replace(job.new, priority=priority))
        if job.is_blocked:
            return
        job.fence += 1
        patience = None if job.new.terms is None else job.new.terms.patience
        if time.has_changed and patience:
            job.set_deadlines(job.expires_at, time.run_at + patience)
        self._stay(job, job.lane.behind if job.new.costs is not None else None, now)
        if job.deadline is not None:
            self._watch_deadline(job)

    def waits_under(self, key: Key) -> Job[Lane] | None:
        """The job that waits under a unique key."""
        return next((job for job in self.under_key.get(key, ()) if job.state is WAITING), None)

    def rival(self, job: Job[Lane]) -> Job[Lane] | None:
        """The job that waits where this one, which does not, would wait."""
        key = key_of(job.new)
        return None if key is None else self.waits_under(key)

    def stand(self, job: Job[Lane]) -> None:
        """It stands under its unique key; one that waits again did before."""
        key = key_of(job.new)
        if key is not None and job not in self.under_key.setdefault(key, []):
            self.under_key[key].append(job)

    def _fall(self, job: Job[Lane]) -> None:
        key = key_of(job.new)
        if key is not None and job in self.under_key.get(key, ()):
            self.under_key[key].remove(job)
            if not self.under_key[key]:
                del self.under_key[key]

    def replace(self, job: Job[Lane], new: NewJob, now: int) -> None:
        """Let a waiting job ask for what `new` asks for, as if it had never been tried."""
        old = job.new
        waited = Waited(
            job.id,
            old.queue,
            old.draws,
            old.terms,
            job.held,
            job.passed,
            old.costs is not None,
            job.delayed,
            job.run_at,
        )
        after = replacement(waited, new)
        if after.gone:
            self.holders.give(job, after.gone, now)
        if job.is_blocked:
            job.lane.tally.waiting -= 1
        elif not after.stays:
            self._leave(job, now)
        behind = job.lane.behind if old.costs is not None else None
        job.become(msgspec_replace(after.new, enqueued_at=old.enqueued_at, origin=old.origin))
        job.run_at, job.delayed = after.new.run_at, after.new.delayed
        job.held, job.passed = after.held, NO_DRAWS
        job.attempt = job.lost = 0
        job.fence += 1
        job.error = job.progress = None
        if not after.draws_alike:
            job.starts = None
        job.set_deadlines(new.expires_at, new.give_up_at)
        if job.is_blocked:
            job.lane = self._lanes.lane(new.queue, ())
            job.lane.tally.waiting += 1
            job.set_deadlines(new.expires_at, None)
        elif after.stays:
            self._stay(job, behind, now)
        else:
            job.lane = self._lanes.lane_of(job.new, job.passes)
            self._enter(job, now)
        if job.deadline is not None:
            self._watch_deadline(job)

    def _stay(self, job: Job[Lane], behind: object, now: int) -> None:
        """Stand anew in the lane where it waited, which keeps its own place in line."""
        lane = job.lane
        lane.stale += 1
        job.version += 1
        lane.place(job)
        if not lane.is_awake:
            self._lanes.sleep(lane)
            if not job.delayed:
                self._lanes.make_due(lane, now)
        elif isinstance(behind, Bucket):
            # It may have been closed for what this job cost before.
            self._lanes.reopen(behind, now)
        if lane.stale > lane.waiting + 64:
            lane.drop_stale()

    def stop_waiting(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        """End a waiting job other than by a claim."""
        if job.is_blocked:
            job.is_blocked = False
            job.lane.tally.waiting -= 1
        else:
            self._leave(job, now)
        self.end_unrun(job, state, wall, now, error)

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

    def has_ended(self, node: str, ending: Ending) -> bool:
        """Whether the job is final by that very ending of the node."""
        job = self.by_id.get(ending.id)
        if job is None or job.node != node:
            return False
        return EndedHere(job.id, job.fence, job.state, job.error, job.cancel_requested).is_by(ending)

    def wait_or_cancel(
        self, job: Job[Lane], wall: int, now: int, ready_at: int | None = None, *, is_unspent: bool = False
    ) -> bool:
        """Whether the job, which was running, waits again; False if its cancellation had been asked for.

        Nor does one that gives its place to its successor; that keeps the number of the attempt that was its last.
        """
        self.stop_running(job)
        successor = None if job.cancel_requested else self.rival(job)
        job.attempt -= is_unspent and successor is None
        if job.cancel_requested:
            self.end_unrun(job, CANCELLED, wall, now, error=job.error)
            return False
        if successor is not None:
            self.end_unrun(job, CANCELLED, wall, now, error=superseded_error(successor.id))
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

    def end_unrun(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        """Make a job final of which no attempt tells, so that nobody else counts it."""
        self._history.note_unrun(job.new, state, wall)
        self.end(job, state, wall, now, error)

    def end(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        """Make a job final; its followers hear of it when they are told."""
        self._end_unheard(job, state, wall, now, error)
        self.following.note_end(job)
        if job.new.origin is not None:
            self.schedules.note_end(job)

    def _end_unheard(self, job: Job[Lane], state: JobState, wall: int, now: int, error: JobError | None) -> None:
        if job.held:
            self.holders.keep(job, state, now)
        if job.new.unique_key is not None:
            self._fall(job)
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
        heappush(self._finals[state], (wall, self._ticks, job))

    def keep_attempt(self, job: Job[Lane], outcome: str, error: JobError | None, wall: int) -> None:
        if job.new.audit.keeps_attempt(outcome, has_error=error is not None):
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
        job.settled = None if charge.costs is None else tuple(spread(charge.costs, job.uncharged, 1))

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

    def found(self, ids: Sequence[str]) -> Iterator[Job[Lane]]:
        """Those of these jobs that are here, by id."""
        return (job for id in sorted(ids) if (job := self.by_id.get(id)) is not None)

    def regate(self, change: Regated, now: int) -> bool:
        """Let a job that waits and asks what it did before ask for something else; whether it was so."""
        job = self.by_id.get(change.id)
        if job is None or job.state is not WAITING or job.new.draws != change.before:
            return False
        before, terms = job.new, change.terms
        # One that stays is placed anew as well: it may have been set aside.
        held = kept_permits(job.id, before.draws, before.terms, job.held, change.draws, terms)
        gone = difference(job.held, draws_where(draw in held for draw in before.draws))
        if gone:
            self.holders.give(job, gone, now)
        if not job.is_blocked:
            self._leave(job, now)
        if (before.draws, before.costs) != (change.draws, change.costs):
            # The starts of its attempts were charged to what it asked before.
            job.starts = None
        variant = "" if terms is None else terms.variant()
        asked = msgspec_replace(
            before,
            draws=change.draws,
            costs=change.costs,
            terms=terms,
            variant=variant,
            gate=change.gate or before.gate,
        )
        job.become(asked)
        if job.is_blocked:
            # It goes to the lane of what it asks for then when it is released.
            return True
        job.held = draws_where(draw in held for draw in change.draws)
        job.passed = NO_DRAWS if terms is None or not job.passed else terms.free_retries
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
                dropped.append(Dropped(new.id, new.task, new.queue, state, error, job.attempt))
        return dropped

    def prune(self, finished_before: int, now: int, count: int, states: frozenset[JobState]) -> list[str]:
        deleted: list[str] = []
        for state, finals in self._finals.items():
            while state in states and len(deleted) < count and finals and finals[0][0] < finished_before:
                finished_at, _, job = heappop(finals)
                if (job.finished_at, job.state) == (finished_at, state) and self.by_id.get(job.id) is job:
                    self._forget(job, finished_before, now)
                    deleted.append(job.id)
        if not deleted:
            self.following.prune(finished_before)
        self._drop_ids()
        return deleted

    def prune_these(
        self, ids: Sequence[str], finished_before: int, now: int, count: int, states: frozenset[JobState]
    ) -> list[str]:
        found = [job for id in ids if (job := self.by_id.get(id)) is not None and job.state in states]
        old = [job for job in found if job.finished_at is not None and job.finished_at < finished_before][:count]
        for job in old:
            self._forget(job, finished_before, now)
        self._drop_ids()
        return [job.id for job in old]

    def _forget(self, job: Job[Lane], finished_before: int, now: int) -> None:
        # A permit that was kept for a job until it succeeds is not kept longer than the job.
        self.holders.keep(job, SUCCEEDED, now)
        del self.by_id[job.id]
        self.following.forget(job, finished_before)
        job.lane.tally.count(job.state, -1)

    def _drop_ids(self) -> None:
        if len(self._ids) > 2 * len(self.by_id) + 64:
            self._ids = [id for id in self._ids if id in self.by_id]

    def _hand_back(self, job: Job[Lane], ending: Returned, wall: int, now: int) -> None:
        self.keep_attempt(job, ending.outcome, ending.error, wall)
        terms = job.new.terms
        if ending.spent and terms is not None:
            job.passed = terms.free_retries
        if ending.run_at is not None:
            job.run_at = ending.run_at
            job.delayed = True
        if ending.error is not None:
            job.error = ending.error
        if ending.closed_for is not None:
            # Permits are no business of the callee's.
            for draw in without(job.new.draws, NO_DRAWS if terms is None else terms.permits):
                self._lanes.bucket(draw).penalize(now + ending.closed_for)
        self.wait_or_cancel(job, wall, now, ending.run_at, is_unspent=not ending.spent)

    def _watch_deadline(self, job: Job[Lane]) -> None:
        assert job.deadline is not None
        self._ticks += 1
        heappush(self._deadlines, (job.deadline, self._ticks, job))
        if len(self._deadlines) > self._deadlines_limit:
            # Jobs that ended long before their deadline must not be kept for it.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].state.is_final]
            heapify(self._deadlines)
            self._deadlines_limit = max(64, 2 * len(self._deadlines))
