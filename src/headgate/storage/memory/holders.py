"""Which jobs hold permits, and how those come back."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.jobs.draw_set import DrawSet, chosen, difference, draws_where, intersection, spread, union
from headgate.jobs.job import Draw, JobState
from headgate.limits.concurrency import OF_BATCH, Semaphore, batches_of
from headgate.storage.memory.job import RUNNING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.memory.lanes import Lanes


class Holders:
    """The jobs of one store that hold permits, in the order in which they were first given one."""

    def __init__(self, lanes: Lanes) -> None:
        self.jobs: dict[str, Job[Lane]] = {}
        self._lanes = lanes

    def hold(self, job: Job[Lane]) -> None:
        """Write down what a job that starts from its lane holds now, and what it was not charged for."""
        terms = job.new.terms
        assert terms is not None
        job.uncharged = passes = job.passes
        are_permits = [bucket.rule.holds_permits for bucket in job.lane.own_buckets]
        taken = draws_where(spread(are_permits, passes, False))
        job.held = union(job.held, intersection(taken, terms.permits))
        if job.held:
            self.jobs[job.id] = job

    def keep(self, job: Job[Lane], state: JobState, now: int) -> None:
        """Let a job give back the permits that it does not keep as `state`."""
        terms = job.new.terms
        if job.held and terms is not None:
            self.give(job, difference(job.held, terms.kept(job.held, state)), now)

    def idle(self, draw: Draw) -> list[tuple[Job[Lane], DrawSet]]:
        """The jobs that hold permits of a bucket without running, and those of their draws."""
        found: list[tuple[Job[Lane], DrawSet]] = []
        for job in self.jobs.values():
            if job.state is not RUNNING:
                drawn = intersection(job.held, draws_where(other == draw for other in job.new.draws))
                if drawn:
                    found.append((job, drawn))
        return found

    def give_up(self, batch: str, draws: Iterable[Draw], now: int) -> None:
        """A batch is final: it holds nothing any more."""
        for draw in draws:
            bucket = self._lanes.bucket(draw)
            if batch in batches_of(bucket.permits):
                bucket.state = Semaphore.release(bucket.permits, OF_BATCH + batch)
                self._lanes.reopen(bucket, now)
                self._lanes.list_unused(bucket)

    def give(self, job: Job[Lane], given: DrawSet, now: int) -> None:
        """Take permits from a job; whoever waits for one is looked at by the next claim."""
        terms = job.new.terms
        assert terms is not None
        job.held = difference(job.held, given)
        if not job.held:
            self.jobs.pop(job.id, None)
        for draw, holding in chosen(zip(job.new.draws, terms.holds, strict=False), given):
            if holding is not None:
                bucket = self._lanes.bucket(draw)
                if bucket.permits.holders:
                    bucket.state = Semaphore.give(bucket.permits, holding.holder(job.id))
                self._lanes.reopen(bucket, now)
                self._lanes.list_unused(bucket)
